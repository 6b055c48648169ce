"""Lengths of many plans' pipelines instruction by instruction, where no formula holds: max-plus over levels.

An instruction starts when its rank is free and what it needs has arrived; in PyTorch's interleaved runtime also when
the transfers listed before its own have ended (:mod:`joulecast.simulator.rendezvous`). Instructions of equal depth in
this graph do not wait for each other, so a level of all plans is one operation on arrays:

    end[i] = max(end[j] + hops(j, i)·d over all j that i waits for) + duration[i]

Many micro-batches repeat a round of as many as there are ranks: two rounds are walked through, and further ones take as
long as the second added, or as the busiest rank's work if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecast.simulator.rendezvous import listed_transfers
from joulecast.simulator.schedules import FORWARD, build_schedule

Array = NDArray[np.float64]
Int = NDArray[np.int64]

#: Rounds that are walked through.
ROUNDS = 2


@dataclass(frozen=True, eq=False)
class _Level:
    """Instructions that do not wait for each other, ``k`` of them.

    ``of`` is the duration of each, counted over ranks, chunks and the two kinds; ``waits_for`` are up to ``s``
    instructions that it waits for, filled up with one that ends at 0, ``hops`` the transfers in between: shape
    ``(s, k)``.
    """

    instructions: Int
    of: Int
    waits_for: Int
    hops: Array


def walked_s(durations_s: Array, transfer_s: Array, microbatches: int, chunks: int) -> Array:
    """Length of PyTorch's interleaved 1F1B, from the first rank's start to its end, shape ``(n,)`` [s].

    Parameters
    ----------
    durations_s
        Forward and backward of every chunk on every rank, shape ``(n, p, v, 2)`` [s].
    transfer_s
        From one stage to the next, shape ``(n,)`` [s].
    """
    ranks = durations_s.shape[1]
    rounds = microbatches // ranks
    if microbatches % ranks or rounds <= ROUNDS:
        return _walk_s(durations_s, transfer_s, microbatches, chunks)
    shorter, whole = (_walk_s(durations_s, transfer_s, n * ranks, chunks) for n in (ROUNDS - 1, ROUNDS))
    busiest = ranks * durations_s.sum((2, 3)).max(1)
    return np.asarray(whole + (rounds - ROUNDS) * np.maximum(whole - shorter, busiest))


def _walk_s(durations_s: Array, transfer_s: Array, microbatches: int, chunks: int) -> Array:
    plans, ranks = durations_s.shape[:2]
    levels, last = _levels(ranks, microbatches, chunks)
    of = np.ascontiguousarray(durations_s.reshape(plans, -1).T)
    end = np.zeros((sum(len(level.instructions) for level in levels) + 1, plans))
    for level in levels:
        ready = (end[level.waits_for] + level.hops[..., None] * transfer_s).max(0)
        end[level.instructions] = ready + of[level.of]
    return np.asarray(end[last])


@lru_cache(maxsize=256)
def _levels(ranks: int, microbatches: int, chunks: int) -> tuple[tuple[_Level, ...], int]:
    """Levels of a schedule, and the first rank's last instruction."""
    schedule = build_schedule("interleaved-1f1b", ranks, microbatches, virtual_stages_per_rank=chunks, tail=())
    flat, offsets = list(schedule.flat()), schedule.offsets
    nothing = len(flat)
    needs: list[dict[int, int]] = [{} for _ in flat]  # hops by the instruction that is waited for
    begins = set(offsets)
    for i in range(len(flat)):
        if i not in begins:
            needs[i][i - 1] = 0
    edges = schedule.edges
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        needs[target][source] = max(needs[target].get(source, 0), 1)
    for transfer in listed_transfers(schedule):
        for rank, (position, hops) in transfer.front.items():
            source, target = offsets[rank] + position, transfer.consumer
            needs[target][source] = max(needs[target].get(source, 0), hops)
    found = []
    for members in _by_depth(needs):
        width = max(1, *(len(needs[i]) for i in members))
        padded = [[*needs[i].items(), *[(nothing, 0)] * (width - len(needs[i]))] for i in members]
        table = np.array(padded, dtype=np.int64)
        of = [(rank * chunks + one.chunk) * 2 + (one.kind != FORWARD) for rank, one in (flat[i] for i in members)]
        found.append(_Level(np.array(members), np.array(of), table[..., 0].T, table[..., 1].T.astype(np.float64)))
    return tuple(found), offsets[1] - 1


def _by_depth(needs: list[dict[int, int]]) -> list[list[int]]:
    """Instructions by the length of the longest chain of waits before them."""
    left = [len(of) for of in needs]
    after: list[list[int]] = [[] for _ in needs]
    for target, of in enumerate(needs):
        for source in of:
            after[source].append(target)
    levels = [[i for i, count in enumerate(left) if count == 0]]
    while levels[-1]:
        following = []
        for i in levels[-1]:
            for target in after[i]:
                left[target] -= 1
                if left[target] == 0:
                    following.append(target)
        levels.append(following)
    return levels[:-1]
