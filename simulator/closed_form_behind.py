"""Gradients and parameters that travel beside a rank's instructions, for many plans at once.

What of them is exposed depends on the instructions near the ends of an iteration alone, so a few rounds of
micro-batches stand for all. Ranks whose instructions have the same order are evaluated together, their clocks side by
side on one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecast.model.operators import Collective
from joulecast.model.power import COMPONENTS, KernelTimes
from joulecast.simulator.behind import Behind, with_communication_behind
from joulecast.simulator.closed_form_layout import Layout, RankKind, kinds_of
from joulecast.simulator.closed_form_parts import Parts, tail_key
from joulecast.simulator.plan import Plan
from joulecast.simulator.program import implementation_of
from joulecast.simulator.replicas import behind, stage_tensors
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    OPTIMIZER,
    Instruction,
    build_schedule,
)
from joulecast.simulator.tables import InstructionTable, Kernels, kernels_of

Array = NDArray[np.float64]

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


@dataclass(frozen=True, slots=True)
class _Order:
    """Order of a rank's instructions: what tells their lengths apart, and the places where something may travel.

    Attributes
    ----------
    kinds
        Of each instruction: 0 forward, 1 backward, 2 weight gradient.
    chunks
        Of each instruction.
    marked
        Places of the first forwards and last backwards.
    instructions, marks
        Those, and what tells them apart.
    """

    kinds: tuple[int, ...]
    chunks: tuple[int, ...]
    marked: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    marks: tuple[int, ...]


def travels_beside(plan: Plan) -> bool:
    """Whether gradients or parameters of the plan travel beside its instructions."""
    overlap = plan.overlap
    return plan.replicas > 1 and "overlapped" in (overlap.grad_reduce, overlap.param_gather)


def communication_behind(plans: Sequence[Plan], layout: Layout, parts: Parts, stage_s: Array) -> Iterator[Added]:
    """What tails gain by what travels beside their ranks' instructions.

    Parameters
    ----------
    stage_s
        Times of all stage rows' forward, backward and weight gradient, shape ``(3, q, c)`` [s].
    """
    groups: dict[object, list[tuple[int, tuple[Behind, ...]]]] = {}
    orders: dict[object, _Order] = {}
    operators: dict[Collective, int] = {}
    row = -1
    for plan in plans:
        kinds, _ = kinds_of(plan)
        shared = tail_key(plan) if travels_beside(plan) else None
        shape = (plan.schedule.name, plan.pp, _rounds(plan), plan.vp)
        for kind in kinds:
            row += 1
            if shared is None:
                continue
            order = _order(*shape, kind.rank)
            if items := _items(plan, kind, shared, order, parts):
                key = (shape, kind.rank, _pattern(items))
                groups.setdefault(key, []).append((row, items))
                orders[key] = order
                for item in items:
                    operators.setdefault(item.operator, len(operators))
    if groups:
        kernels = kernels_of([], parts.clocks_mhz, parts.gpu, None, list(operators), parts.limits_w)
        for name, members in groups.items():
            most = max(1, MOST_VALUES // (len(orders[name].kinds) * len(parts.clocks_mhz)))
            for start in range(0, len(members), most):
                yield _added(members[start : start + most], orders[name], layout, parts, stage_s, kernels, operators)


def _added(
    members: Sequence[tuple[int, tuple[Behind, ...]]],
    order: _Order,
    layout: Layout,
    parts: Parts,
    stage_s: Array,
    kernels: Kernels,
    operators: dict[Collective, int],
) -> Added:
    rows = [row for row, _ in members]
    items = members[0][1]
    distinct = list(dict.fromkeys(item.operator for item in items))
    first = [next(i for i, item in enumerate(items) if item.operator == operator) for operator in distinct]
    columns = np.array([[operators[own[i].operator] for i in first] for _, own in members])
    side = _side_by_side(kernels, columns, tuple(distinct))
    types = list(dict.fromkeys(zip(order.kinds, order.chunks, strict=True)))
    place = {one: i for i, one in enumerate(types)}
    stages = np.array([[layout.stage_of_chunk[row][chunk] for row in rows] for _, chunk in types])
    lengths = stage_s[np.array([kind for kind, _ in types])[:, None], stages].reshape(len(types), -1)
    count, wide = len(types) + 1, lengths.shape[1]
    empty = InstructionTable(
        duration_s=np.vstack([lengths, np.zeros((1, wide))]),
        energy_j=np.zeros((count, wide)),
        components_j=np.zeros((count, wide, len(COMPONENTS))),
        communication_s=np.zeros((count, wide, 2)),
        counts=np.zeros((count, len(distinct))),
    )
    sequence = [place[one] for one in zip(order.kinds, order.chunks, strict=True)]
    whole = [*sequence, len(types)]
    full = with_communication_behind(empty, whole, items, side, parts.gpu)
    shape = (len(rows), len(parts.clocks_mhz))
    time, exposed = full.duration_s[-1], full.communication_s[-1, :, 1]
    return Added(rows, time.reshape(shape), exposed.reshape(shape), full.energy_j[whole].sum(0).reshape(shape))


def _side_by_side(kernels: Kernels, columns: NDArray[np.int64], operators: tuple[Collective, ...]) -> Kernels:
    """Kernels ``columns`` of every row, shape ``(rows, kernels)``, on one axis of rows and clocks."""

    def spread(values: Array) -> Array:
        table = np.broadcast_to(values, kernels.times.time_s.shape)
        return table.T[columns.T].transpose(1, 2, 0).reshape(-1, columns.shape[1])

    times = kernels.times
    parts = {name: spread(values) for name, values in times.components_j.items()}
    clocks = np.tile(kernels.clocks_mhz, len(columns))
    return Kernels(operators, kernels.costs, clocks, KernelTimes(spread(times.time_s), spread(times.energy_j), parts))


def _items(plan: Plan, kind: RankKind, shared: object, order: _Order, parts: Parts) -> tuple[Behind, ...]:
    """What travels beside a rank's instructions; ``shared`` is what its plan has in common with others."""

    def make() -> tuple[Behind, ...]:
        impl = implementation_of(plan)
        chunks = [stage_tensors(plan, impl, stage) for stage in plan.stages_of_rank(kind.rank)]
        return behind(plan, impl, kind.rank, order.instructions, chunks)

    found = parts.once((shared, kind.rank == 0, kind.places, kind.place_of_chunk, order.marks), make)
    return tuple(Behind(item.operator, item.buckets, order.marked[item.place], item.ahead) for item in found)


def _pattern(items: Sequence[Behind]) -> tuple[object, ...]:
    """What must agree for ranks to be evaluated together."""
    distinct = list(dict.fromkeys(item.operator for item in items))
    alike = [(item.place, item.buckets, item.ahead, distinct.index(item.operator)) for item in items]
    return (*alike, items[0].operator.ctas)


def _rounds(plan: Plan) -> int:
    """Micro-batches that stand for all."""
    if plan.schedule.name == "interleaved-1f1b" and plan.microbatches % plan.pp:
        return plan.microbatches
    return min(plan.microbatches, ROUNDS * plan.pp)


@lru_cache(maxsize=4096)
def _order(name: str, stages: int, microbatches: int, chunks: int, rank: int) -> _Order:
    order = _ranks(name, stages, microbatches, chunks)[rank][:-1]
    last = microbatches - 1
    marked = [
        place
        for place, one in enumerate(order)
        if (one.kind == FORWARD and one.microbatch == 0)
        or (one.kind in (BACKWARD, BACKWARD_WEIGHT) and one.microbatch == last)
    ]
    kinds = tuple(0 if one.kind == FORWARD else (2 if one.kind == BACKWARD_WEIGHT else 1) for one in order)
    chosen = tuple(order[place] for place in marked)
    marks = tuple(2 * one.chunk + (one.kind == FORWARD) for one in chosen)
    return _Order(kinds, tuple(one.chunk for one in order), tuple(marked), chosen, marks)


@lru_cache(maxsize=256)
def _ranks(name: str, stages: int, microbatches: int, chunks: int) -> tuple[tuple[Instruction, ...], ...]:
    return build_schedule(name, stages, microbatches, virtual_stages_per_rank=chunks, tail=(OPTIMIZER,)).ranks
