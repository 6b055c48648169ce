"""The timeline of an iteration drawn with Plotly: a lane for each stage, on one pair of axes.

A lane has height 1: instructions above, communication and waiting in it in a thin row below them, power beneath with
its limit. Where there are too many instructions to tell apart, slots of time show the share of each kind; communication
that comes and goes within a stretch fills as much of its row's height as its share. One pair of axes for all lanes,
with power scaled into each, draws many times faster than axes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from joulecast.reports.charts.chart import Chart, Series, Trace, View, axis, told
from joulecast.reports.numbers import Unit, short, unit_for
from joulecast.reports.palette import role_of, word
from joulecast.reports.series.slots import Slot, crowded, slots_of
from joulecast.reports.series.timeline import COMMUNICATION_ROLES, Bar, Interval, Lane, TimelineSeries, limit_words

Part = TypeVar("Part")

#: Middle and height of the rows of a lane.
BAR_ROW, SPEECH_ROW = (0.775, 0.27), (0.57, 0.09)
#: Height of the power's row, from the lane's foot, and how far the axis reaches above limit or peak.
POWER_HEIGHT, HEADROOM = 0.46, 1.08
#: Instructions above which they have no numbers written on them, and waiting is not hatched.
MOST_LABELS = 400
HATCH = {"shape": "/", "fgcolor": "@waiting", "bgcolor": "@paper", "size": 6, "solidity": 0.35}


def timeline_chart(timelines: Mapping[str, TimelineSeries]) -> Chart:
    """Instructions, communication, waiting, power and its limit over time; one view for each of several plans."""
    unit = unit_for("s", max(timeline.time_s for timeline in timelines.values()))
    views = tuple(_view(label, timeline, unit) for label, timeline in timelines.items())
    label = "What one GPU of each pipeline stage does over an iteration, and the power that it draws"
    return Chart("timeline", label, views)


def _view(label: str, timeline: TimelineSeries, unit: Unit) -> View:
    lanes = timeline.lanes
    top = HEADROOM * timeline.highest_w
    data: list[dict[str, Any]] = []
    series: list[Series] = []
    for role, mark, trace in _traces(timeline, unit, top):
        if mark:
            name = word(role) if role != "limit" else limit_words(timeline.limits_w)
            series.append(Series(name, role, (len(data),), mark))
        data.append(trace)
    n = len(lanes)
    each = 118 if n <= 4 else 92 if n <= 16 else 64
    ends = [value for i in range(n) for value in (n - 1 - i, n - 1 - i + POWER_HEIGHT / HEADROOM)]
    layout = {
        "xaxis": axis(f"time [{unit.name}]", range=[0, short(timeline.time_s / unit.factor)], zeroline=False),
        "yaxis": {
            "range": [-0.06, n],
            "fixedrange": True,
            "tickvals": [n - 1 - i + BAR_ROW[0] for i in range(n)],
            "ticktext": [_lane_name(lane) for lane in lanes],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis2": {
            "overlaying": "y",
            "side": "right",
            "range": [-0.06, n],
            "fixedrange": True,
            "tickvals": ends,
            "ticktext": ["0", f"{top / HEADROOM:.0f} W"] * n,
            "showgrid": False,
            "zeroline": False,
        },
        "barmode": "overlay",
        "hovermode": "closest",
        "uniformtext": {"mode": "hide", "minsize": 9},
        "shapes": [_rule(n - 1 - i) for i in range(n)],
    }
    return View(label, data, layout, tuple(series), 110 + each * n)


def _lane_name(lane: Lane) -> str:
    return f"stage {lane.stage}<br>{lane.gpus} GPU{'s' if lane.gpus > 1 else ''}"


def _rule(foot: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": foot,
        "y1": foot,
        "line": {"color": "@grid", "width": 1},
        "layer": "below",
    }


def _traces(timeline: TimelineSeries, unit: Unit, top_w: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Role, mark and trace of every series, those of instructions first."""
    kinds = dict.fromkeys(role_of(bar.kind) for lane in timeline.lanes for bar in lane.bars)
    slots = [slots_of(timeline, lane) for lane in timeline.lanes] if crowded(timeline) else []
    for role in kinds:
        yield role, "bar", _shares(slots, unit, role) if slots else _bars(timeline, unit, role)
    for role in COMMUNICATION_ROLES:
        if any(getattr(lane, role) for lane in timeline.lanes):
            yield role, "bar", _speech(timeline, unit, role)
    yield (
        "waiting",
        "hatch" if _labelled(timeline) else "bar",
        _shares(slots, unit, "waiting") if slots else _waiting(timeline, unit),
    )
    yield "power", "area", _power(timeline, unit, top_w)
    if timeline.limits_w:
        yield "limit", "dash", _limit(timeline, unit, top_w)
    yield "axis", "", {"type": "scatter", "x": [0], "y": [0], "yaxis": "y2", "mode": "none", "hoverinfo": "skip"}


def _labelled(timeline: TimelineSeries) -> bool:
    return sum(len(lane.bars) for lane in timeline.lanes) <= MOST_LABELS


def _placed(timeline: TimelineSeries, parts: Callable[[Lane], Iterable[Part]]) -> list[tuple[int, Lane, Part]]:
    """Parts of every lane, with the foot and the lane of each."""
    feet = range(len(timeline.lanes) - 1, -1, -1)
    return [(foot, lane, part) for foot, lane in zip(feet, timeline.lanes, strict=True) for part in parts(lane)]


def _bars(timeline: TimelineSeries, unit: Unit, role: str) -> Trace:
    found = [one for one in _placed(timeline, lambda lane: lane.bars) if role_of(one[2].kind) == role]
    trace = _horizontal(
        [bar for _, _, bar in found],
        unit,
        [foot + BAR_ROW[0] for foot, _, _ in found],
        BAR_ROW[1],
        {"color": f"@{role}", "line": {"color": "@paper", "width": 0.6}},
        [_bar_text(lane, bar, unit) for _, lane, bar in found],
    )
    if _labelled(timeline):
        trace |= {
            "text": [str(bar.microbatch) if bar.microbatch >= 0 else "" for _, _, bar in found],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
        }
    return trace


def _bar_text(lane: Lane, bar: Bar, unit: Unit) -> str:
    batch = f", micro-batch {bar.microbatch}" if bar.microbatch >= 0 else ""
    clock = "" if bar.clock_mhz is None else f" at {bar.clock_mhz:g} MHz"
    return (
        f"<b>{word(bar.kind)}{batch}</b>, stage {lane.stage}<br>{_from(bar, unit)}<br>{bar.power_w:.0f} W a GPU{clock}"
        + (f"<br>{bar.knobs}" if bar.knobs else "")
    )


def _from(part: Bar | Interval, unit: Unit) -> str:
    """How long something lasts, and since when."""
    length_s = part.end_s - part.start_s
    return f"{unit_for('s', length_s).text(length_s)} from {unit.text(part.start_s)}"


def _shares(slots: Sequence[Mapping[str, Sequence[Slot]]], unit: Unit, role: str) -> Trace:
    """One kind of instruction, or waiting, in slots of time, each lane's kinds on top of each other."""
    below, height = BAR_ROW[0] - BAR_ROW[1] / 2, BAR_ROW[1]
    found = [(len(slots) - 1 - i, slot) for i, lane in enumerate(slots) for slot in lane.get(role, ())]
    return _horizontal(
        [slot for _, slot in found],
        unit,
        [short(foot + below + height * (slot.foot + slot.share / 2), 5) for foot, slot in found],
        [short(height * slot.share, 4) for _, slot in found],
        {"color": f"@{role}", "line": {"width": 0}},
        [
            f"<b>{word(role)}</b><br>{100 * slot.share:.0f} % of {unit.text(slot.start_s)} to {unit.text(slot.end_s)}"
            for _, slot in found
        ],
    )


def _horizontal(
    parts: Sequence[Bar | Slot | Interval],
    unit: Unit,
    y: list[float],
    height: float | list[float],
    marker: dict[str, Any],
    texts: Sequence[str],
) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "base": unit.of(part.start_s for part in parts),
        "x": unit.of(part.end_s - part.start_s for part in parts),
        "y": y,
        "width": height,
        "marker": marker,
        **told(texts),
    }


def _speech(timeline: TimelineSeries, unit: Unit, role: str) -> Trace:
    """Communication, or waiting in it for the slowest: the one from the foot of its row, the other from its top."""
    end = 1 if role == COMMUNICATION_ROLES[-1] else -1
    found = _placed(timeline, attrgetter(role))
    parts = [part for _, _, part in found]
    return _horizontal(
        parts,
        unit,
        [short(foot + SPEECH_ROW[0] + end * SPEECH_ROW[1] * (1 - part.share) / 2, 5) for foot, _, part in found],
        [short(SPEECH_ROW[1] * part.share, 3) for part in parts],
        {"color": f"@{role}", "line": {"width": 0}},
        [
            f"<b>{word(role)}</b><br>{_from(part, unit)}"
            + ("" if part.share > 0.995 else f"<br>{100 * part.share:.0f} % of it")
            for part in parts
        ],
    )


def _waiting(timeline: TimelineSeries, unit: Unit) -> Trace:
    found = _placed(timeline, lambda lane: (Interval(*ends, 1.0) for ends in lane.waits(timeline.time_s)))
    return _horizontal(
        [part for _, _, part in found],
        unit,
        [foot + BAR_ROW[0] for foot, _, _ in found],
        BAR_ROW[1],
        {"color": "@paper", "line": {"width": 0}, "pattern": HATCH} if _labelled(timeline) else {"color": "@waiting"},
        [f"<b>waiting</b><br>{_from(part, unit)}" for _, _, part in found],
    )


def _power(timeline: TimelineSeries, unit: Unit, top_w: float) -> dict[str, Any]:
    """Steps of every lane as a closed outline."""
    x: list[float | None] = []
    y: list[float | None] = []
    watts: list[float | None] = []
    n = len(timeline.lanes)
    for i, lane in enumerate(timeline.lanes):
        foot = n - 1 - i
        times, power = unit.of(lane.time_s.tolist()), [short(p, 4) for p in lane.power_w.tolist()]
        x += [times[0]]
        y += [foot]
        watts += [power[0]]
        for start, end, p in zip(times[:-1], times[1:], power, strict=True):
            x += [start, end]
            y += [short(foot + POWER_HEIGHT * p / top_w, 5)] * 2
            watts += [p, p]
        x += [times[-1], None]
        y += [foot, None]
        watts += [power[-1], None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "customdata": watts,
        "fill": "toself",
        "fillcolor": "@power/22",
        "line": {"color": "@power", "width": 1},
        "hoveron": "points",
        "hovertemplate": f"%{{customdata:.0f}} W at %{{x:.4g}} {unit.name}<extra></extra>",
    }


def _limit(timeline: TimelineSeries, unit: Unit, top_w: float) -> dict[str, Any]:
    n, end = len(timeline.lanes), short(timeline.time_s / unit.factor)
    heights = [n - 1 - i + POWER_HEIGHT * limit / top_w for i, limit in enumerate(timeline.limits_w)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [value for _ in range(n) for value in (0, end, None)],
        "y": [value for height in heights for value in (height, height, None)],
        "customdata": [value for limit in timeline.limits_w for value in (limit, limit, None)],
        "line": {"color": "@limit", "width": 1.5, "dash": "6px,3px"},
        "hovertemplate": "power limit %{customdata:.0f} W<extra></extra>",
    }
