"""The time-energy front drawn with Plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from joulecast.reports.charts.chart import Chart, Series, Trace, View, axis, band, dots, error_bar, limit_line, polyline
from joulecast.reports.html import pairs
from joulecast.reports.numbers import Unit, between, interval, spaced, unit_for
from joulecast.reports.series.front import BAND, MARGIN, FrontSeries, PlanPoint

if TYPE_CHECKING:
    from joulecast.plan.exact.plan_ends import PlanInterval
    from joulecast.simulator.iteration.result import Iteration

#: Kinds of instruction whose knobs the label at the pointer shows; the list below the chart has all.
SHOWN_KNOBS = 10


def front_chart(front: FrontSeries) -> Chart:
    """Plans over time and energy, with the lower bound, the chosen plan and the plan as it stands."""
    time = unit_for("s", max(p.time_s for p in front.points))
    energy = unit_for("J", max(p.energy_j for p in front.points))
    data: list[Trace] = []
    series: list[Series] = []

    def add(name: str, role: str, mark: str, *traces: Trace) -> None:
        series.append(Series(name, role, tuple(range(len(data), len(data) + len(traces))), mark))
        data.extend(traces)

    if front.bound_s:
        bound = polyline(time.of(front.bound_s), energy.of(front.bound_j), {"color": "@bound", "width": 1.5})
        add("lower bound", "bound", "line", bound)
    if front.band_j[0]:
        add(BAND, "band", "area", _band(front, time, energy))
    add("plans", "plan", "circle", _plans(front, time, energy))
    details = {len(data) - 1: [point_detail(p, front.points[0], time, energy) for p in front.points]}
    add("chosen plan", "chosen", "star", _chosen(front, time, energy))
    if front.forecast is not None:
        add("plan as it stands", "forecast", "x", _forecast(front.forecast, time, energy))
    ranges = {name: _range(front, unit, name) for name, unit in (("time_s", time), ("energy_j", energy))}
    if front.time_limit_s is not None:
        (limit,) = time.of([front.time_limit_s])
        if limit <= ranges["time_s"][1]:
            name = f"time limit {time.text(front.time_limit_s)}"
            add(name, "limit", "dash", limit_line([limit, limit], ranges["energy_j"]))
    layout = {
        "xaxis": axis(f"time of an iteration [{time.name}]", range=ranges["time_s"]),
        "yaxis": axis(f"energy of all GPUs [{energy.name}]", range=ranges["energy_j"]),
        "hovermode": "closest",
    }
    label = "Plans by time and energy of an iteration, above the least energy that any plan of their time can have"
    return Chart("front", label, (View("", data, layout, tuple(series), 460, details),))


def _range(front: FrontSeries, unit: Unit, name: str) -> list[float]:
    """Range of an axis around plans and forecast; the bound alone would stretch it."""
    values = [getattr(p, name) for p in front.points]
    if front.forecast is not None:
        values += [getattr(front.forecast, f"{name}{end}") for end in ("", "_p05", "_p95")]
    if name == "energy_j":
        values += [v for ends in front.band_j for v in ends]
    low, high = min(values), max(values)
    room = MARGIN * (high - low) or MARGIN * high
    return unit.of([low - room, high + room])


def _band(front: FrontSeries, time: Unit, energy: Unit) -> Trace:
    low, high = front.band_j
    x = time.of(p.time_s for p in front.points)
    return band([*x, *reversed(x)], [*energy.of(high), *reversed(energy.of(low))])


def _plans(front: FrontSeries, time: Unit, energy: Unit) -> Trace:
    texts = [point_text(p, front.points[0], time, energy) for p in front.points]
    return _dots(front.points, texts, time, energy, {"color": "@plan", "size": 7})


def _chosen(front: FrontSeries, time: Unit, energy: Unit) -> Trace:
    point = front.points[front.chosen]
    text = f"<b>chosen: {escape(front.why)}</b><br>{point_text(point, front.points[0], time, energy)}"
    line = {"color": "@paper", "width": 1.5}
    return _dots([point], [text], time, energy, {"color": "@chosen", "size": 16, "symbol": "star", "line": line})


def _forecast(plan: Iteration, time: Unit, energy: Unit) -> Trace:
    text = f"<b>the plan as it stands</b><br>{time.text(plan.time_s)}, {energy.text(plan.energy_j)}"
    line = {"color": "@forecast", "width": 3}
    marker = {"color": "@forecast", "size": 11, "symbol": "x-thin", "line": line}
    trace = _dots([plan], [text], time, energy, marker)
    trace["hovertemplate"] = "%{text}<br>bars: 90 % interval<extra></extra>"
    for name, value, low, high, unit in (
        ("error_x", plan.time_s, plan.time_s_p05, plan.time_s_p95, time),
        ("error_y", plan.energy_j, plan.energy_j_p05, plan.energy_j_p95, energy),
    ):
        trace[name] = error_bar(unit.of([high - value]), unit.of([value - low]), "@forecast/60")
    return trace


def _dots(
    plans: Sequence[PlanPoint | Iteration], texts: Sequence[str], time: Unit, energy: Unit, marker: Mapping[str, Any]
) -> Trace:
    return dots(time.of(p.time_s for p in plans), energy.of(p.energy_j for p in plans), texts, marker)


def point_text(point: PlanPoint, fastest: PlanPoint, time: Unit, energy: Unit) -> str:
    """What the label at the pointer says of a plan."""
    slower = 100.0 * (point.time_s / fastest.time_s - 1.0)
    saved = 100.0 * (1.0 - point.energy_j / fastest.energy_j)
    lines = [f"<b>{time.text(point.time_s, 5)}, {energy.text(point.energy_j, 5)}</b>"]
    lines.append(f"{spaced(slower, 3)} % slower, {spaced(saved, 3)} % less energy than the fastest")
    if point.interval is not None:
        lines += _ends_text(point.interval, time, energy)
    if point.lower_bound_j:
        lines.append(f"{spaced(100.0 * (point.energy_j / point.lower_bound_j - 1.0), 2)} % above the lower bound")
    lines += [f"{escape(name)}: {escape(choice)}" for name, choice in point.knobs[:SHOWN_KNOBS]]
    if len(point.knobs) > SHOWN_KNOBS:
        lines.append(f"… and {len(point.knobs) - SHOWN_KNOBS} more kinds: press Enter or click")
    return "<br>".join(lines)


def _ends_text(ends: PlanInterval, time: Unit, energy: Unit) -> list[str]:
    """How sure a plan is, against the fastest and by itself."""
    of_time = interval(ends.time_s_p05, ends.time_s_p95, time)
    of_energy = interval(ends.energy_j_p05, ends.energy_j_p95, energy)
    of_power = interval(ends.power_w_p05, ends.power_w_p95, unit_for("W", ends.power_w_p95))
    lines = [f"90 %: {of_time}, {of_energy}, {of_power} on any cards"]
    if ends.time_ratio_p05 < ends.time_ratio_p95:
        slower = between(ends.time_ratio_p05 - 1, ends.time_ratio_p95 - 1)
        saved = between(1 - ends.energy_ratio_p95, 1 - ends.energy_ratio_p05)
        lines.insert(0, f"90 %: {slower} slower, {saved} less on the same cards")
    return lines


def point_detail(point: PlanPoint, fastest: PlanPoint, time: Unit, energy: Unit) -> str:
    """All knobs of a plan, as HTML."""
    head = point_text(replace(point, knobs=()), fastest, time, energy)
    return head.replace("<br>", ", ") + pairs(point.knobs)
