"""Power limits over time and energy, drawn with Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.reports.chart import Chart, Series, View, axis, dots
from joulecast.reports.numbers import Unit, unit_for


@dataclass(frozen=True, slots=True)
class Dot:
    """A plan: what it takes, and what the label at the pointer says of it."""

    time_s: float
    energy_j: float
    text: str


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
    star = group.mark == "star"
    marker = {"color": f"@{group.role}", "symbol": group.mark, "size": 16 if star else 8}
    texts = [f"<b>{time.text(d.time_s, 5)}, {energy.text(d.energy_j, 5)}</b><br>{d.text}" for d in group.dots]
    trace = dots(time.of(d.time_s for d in group.dots), energy.of(d.energy_j for d in group.dots), texts, marker)
    if group.joined:
        trace |= {"mode": "lines+markers", "line": {"color": f"@{group.role}", "width": 1.2, "dash": "dot"}}
    return trace
