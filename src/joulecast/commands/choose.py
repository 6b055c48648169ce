"""``joulecast choose``: overlap and tiles of a stage's layers, chosen together at every clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.command_line import output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("choose")(choose)


def choose(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    settings: output.SetOption = None,
    space: Annotated[
        Path | None, typer.Option(metavar="SPACE.toml", help="Clocks, knobs of overlap and tiles to choose from.")
    ] = None,
    direction: Annotated[str, typer.Option(metavar="NAME", help="forward or backward.")] = "forward",
    stage: Annotated[int, typer.Option(min=0, metavar="N", help="Pipeline stage whose layers are composed.")] = 0,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Choose overlap and tiles of a layer together, at every clock.

    The fastest, the most economical and every way between: for each half of a layer, and for a whole stage.
    """
    from joulecast.plan.fronts.joint_choice import joint_choice
    from joulecast.plan.knobs.front_space import load_space
    from joulecast.simulator.plan_file.plan import load_plan

    chosen = None if space is None else load_space(space)
    found = joint_choice(load_plan(plan, settings or ()), space=chosen, direction=direction, stage=stage)
    if json:
        output.print_json(found.to_dict())
    elif csv:
        output.print_csv(found.lines())
    else:
        for part in found.parts:
            title = f"{part}, {found.direction}" + f", {found.layers} layers" * (part == "stage")
            title += f"; energy and power of {found.gpus} GPUs" * (found.gpus > 1)
            output.print_table([_line(line) for line in found.lines() if line["part"] == part], title=title)
            print()
        print(f"{found.scored} configurations scored")
        output.print_assumed(found.notes)


def _line(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the table for people."""
    shown = {
        "clock [MHz]": line["clock_mhz"],
        "time [s]": line["time_s"],
        "5-95 % of time": _ends(line, "time_s"),
        "energy [J]": line["energy_j"],
        "5-95 % of energy": _ends(line, "energy_j"),
        "power [W]": line["power_w"],
        "5-95 % of power": _ends(line, "power_w"),
        "held": "yes" if line["held"] else "no",
    }
    named = ("part", "clock_mhz", "time_s", "energy_j", "power_w", "held")
    knobs = {k: v for k, v in line.items() if k not in named and not k.endswith(("_p05", "_p95"))}
    return shown | knobs


def _ends(line: dict[str, Any], key: str) -> str:
    """Both ends of an interval, as one word: a narrow terminal breaks none."""
    return f"{output.number(line[f'{key}_p05'])}–{output.number(line[f'{key}_p95'])}"
