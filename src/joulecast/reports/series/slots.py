"""Timelines with more instructions than a picture can tell apart: the shares of slots of time that each kind takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.arrays import Array
from joulecast.reports.palette import role_of
from joulecast.reports.series.timeline import Bar, Lane, TimelineSeries

#: Instructions of a lane above which slots are drawn in their place: each would be narrower than some three pixels.
MOST_BARS = 300
#: Fewest and most slots of a lane, and those of all lanes together.
FEWEST, MOST, ALL = 60, 160, 2400


@dataclass(frozen=True, slots=True)
class Slot:
    """What one kind of instruction takes of a slot of time: ``share`` of it, above the ``foot`` of kinds before it."""

    start_s: float
    end_s: float
    foot: float
    share: float


def crowded(timeline: TimelineSeries) -> bool:
    """Whether slots are drawn in place of instructions."""
    return any(len(lane.bars) > MOST_BARS for lane in timeline.lanes)


def slots_of(timeline: TimelineSeries, lane: Lane) -> dict[str, tuple[Slot, ...]]:
    """Slots of every role of a lane's instructions in turn, and of ``waiting``; those without any are left out."""
    count = min(MOST, max(FEWEST, ALL // len(timeline.lanes)))
    edges = np.linspace(0.0, timeline.time_s, count + 1)
    roles = dict.fromkeys(role_of(bar.kind) for bar in lane.bars)
    found = {role: _shares([bar for bar in lane.bars if role_of(bar.kind) == role], edges) for role in roles}
    found["waiting"] = np.clip(1.0 - sum(found.values()), 0.0, 1.0)
    foot, out = np.zeros(len(edges) - 1), {}
    for role, share in found.items():
        rows = zip(pairwise(edges.tolist()), foot.tolist(), share.tolist(), strict=True)
        out[role] = tuple(Slot(start, end, under, part) for (start, end), under, part in rows if part > 1e-3)
        foot = foot + share
    return out


def _shares(bars: Sequence[Bar], edges: Array) -> Array:
    """Share of each slot in which one of some bars, which do not overlap, runs."""
    at = np.array([time for bar in bars for time in (bar.start_s, bar.end_s)])
    lasts = np.array([bar.end_s - bar.start_s for bar in bars])
    busy = np.insert(np.repeat(np.cumsum(lasts), 2)[:-1], 0, 0.0)
    return np.asarray(np.diff(np.interp(edges, at, busy)) / np.diff(edges))
