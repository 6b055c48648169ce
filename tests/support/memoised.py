"""Exact iteration time from memoised segments, without looking at single kernels again; the engine is held against it.

A segment of kernels of fixed duration is a max-plus map: (compute free, communication free, input arrived) → (compute
free, communication free, sent). It stays exact where communication crosses the border between two instructions, where
one duration per instruction would not. Segments that are the same object are mapped once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.arrays import Int
from joulecast.errors import GuardError
from joulecast.simulator.events.segment_program import Program
from joulecast.simulator.events.segments import COMMUNICATION, COMPUTE, Segment

#: Delays after which a time is: from the compute stream, the communication stream and the input's arrival [ns].
Delays = tuple[int, int, int]
#: A delay so negative that it never decides.
NEVER = -(1 << 62)


@dataclass(frozen=True, eq=False)
class MemoisedResult:
    """Times of one iteration, per rank and instruction.

    Attributes
    ----------
    time_ns
        When the last stream of any rank is free [ns].
    compute_free_ns, communication_free_ns, sent_ns
        Per rank: after each instruction, when the streams are free and the output is ready to be sent [ns].
    """

    time_ns: int
    compute_free_ns: tuple[Int, ...]
    communication_free_ns: tuple[Int, ...]
    sent_ns: tuple[Int, ...]


def simulate_memoised(program: Program) -> MemoisedResult:
    """Simulate one iteration by one map per instruction; the same integer times as the engine's.

    Raises
    ------
    GuardError
        Where ranks wait for each other for ever.
    """
    offsets, outputs = program.offsets, program.outputs
    maps = [max_plus(segment) for segment in program.segments]
    order = [maps[s] for row in program.segment_of for s in row]
    total = len(order)
    missing = np.bincount(program.target, minlength=total).tolist()
    arrival = [0] * total
    compute, communication, sent = ([0] * total for _ in range(3))
    position = list(offsets[:-1])
    free = [(0, 0)] * program.ranks
    rank_of = np.repeat(np.arange(program.ranks), np.diff(offsets)).tolist()
    ready = list(range(program.ranks))
    while ready:
        rank = ready.pop()
        i, end, (c, m) = position[rank], offsets[rank + 1], free[rank]
        while i < end and not missing[i]:
            cc, cm, ca, mc, mm, ma, sc, sm, sa = order[i]
            a = arrival[i]
            out = max(c + sc, m + sm, a + sa)
            c, m = max(c + cc, m + cm, a + ca), max(c + mc, m + mm, a + ma)
            compute[i], communication[i], sent[i] = c, m, out
            for target, latency in outputs[i]:
                arrival[target] = max(arrival[target], out + latency)
                missing[target] -= 1
                other = rank_of[target]
                if not missing[target] and position[other] == target and other != rank:
                    ready.append(other)
            i += 1
        position[rank], free[rank] = i, (c, m)
    for rank, i in enumerate(position):
        if i != offsets[rank + 1]:
            raise GuardError(f"rank {rank} waits for ever at its instruction {i - offsets[rank]}")
    compute_free, communication_free, sent_at = (_by_rank(t, offsets) for t in (compute, communication, sent))
    return MemoisedResult(max(max(f) for f in free), compute_free, communication_free, sent_at)


def _by_rank(times: list[int], offsets: tuple[int, ...]) -> tuple[Int, ...]:
    flat = np.array(times, dtype=np.int64)
    return tuple(flat[a:b] for a, b in pairwise(offsets))


def max_plus(segment: Segment) -> tuple[int, ...]:
    """Delays of both streams and of the output, three each, from the segment's runs."""
    free: list[Delays] = [(0, NEVER, NEVER), (NEVER, 0, NEVER)]
    ended: list[list[Delays]] = [[], []]
    sent: Delays = (NEVER, NEVER, NEVER)
    for run in segment.runs:
        start = free[run.stream]
        if run.waits_for:
            start = _later(start, ended[1 - run.stream][run.waits_for - 1])
        if run.needs_input:
            start = _later(start, (NEVER, NEVER, 0))
        end = (start[0] + run.duration_ns, start[1] + run.duration_ns, start[2] + run.duration_ns)
        free[run.stream] = end
        ended[run.stream].append(end)
        if run.is_output:
            sent = end
    return *free[COMPUTE], *free[COMMUNICATION], *sent


def _later(a: Delays, b: Delays) -> Delays:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])
