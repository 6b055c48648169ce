"""Gradients and parameters that travel beside a rank's instructions, for many plans at once.

What of them is exposed depends on the instructions near the ends of an iteration alone, so a few rounds of
micro-batches stand for all. Ranks of as many types of instructions with as many items to carry are evaluated together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.kernels.operators import Collective
from joulecast.model.power.kernel_power import wait_power_w
from joulecast.simulator.closed_form.keys import kind_number, with_whole_backward
from joulecast.simulator.closed_form.layout import Layout
from joulecast.simulator.closed_form.shape import RankKind
from joulecast.simulator.closed_form.tabulated import Parts, Tails
from joulecast.simulator.instructions.overlap import blocks_of, lost_beside
from joulecast.simulator.instructions.overlapped_buckets import CARRIED, beyond_s
from joulecast.simulator.instructions.replicas import overlapped_buckets, stage_tensors
from joulecast.simulator.instructions.tables import kernels_of
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import (
    FORWARD,
    OPTIMIZER,
    PAIRS,
    Instruction,
    build_schedule,
    first_forwards,
    last_backwards,
)

#: Rounds of as many micro-batches as there are ranks that stand for an iteration.
ROUNDS = 2
#: Most values of one array of instructions' lengths.
MOST_VALUES = 2_000_000


@dataclass(frozen=True, eq=False)
class Added:
    """What the tails of some rank rows gain at every clock, shape ``(rows, c)`` [s], [J]."""

    rows: list[int]
    time_s: Array
    exposed_s: Array
    energy_j: Array


@dataclass(frozen=True, eq=False)
class _Order:
    """Order of a rank's instructions, and its marks: the first forwards and last backwards, where something may travel.

    Attributes
    ----------
    kinds, chunks
        Of each of ``t`` types of instructions: its number among the kinds, and the chunk.
    counts
        How many instructions of each type there are, shape ``(t,)``.
    before
        How many of each type end with or before each mark, shape ``(marks, t)``.
    types
        Type of each mark.
    instructions, marks
        Those, and what tells them apart.
    """

    kinds: tuple[int, ...]
    chunks: tuple[int, ...]
    counts: Array
    before: Array
    types: Int
    instructions: tuple[Instruction, ...]
    marks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Items:
    """What travels beside a rank's instructions: ``i`` items.

    Attributes
    ----------
    operator
        Which of the collectives that travel, shape ``(i,)``.
    buckets
        Shape ``(i,)``.
    mark
        Place among the marks of an order.
    gathers
        Whether each gathers parameters rather than reduces gradients.
    ctas
        Thread blocks of its collectives.
    """

    operator: list[int]
    buckets: list[int]
    mark: list[int]
    gathers: tuple[bool, ...]
    ctas: float


class _Travelling:
    """Distinct collectives that travel beside instructions on one GPU."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._numbers: dict[Collective, int] = {}
        self._tables = np.empty((2, 0, len(parts.clocks_mhz)))

    def number(self, operator: Collective) -> int:
        """Its place in :meth:`tables`."""
        return self._numbers.setdefault(operator, len(self._numbers))

    def tables(self) -> Array:
        """Time, and energy on top of what the board draws anyway, shape ``(2, collectives, c)`` [s], [J]."""
        if fresh := list(self._numbers)[self._tables.shape[1] :]:
            gpu, clocks = self._parts.gpu, self._parts.clocks_mhz
            kernels = kernels_of([], clocks, gpu, None, fresh, self._parts.component_limits_w)
            carried = np.sum([kernels.component_j(name) for name in CARRIED], axis=0)
            self._tables = np.concatenate([self._tables, np.stack([kernels.times.time_s.T, carried.T])], axis=1)
        return self._tables


def travels_beside(plan: Plan) -> bool:
    """Whether gradients or parameters of the plan travel beside its instructions."""
    several = max(plan.summing, plan.experts_summing) > 1
    return several and "overlapped" in (plan.overlap.grad_reduce, plan.overlap.param_gather)


def overlapped_communication(plans: Sequence[Plan], layout: Layout, parts: Parts, stage_s: Array) -> Iterator[Added]:
    """What tails gain by what travels beside their ranks' instructions.

    Parameters
    ----------
    stage_s
        Times of distinct stages' instructions by kind, shape ``(k, u, c)`` [s].
    """
    travelling = parts.cached(_Travelling, lambda: _Travelling(parts))
    groups: dict[tuple[int, tuple[bool, ...]], list[_Rank]] = {}
    for number, plan in enumerate(plans):
        if not travels_beside(plan):
            continue
        shape, tails = layout.shapes[number], parts.tails_of(plan)
        named = (plan.schedule.name, plan.pp, _rounds(plan), plan.chunks)
        for place, kind in enumerate(shape.kinds):
            order = _order(*named, kind.rank)
            items = _items(plan, kind, tails, order, parts, travelling)
            if not items.gathers:
                continue
            first, chunks = int(layout.first_stage_row[number]), shape.stage_of_chunk[place]
            stages = [first + chunks[chunk] for chunk in order.chunks]
            row = _Rank(int(layout.first_rank_row[number]) + place, stages, order, items)
            groups.setdefault((len(stages), items.gathers), []).append(row)
    if groups:
        tables = travelling.tables()
        for (types, gathers), members in groups.items():
            most = max(1, MOST_VALUES // ((types + len(gathers)) * len(parts.clocks_mhz)))
            for start in range(0, len(members), most):
                yield _added(members[start : start + most], layout, parts, stage_s, tables)


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank row, its stage row of every type of instruction, and what travels beside these."""

    row: int
    stages: list[int]
    order: _Order
    items: _Items


def _added(members: Sequence[_Rank], layout: Layout, parts: Parts, stage_s: Array, tables: Array) -> Added:
    """What tails of rank rows gain that have as many types of instructions and carry the same kinds of items.

    ``tables`` are those of :class:`_Travelling`; values by item have shape ``(members, items, c)``.
    """
    gpu, clocks = parts.gpu, parts.clocks_mhz
    kinds = np.array([one.order.kinds for one in members])
    types_s = with_whole_backward(stage_s)[kinds, layout.stages.index[[one.stages for one in members]]]
    ends = np.array([one.order.before[one.items.mark] for one in members]) @ types_s
    rows = np.arange(len(members))[:, None]
    lengths = types_s[rows, [one.order.types[one.items.mark] for one in members]]
    finish = (np.array([[one.order.counts] for one in members]) @ types_s)[:, 0]
    operators = np.array([one.items.operator for one in members])
    buckets = np.array([one.items.buckets for one in members], dtype=np.float64)[..., None]
    time, carried = tables[:, operators]
    count, one_s, end, length = (np.swapaxes(values, 0, 1) for values in (buckets, time, ends, lengths))
    exposed = beyond_s(members[0].items.gathers, count, one_s, end, length, finish)
    hidden = np.maximum((buckets * time).sum(1) - exposed, 0.0)
    lost = np.array([lost_beside(one.items.ctas, gpu) for one in members])[:, None]
    longer = exposed + hidden * lost
    energy = (buckets * carried).sum(1) + longer * parts.idle_w + exposed * (wait_power_w(clocks, gpu) - parts.idle_w)
    return Added([one.row for one in members], longer, exposed, energy)


def _items(plan: Plan, kind: RankKind, tails: Tails, order: _Order, parts: Parts, travelling: _Travelling) -> _Items:
    """What travels beside a rank's instructions; plans with the same tails share it."""

    def make() -> _Items:
        impl = implementation_of(plan)
        chunks = [stage_tensors(plan, impl, stage) for stage in plan.stages_of_rank(kind.rank)]
        found = overlapped_buckets(plan, impl, kind.rank, order.instructions, chunks)
        return _Items(
            operator=[travelling.number(item.operator) for item in found],
            buckets=[item.buckets for item in found],
            mark=[item.position for item in found],
            gathers=tuple(item.gathers for item in found),
            ctas=blocks_of(found[0].operator, parts.gpu) if found else 0.0,
        )

    return parts.cached((tails, kind.rank == 0, kind.places, kind.place_of_chunk, order.marks), make)


def _rounds(plan: Plan) -> int:
    """Micro-batches that stand for all."""
    if plan.schedule.name == "interleaved-1f1b" and plan.microbatches % plan.pp:
        return plan.microbatches
    return min(plan.microbatches, ROUNDS * plan.pp)


@lru_cache(maxsize=4096)
def _order(name: str, stages: int, microbatches: int, chunks: int, rank: int) -> _Order:
    order = _ranks(name, stages, microbatches, chunks)[rank][:-1]
    numbers: dict[tuple[int, int], int] = {}
    row = [numbers.setdefault((kind_number(one.kind, pairs=name in PAIRS), one.chunk), len(numbers)) for one in order]
    before = np.zeros((len(order), len(numbers)))
    before[np.arange(len(order)), row] = 1.0
    before = before.cumsum(0)
    marked = sorted(first_forwards(order) | last_backwards(order))
    return _Order(
        kinds=tuple(kind for kind, _ in numbers),
        chunks=tuple(chunk for _, chunk in numbers),
        counts=before[-1],
        before=before[marked],
        types=np.array([row[place] for place in marked]),
        instructions=tuple(order[place] for place in marked),
        marks=tuple(2 * order[place].chunk + (order[place].kind == FORWARD) for place in marked),
    )


@lru_cache(maxsize=256)
def _ranks(name: str, stages: int, microbatches: int, chunks: int) -> tuple[tuple[Instruction, ...], ...]:
    return build_schedule(name, stages, microbatches, virtual_stages_per_rank=chunks, tail=(OPTIMIZER,)).ranks
