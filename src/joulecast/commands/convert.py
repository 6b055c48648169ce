"""``joulecast convert``: a training job's own configuration as a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulecast.command_line import output
from joulecast.command_line.destinations import check_destinations


def convert(
    job: Annotated[
        list[str],
        typer.Argument(metavar="JOB…", help="The job's file, or its command, best behind --; - reads a script."),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", callback=output.known_gpu, help="The GPU: of the catalogue, or a description."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many; wins over the job's own.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model by name or config.json, in place of the job's sizes.")
    ] = None,
    power_limit: Annotated[float | None, typer.Option(metavar="W", help="Power limit of each GPU.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable that the job's environment sets.")
    ] = None,
    pass_over: Annotated[
        list[str] | None, typer.Option(metavar="FLAG", help="A flag of your own that changes nothing here.")
    ] = None,
    settings: output.SetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="PLAN.toml", help="Write the plan there.")] = None,
    json: output.JsonOption = False,
) -> None:
    """Make a plan of a training job's own script or configuration.

    It reads launch scripts and commands of Megatron-LM, NeMo, Megatron-Bridge, AutoModel, verl, OpenRLHF and Hugging
    Face's trainers (accelerate, TRL, LLaMA-Factory, Axolotl, ms-swift) with the files that they name, a TOML of
    torchtitan, a YAML of torchtune and a JSON of DeepSpeed. Every key has what it comes from beside it. Nothing of
    the job is run.
    """
    import sys

    from joulecast.files import write_text
    from joulecast.simulator.job_files.asked import Asked
    from joulecast.simulator.job_files.convert import convert_job

    read: str | list[str] = job if len(job) > 1 else sys.stdin.read() if job == ["-"] else job[0]
    check_destinations({"--out": out}, [Path(job[0])] if len(job) == 1 else [])
    asked = Asked(gpu, gpus, model, power_limit, _pairs(env or ()), frozenset(pass_over or ()))
    found = convert_job(read, asked, settings or ())
    for warning in found.warnings:
        output.progress(f"warning: {warning}")
    for key, what in found.missing.items():
        output.progress(f"missing: {key}: {what}")
    if found.passed_over:
        output.progress(f"passed over: {', '.join(found.passed_over)}")
    if out is not None:
        write_text(out, found.text)
        output.progress(f"wrote {out}")
    if json:
        output.print_json(found.to_dict())
    elif out is None:
        print(found.text, end="")


def _pairs(settings: list[str] | tuple[str, ...]) -> dict[str, str]:
    from joulecast.errors import InputError

    found = {}
    for setting in settings:
        name, equals, found[name] = setting.partition("=")
        if not name or not equals:
            raise InputError(f"cannot read {setting!r}", file="--env", remedy="Write it as NAME=VALUE.")
    return found
