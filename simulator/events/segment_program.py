"""What every rank executes in one iteration, as segments of kernels in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Int
from joulecast.errors import InputError
from joulecast.simulator.events.segments import Segment
from joulecast.simulator.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Program:
    """What every pipeline rank executes in one iteration.

    Attributes
    ----------
    schedule
        Gives order of execution.
    segments
        Distinct segments.
    segment_of
        Per rank and instruction of the schedule, the index into ``segments``.
    source, target
        Flat indices of instructions, shape ``(e,)``: ``target`` needs the output of ``source``.
    latency_ns
        Time from the end of the source's output kernel to arrival, shape ``(e,)`` [ns].
    """

    schedule: Schedule
    segments: tuple[Segment, ...]
    segment_of: tuple[tuple[int, ...], ...]
    source: Int
    target: Int
    latency_ns: Int

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.segment_of)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Flat index of each rank's first instruction, and the total number at the end."""
        return self.schedule.offsets

    @property
    def kernels(self) -> int:
        """Number of kernels that one iteration executes on all ranks."""
        return sum(len(self.segments[s]) for order in self.segment_of for s in order)

    @cached_property
    def outputs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per flat instruction, who needs its output: (target, latency [ns])."""
        out: list[list[tuple[int, int]]] = [[] for _ in range(self.offsets[-1])]
        for s, t, latency in zip(self.source.tolist(), self.target.tolist(), self.latency_ns.tolist(), strict=True):
            out[s].append((t, latency))
        return tuple(tuple(o) for o in out)


def make_program(
    schedule: Schedule,
    segments: Sequence[Segment],
    segment_of: Sequence[Sequence[int]],
    latency_ns: ArrayLike = 0,
) -> Program:
    """Validated :class:`Program` of a schedule.

    Parameters
    ----------
    schedule
        Gives order and dependencies.
    segments
        Distinct segments.
    segment_of
        Per rank and instruction of the schedule, the index into ``segments``.
    latency_ns
        One number, or one per edge of ``schedule.edges`` [ns]. Edges within a rank cost nothing.
    """
    edges = schedule.edges
    latency = np.broadcast_to(np.asarray(latency_ns, dtype=np.int64), edges.source.shape)
    latency = np.where(edges.source_rank == edges.target_rank, 0, latency)
    order = tuple(tuple(int(s) for s in row) for row in segment_of)
    if [len(row) for row in order] != [len(row) for row in schedule.ranks]:
        raise InputError("a program needs one segment for every instruction of its schedule")
    if any(not 0 <= s < len(segments) for row in order for s in row):
        raise InputError(f"a program names a segment outside its {len(segments)}")
    if latency.size and latency.min() < 0:
        raise InputError("a transfer's latency must not be negative")
    return Program(schedule, tuple(segments), order, edges.source, edges.target, latency)
