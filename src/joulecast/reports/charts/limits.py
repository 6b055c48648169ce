"""Power limits over time and energy, drawn with Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.reports.charts.chart import Chart, Series, View, axis, dots
from joulecast.reports.charts.front import error_bar
from joulecast.reports.numbers import Unit, unit_for

#: Sizes of marks by role: what others may cover is larger than they.
SIZES = {"chosen": 16, "bound": 13}


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
    """Plans of one kind, fastest first; ``joined`` by a line or not."""

    name: str
    role: str
    mark: str
    dots: tuple[Dot, ...]
    joined: bool = False


def limits_chart(groups: Sequence[Group], of: str, label: str) -> Chart:
    """Groups of plans over time and energy of ``of``."""
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
    return Chart("limits", label, (View("", data, layout, series, 440),))


def _trace(group: Group, time: Unit, energy: Unit) -> dict[str, Any]:
    size = SIZES.get(group.role, 8)
    marker = {"color": f"@{group.role}", "symbol": group.mark, "size": size}
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
