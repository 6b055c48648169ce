"""How the ranks and stages of many plans lie in flat arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.closed_form.keys import Place, pace_key
from joulecast.simulator.closed_form.tabulated import Parts
from joulecast.simulator.fluid.prepared import board_limits_w
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import FORWARD_BACKWARD, PAIRS, SPLITS_BACKWARD, build_schedule

Int = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankKind:
    """Pipeline ranks of one plan that do the same.

    Attributes
    ----------
    rank
        The first of them.
    places
        Their distinct stages with the number of chunks that each stands for.
    place_of_chunk
        Index into ``places`` of every chunk.
    whole
        The whole rank as one stage, for its parameters.
    """

    rank: int
    places: tuple[tuple[Place, int], ...]
    place_of_chunk: tuple[int, ...]
    whole: Place


@dataclass(frozen=True, eq=False)
class Shape:
    """A pipeline's kinds of ranks (``r`` rows) and their distinct stages (``q`` rows), alike for many plans.

    Attributes
    ----------
    kinds, kind_of_rank
        Kinds of ranks, and the kind of every rank, shape ``(pp,)``.
    ranks, first_rank
        How many ranks are of each kind, and the first of them, shape ``(r,)``.
    places
        Of each stage row.
    rank_of_stage, chunks
        Kind of rank that has a stage row, and how many of its chunks the row stands for, shape ``(q,)``.
    stage_of_chunk
        Stage rows of each kind's chunks.
    first_chunk, last_chunk
        Those of the first and the last, shape ``(r,)``.
    """

    kinds: tuple[RankKind, ...]
    kind_of_rank: Int
    ranks: Int
    first_rank: Int
    places: tuple[Place, ...]
    rank_of_stage: Int
    chunks: Int
    stage_of_chunk: tuple[tuple[int, ...], ...]
    first_chunk: Int
    last_chunk: Int

    @property
    def stage_row_of_chunk(self) -> Int:
        """Stage row of every rank's chunks, shape ``(p, v)``."""
        return np.array(self.stage_of_chunk)[self.kind_of_rank]


@lru_cache(maxsize=4096)
def _shape(
    stages: tuple[tuple[int, ...], ...],
    pairs: bool,
    stage_layers: tuple[int, ...],
    rank_keys: tuple[object, ...],
    mixed: ModelConfig | None,
) -> Shape:
    """Of ranks with ``stages`` each; ``rank_keys`` keeps those apart that differ in them.

    ``pairs``: forwards of one chunk run with backwards of the other in one instruction.
    ``mixed`` is a model with layers of several kinds.
    """
    places = _places(stage_layers, mixed)
    found: dict[object, int] = {}
    kinds: list[RankKind] = []
    of_rank: list[int] = []
    for rank, own in enumerate(stages):
        of_chunks = tuple(places[stage] for stage in own)
        if pairs:
            of_chunks = tuple(map(_beside, of_chunks, reversed(of_chunks)))
        key = (of_chunks, rank_keys[rank] if rank_keys else None)
        if key not in found:
            found[key] = len(kinds)
            kinds.append(_rank_kind(rank, of_chunks))
        of_rank.append(found[key])
    counts = [len(kind.places) for kind in kinds]
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    chunks = tuple(tuple(start + p for p in k.place_of_chunk) for start, k in zip(starts, kinds, strict=True))
    return Shape(
        kinds=tuple(kinds),
        kind_of_rank=np.array(of_rank),
        ranks=np.bincount(of_rank),
        first_rank=np.array([kind.rank for kind in kinds]),
        places=tuple(place for kind in kinds for place, _ in kind.places),
        rank_of_stage=np.repeat(np.arange(len(kinds)), counts),
        chunks=np.array([count for kind in kinds for _, count in kind.places]),
        stage_of_chunk=chunks,
        first_chunk=np.array([own[0] for own in chunks]),
        last_chunk=np.array([own[-1] for own in chunks]),
    )


def _beside(place: Place, other: Place) -> Place:
    return place._replace(beside=other)


def _places(stage_layers: Sequence[int], mixed: ModelConfig | None) -> tuple[Place, ...]:
    """Place of every stage."""
    firsts, last = accumulate((0, *stage_layers[:-1])), len(stage_layers) - 1
    return tuple(
        Place(count, stage == 0, stage == last, () if mixed is None else mixed.others(first, count))
        for stage, (first, count) in enumerate(zip(firsts, stage_layers, strict=True))
    )


def _rank_kind(rank: int, places: tuple[Place, ...]) -> RankKind:
    """The kind of a rank whose chunks stand at these places."""
    distinct = list(dict.fromkeys(places))
    of_chunk = tuple(distinct.index(place) for place in places)
    return RankKind(rank, tuple((place, places.count(place)) for place in distinct), of_chunk, _together(places))


def _together(places: Sequence[Place]) -> Place:
    others = tuple(map(sum, zip(*(p.others for p in places), strict=True)))
    return Place(sum(p.layers for p in places), places[0].first, places[-1].last, others)


def shape_of(plan: Plan) -> Shape:
    """Kinds of ranks of a plan and their stages."""
    model = plan.workload.model
    stages = tuple(plan.stages_of_rank(rank) for rank in range(plan.pp))
    pairs, keys = plan.schedule.name in PAIRS, power_keys(plan)
    if pairs:  # ranks differ in how many forwards go with a backward
        keys = tuple((rank, keys[rank] if keys else None) for rank in range(plan.pp))
    mixed = model if len(model.kinds) > 1 else None
    return _shape(stages, pairs, plan.parallelism.stage_layers, keys, mixed)


@lru_cache(maxsize=4096)
def _pairs_of_chunks(name: str, ranks: int, microbatches: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """How often each rank runs the forward of each chunk in one instruction with a backward."""
    order = build_schedule(name, ranks, microbatches, virtual_stages_per_rank=chunks, tail=())
    counted = (Counter(i.chunk for i in own if i.kind == FORWARD_BACKWARD) for own in order.ranks)
    return tuple(tuple(count[chunk] for chunk in range(chunks)) for count in counted)


def _often(plans: Sequence[Plan], shapes: Sequence[Shape]) -> Float:
    """How often each stage row's instructions run in an iteration, shape ``(kinds, q)``."""
    rows: list[Float] = []
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
    chunks
        Chunks that each stage row stands for, shape ``(q,)``.
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
    ranks: Float
    chunks: Float
    often: Float
    first_chunk: Int
    last_chunk: Int
    first_rank: Int
    limit_w: Float
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
        chunks=joined("chunks").astype(np.float64),
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


def _alike(plans: Sequence[Plan], plan_of_rank: Int, limit_w: Float) -> Int:
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


def in_phases(plan: Plan) -> bool:
    """Whether all forwards run before all backwards, so that the board settles at each alone."""
    return plan.schedule.name == "gpipe" and plan.pp > 1


def power_keys(plan: Plan) -> tuple[object, ...]:
    """What the plan's clocks and limits tell apart of its ranks: nothing where every stage has the same."""
    clocks, limit = plan.power.clocks_mhz, plan.power.power_limit_w
    if all(len(set(stages)) == 1 for _, stages in clocks) and not isinstance(limit, tuple):
        return ()
    return tuple((*(stages[rank] for _, stages in clocks), plan.power.limit_w(rank)) for rank in range(plan.pp))
