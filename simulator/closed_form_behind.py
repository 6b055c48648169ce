"""Gradients and parameters that travel beside a rank's instructions, for many plans at once.

What of them is exposed depends on the instructions near the ends of an iteration alone, so a few rounds of
micro-batches stand for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecast.model.power import COMPONENTS
from joulecast.simulator.behind import Behind, with_communication_behind
from joulecast.simulator.closed_form_layout import Layout
from joulecast.simulator.closed_form_parts import Parts, tail_key
from joulecast.simulator.plan import Plan
from joulecast.simulator.program import implementation_of
from joulecast.simulator.replicas import behind, stage_tensors
from joulecast.simulator.schedules import BACKWARD_WEIGHT, FORWARD, OPTIMIZER, Instruction, build_schedule
from joulecast.simulator.tables import InstructionTable, Kernels, kernels_of

Array = NDArray[np.float64]

#: Rounds of as many micro-batches as there are ranks that stand for an iteration.
ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Added:
    """What a rank row's tail gains at every clock, shape ``(c,)`` [s], [J]."""

    time_s: Array
    exposed_s: Array
    energy_j: Array


def travels_beside(plan: Plan) -> bool:
    """Whether gradients or parameters of the plan travel beside its instructions."""
    overlap = plan.overlap
    return plan.replicas > 1 and "overlapped" in (overlap.grad_reduce, overlap.param_gather)


def communication_behind(plan: Plan, row: int, layout: Layout, parts: Parts, stage_s: Array) -> Added | None:
    """What the tail of a rank row gains by what travels beside the rank's instructions.

    Parameters
    ----------
    row
        The rank row.
    stage_s
        Times of all stage rows' forward, backward and weight gradient, shape ``(3, q, c)`` [s].
    """
    rank = int(layout.first_rank[row])
    order = _order(plan, rank)
    items, kernels = parts.once(
        (tail_key(plan), plan.schedule.name, plan.pp, plan.vp, plan.parallelism.stage_layers, rank, len(order)),
        lambda: _items(plan, rank, order, parts),
    )
    if not items:
        return None
    rows = [layout.stage_of_chunk[row][one.chunk] for one in order[:-1]]
    kinds = [0 if one.kind == FORWARD else (2 if one.kind == BACKWARD_WEIGHT else 1) for one in order[:-1]]
    count, clocks = len(order), len(parts.clocks_mhz)
    lengths = np.vstack([stage_s[kinds, rows], np.zeros((1, clocks))])
    empty = InstructionTable(
        duration_s=lengths,
        energy_j=np.zeros((count, clocks)),
        components_j=np.zeros((count, clocks, len(COMPONENTS))),
        communication_s=np.zeros((count, clocks, 2)),
        counts=np.zeros((count, len(kernels.operators))),
    )
    full = with_communication_behind(empty, range(count), items, kernels, parts.gpu)
    return Added(full.duration_s[-1], full.communication_s[-1, :, 1], full.energy_j[-1])


def _items(plan: Plan, rank: int, order: Sequence[Instruction], parts: Parts) -> tuple[tuple[Behind, ...], Kernels]:
    impl = implementation_of(plan)
    chunks = [stage_tensors(plan, impl, stage) for stage in plan.stages_of_rank(rank)]
    items = behind(plan, impl, rank, order, chunks)
    operators = list(dict.fromkeys(item.operator for item in items))
    return items, kernels_of([], parts.clocks_mhz, parts.gpu, None, operators)


def _order(plan: Plan, rank: int) -> tuple[Instruction, ...]:
    short = min(plan.microbatches, ROUNDS * plan.pp)
    if plan.microbatches % plan.pp and plan.schedule.name == "interleaved-1f1b":
        short = plan.microbatches
    return _ranks(plan.schedule.name, plan.pp, short, plan.vp)[rank]


@lru_cache(maxsize=512)
def _ranks(name: str, stages: int, microbatches: int, chunks: int) -> tuple[tuple[Instruction, ...], ...]:
    return build_schedule(name, stages, microbatches, virtual_stages_per_rank=chunks, tail=(OPTIMIZER,)).ranks
