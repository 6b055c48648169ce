"""Plans over time and energy, drawn with Plotly: those of a comparison, or of power limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.reports.charts.chart import Chart, Series, View, axis, dots, error_bar
from joulecast.reports.numbers import Unit, unit_for


@dataclass(frozen=True, slots=True)
class Dot:
    """A plan: what it takes, what the label at the pointer says of it, and its 90 % intervals as shares."""

    time_s: float
    energy_j: float
    text: str
    time_ends: tuple[float, float] | None = None
    energy_ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Plans of one kind, fastest first; ``joined`` by a line or not. What others may cover has larger marks."""

    name: str
    role: str
    mark: str
    dots: tuple[Dot, ...]
    joined: bool = False
    size: int = 8


def time_energy_chart(name: str, label: str, groups: Sequence[Group], of: str) -> Chart:
    """Groups of plans over time and energy of ``of``; ``name`` and ``label`` are the chart's."""
    everything = [dot for group in groups for dot in group.dots]
    time = unit_for("s", max(dot.time_s for dot in everything))
    energy = unit_for("J", max(dot.energy_j for dot in everything))
    data = [_trace(group, time, energy) for group in groups]
    series = tuple(Series(group.name, group.role, (i,), group.mark) for i, group in enumerate(groups))
    layout = {
        "xaxis": axis(f"time of {of} [{time.name}]"),
        "yaxis": axis(f"energy of all GPUs [{energy.name}]"),
        "hovermode": "closest",
    }
    return Chart(name, label, (View("", data, layout, series, 440),))


def _trace(group: Group, time: Unit, energy: Unit) -> dict[str, Any]:
    marker = {"color": f"@{group.role}", "symbol": group.mark, "size": group.size}
    texts = [f"<b>{time.text(d.time_s, 5)}, {energy.text(d.energy_j, 5)}</b><br>{d.text}" for d in group.dots]
    trace = dots(time.of(d.time_s for d in group.dots), energy.of(d.energy_j for d in group.dots), texts, marker)
    trace |= _bars("error_x", [(d.time_s, d.time_ends) for d in group.dots], time, group.role)
    trace |= _bars("error_y", [(d.energy_j, d.energy_ends) for d in group.dots], energy, group.role)
    if group.joined:
        trace |= {"mode": "lines+markers", "line": {"color": f"@{group.role}", "width": 1.2, "dash": "dot"}}
    return trace


def _bars(
    name: str, values: Sequence[tuple[float, tuple[float, float] | None]], unit: Unit, role: str
) -> dict[str, Any]:
    """Error bars of forecasts; none of what was measured."""
    known = [(value, ends) for value, ends in values if ends is not None]
    if len(known) < len(values) or not known:
        return {}
    above = unit.of(value * (high - 1.0) for value, (_, high) in known)
    below = unit.of(value * (1.0 - low) for value, (low, _) in known)
    return {name: error_bar(above, below, f"@{role}/60")}
