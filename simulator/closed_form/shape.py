"""Which ranks of a pipeline do the same, and which of their stages are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from joulecast.arrays import Int
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.closed_form.keys import Place
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import PAIRS


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
            of_chunks = tuple(p._replace(beside=other) for p, other in zip(of_chunks, reversed(of_chunks), strict=True))
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


def in_phases(plan: Plan) -> bool:
    """Whether all forwards run before all backwards, so that the board settles at each alone."""
    return plan.schedule.name == "gpipe" and plan.pp > 1


def power_keys(plan: Plan) -> tuple[object, ...]:
    """What the plan's clocks and limits tell apart of its ranks: nothing where every stage has the same."""
    clocks, limit = plan.power.clocks_mhz, plan.power.power_limit_w
    if all(len(set(stages)) == 1 for _, stages in clocks) and not isinstance(limit, tuple):
        return ()
    return tuple((*(stages[rank] for _, stages in clocks), plan.power.limit_w(rank)) for rank in range(plan.pp))
