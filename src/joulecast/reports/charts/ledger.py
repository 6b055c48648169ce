"""The energy ledger drawn with Plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.reports.charts.chart import Chart, Series, View, axis, error_bar, told
from joulecast.reports.numbers import spaced, unit_for
from joulecast.reports.palette import role_of, word
from joulecast.reports.series.ledger import Ledger

#: Share of the longest row from which a part has its share written on it.
LABELLED = 0.06
#: Where the interval of the first row stands: above their row.
INTERVAL_ROW = -0.48


def ledger_chart(ledgers: Mapping[str, Ledger]) -> Chart:
    """Energy of a GPU on average and of every stage, split in one way for each view."""
    views = tuple(_view(label, ledger) for label, ledger in ledgers.items())
    return Chart(
        "ledger", "Where the energy of an iteration goes, on a GPU on average and of each pipeline stage", views
    )


def _view(label: str, ledger: Ledger) -> View:
    totals, rows, unit = ledger.total_j, list(ledger.rows), unit_for("J", max(ledger.total_j))
    data: list[dict[str, Any]] = []
    series = []
    for name, values in ledger.parts.items():
        series.append(Series(word(name), role_of(name), (len(data),), "bar"))
        data.append(_bar(ledger, name, values))
    if ledger.low_j is not None and ledger.high_j is not None:
        series.append(Series("90 % interval", "forecast", (len(data),), "line"))
        data.append(_interval(ledger, totals[0], ledger.low_j, ledger.high_j))
    layout = {
        "barmode": "stack",
        "xaxis": axis(f"energy of one GPU in an iteration [{unit.name}]", rangemode="tozero"),
        "yaxis": {
            "range": [len(rows) - 0.4, -0.7],
            "tickvals": list(range(len(rows))),
            "ticktext": rows,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "hovermode": "closest",
        "uniformtext": {"mode": "hide", "minsize": 10},
    }
    return View(label, data, layout, tuple(series), 130 + 44 * len(rows))


def _bar(ledger: Ledger, name: str, values: Sequence[float]) -> dict[str, Any]:
    """One part of the energy, in every row."""
    totals, role = ledger.total_j, role_of(name)
    unit = unit_for("J", max(totals))
    shares = [v / t if t else 0.0 for v, t in zip(values, totals, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(ledger.rows))),
        "x": unit.of(values),
        "width": 0.62,
        "marker": {"color": f"@{role}", "line": {"color": "@paper", "width": 1}},
        "text": [
            f"{100 * s:.0f} %" if v >= LABELLED * max(totals) else "" for v, s in zip(values, shares, strict=True)
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        **told(
            [
                f"<b>{word(name)}</b>, {row}<br>{unit.text(v)} a GPU, {spaced(100 * s, 3)} %"
                f"<br>{unit_for('J', v * n).text(v * n)} on {n} GPU{'s' if n > 1 else ''}"
                for row, v, s, n in zip(ledger.rows, values, shares, ledger.gpus, strict=True)
            ]
        ),
    }


def _interval(ledger: Ledger, total: float, low: float, high: float) -> dict[str, Any]:
    unit = unit_for("J", max(ledger.total_j))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": unit.of([total]),
        "y": [INTERVAL_ROW],
        "marker": {"color": "@forecast", "size": 6},
        "error_x": error_bar(unit.of([high - total]), unit.of([total - low]), "@forecast"),
        "hovertemplate": f"{unit.text(total)}, 90 % interval {spaced(low / unit.factor)} to "
        f"{spaced(high / unit.factor)} {unit.name}<extra></extra>",
    }
