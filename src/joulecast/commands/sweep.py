"""``joulecast sweep``: every plan of a space, those that meet constraints, and the best."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.files import check_new_folder, write_folder, write_text

if TYPE_CHECKING:
    from joulecast.plan.sweep.result import SweepResult
    from joulecast.plan.sweep.space import Space

#: Lines of the table for people.
LINES = 20


def sweep(
    space: Annotated[Path, typer.Argument(metavar="SPACE.toml", help="A plan whose values may be lists or ranges.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of the space.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every row: .parquet, .csv, .json or .jsonl.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.toml", help="Write the best plan, for joulecast predict.")
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write every plan of the tables, as NUMBER.toml in a new folder."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes on this machine.")] = 1,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler instead.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted sweep with the same --out.")
    ] = False,
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Forecast every legal plan of a space and find the best.

    Constraints and objective stand in the space.
    """
    from joulecast.command_line.destinations import check_destinations
    from joulecast.command_line.progress import ProgressBar
    from joulecast.plan.sweep.search import run_sweep
    from joulecast.plan.sweep.space import load_space

    check_destinations({"--out": out, "--plan": plan, "--report": report}, [space])
    if plans is not None:
        check_new_folder(plans, "--plans")
    loaded = load_space(space, settings or ())
    try:
        with ProgressBar() as bar:
            result = run_sweep(
                loaded, out, workers=workers, dask=dask, resume=resume, progress=bar.show, note=output.progress
            )
    except KeyboardInterrupt:
        kept = "the same command with --resume goes on from what it has" if out else "without --out nothing is kept"
        output.progress(f"interrupted: {kept}")
        raise typer.Exit(130) from None
    if out is not None:
        output.progress(f"wrote {out}")
    _write_plans(result, loaded, plan, plans)
    if report is not None:
        from joulecast.reports.pages.sweep import sweep_page
        from joulecast.reports.write import write_report

        best, of_each = _lines(result.best, loaded), _lines(result.of_each_cluster, loaded)
        write_report(sweep_page(result, best, of_each, loaded), report)
    if json:
        output.print_json(result.to_dict())
    elif csv:
        output.print_csv(result.rows)
    else:
        print_result(result, loaded)


def _write_plans(result: SweepResult, space: Space, best: Path | None, folder: Path | None) -> None:
    """Write the best plan, and all that the tables show."""
    from joulecast.plan.sweep.plan_text import plan_text

    if best is not None:
        write_text(best, plan_text(space, result.best[0], best.parent))
        output.progress(f"wrote {best}")
    if folder is not None:
        shown = [*result.best[:LINES], *result.of_each_cluster[:LINES]]
        write_folder(folder, {f"{row['plan']}.toml": plan_text(space, row, folder) for row in shown})
        output.progress(f"wrote {folder}")


def print_result(result: SweepResult, space: Space) -> None:
    """Print the best plans for people."""
    counts = ", ".join(f"{count} {what}" for what, count in result.counts.items())
    print(f"Combinations: {counts}")
    if result.beyond:
        print(f"Left out by: {', '.join(f'{key} {count}' for key, count in result.beyond.items())}")
    print(f"\nBest by {output.listed(result.minimise)}" + (", the front" if len(result.minimise) > 1 else ""))
    output.print_table(_lines(result.best, space))
    if len(result.best) > LINES:
        print(f"… and {len(result.best) - LINES} more; --out FILE or --csv has all")
    if result.of_each_cluster:
        print(f"\nBest by {result.minimise[0]} of each GPU and number of them")
        output.print_table(_lines(result.of_each_cluster, space))
    output.print_assumed(result.to_dict()["notes"])


def _lines(rows: Sequence[dict[str, Any]], space: Space) -> list[dict[str, Any]]:
    from joulecast.plan.sweep.plan_text import done_without

    return [_line(row, space.keys, done_without(space, row)) for row in rows[:LINES]]


def _line(row: dict[str, Any], keys: Sequence[str], without: Sequence[str]) -> dict[str, Any]:
    from joulecast.command_line.key_words import short_key

    line = {"plan": row["plan"]}
    for key in (*keys, "gpus", "data_parallel_size"):
        line[short_key(key)] = None if key in without else row[key]
    line |= {
        "time [s]": row["time_s"],
        **_ends(row, "time_s"),
        "energy [J]": row["energy_j"],
        **_ends(row, "energy_j"),
        "power [W]": row["power_w"],
        **_ends(row, "power_w"),
        "free memory [%]": round(100.0 * row["memory_margin"], 1),
    }
    return line | _costs(row)


def _ends(row: dict[str, Any], key: str) -> dict[str, str]:
    """The interval of a simulated plan's time, energy or power."""
    if row.get(f"{key}_p05") is None:
        return {}
    return {f"5-95 % of {key.partition('_')[0]}": output.ends_of(row, key, 3)}


def _costs(row: dict[str, Any]) -> dict[str, Any]:
    """Money and carbon of the run where one is asked for, else of an iteration."""
    if "money" not in row:
        return {}
    if "run_money" not in row:
        return {f"money [{row['currency']}]": row["money"], "carbon [kg]": row["carbon_kg"]}
    return {
        "run [days]": row["run_time_s"] / 86400.0,
        "run [MWh]": row["run_energy_j"] / 3.6e9,
        f"run [{row['currency']}]": row["run_money"],
        "run, carbon [t]": row["run_carbon_kg"] / 1000.0,
        "facility [W]": row["facility_power_w"],
    }
