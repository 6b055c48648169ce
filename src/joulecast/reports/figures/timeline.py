"""The timeline of an iteration drawn with Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulecast.reports.figures.figure import new_figure, styled
from joulecast.reports.numbers import Unit, unit_for
from joulecast.reports.palette import BRIGHT, role_of, scheme, word
from joulecast.reports.series.slots import crowded, slots_of
from joulecast.reports.series.timeline import COMMUNICATION_ROLES, limit_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.reports.series.slots import Slot
    from joulecast.reports.series.timeline import Lane, TimelineSeries

#: Rows of a lane in units of its height: foot and height of instructions, of communication, and the power's height.
BAR_ROW, COMMUNICATION_ROW, POWER_HEIGHT = (0.64, 0.27), (0.55, 0.06), 0.44
#: Share of the iteration that an instruction must last to have its number written on it, at six inches.
LABELLED = 0.018
#: Letters of the legend that an inch holds, and those that an entry takes beside its name.
LETTERS, HANDLE = 16, 5


@styled
def timeline_figure(timeline: TimelineSeries, width_in: float = 6.3) -> Figure:
    """Instructions, communication, waiting, power and its limit over time; a lane for each pipeline stage."""
    lanes, marks = timeline.lanes, _marks(timeline)
    rows = math.ceil(sum(len(mark.get_label()) + HANDLE for mark in marks) / (LETTERS * width_in))
    figure, (axis,) = new_figure(width_in, 0.55 + 0.2 * rows + 0.95 * len(lanes))
    unit = unit_for("s", timeline.time_s)
    top = 1.08 * timeline.highest_w
    for i, lane in enumerate(lanes):
        _lane(axis, lane, len(lanes) - 1 - i, timeline, unit, top, LABELLED * 6.0 / width_in)
    columns = math.ceil(len(marks) / rows)
    figure.legend(handles=marks, loc="outside upper center", ncols=columns, handlelength=1.1, columnspacing=1.0)
    axis.set_xlim(0, timeline.time_s / unit.factor)
    axis.set_ylim(-0.04, len(lanes) - 0.02)
    axis.set_yticks([len(lanes) - 1 - i + BAR_ROW[0] + BAR_ROW[1] / 2 for i in range(len(lanes))])
    axis.set_yticklabels([f"stage {lane.stage}" for lane in lanes])
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(f"time [{unit.name}]")
    _watts(axis, timeline, top)
    return figure


def _marks(timeline: TimelineSeries) -> list[Any]:
    """Entries of the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour, lanes = scheme(False), timeline.lanes
    roles = [*dict.fromkeys(role_of(bar.kind) for lane in lanes for bar in lane.bars)]
    roles += [role for role in COMMUNICATION_ROLES if any(getattr(lane, role) for lane in lanes)]
    marks: list[Any] = [Patch(color=colour[role], label=word(role)) for role in roles]
    marks.append(Patch(fc="white", ec=colour["waiting"], hatch="////", label="waiting"))
    marks.append(Patch(fc=colour["power"] + "38", ec=colour["power"], lw=0.7, label="power"))
    if timeline.limits_w:
        marks.append(Line2D([], [], color=colour["limit"], ls="--", lw=1, label=limit_words(timeline.limits_w)))
    return marks


def _watts(axis: Any, timeline: TimelineSeries, top_w: float) -> None:
    """A scale of power to the right of every lane: nothing, and the limit."""
    n = len(timeline.lanes)
    levels = timeline.limits_w or (top_w / 1.08,) * n
    feet = [(n - 1 - i, level) for i, level in enumerate(levels)]
    scale = axis.twinx()
    scale.set_ylim(axis.get_ylim())
    scale.set_yticks([foot + h for foot, level in feet for h in (0.0, POWER_HEIGHT * level / top_w)])
    scale.set_yticklabels([text for _, level in feet for text in ("0", f"{level:.0f} W")], fontsize=7)
    scale.tick_params(axis="y", length=0, pad=2)
    scale.grid(visible=False)
    scale.spines[:].set_visible(False)


def _lane(
    axis: Any, lane: Lane, foot: float, timeline: TimelineSeries, unit: Unit, top_w: float, least_share: float
) -> None:
    colour, end = scheme(False), timeline.time_s / unit.factor
    row = (foot + BAR_ROW[0], BAR_ROW[1])
    if crowded(timeline):
        _slots(axis, slots_of(timeline, lane), row, unit)
    else:
        _instructions(axis, lane, row, timeline, unit, least_share)
    for role, up in zip(COMMUNICATION_ROLES, (False, True), strict=True):
        low, high = foot + COMMUNICATION_ROW[0], COMMUNICATION_ROW[1]
        boxes = [
            (part.start_s, part.end_s, low + up * high * (1 - part.share), high * part.share)
            for part in getattr(lane, role)
        ]
        if boxes:
            _boxes(axis, boxes, unit, color=colour[role], lw=0.25)
    height = [foot + POWER_HEIGHT * p / top_w for p in lane.power_w.tolist()]
    axis.stairs(
        height, unit.of(lane.time_s.tolist()), baseline=foot, fill=True, color=colour["power"], alpha=0.22, lw=0
    )
    axis.stairs(height, unit.of(lane.time_s.tolist()), baseline=None, color=colour["power"], lw=0.5)
    axis.plot([0, end], [foot, foot], color=colour["grid"], lw=0.6)
    if timeline.limits_w:
        level = foot + POWER_HEIGHT * timeline.limits_w[lane.stage] / top_w
        axis.plot([0, end], [level, level], color=colour["limit"], lw=0.8, ls=(0, (5, 2)))


def _instructions(
    axis: Any, lane: Lane, row: tuple[float, float], timeline: TimelineSeries, unit: Unit, least_share: float
) -> None:
    """Each instruction, with its micro-batch where that can be read, and waiting."""
    colour = scheme(False)
    for role in dict.fromkeys(role_of(bar.kind) for bar in lane.bars):
        spans = [_span(b.start_s, b.end_s, unit) for b in lane.bars if role_of(b.kind) == role]
        axis.broken_barh(spans, row, facecolor=colour[role], edgecolor="white", lw=0.3)
    for bar in lane.bars:
        if bar.microbatch >= 0 and bar.end_s - bar.start_s > least_share * timeline.time_s:
            start, length = _span(bar.start_s, bar.end_s, unit)
            place = (start + length / 2, row[0] + row[1] / 2)
            axis.text(*place, str(bar.microbatch), ha="center", va="center_baseline", fontsize=6.5,
                      color=colour["ink"] if role_of(bar.kind) in BRIGHT else "white")  # fmt: skip
    waits = [_span(a, b, unit) for a, b in lane.waits(timeline.time_s)]
    axis.broken_barh(waits, row, facecolor="white", edgecolor=colour["waiting"], hatch="////", lw=0)


def _slots(axis: Any, slots: Mapping[str, Sequence[Slot]], row: tuple[float, float], unit: Unit) -> None:
    """Shares of slots of time in place of instructions."""
    for role, own in slots.items():
        paint = {"hatch": "////", "facecolor": "white"} if role == "waiting" else {"facecolor": scheme(False)[role]}
        boxes = [(slot.start_s, slot.end_s, row[0] + row[1] * slot.foot, row[1] * slot.share) for slot in own]
        _boxes(axis, boxes, unit, **paint, edgecolor=scheme(False)[role], lw=0)


def _boxes(axis: Any, boxes: Sequence[tuple[float, float, float, float]], unit: Unit, **paint: Any) -> None:
    """Boxes from a begin to an end [s] and of a height above a foot, all at once: one call for each takes seconds."""
    from matplotlib.collections import PolyCollection

    corners = []
    for start_s, end_s, foot, height in boxes:
        start, length = _span(start_s, end_s, unit)
        left, right, top = start, start + length, foot + height
        corners.append([(left, foot), (left, top), (right, top), (right, foot)])
    axis.add_collection(PolyCollection(corners, **paint, snap=False), autolim=False)


def _span(start_s: float, end_s: float, unit: Unit) -> tuple[float, float]:
    return start_s / unit.factor, (end_s - start_s) / unit.factor
