"""How the ranks and stages of many plans lie in flat arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.simulator.closed_form.keys import pace_key
from joulecast.simulator.closed_form.shape import Shape, in_phases, shape_of
from joulecast.simulator.closed_form.tabulated import Parts
from joulecast.simulator.fluid.prepared import board_limits_w
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import FORWARD_BACKWARD, PAIRS, SPLITS_BACKWARD, build_schedule


@lru_cache(maxsize=4096)
def _pairs_of_chunks(name: str, ranks: int, microbatches: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """How often each rank runs the forward of each chunk in one instruction with a backward."""
    order = build_schedule(name, ranks, microbatches, virtual_stages_per_rank=chunks, tail=())
    counted = (Counter(i.chunk for i in own if i.kind == FORWARD_BACKWARD) for own in order.ranks)
    return tuple(tuple(count[chunk] for chunk in range(chunks)) for count in counted)


def _often(plans: Sequence[Plan], shapes: Sequence[Shape]) -> Array:
    """How often each stage row's instructions run in an iteration, shape ``(kinds, q)``."""
    rows: list[Array] = []
    kinds = 4 if any(plan.schedule.name in PAIRS for plan in plans) else 3
    for plan, shape in zip(plans, shapes, strict=True):
        often = np.zeros((kinds, len(shape.places)))
        often[: 3 if plan.schedule.name in SPLITS_BACKWARD else 2] = plan.microbatches // plan.copies * shape.chunks
        rows.append(often)
        if plan.schedule.name not in PAIRS:
            continue
        paired = _pairs_of_chunks(plan.schedule.name, plan.pp, plan.microbatches, plan.chunks)
        for kind, stages in zip(shape.kinds, shape.stage_of_chunk, strict=True):
            for count, own, other in zip(paired[kind.rank], stages, reversed(stages), strict=True):
                often[3, own] += count
                often[0, own] -= count
                often[1:3, other] -= count
    return np.concatenate(rows, axis=1)


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct stages or tails of many plans, each evaluated once.

    Attributes
    ----------
    recipe
        Number of each one's recipe in :class:`Parts`, shape ``(u,)``.
    rank
        One of the rank rows that have it, shape ``(u,)``.
    index
        Which of them every stage row has, or the tail of every rank row; shape ``(q,)`` or ``(r,)``.
    """

    recipe: Int
    rank: Int
    index: Int


@dataclass(frozen=True, eq=False)
class Layout:
    """Plans, their kinds of ranks (``r`` rows) and those kinds' distinct stages (``q`` rows).

    Attributes
    ----------
    shapes
        Of the plans.
    first_rank_row
        Of each plan.
    plan_of_rank, rank_of_stage
        Row above each row.
    ranks
        Ranks of each kind, shape ``(r,)``.
    often
        How often a stage row's forward, backward, weight gradient and, where a plan has them, forward with a backward
        beside it run in an iteration, shape ``(3 or 4, q)``.
    first_stage_row
        Of each plan; its shape counts stage rows from there.
    first_chunk, last_chunk
        Stage rows of each kind's first and last chunk, shape ``(r,)``.
    first_rank
        First pipeline rank of each kind, shape ``(r,)``.
    limit_w
        Power limit of each kind's boards, shape ``(r,)`` [W].
    stages, tails
        What of stage rows and tails of rank rows has to be evaluated.
    """

    shapes: tuple[Shape, ...]
    first_rank_row: Int
    first_stage_row: Int
    plan_of_rank: Int
    rank_of_stage: Int
    ranks: Array
    often: Array
    first_chunk: Int
    last_chunk: Int
    first_rank: Int
    limit_w: Array
    stages: DistinctRows
    tails: DistinctRows


def lay_out(plans: Sequence[Plan], parts: Parts) -> Layout:
    """Rows of plans on one GPU, with every part that they need asked for."""
    shapes = tuple(shape_of(plan) for plan in plans)
    ranks = np.array([len(shape.kinds) for shape in shapes])
    stages = np.array([len(shape.places) for shape in shapes])
    first_rank_row, first_stage_row = np.cumsum(ranks) - ranks, np.cumsum(stages) - stages

    def joined(name: str) -> Int:
        return np.concatenate([getattr(shape, name) for shape in shapes])

    plan_of_rank = np.repeat(np.arange(len(plans)), ranks)
    rank_of_stage = joined("rank_of_stage") + np.repeat(first_rank_row, stages)
    stage_recipes, tail_recipes = [], []
    for plan in plans:
        of_stages, of_tails = recipes_of(plan, parts)
        stage_recipes += of_stages
        tail_recipes += of_tails
    limits = [board_limits_w(plan, parts.gpu) for plan in plans]
    limit_w = np.array([limits[p][k.rank] for p, shape in enumerate(shapes) for k in shape.kinds])
    alike = _alike(plans, plan_of_rank, limit_w)
    return Layout(
        shapes=shapes,
        first_rank_row=first_rank_row,
        first_stage_row=first_stage_row,
        plan_of_rank=plan_of_rank,
        rank_of_stage=rank_of_stage,
        ranks=joined("ranks").astype(np.float64),
        often=_often(plans, shapes),
        first_chunk=joined("first_chunk") + np.repeat(first_stage_row, ranks),
        last_chunk=joined("last_chunk") + np.repeat(first_stage_row, ranks),
        first_rank=joined("first_rank"),
        limit_w=limit_w,
        stages=_distinct(np.array(stage_recipes), rank_of_stage, alike),
        tails=_distinct(np.array(tail_recipes), np.arange(len(plan_of_rank)), alike),
    )


def recipes_of(plan: Plan, parts: Parts) -> tuple[list[int], list[int]]:
    """Recipes of a plan's distinct stages and of its kinds of ranks' tails, whose parts are asked for."""
    shape, stage, tail = shape_of(plan), parts.stages_of(plan).stage, parts.tails_of(plan).tail
    return [stage(place) for place in shape.places], [tail(kind.whole) for kind in shape.kinds]


def _alike(plans: Sequence[Plan], plan_of_rank: Int, limit_w: Array) -> Int:
    """Number that rank rows share whose boards run equal parts alike, shape ``(r,)``; where clocks are set, none do.

    ``plan_of_rank`` is the plan of every rank row.
    """
    found: dict[object, int] = {}
    paces: dict[object, int] = {}
    keys = [paces.setdefault((pace_key(plan), in_phases(plan)), len(paces)) for plan in plans]
    sets = [bool(plan.power.clocks_mhz) for plan in plans]
    return np.array(
        [
            found.setdefault(row if sets[plan] else (keys[plan], limit), len(found))
            for row, (plan, limit) in enumerate(zip(plan_of_rank.tolist(), limit_w.tolist(), strict=True))
        ]
    )


def _distinct(recipes: Int, rank: Int, alike: Int) -> DistinctRows:
    """Distinct pairs of a recipe and what is alike of the ranks that have it."""
    own = alike[rank]
    _, first, index = np.unique(recipes * (own.max() + 1) + own, return_index=True, return_inverse=True)
    return DistinctRows(recipes[first], rank[first], index)
