"""``joulecast validate``: predictions held against measured rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.errors import DataError

#: Quantities of a row, and the heading under which the table shows them.
QUANTITIES = {
    "time_s": "time [s]",
    "energy_j": "energy [J]",
    "power_w": "power [W]",
    "sm_clock_mhz": "clock [MHz]",
    "peak_mem_bytes": "memory [GB]",
}
#: What a value is multiplied by for its heading.
SCALES = {"peak_mem_bytes": 1e-9}

#: Figures of the summary [%], and their headings.
FIGURES = {
    "error": "mean error [%]",
    "baseline": "trivial rule [%]",
    "nearest": "nearest setting [%]",
    "others": "all other rows known [%]",
    "worst": "worst [%]",
    "bias": "bias [%]",
    "inside": "inside 90 % interval [%]",
    "half_width": "half-width [%]",
}
#: What the suites' tables of choices show.
CHOICES = {
    "overlap": "measured cost of the choice over that of the best row of each problem",
    "kernels": "tiles of one kernel: measured cost of the one chosen by forecast, and their order",
}


#: Named here because the suites take long to load; a test compares.
SUITES = (
    "kernels, blocks, collectives, overlap, train, plans",
    "dvfs, power-limit, perseus, a100-overlap, fronts, network, published",
)


def validate(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help=f"{SUITES[0]}; of others: {SUITES[1]}.")],
    data: Annotated[Path, typer.Option(metavar="PATH", help="Measured rows: a file, or the folder that holds them.")],
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            callback=output.known_gpu,
            help="GPU description to score, by default h200-sxm or the card of the rows.",
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Fit on all folds but one, score that one, for each fold.")
    ] = None,
    fit_rows: Annotated[Path | None, typer.Option(metavar="FILE", help="Fit on these rows first.")] = None,
    calibrate_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Fit on N of the rows first, score the others.")
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(metavar="gpu|source", help="Of published steps: leave out each in turn.")
    ] = None,
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Hold forecasts against measured rows.

    Errors are reported beside those of trivial rules. Rows that cannot be forecast are listed with the reason; where
    none can be, nothing was compared and the exit status is 2.
    """
    from joulecast.command_line.destinations import check_destinations
    from joulecast.validate import run_suite

    check_destinations({"--report": report}, [data, fit_rows])
    with output.working(f"forecasting {suite}"):
        result = run_suite(
            suite,
            data,
            gpu=gpu,
            folds=folds,
            fit_rows=fit_rows,
            calibrate_rows=calibrate_rows,
            leave_out=leave_out,
            say=output.progress,
        )
    whole = result.to_dict()
    if report is not None and whole["rows"]:
        from joulecast.reports.write import report_of_validation

        rows = [flat_row(row) for row in whole["rows"]]
        report_of_validation(whole, rows, summary_lines(whole["summary"]), report)
    if json:
        output.print_json(whole)
    elif csv:
        output.print_csv([flat_row(row) for row in whole["rows"]])
    else:
        print_report(whole)
    if not whole["rows"] and not whole.get("node_power"):
        raise _nothing_compared(whole["skipped"], data)


def _nothing_compared(skipped: Sequence[Mapping[str, str]], data: Path) -> DataError:
    """The error of an answer without a row, with the reason that most rows were left out for."""
    reasons = Counter(row["reason"] for row in skipped)
    if not reasons:
        return DataError("nothing was compared: there are no rows", file=str(data), remedy="Give measured rows.")
    reason, count = reasons.most_common(1)[0]
    found = f"nothing was compared: all {len(skipped)} rows were skipped, {count} for this reason: {reason.rstrip('.')}"
    return DataError(found, file=str(data), remedy="`--json` lists every row with its reason.")


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the report without nesting, and with its relative errors [%]."""
    measured, predicted = row["measured"], row["predicted"]
    flat: dict[str, Any] = {"name": row["name"], "family": row.get("family")}
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
    """Print rows, what was left out, and the summary for people."""
    lines = []
    for row in map(flat_row, report["rows"]):
        line: dict[str, Any] = {"name": row["name"]}
        for quantity, heading in QUANTITIES.items():
            line[heading] = _scaled(row[f"measured_{quantity}"], quantity)
            line[f"forecast {heading}"] = _scaled(row[f"predicted_{quantity}"], quantity)
            line[f"{heading.split()[0]} error [%]"] = row[f"error_{quantity}_percent"]
        lines.append(line)
    used = [name for name in (lines[0] if lines else {}) if any(line[name] is not None for line in lines)]
    output.print_table(lines, used)
    for left_out in report.get("skipped", ()):
        print(f"skipped: {left_out['name']} ({left_out['reason']})")
    print()
    title = f"{report.get('suite', '')} on {report.get('gpu', '')}: {report.get('protocol', '')}".strip(": ")
    output.print_table(summary_lines(report["summary"]), title=title)
    order = report.get("order")
    if order and order["pairs"]:
        print(f"\n{order['pairs']} pairs of variants of one model, {order['correct_percent']:.1f} % ranked correctly")
    if report.get("node_power"):
        print()
        output.print_table(report["node_power"], title="mean power of one node while it trains")
    if report.get("choices"):
        print()
        title = CHOICES.get(str(report.get("suite")), "energy-best configuration at each time limit")
        output.print_table(report["choices"], title=title)


def _scaled(value: float | None, quantity: str) -> float | None:
    return None if value is None else value * SCALES.get(quantity, 1.0)


def summary_lines(summary: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each group of rows and quantity: errors, the trivial baseline beside them, and the interval.

    A group that says what ``all`` says, as it holds the same rows, is left out.
    """
    lines = []
    for group, figures in summary.items():
        if group != "all" and figures == summary["all"]:
            continue
        for quantity in ("time", "energy", "power", "clock", "memory"):
            if figures.get(f"{quantity}_error_percent") is None:
                continue
            line = {"rows of": group, "count": figures.get("rows"), "quantity": quantity}
            line |= {heading: figures.get(f"{quantity}_{key}_percent") for key, heading in FIGURES.items()}
            lines.append(line)
    used = {name for line in lines for name, value in line.items() if value is not None}
    return [{name: value for name, value in line.items() if name in used} for line in lines]
