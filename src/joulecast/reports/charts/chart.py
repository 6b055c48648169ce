"""What the page's script draws: charts of one or several views, each with traces and series that can be hidden.

Traces and layouts are those of Plotly (https://plotly.com/javascript/reference/). A colour is written as the role that
it has, ``"@forward"`` or with an opacity of 20 % ``"@forward/20"``; the script puts in the colour that
the reader's scheme has for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """A button of the legend: what it is called, the role of its colour, its mark, and the traces that it shows.

    ``mark`` is ``bar``, ``line``, ``dash``, ``area`` or the name of one of Plotly's symbols.
    """

    name: str
    role: str
    traces: tuple[int, ...]
    mark: str = "bar"


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at a chart; ``details`` are HTML for the points of a trace, shown when one is chosen."""

    label: str
    data: list[Trace]
    layout: dict[str, Any]
    series: tuple[Series, ...] = ()
    height: int = 420
    details: Mapping[int, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; ``name`` is its identifier in the page, ``label`` says in words what it shows."""

    name: str
    label: str
    views: tuple[View, ...]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title, "standoff": 10}, **more}


def polyline(x: Sequence[float], y: Sequence[float], line: Mapping[str, Any], **more: Any) -> Trace:
    """A line, silent at the pointer: so close to points, its text would hide theirs."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), **more, "line": line, "hoverinfo": "skip"}


def limit_line(x: Sequence[float], y: Sequence[float]) -> Trace:
    """A limit, between two points."""
    return polyline(x, y, {"color": "@limit", "width": 1.5, "dash": "dash"})


def band(x: Sequence[float], y: Sequence[float]) -> Trace:
    """The inside of an outline."""
    return polyline(x, y, {"width": 0}, fill="toself", fillcolor="@band/18")


def told(texts: Sequence[str]) -> Trace:
    """Texts of a trace's bars at the pointer."""
    return {"hovertext": list(texts), "hovertemplate": "%{hovertext}<extra></extra>"}


def dots(x: Sequence[float], y: Sequence[float], texts: Sequence[str], marker: Mapping[str, Any]) -> Trace:
    """A trace of points, each with its text at the pointer, set off from what lies below."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(x),
        "y": list(y),
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"line": {"color": "@paper", "width": 0.8}, **marker},
    }


def error_bar(above: list[float], below: list[float], colour: str) -> dict[str, Any]:
    """An error bar with different lengths to both sides."""
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "color": colour,
        "thickness": 1.3,
        "width": 4,
    }
