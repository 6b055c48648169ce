"""The report of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError
from joulecast.reports.charts.measured import error_chart, measured_chart
from joulecast.reports.html import folded, table
from joulecast.reports.numbers import spaced
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.sections import provenance
from joulecast.reports.series.measured import measured_by_quantity

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.reports.html import Rows

#: Lines of a summary that are shown without being asked for.
MOST_LINES = 32


def validate_page(report: Mapping[str, Any], rows: Rows, summary: Rows, gpu: GpuDescription | None) -> Page:
    """Page of a suite's result.

    Parameters
    ----------
    report
        What ``validate --json`` prints.
    rows, summary
        Its rows and its summary as flat lines.
    gpu
        The description that made the forecasts, where there is one.

    Raises
    ------
    InputError
        No row was measured and forecast.
    """
    pairs = measured_by_quantity(report)
    if not pairs:
        raise InputError("no row has both a measurement and a forecast", key="rows", remedy="See what was skipped.")
    against = "<p>On the line a forecast is right; within the band it is at most 5 % off. Bars: 90 % interval.</p>"
    errors = "<p>Each dot is a row; the band is ±5 %, the bars are 90 % intervals.</p>"
    sections = [
        Section("Forecast against measured", against, (measured_chart(pairs),)),
        Section("Errors", errors, (error_chart(pairs),)),
        Section("Errors by group", _groups(summary)),
        Section("Rows", folded(f"All {len(rows)} rows", table(rows, name="these rows"))),
    ]  # fmt: skip
    if report.get("skipped"):
        sections.append(Section("Not forecast", table(report["skipped"])))
    if gpu is not None:
        sections.append(provenance(gpu))
    kicker = f"Suite {report['suite']}, {report.get('gpu', '')}: {report.get('protocol', '')}".rstrip(": ")
    return Page(f"Validation: {report['suite']}", kicker, answer(report), more(report), head(report), sections)


def _groups(summary: Rows) -> str:
    """The summary; where it is long, all but what it says of all rows is folded."""
    if len(summary) <= MOST_LINES:
        return table(summary)
    first = [line for line in summary if line["rows of"] == summary[0]["rows of"]]
    return table(first) + folded(f"All {len(summary)} groups and quantities", table(summary, name="these groups"))


def answer(report: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    whole = report["summary"]["all"]
    parts = [f"{spaced(error, 2)} % off in {word}" for word, error in _known(whole, "error").items()][:2]
    return f"Forecasts of {whole['rows']} measured rows are {' and '.join(parts)} on average."


def _known(whole: Mapping[str, Any], figure: str) -> dict[str, float]:
    """A figure of each quantity that has it [%]."""
    found = {word: whole.get(f"{word}_{figure}_percent") for word in ("time", "energy", "power", "clock")}
    return {word: value for word, value in found.items() if value is not None}


def more(report: Mapping[str, Any]) -> str:
    """The trivial rule beside it, and what the intervals held."""
    whole, texts = report["summary"]["all"], []
    rule = _known(whole, "baseline")
    trivial = [f"{spaced(rule[word], 2)} % in {word}" for word in ("time", "energy") if word in rule]
    if trivial:
        texts.append(f"A trivial rule is off by {' and '.join(trivial)}.")
    several = {"time": "times", "energy": "energies", "power": "powers"}
    inside = [f"{spaced(share, 3)} % of the {several[word]}" for word, share in _known(whole, "inside").items()]
    if inside:
        texts.append(f"The 90 % intervals hold {', '.join(inside)}.")
    return " ".join(texts)


def head(report: Mapping[str, Any]) -> list[Figure]:
    """Errors of each quantity, with the worst."""
    whole, figures = report["summary"]["all"], [Figure("rows", str(report["summary"]["all"]["rows"]))]
    for word, error in _known(whole, "error").items():
        worst = spaced(whole.get(f"{word}_worst_percent"), 3)
        figures.append(Figure(f"mean error, {word}", f"{spaced(error, 3)} %", f"worst {worst} %"))
    if report.get("skipped"):
        figures.append(Figure("not forecast", str(len(report["skipped"])), "rows, listed below"))
    return figures
