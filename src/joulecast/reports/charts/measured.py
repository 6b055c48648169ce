"""Forecasts against measurements drawn with Plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from joulecast.reports.charts.chart import Chart, Series, Trace, View, axis, band, dots, error_bar, polyline
from joulecast.reports.numbers import Unit, interval, short, spaced, unit_for
from joulecast.reports.palette import series_role, series_symbol
from joulecast.reports.series.measured import QUANTITIES, Pair

#: Half-width of the band within which a forecast is good.
BAND = 0.05
#: Ratio of largest to smallest value above which axes are logarithmic.
LOGARITHMIC = 20.0
#: Height of a row of the chart of errors, as long as all rows stay below the other [px].
ROW_HEIGHT, MOST_HEIGHT = 9.0, 1100.0
#: Space between families, as a share of all rows, and in rows.
BETWEEN_SHARE, BETWEEN = 0.02, 2

Families = Mapping[str, Sequence[Pair]]


def measured_chart(by_quantity: Mapping[str, Families]) -> Chart:
    """Forecast over measured value with the band of ±5 %, one view for each quantity."""
    views = tuple(_against(quantity, families) for quantity, families in by_quantity.items())
    return Chart("measured", "Forecast over measured values, with a band of five per cent to either side", views)


def error_chart(by_quantity: Mapping[str, Families]) -> Chart:
    """Relative error of every row, family by family, one view for each quantity."""
    views = tuple(_errors(quantity, families) for quantity, families in by_quantity.items())
    return Chart("errors", "Relative errors of the forecasts, by family of rows", views)


def ends_of(pairs: Sequence[Pair]) -> tuple[float, float, bool]:
    """Ends of both axes with some room around all values, and whether they are logarithmic."""
    values = [v for pair in pairs for v in (pair.measured, pair.predicted)]
    low, high = min(values), max(values)
    if high / low > LOGARITHMIC:
        return low / 1.3, high * 1.3, True
    room = 0.06 * (high - low or high)
    return low - room, high + room, False


def _against(quantity: str, families: Families) -> View:
    word, base = QUANTITIES[quantity]
    low, high, log = ends_of([pair for pairs in families.values() for pair in pairs])
    unit, ends = unit_for(base, high / 1.3), (low, high)
    data = [_band(unit.of(ends)), polyline(unit.of(ends), unit.of(ends), {"color": "@band", "width": 1})]
    series = [Series("±5 %", "band", (0, 1), "area")]
    for i, (family, pairs) in enumerate(families.items()):
        series.append(Series(f"{family} ({len(pairs)})", series_role(i), (len(data),), series_symbol(i)))
        data.append(_points(pairs, i, unit, unit.of(p.measured for p in pairs), unit.of(p.predicted for p in pairs)))
    kind = {"type": "log", "dtick": 1} if log else {}
    layout = {
        "xaxis": axis(f"measured {word} [{unit.name}]", **kind),
        "yaxis": axis(f"forecast {word} [{unit.name}]", **kind),
        "hovermode": "closest",
    }
    return View(word, data, layout, tuple(series), 560)


def _points(pairs: Sequence[Pair], i: int, unit: Unit, x: list[float], y: list[float]) -> dict[str, Any]:
    role = series_role(i)
    marker = {"color": f"@{role}", "symbol": series_symbol(i), "size": 8}
    trace = dots(x, y, [_text(pair, unit) for pair in pairs], marker)
    if any(pair.high is not None for pair in pairs):
        trace["error_y"] = error_bar(
            unit.of(p.above for p in pairs), unit.of(p.below for p in pairs), f"@{role}/70"
        ) | {"width": 0}
    return trace


def _text(pair: Pair, unit: Unit) -> str:
    lines = [
        f"<b>{escape(pair.name)}</b>",
        f"measured {unit.text(pair.measured)}",
        f"forecast {unit.text(pair.predicted)}",
    ]
    if pair.low is not None:
        lines.append(f"90 % interval {interval(pair.low, pair.high, unit)}")
    return "<br>".join([*lines, f"error {100.0 * pair.error:+.1f} %"])


def _band(ends: Sequence[float]) -> Trace:
    low, high = ends
    corners = [(low, 1 + BAND), (high, 1 + BAND), (high, 1 - BAND), (low, 1 - BAND), (low, 1 + BAND)]
    return band([value for value, _ in corners], [short(value * share) for value, share in corners])


def _errors(quantity: str, families: Families) -> View:
    word, base = QUANTITIES[quantity]
    data: list[dict[str, Any]] = []
    series = []
    middles: list[float] = []
    count = sum(len(pairs) for pairs in families.values())
    between, foot = max(BETWEEN, round(BETWEEN_SHARE * count)), 0
    for i, (family, pairs) in enumerate(families.items()):
        ordered = sorted(pairs, key=lambda p: p.error)
        unit = unit_for(base, max(p.measured for p in pairs))
        y = [float(foot + n) for n in range(len(ordered))]
        middles.append(foot + (len(ordered) - 1) / 2)
        foot += len(ordered) + between
        trace = _error_points(ordered, i, unit, y, dense=count * ROW_HEIGHT > MOST_HEIGHT)
        series.append(Series(f"{family}, mean {_mean_error(pairs)} %", series_role(i), (i,), series_symbol(i)))
        data.append(trace)
    reach = max(7.0, *(105.0 * _farthest(pair) for pairs in families.values() for pair in pairs))
    band = {"type": "rect", "yref": "paper", "x0": -100 * BAND, "x1": 100 * BAND, "y0": 0, "y1": 1, "layer": "below"}
    layout = {
        "xaxis": axis(f"error of the forecast {word} [%]", range=[-reach, reach], zeroline=True, zerolinewidth=1.5),
        "yaxis": {
            "tickvals": middles,
            "ticktext": list(families),
            "range": [foot - between + 0.5, -1.5],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "hovermode": "closest",
        "shapes": [{**band, "fillcolor": "@band/18", "line": {"width": 0}}],
    }
    height = max(120.0, min(MOST_HEIGHT, foot * ROW_HEIGHT))
    return View(word, data, layout, tuple(series), 110 + round(height))


def _error_points(ordered: Sequence[Pair], place: int, unit: Unit, y: list[float], *, dense: bool) -> Trace:
    """A family's errors, one below the other, with their intervals."""
    trace = _points(ordered, place, unit, [short(100 * p.error) for p in ordered], y)
    if trace.pop("error_y", None):
        trace["error_x"] = error_bar(
            [short(100 * p.above / p.measured) for p in ordered],
            [short(100 * p.below / p.measured) for p in ordered],
            f"@{series_role(place)}/45",
        ) | {"width": 0}
    trace["marker"] |= {"size": 4, "line": {"width": 0}} if dense else {"size": 6}
    return trace


def _farthest(pair: Pair) -> float:
    """Relative distance from the measured value of the forecast and of the ends of its interval."""
    ends = (pair.predicted, *(end for end in (pair.low, pair.high) if end is not None))
    return max(abs(end - pair.measured) for end in ends) / pair.measured


def _mean_error(pairs: Sequence[Pair]) -> str:
    return spaced(100.0 * sum(abs(p.error) for p in pairs) / len(pairs), 2)
