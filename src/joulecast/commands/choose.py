"""``joulecast choose``: overlap and tiles of a stage's layers, chosen together at every clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output

if TYPE_CHECKING:
    from joulecast.plan.fronts.choice_result import ClockChoices, JointChoice

#: Most clocks of a part that are shown where not all are asked for.
MOST_CLOCKS = 10


def choose(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    settings: output.SetOption = None,
    space: Annotated[
        Path | None, typer.Option(metavar="SPACE.toml", help="Clocks, knobs of overlap and tiles to choose from.")
    ] = None,
    direction: Annotated[str, typer.Option(metavar="NAME", help="forward or backward.")] = "forward",
    stage: Annotated[int, typer.Option(min=0, metavar="N", help="Pipeline stage whose layers are composed.")] = 0,
    every_clock: Annotated[
        bool, typer.Option("--all", help="Show every clock, as --json and --csv do; else the best and some between.")
    ] = False,
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
        for part, clocks in found.parts.items():
            _print_part(found, part, clocks if every_clock else some_clocks(clocks))
        print(f"{found.scored} configurations scored")
        output.print_assumed(found.notes)


def some_clocks(clocks: Sequence[ClockChoices]) -> Sequence[ClockChoices]:
    """Of many clocks the most economical, the fastest that the board holds, some evenly between, and one beyond each.

    Where the board holds none, the fastest of all.
    """
    if len(clocks) <= MOST_CLOCKS:
        return clocks
    held = [at for at in clocks if at.time_best.held] or clocks
    fastest = clocks.index(min(held, key=lambda at: at.time_best.time_s))
    economical = clocks.index(min(clocks, key=lambda at: at.energy_best.energy_j))
    low, high = sorted((economical, fastest))
    between = {round(low + (high - low) * step / (MOST_CLOCKS - 3)) for step in range(MOST_CLOCKS - 2)}
    return [at for i, at in enumerate(clocks) if i in between | {low - 1, high + 1}]


def _print_part(found: JointChoice, part: str, clocks: Sequence[ClockChoices]) -> None:
    """The table of a part at some clocks."""
    title = f"{part}, {found.direction}" + f", {found.layers} layers" * (part == "stage")
    title += f"; energy and power of {found.gpus} GPUs" * (found.gpus > 1)
    shown = {at.clock_mhz for at in clocks}
    lines = [line for line in found.lines() if line["part"] == part and line["clock_mhz"] in shown]
    output.print_table([_line(line) for line in lines], title=title)
    every = len(found.parts[part])
    if len(clocks) < every:
        print(
            f"{len(clocks)} of {every} clocks, around the most economical and the fastest that is held; --all shows all"
        )
    print()


def _line(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the table for people."""
    shown = {
        "clock [MHz]": line["clock_mhz"],
        "time [s]": line["time_s"],
        "5-95 % of time": output.ends_of(line, "time_s"),
        "energy [J]": line["energy_j"],
        "5-95 % of energy": output.ends_of(line, "energy_j"),
        "power [W]": line["power_w"],
        "5-95 % of power": output.ends_of(line, "power_w"),
        "held": "yes" if line["held"] else "no",
    }
    named = ("part", "clock_mhz", "time_s", "energy_j", "power_w", "held")
    knobs = {k: v for k, v in line.items() if k not in named and not k.endswith(("_p05", "_p95"))}
    return shown | knobs
