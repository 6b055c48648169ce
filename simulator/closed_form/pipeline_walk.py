"""Lengths of many plans' pipelines instruction by instruction, where no formula holds: max-plus over levels.

An instruction starts when its rank is free and what it needs has arrived; in PyTorch's interleaved runtime also when
the transfers listed before its own have ended (:mod:`joulecast.simulator.fluid.rendezvous`). Instructions of equal
depth in this graph do not wait for each other, so a level of all plans is one operation on arrays:

    end[i] = max(end[j] + hops(j, i)·d over all j that i waits for) + duration[i]

Many micro-batches repeat a round of as many as there are ranks: two rounds are walked through, and further ones take as
long as the second added, or as the busiest rank's work if that is more. A pipeline whose
first rank holds both ends is full after two rounds:
three are walked through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.errors import GuardError
from joulecast.simulator.closed_form.keys import kind_number
from joulecast.simulator.fluid.rendezvous import listed_transfers
from joulecast.simulator.schedules import BOTH_ENDS, PAIRS, Schedule, build_schedule

#: Kinds of instructions, and those of schedules with pairs.
KINDS, KINDS_OF_PAIRS = 3, 5
#: Rounds that are walked through.
ROUNDS = 2
#: Waits that cut no piece of work, as a share of what is remembered of one: the averages hardly fall. An estimate.
SHORT = 0.1
INTERLEAVED = "interleaved-1f1b"


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of instructions depends on; ``listed``: transfers run in the order of PyTorch's lists."""

    schedule: str
    ranks: int
    microbatches: int
    chunks: int
    listed: bool


@dataclass(frozen=True, eq=False)
class _Level:
    """Instructions that do not wait for each other, ``k`` of them: ``rows`` of all in the order of levels.

    ``waits_for`` are rows of up to ``s`` instructions that each waits for, filled up with one that ends at 0, shape
    ``(s, k)``, ``hops`` the transfers in between, shape ``(s, k, 1)``.
    """

    rows: slice
    waits_for: Int
    hops: Array


@dataclass(frozen=True, eq=False)
class _Levels:
    """All ``i`` instructions by levels.

    ``of`` is the duration of each, counted over ranks, chunks and the kinds, shape ``(i,)``; ``rows``
    are those of every rank's instructions in order, rank after rank, which begin at ``begins``, shape ``(p,)``.
    """

    levels: tuple[_Level, ...]
    of: Int
    rows: Int
    begins: Int


@dataclass(frozen=True, eq=False)
class Walked:
    """What was found of ``n`` pipelines with ``p`` ranks.

    Attributes
    ----------
    length_s
        From the first rank's start to its end, shape ``(n,)`` [s].
    spare_s
        How much longer a rank's end may take than the first's before others wait for it, shape ``(n, p)`` [s]: it has
        done its last instruction so much sooner, and is needed so much later by the next iteration.
    remembered_s
        Waits between a rank's instructions, each for as long as it is remembered, shape ``(n, p)`` [s].
    pieces_s
        Work between such waits, each piece for as long as the board looks back, shape ``(n, p)`` [s].
    """

    length_s: Array
    spare_s: Array
    remembered_s: Array
    pieces_s: Array


def walked(
    order: Order, durations_s: Array, transfer_s: Array, remembered_s: float = np.inf, looks_back_s: float = np.inf
) -> Walked:
    """Lengths of pipelines, what their ranks have to spare, and how these wait.

    Parameters
    ----------
    durations_s
        Forward, backward and weight gradient of every chunk on every rank, shape ``(n, p, v, 3)``, or as
        :func:`~joulecast.simulator.closed_form.keys.with_whole_backward` has them [s].
    transfer_s
        From one stage to the next, shape ``(n,)`` [s].
    remembered_s
        How much of a wait counts among those between instructions [s].
    looks_back_s
        How much of the work between two waits counts [s].
    """
    rounds, rest = divmod(order.microbatches, order.ranks)
    most = ROUNDS + (order.schedule in BOTH_ENDS)
    if rounds <= most or (rest and order.schedule == INTERLEAVED):  # whose rounds are longer then
        return _walk(order, durations_s, transfer_s, remembered_s, looks_back_s)
    shorter, whole = (
        _walk(replace(order, microbatches=n * order.ranks + rest), durations_s, transfer_s, remembered_s, looks_back_s)
        for n in (most - 1, most)
    )
    busiest = order.ranks * durations_s[..., :3].sum((2, 3)).max(1) if order.schedule not in PAIRS else 0.0

    def extended(name: str, least: Array | float) -> Array:
        last = getattr(whole, name)
        return np.asarray(last + (rounds - most) * np.maximum(last - getattr(shorter, name), least))

    waits, pieces = extended("remembered_s", 0.0), extended("pieces_s", 0.0)
    return Walked(extended("length_s", busiest), whole.spare_s, waits, pieces)


def _walk(order: Order, durations_s: Array, transfer_s: Array, remembered_s: float, looks_back_s: float) -> Walked:
    found, plans = _levels(order), len(durations_s)
    kinds = KINDS_OF_PAIRS if order.schedule in PAIRS else KINDS
    work = durations_s[..., :kinds].reshape(plans, -1).T[found.of]
    end = np.zeros((len(work) + 1, plans))
    for level in found.levels:
        ready = end[level.waits_for]
        ready += level.hops * transfer_s
        end[level.rows] = np.maximum.reduce(ready) + work[level.rows]
    work, end = work[found.rows], end[found.rows]
    begin, first, last = end - work, found.begins, np.append(found.begins[1:], len(end)) - 1
    waits = begin - np.concatenate([end[:1], end[:-1]])
    waits[first] = 0.0
    waits = np.minimum(waits, remembered_s)
    pieces = np.minimum(_before_waits_s(work, waits > SHORT * remembered_s, first), looks_back_s) * waits / remembered_s
    remembered, pieces = (np.add.reduceat(of, first, axis=0).T for of in (waits, pieces))
    return Walked(end[last[0]], (begin[first] + end[last[0]] - end[last]).T, remembered, pieces)


def _before_waits_s(work_s: Array, waits: Bool, first: Int) -> Array:
    """Work of a rank from its last wait to those where it ``waits``, 0 elsewhere; all of shape ``(i, n)``."""
    done = work_s.cumsum(0) - work_s
    begun = waits.copy()
    begun[first] = True
    since = np.maximum.accumulate(np.where(begun, done, 0.0), axis=0)
    return np.where(waits, done - np.concatenate([since[:1], since[:-1]]), 0.0)


@lru_cache(maxsize=256)
def _levels(order: Order) -> _Levels:
    schedule = build_schedule(
        order.schedule, order.ranks, order.microbatches, virtual_stages_per_rank=order.chunks, tail=()
    )
    needs = _needs(schedule, listed=order.listed)
    depths = _by_depth(needs)
    by_level = [i for members in depths for i in members]
    if len(by_level) < len(needs):
        raise GuardError(f"schedule {order.schedule!r} of {order.ranks} ranks never ends: each waits for another")
    row = {instruction: number for number, instruction in enumerate(by_level)}
    levels, done = list[_Level](), 0
    for members in depths:
        waits = [[(row[source], hops) for source, hops in needs[i].items()] for i in members]
        width = max(1, *map(len, waits))
        table = np.array([[*own, *[(len(needs), 0)] * (width - len(own))] for own in waits], dtype=np.int64).T
        levels.append(_Level(slice(done, done + len(members)), table[0], table[1, ..., None].astype(np.float64)))
        done += len(members)
    flat = list(schedule.flat())
    pairs = order.schedule in PAIRS
    kinds = KINDS_OF_PAIRS if pairs else KINDS
    of = [
        (rank * order.chunks + one.chunk) * kinds + kind_number(one.kind, pairs=pairs)
        for rank, one in (flat[i] for i in by_level)
    ]
    rows = np.array([row[i] for i in range(len(flat))])
    return _Levels(tuple(levels), np.array(of), rows, np.array(schedule.offsets[:-1]))


#: Of each instruction those that it waits for, by flat index, with the number of transfers in between.
_Needs = list[dict[int, int]]


def _needs(schedule: Schedule, *, listed: bool) -> _Needs:
    """Each instruction waits for the one before it on its rank, for its inputs, and for transfers ``listed`` before."""
    offsets = schedule.offsets
    begins = set(offsets)
    needs: _Needs = [{} if i in begins else {i - 1: 0} for i in range(offsets[-1])]

    def wait(target: int, source: int, hops: int) -> None:
        needs[target][source] = max(needs[target].get(source, 0), hops)

    edges = schedule.edges
    hops = (edges.source_rank != edges.target_rank).astype(int)
    for source, target, between in zip(edges.source.tolist(), edges.target.tolist(), hops.tolist(), strict=True):
        wait(target, source, between)
    for transfer in listed_transfers(schedule) if listed else ():
        for rank, (position, hops) in transfer.front.items():
            wait(transfer.consumer, offsets[rank] + position, hops)
    return needs


def _by_depth(needs: _Needs) -> list[list[int]]:
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
