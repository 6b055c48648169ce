"""``joulecast plot``: figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from joulecast.command_line import output
from joulecast.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.simulator.iteration.result import Iteration

Out: TypeAlias = Annotated[Path, typer.Option(metavar="FILE", help="Where to: .pdf, .png or .svg.")]
Width: TypeAlias = Annotated[
    float | None, typer.Option(min=1.0, max=40.0, metavar="INCHES", help="Width of the figure.")
]
Source: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PLAN.toml|RESULT.json", help="A plan, or what the command printed with --json.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    group = typer.Typer(
        help="Draw figures for papers: the same bytes every time.", rich_markup_mode=None, no_args_is_help=True
    )
    for name, command in (("front", front), ("timeline", timeline), ("ledger", ledger), ("measured", measured)):
        group.command(name)(command)
    app.add_typer(group, name="plot")


def front(
    source: Source,
    out: Out,
    settings: output.SetOption = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, metavar="S", help="Point out the plan for this time [s].")
    ] = None,
    width: Width = None,
    json: output.JsonOption = False,
) -> None:
    """Draw the time-energy front of a plan.

    With its lower bound and the plan as it stands.
    """
    _check(out)
    from joulecast.reports.figures.front import front_figure
    from joulecast.reports.series import front as front_series

    if _is_saved(source, settings):
        from joulecast.reports.saved import read_saved

        series = front_series.of_saved(read_saved(source, "front"), source, time_limit)
    else:
        from joulecast.plan.fronts.forecast_front import forecast_front

        iteration = _iteration(source, settings)
        with output.working("finding plans"):
            found = forecast_front(iteration.plan, time_limit_s=time_limit)
        series = front_series.of_front(found, iteration, time_limit)
    _save(front_figure(series, width or 5.0), out, json)


def timeline(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    out: Out,
    settings: output.SetOption = None,
    width: Width = None,
    json: output.JsonOption = False,
) -> None:
    """Draw the timeline of an iteration.

    Instructions, communication, waiting, and power with its limit.
    """
    _check(out)
    if _is_saved(plan, None):
        raise InputError("a saved result has no timeline", file=str(plan), remedy="Give the PLAN.toml.")
    from joulecast.reports.figures.timeline import timeline_figure
    from joulecast.reports.series.timeline import of_iteration

    _save(timeline_figure(of_iteration(_iteration(plan, settings)), width or 6.3), out, json)


def ledger(
    source: Source,
    out: Out,
    settings: output.SetOption = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="component or instruction.")] = "component",
    width: Width = None,
    json: output.JsonOption = False,
) -> None:
    """Draw where the energy of an iteration goes.

    By component or by instruction, with its 90 % interval.
    """
    _check(out)
    if by not in ("component", "instruction"):
        raise UnknownNameError("split", by, ("component", "instruction"), key="--by")
    from joulecast.reports.figures.ledger import ledger_figure
    from joulecast.reports.saved import number_of, read_saved
    from joulecast.reports.series.ledger import ledger_of

    if _is_saved(source, settings):
        result = read_saved(source, "iteration")
        number_of(result, "energy_j", source)
    else:
        result = _iteration(source, settings).to_dict()
    _save(ledger_figure(ledger_of(result, by), width or 6.3), out, json)


def measured(
    suite: Annotated[str, typer.Argument(metavar="SUITE|RESULT.json", help="Suite of validate, or its saved result.")],
    out: Out,
    data: Annotated[Path | None, typer.Option(metavar="PATH", help="Measured rows, for a suite.")] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", callback=output.known_gpu, help="GPU description to score.")
    ] = None,
    quantity: Annotated[str, typer.Option(metavar="NAME", help="time, energy, power, clock or memory.")] = "time",
    width: Width = None,
    json: output.JsonOption = False,
) -> None:
    """Draw forecasts over measured values.

    With the band of ±5 % and the errors.
    """
    _check(out)
    from joulecast.reports.figures.measured import measured_figure
    from joulecast.reports.saved import read_saved
    from joulecast.reports.series.measured import QUANTITIES, measured_pairs

    keys = {word: key for key, (word, _) in QUANTITIES.items()}
    if quantity not in keys:
        raise UnknownNameError("quantity", quantity, keys, key="--quantity")
    if data is None and not suite.endswith(".json"):
        raise InputError("measured rows are missing", key="--data", remedy="Give them, or a saved RESULT.json.")
    if data is None:
        report = read_saved(Path(suite), "validation")
    else:
        from joulecast.validate import run_suite

        with output.working(f"forecasting {suite}"):
            report = run_suite(suite, data, gpu=gpu).to_dict()
    families = measured_pairs(report, keys[quantity])
    if not families:
        raise InputError(f"no row has both a measured and a forecast {quantity}", key="--quantity")
    _save(measured_figure(keys[quantity], families, width or 4.2), out, json)


def _check(out: Path) -> None:
    from joulecast.reports.figures.figure import check_figure

    check_figure(out)


def _is_saved(source: Path, settings: list[str] | None) -> bool:
    saved = source.suffix.lower() == ".json"
    if saved and settings:
        raise InputError("a saved result cannot be changed", file=str(source), key="--set", remedy="Give the plan.")
    return saved


def _iteration(plan: Path, settings: list[str] | None) -> Iteration:
    from joulecast.simulator.iteration.forecast import forecast
    from joulecast.simulator.plan_file.plan import load_plan

    return forecast(load_plan(plan, settings or ()))


def _save(figure: Figure, out: Path, json: bool) -> None:
    from joulecast.reports.figures.figure import save

    save(figure, out)
    if json:
        output.print_json({"out": str(out)})
    else:
        output.progress(f"wrote {out}")
