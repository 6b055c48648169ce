"""``joulecast front``: time-energy fronts of plans, from forecasts or measured profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulecast import output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("front")(front)


def front(
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="The plan, to be forecast.")] = None,
    settings: output.SetOption = None,
    space: Annotated[
        Path | None, typer.Option(metavar="SPACE.toml", help="Clocks or limits, overlap and tiles to choose from.")
    ] = None,
    switch_time: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="S", help="Time of a change of clock [s]; stages of shorter instructions keep one."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Measured stage,instruction,frequency,time,energy.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="gpipe, 1f1b (by default), interleaved-1f1b, zb-h1; of a profile.")
    ] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, help="Micro-batches of an iteration.")] = None,
    dag: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Your own graph of instructions, not a schedule.")
    ] = None,
    wait_power: Annotated[float | None, typer.Option(min=0.0, help="Power of a GPU that waits [W].")] = None,
    stages: Annotated[str | None, typer.Option(metavar="0,1,…", help="Stages of the profile to use.")] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(min=1, help="Stages on each rank, for interleaved schedules.")
    ] = None,
    transfer_time: Annotated[float | None, typer.Option(min=0.0, help="Time of a transfer between stages [s].")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Leave out slower plans [s].")] = None,
    simple: Annotated[
        str | None,
        typer.Option(
            help="One clock for each stage and direction (stage), in the steady state (steady), or stage (rank)."
        ),
    ] = None,
    straggler_time: Annotated[
        list[float] | None,
        typer.Option(metavar="T", min=0.0, help="Also the plan for iterations that something else makes last T [s]."),
    ] = None,
    slow_rank: Annotated[
        str | None, typer.Option(metavar="R=1.2|R=1100MHz", help="A rank that is slower, or whose clock is held.")
    ] = None,
    power_limits: Annotated[
        str | None,
        typer.Option(metavar="W,W,…|FILE.csv", help="One limit for the whole job: of a plan, or as measured."),
    ] = None,
    per_rank: Annotated[
        bool, typer.Option("--per-rank", help="A limit for each pipeline rank: these, or the board's range in steps.")
    ] = False,
    power_budget: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="W", help="What the limits of all GPUs may be together [W]; with --per-rank."),
    ] = None,
    eta: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Choose a limit: weight of energy against time, 0 to 1.")
    ] = None,
    epochs: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="batch_size,epochs: limits and batch sizes to the target.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sequences of an epoch, with a plan and --epochs.")] = None,
    job: Annotated[str | None, typer.Option(help="Which job of measured power limits.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of measured power limits, by default 1.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of FILE: json, csv, parquet, zeus-pfo, zeus-power-limit.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file (zeus-pfo: a new folder).")] = None,
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Plans from the fastest to the one of least energy, each with the least energy that its time allows."""
    from joulecast.front_answers import answer
    from joulecast.front_asked import FrontAsked, checked_form

    form = checked_form(form, out)
    asked = FrontAsked(
        plan=plan, settings=settings or [], space=space, switch_time=switch_time, profile=profile, schedule=schedule,
        microbatches=microbatches, dag=dag, wait_power=wait_power, stages=stages, virtual_stages=virtual_stages,
        transfer_time=transfer_time, time_limit=time_limit, simple=simple, straggler_time=straggler_time or [],
        slow_rank=slow_rank, power_limits=power_limits, per_rank=per_rank, power_budget=power_budget, eta=eta,
        epochs=epochs, samples=samples, job=job, gpus=gpus, form=form, out=out,
    )  # fmt: skip
    found = answer(asked)
    if out is not None:
        found.write(out, form or "json")
        output.progress(f"wrote {out}")
    if report is not None:
        found.report(report)
    if json or (form == "json" and out is None):
        found.print_json()
    elif csv or (form == "csv" and out is None):
        output.print_csv(found.rows())
    elif out is None:
        found.print()
