"""``joulecast predict``: time, power and energy of one plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulecast import output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("predict")(predict)


def predict(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of the plan.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timeline, to be opened in ui.perfetto.dev.")
    ] = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Forecast the time, power and energy of one training iteration."""
    from joulecast.simulator.plan import load_plan

    loaded = load_plan(plan, settings or ())
    from joulecast.simulator.forecast import forecast

    iteration = forecast(loaded)
    result = iteration.to_dict()
    if trace is not None:
        from joulecast.simulator.trace import write_trace

        write_trace(iteration, trace)
    if json:
        output.print_json(result)
