"""The report of a calibration: what each coefficient is, how sure, and how far forecasts of rows left out are off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.reports.charts.chart import Chart, Series, View, axis, error_bar
from joulecast.reports.html import folded, table
from joulecast.reports.numbers import percent, short, spaced
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.sections import provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulecast.calibrate.descriptions.describe import RowsFit
    from joulecast.calibrate.descriptions.from_rows import ParameterReport
    from joulecast.model.hardware.description import GpuDescription


def calibrate_page(fit: RowsFit) -> Page:
    """Page of a fit."""
    from joulecast.calibrate.descriptions.from_rows import parameter_reports
    from joulecast.calibrate.sessions.report import is_identified

    reports = parameter_reports(fit)
    known = [r for r in reports if is_identified(r)]
    off = _discrepancies(fit.description)
    name = fit.description.name
    figures = [Figure("measured rows", str(fit.rows)), Figure("coefficients", str(len(reports)))]
    figures.append(Figure("identified by the rows", str(len(known))))
    figures += [Figure(f"left-out rows, {q}", percent(v, 2), "typical deviation") for q, v in _typical(off)]
    sections = []
    if off:
        about = "<p>Standard deviation of forecasts from rows that the fit did not see, by family of kernels.</p>"
        sections.append(Section("How far forecasts of left-out rows are off", about, (discrepancy_chart(off),)))
    if known:
        about = "<p>Where each coefficient lies between its bounds, with one standard error to either side.</p>"
        lines = [_line(r) for r in reports]
        after = folded("Every coefficient as numbers", table(lines, name="these coefficients"))
        sections.append(Section("What the rows say", about, (coefficient_chart(known),), after))
    sections.append(provenance(fit.description))
    answer = f"{fit.rows} measured rows identify {len(known)} of {len(reports)} coefficients of {name}."
    deviations = " and ".join(f"{percent(v, 2)} in {q}" for q, v in _typical(off))
    more = f"Forecasts of rows left out of a fit are typically off by {deviations}." if deviations else ""
    return Page(f"Calibration: {name}", f"Calibration of {name}", answer, more, figures, sections)


def _discrepancies(gpu: GpuDescription) -> dict[str, dict[str, float]]:
    """Family of rows to the relative standard deviation of each quantity."""
    found: dict[str, dict[str, float]] = {}
    for part in gpu.tables.values():
        for family, of in part.discrepancy.items():
            found.setdefault(family, {}).update(of)
    return found


def _typical(off: dict[str, dict[str, float]]) -> Iterable[tuple[str, float]]:
    """Median over families of each quantity's deviation."""
    from statistics import median

    for quantity in ("time", "energy"):
        values = [of[quantity] for of in off.values() if quantity in of]
        if values:
            yield quantity, median(values)


def _line(report: ParameterReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "name": report.name,
        "value": report.value,
        "standard error": report.sd,
        "unit": report.unit,
        "known [%]": None if report.identified is None else round(100 * report.identified, 1),
        "lower": report.lower,
        "upper": report.upper,
        "hangs on": "" if report.correlation is None else f"{report.correlated_with} ({report.correlation:+.2f})",
    }


def discrepancy_chart(off: dict[str, dict[str, float]]) -> Chart:
    """Bars of the typical deviation of every family of rows."""
    families = sorted(off, key=lambda f: max(off[f].values()))
    quantities = dict.fromkeys(q for f in families for q in off[f])
    data, series = [], []
    for i, quantity in enumerate(quantities):
        series.append(Series(quantity, f"series{i}", (i,)))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": families,
                "x": [None if quantity not in off[f] else short(100 * off[f][quantity]) for f in families],
                "marker": {"color": f"@series{i}"},
                "hovertemplate": f"%{{y}}<br>{quantity}: %{{x:.2f}} %<extra></extra>",
            }
        )
    layout = {
        "barmode": "group",
        "bargap": 0.35,
        "xaxis": axis("typical deviation [%]", rangemode="tozero"),
        "yaxis": {"showgrid": False, "fixedrange": True, "ticklen": 6},
        "hovermode": "closest",
    }
    view = View("", data, layout, tuple(series), 100 + 30 * len(families))
    return Chart("discrepancy", "Typical deviation of forecasts of rows left out of the fit, by family", (view,))


def coefficient_chart(reports: Sequence[ParameterReport]) -> Chart:
    """Value and standard error between the bounds, one view for each table of the description."""
    tables: dict[str, list[ParameterReport]] = {}
    for report in reports:
        if report.lower is not None and report.upper is not None and report.upper > report.lower:
            tables.setdefault(report.table, []).append(report)
    views = tuple(_coefficients(name, members) for name, members in tables.items())
    return Chart("coefficients", "Fitted coefficients between their bounds, with standard errors", views)


def _coefficients(name: str, reports: Sequence[ParameterReport]) -> View:
    x, bars, texts = [], [], []
    for r in reports:
        low, high = r.lower or 0.0, r.upper or 0.0
        x.append(short((r.value - low) / (high - low)))
        bars.append(short(r.sd / (high - low)))
        texts.append(
            f"<b>{r.name}</b><br>{spaced(r.value)} ± {spaced(r.sd, 2)} {r.unit}"
            f"<br>between {spaced(low)} and {spaced(high)}"
            f"<br>the rows removed {100 * (r.identified or 0.0):.0f} % of the prior variance"
        )
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": x,
            "y": [r.name for r in reports],
            "error_x": error_bar(bars, bars, "@plan/70"),
            "marker": {"color": "@plan", "size": 8},
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    layout = {
        "xaxis": axis("place between lower bound (0) and upper bound (1)", range=[-0.03, 1.03], zeroline=False),
        "yaxis": {"range": [len(reports) - 0.4, -0.6], "fixedrange": True, "ticklen": 6},
        "hovermode": "closest",
    }
    return View(name, data, layout, (Series("value ± s.e.", "plan", (0,), "circle"),), 110 + 26 * len(reports))
