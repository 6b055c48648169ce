"""How the ranks and stages of many plans lie in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecast.simulator.closed_form_clocks import Load, Settled, at
from joulecast.simulator.closed_form_parts import Parts, Place, Recipe
from joulecast.simulator.pipeline_formula import StageTimes, iteration_time_s
from joulecast.simulator.plan import Plan

Int = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankKind:
    """Pipeline ranks of one plan that do the same.

    Attributes
    ----------
    rank
        The first of them.
    ranks
        How many they are.
    places
        Their distinct stages with the number of chunks that each stands for.
    place_of_chunk
        Index into ``places`` of every chunk.
    whole
        The whole rank as one stage, for its parameters.
    """

    rank: int
    ranks: int
    places: tuple[tuple[Place, int], ...]
    place_of_chunk: tuple[int, ...]
    whole: Place


@lru_cache(maxsize=4096)
def rank_kinds(
    pp: int, vp: int, stage_layers: tuple[int, ...], rank_keys: tuple[object, ...] = (), dense_layers: int = 0
) -> tuple[tuple[RankKind, ...], tuple[int, ...]]:
    """Kinds of ranks of a pipeline, and the kind of every rank.

    ``rank_keys`` keeps ranks apart that differ in them; ``dense_layers`` is how many leading layers lack experts.
    """
    found: dict[object, int] = {}
    kinds: list[RankKind] = []
    of_rank: list[int] = []
    last = pp * vp - 1
    before = np.cumsum((0, *stage_layers)).tolist()
    dense = [min(max(dense_layers - b, 0), n) for b, n in zip(before, stage_layers, strict=False)]
    for rank in range(pp):
        places = tuple(Place(stage_layers[s], s == 0, s == last, dense[s]) for s in range(rank, pp * vp, pp))
        key = (places, rank_keys[rank] if rank_keys else None)
        if key not in found:
            found[key] = len(kinds)
            distinct = list(dict.fromkeys(places))
            whole = _together(places)
            of_chunk = tuple(distinct.index(p) for p in places)
            kinds.append(RankKind(rank, 0, tuple((p, places.count(p)) for p in distinct), of_chunk, whole))
        of_rank.append(found[key])
    counted = tuple(
        RankKind(k.rank, of_rank.count(i), k.places, k.place_of_chunk, k.whole) for i, k in enumerate(kinds)
    )
    return counted, tuple(of_rank)


def _together(places: Sequence[Place]) -> Place:
    layers, dense = sum(p.layers for p in places), sum(p.dense for p in places)
    return Place(layers, places[0].first, places[-1].last, dense)


def kinds_of(plan: Plan) -> tuple[tuple[RankKind, ...], tuple[int, ...]]:
    """Kinds of ranks of a plan, and the kind of every rank."""
    model = plan.workload.model
    dense = 0 if model.experts is None else model.dense_layers
    return rank_kinds(plan.pp, plan.vp, plan.parallelism.stage_layers, power_keys(plan), dense)


@dataclass(frozen=True, eq=False)
class Layout:
    """Plans, their kinds of ranks (``r`` rows) and those kinds' distinct stages (``q`` rows).

    Attributes
    ----------
    plan_of_rank, plan_of_stage, rank_of_stage
        Row above each row.
    ranks
        Ranks of each kind, shape ``(r,)``.
    chunks
        Chunks that each stage row stands for, shape ``(q,)``.
    stage_of_chunk
        Stage rows of each kind's chunks.
    first_chunk, last_chunk
        Those of the first and the last, shape ``(r,)``.
    kind_of_rank
        Per plan, the rank row of each of its pipeline ranks.
    first_rank
        First pipeline rank of each kind, shape ``(r,)``.
    stage_recipes, tail_recipes
        Parts of forward, backward and weight gradient of each stage row; parts of each rank row's tail.
    """

    plan_of_rank: Int
    plan_of_stage: Int
    rank_of_stage: Int
    ranks: Float
    chunks: Float
    stage_of_chunk: tuple[tuple[int, ...], ...]
    first_chunk: Int
    last_chunk: Int
    kind_of_rank: tuple[Int, ...]
    first_rank: Int
    stage_recipes: tuple[tuple[Recipe, ...], tuple[Recipe, ...], tuple[Recipe, ...]]
    tail_recipes: tuple[Recipe, ...]


def lay_out(plans: Sequence[Plan], parts: Parts) -> Layout:
    """Rows of plans on one GPU, with every part that they need asked for."""
    plan_of_rank: list[int] = []
    plan_of_stage: list[int] = []
    rank_of_stage: list[int] = []
    ranks: list[int] = []
    rank: list[int] = []
    chunks: list[int] = []
    of_chunk: list[tuple[int, ...]] = []
    kind_of_rank: list[Int] = []
    recipes: tuple[list[Recipe], list[Recipe], list[Recipe]] = ([], [], [])
    tails: list[Recipe] = []
    for number, plan in enumerate(plans):
        kinds, of_rank = kinds_of(plan)
        kind_of_rank.append(np.array(of_rank) + len(ranks))
        stages, tail = parts.stages_of(plan), parts.tails_of(plan)
        for kind in kinds:
            of_chunk.append(tuple(len(chunks) + place for place in kind.place_of_chunk))
            for place, count in kind.places:
                plan_of_stage.append(number)
                rank_of_stage.append(len(ranks))
                chunks.append(count)
                for into, recipe in zip(recipes, stages.recipes(place), strict=True):
                    into.append(recipe)
            plan_of_rank.append(number)
            ranks.append(kind.ranks)
            rank.append(kind.rank)
            tails.append(tail.recipe(kind.whole))
    return Layout(
        np.array(plan_of_rank),
        np.array(plan_of_stage),
        np.array(rank_of_stage),
        np.array(ranks, dtype=np.float64),
        np.array(chunks, dtype=np.float64),
        tuple(of_chunk),
        np.array([stages[0] for stages in of_chunk]),
        np.array([stages[-1] for stages in of_chunk]),
        tuple(kind_of_rank),
        np.array(rank),
        (tuple(recipes[0]), tuple(recipes[1]), tuple(recipes[2])),
        tuple(tails),
    )


def power_keys(plan: Plan) -> tuple[object, ...]:
    """What the plan's clocks and limits tell apart of its ranks: nothing where every stage has the same."""
    clocks, limit = plan.power.clocks_mhz, plan.power.power_limit_w
    if all(len(set(stages)) == 1 for _, stages in clocks) and not isinstance(limit, tuple):
        return ()
    return tuple((*(stages[rank] for _, stages in clocks), plan.power.limit_w(rank)) for rank in range(plan.pp))


class Pipelines:
    """Lengths and waits of plans' pipelines at any clocks of their ranks."""

    def __init__(
        self, plans: Sequence[Plan], layout: Layout, stage_s: Float, tail_s: Float, clocks_mhz: Float, transfer_s: Float
    ) -> None:
        self._layout, self._stage_s, self._tail_s, self._clocks = layout, stage_s, tail_s, clocks_mhz
        self._transfer_s = transfer_s
        self._microbatches = np.array([float(plan.microbatches) for plan in plans])
        self._chunks = np.array([float(plan.vp) for plan in plans])
        self._starts = np.flatnonzero(np.diff(layout.plan_of_rank, prepend=-1))
        groups: dict[tuple[str, int], list[int]] = {}
        for number, plan in enumerate(plans):
            groups.setdefault((plan.schedule.name, plan.pp), []).append(number)
        self._groups = [
            (name, np.array(own), np.stack([layout.kind_of_rank[number] for number in own]))
            for (name, _), own in groups.items()
        ]

    def load(self, stage_j: Float, tail_j: Float) -> Load:
        """What each rank row does in an iteration, at every clock."""
        often = (self._microbatches[self._layout.plan_of_stage] * self._layout.chunks)[:, None]
        starts = np.flatnonzero(np.diff(self._layout.rank_of_stage, prepend=-1))
        time, energy = (np.add.reduceat(often * of.sum(0), starts, axis=0) for of in (self._stage_s, stage_j))
        return Load(time, energy, self._tail_s, tail_j)

    def of_iteration(self, stage: Float, tail: Float, settled: Settled) -> Float:
        """Sum over an iteration of stage rows ``(3, q, c)`` and tails ``(r, c)``, at settled clocks, shape ``(r,)``."""
        clock = settled.clock_mhz[self._layout.rank_of_stage]
        one = self._on_ranks(at(stage.sum(0), self._clocks, clock))
        again = self._microbatches[self._layout.plan_of_rank]
        return again * one + at(tail, self._clocks, settled.tail_clock_mhz)

    def time_s(self, clock_mhz: Float, tail_clock_mhz: Float) -> Float:
        """Length of every plan's iteration at clocks of work and tail, shape ``(r,)`` [s]."""
        return self._lengths(self._stages(clock_mhz), at(self._tail_s, self._clocks, tail_clock_mhz))

    def waits(self, clock_mhz: Float, tail_clock_mhz: Float) -> tuple[Float, Float]:
        """What each rank row waits for slower ranks in the steady state, and while the pipeline fills and drains."""
        layout = self._layout
        stages, tail = self._stages(clock_mhz), at(self._tail_s, self._clocks, tail_clock_mhz)
        work = self._on_ranks(stages.sum(0))
        again = self._microbatches[layout.plan_of_rank]
        pace = np.maximum.reduceat(work, self._starts)[layout.plan_of_rank]
        wait = (self._lengths(stages, tail)[layout.plan_of_rank] - again * work - tail).clip(0.0)
        short = np.minimum(again * (pace - work), wait)
        return short, wait - short

    def _stages(self, clock_mhz: Float) -> Float:
        """Forward, backward and weight gradient of each stage row, shape ``(3, q)`` [s]."""
        clock = clock_mhz[self._layout.rank_of_stage]
        return np.stack([at(table, self._clocks, clock) for table in self._stage_s])

    def _on_ranks(self, of_stage: Float) -> Float:
        layout = self._layout
        return np.asarray(np.bincount(layout.rank_of_stage, layout.chunks * of_stage, len(layout.ranks)), np.float64)

    def _lengths(self, stages: Float, tail_s: Float) -> Float:
        layout, out = self._layout, np.empty(len(self._microbatches))
        forward, backward, weight = (self._on_ranks(part) for part in stages)
        first, last = stages[:2, layout.first_chunk], stages[:2, layout.last_chunk]
        for name, plans, ranks in self._groups:
            times = StageTimes(
                forward[ranks],
                backward[ranks],
                weight[ranks],
                first[:, ranks],
                last[:, ranks],
                tail_s[ranks],
                self._transfer_s[plans],
                self._microbatches[plans],
                self._chunks[plans],
            )
            out[plans] = iteration_time_s(name, times)
        return out
