"""``joulecast validate``: predictions held against measured rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast import output

#: Quantities of a row, and the heading under which the table shows them.
QUANTITIES = {"time_s": "time [s]", "energy_j": "energy [J]", "power_w": "power [W]", "sm_clock_mhz": "clock [MHz]"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("validate")(validate)


def validate(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="kernels, blocks, collectives, train, …")],
    data: Annotated[Path, typer.Option(metavar="PATH", help="Measured rows: a file, or the folder that holds them.")],
    gpu: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="GPU description to score.")] = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Fit on all folds but one, score that one, for each fold.")
    ] = None,
    fit_rows: Annotated[Path | None, typer.Option(metavar="FILE", help="Fit on these rows first.")] = None,
    calibrate_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Fit on N of the rows first, score the others.")
    ] = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Hold predictions against measured rows and report the errors beside trivial baselines."""
    from joulecast.validate import run_suite

    result = run_suite(suite, data, gpu=gpu, folds=folds, fit_rows=fit_rows, calibrate_rows=calibrate_rows)
    report = result.to_dict()
    if json:
        output.print_json(report)
    elif csv:
        output.print_csv([flat_row(row) for row in report["rows"]])
    else:
        print_report(report)


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the report without nesting, and with its relative errors [%]."""
    measured, predicted = row.get("measured") or {}, row.get("predicted") or {}
    flat: dict[str, Any] = {"name": row.get("name", row.get("id"))}
    for quantity in QUANTITIES:
        flat[f"measured_{quantity}"] = measured.get(quantity)
        flat[f"predicted_{quantity}"] = predicted.get(quantity)
        flat[f"error_{quantity}_percent"] = error_percent(measured.get(quantity), predicted.get(quantity))
    return flat | {f"predicted_{k}": v for k, v in predicted.items() if k not in QUANTITIES}


def error_percent(measured: float | None, predicted: float | None) -> float | None:
    """Relative error [%], ``None`` where there is nothing to compare.

    >>> error_percent(2.0, 2.1)
    5.0
    """
    if not measured or predicted is None:
        return None
    return round(100.0 * (predicted / measured - 1.0), 2)


def print_report(report: Mapping[str, Any]) -> None:
    """Print rows, what was skipped and the summary for people."""
    flat = [flat_row(row) for row in report["rows"]]
    columns = [("measured", "measured"), ("predicted", "forecast")]
    table = []
    for row in flat:
        line: dict[str, Any] = {"name": row["name"]}
        for quantity, heading in QUANTITIES.items():
            line |= {f"{heading} {word}": row[f"{kind}_{quantity}"] for kind, word in columns}
            line[f"error of {heading.split()[0]} [%]"] = row[f"error_{quantity}_percent"]
        table.append(line)
    used = [name for name in (table[0] if table else {}) if any(line[name] is not None for line in table)]
    output.print_table(table, used)
    for skipped in report.get("skipped", ()):
        print(f"skipped {skipped.get('name', skipped.get('id'))}: {skipped.get('reason')}")
    print()
    _print_summary(report["summary"])


def _print_summary(summary: Mapping[str, Any]) -> None:
    """Groups of figures as a table with one line each, single figures as pairs."""
    groups = {name: value for name, value in summary.items() if isinstance(value, Mapping)}
    output.print_pairs((name, value) for name, value in summary.items() if name not in groups)
    if groups:
        output.print_table([{"": name, **value} for name, value in groups.items()])
