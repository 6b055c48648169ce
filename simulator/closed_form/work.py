"""What stages and tails of many plans take at every clock of a grid: summed from their parts, then held to their plans.

:func:`work_of` is the whole; what it calls follows in the order in which it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.limits import group_limit_share, held_clock_mhz
from joulecast.simulator.closed_form.clocks import interpolated
from joulecast.simulator.closed_form.keys import pace_key
from joulecast.simulator.closed_form.layout import Layout
from joulecast.simulator.closed_form.overlapped_buckets import overlapped_communication
from joulecast.simulator.closed_form.own_clocks import tables_at_mean_clock
from joulecast.simulator.closed_form.shape import in_phases
from joulecast.simulator.closed_form.tabulated import Parts, Recipe, Sums, Tabulated
from joulecast.simulator.fluid.prepared import lag_of, lag_of_cards
from joulecast.simulator.instructions.clock_columns import PLAN_NAMES, is_locked
from joulecast.simulator.instructions.host import gaps_with_tower, host_gaps
from joulecast.simulator.instructions.tables import at_pace
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, FORWARD_BACKWARD, OPTIMIZER

#: Kinds of instructions of a stage: forward, backward, weight gradient, and the first two in one.
KINDS = (FORWARD, BACKWARD, BACKWARD_WEIGHT, FORWARD_BACKWARD)
#: Stages whose kinds settle in one call: their tables stay in a core's cache.
STAGES_AT_ONCE = 64


class Amounts:
    """What rows of instructions take at every clock: views of one array ``values``, each of shape ``(…, rows, c)``.

    Attributes
    ----------
    time_s
        How long they take [s].
    energy_j
        Energy of a GPU [J].
    exposed_s
        Communication without compute beside it in that time [s].
    clock_mhz
        Mean clock of the kernels where parts of the GPU are limited, else 0 [MHz].
    """

    def __init__(self, values: Array) -> None:
        self.values = values
        self.time_s, self.energy_j, self.exposed_s, self.clock_mhz = values

    @classmethod
    def zeros(cls, *shape: int) -> Amounts:
        """Nothing yet."""
        return cls(np.zeros((4, *shape)))

    def __getitem__(self, kind: int) -> Amounts:
        """Those of one kind of instruction, in the same array."""
        return Amounts(self.values[:, kind])


@dataclass(frozen=True, eq=False)
class StageClocks:
    """Clocks of distinct stages ``(k, u)`` and of tails [MHz]."""

    stage_mhz: Array
    tail_mhz: Array


@dataclass(frozen=True, eq=False)
class HighestClocks(StageClocks):
    """Highest clocks that plans set, tails' and whole ranks' ``(r,)`` [MHz]."""

    rank_mhz: Array


@dataclass(frozen=True, eq=False)
class Work:
    """Work of ``n`` plans on the grid of clocks.

    Attributes
    ----------
    stages
        Distinct stages' forward, backward, weight gradient and, where a plan has them, pairs: shape ``(k, u, c)``.
    tails
        What follows the last backward on every rank row, shape ``(r, c)``.
    drain_s
        What of a tail the rank before it waits for, shape ``(r, c)`` [s].
    highest
        Clocks that the plans set.
    locked
        Plans whose clocks never move: they set all, and their limits let the mean card hold each; shape ``(n,)``.
    """

    stages: Amounts
    tails: Amounts
    drain_s: Array
    highest: HighestClocks
    locked: Bool


def work_of(plans: Sequence[Plan], layout: Layout, parts: Parts) -> Work:
    """Work of plans whose rows are laid out."""
    stages, tails, drain_s = _summed(layout, parts)
    highest = _highest_clocks(plans, layout, parts.gpu.max_clock_mhz)
    held = _held_clocks(plans, layout, parts, stages, tails)
    locked = _holds_locks(plans, layout, highest, held)
    _keep_pace(stages, tails, plans, layout, parts, highest, held, locked)
    tails, drain_s = Amounts(tails.values.take(layout.tails.index, axis=1)), drain_s[layout.tails.index]
    for added in overlapped_communication(plans, layout, parts, stages.time_s):
        tails.time_s[added.rows] += added.time_s
        tails.exposed_s[added.rows] += added.exposed_s
        tails.energy_j[added.rows] += added.energy_j
    if min(highest.stage_mhz.min(), highest.tail_mhz.min()) < parts.gpu.max_clock_mhz:
        _hold_below(stages, tails, drain_s, layout, parts.clocks_mhz, highest)
    _let_kinds_settle(stages, plans, layout, parts, highest, locked)
    return Work(stages, tails, drain_s, highest, locked)


def _summed(layout: Layout, parts: Parts) -> tuple[Amounts, Amounts, Array]:
    """Distinct stages ``(k, u, c)``, and distinct tails with what of them drains, ``(v, c)``, under boards' limits."""
    clocks = len(parts.clocks_mhz)
    stages = Amounts.zeros(len(layout.often), len(layout.stages.recipe), clocks)
    tails = Amounts.zeros(len(layout.tails.recipe), clocks)
    drain_s = np.zeros_like(tails.time_s)
    limit_w = layout.limit_w
    for limit in sorted(set(limit_w.tolist())):
        table = parts.tabulate(limit)
        own = np.flatnonzero(limit_w[layout.stages.rank] == limit)
        recipes = [parts.stage_recipes[number] for number in layout.stages.recipe[own]]
        for kind in range(len(layout.often)):
            _sum_recipes(stages[kind], own, [recipe[kind] for recipe in recipes], table, parts)
        own = np.flatnonzero(limit_w[layout.tails.rank] == limit)
        numbers = layout.tails.recipe[own]
        _sum_recipes(tails, own, [parts.tail_recipes[number] for number in numbers], table, parts, apart=True)
        drains = [parts.drain_recipes[number] for number in numbers]
        if any(drains):
            drain_s[own] = Sums(drains).of(table.duration_s + _gaps(table))
    return stages, tails, drain_s


def _sum_recipes(
    into: Amounts, rows: Int, recipes: Sequence[Recipe], table: Tabulated, parts: Parts, *, apart: bool = False
) -> None:
    """Write rows of amounts: sums of their parts, and the waits for their host; ``apart``: of each part by itself."""
    if not any(recipes):
        return
    sums = Sums(recipes)
    time, exposed, energy = (sums.of(values) for values in (table.duration_s, table.exposed_s, table.energy_j))
    if parts.component_limits_w:
        spent = sums.of(table.clock_mhz * table.duration_s)
        into.clock_mhz[rows] = np.divide(spent, time, out=np.zeros_like(time), where=time > 0)
    gaps = np.zeros_like(time)
    if table.is_launched:
        gaps = sums.of(_gaps(table)) if apart else _gaps(table, sums)
    into.time_s[rows], into.exposed_s[rows], into.energy_j[rows] = time + gaps, exposed, energy + gaps * parts.idle_w


def _gaps(table: Tabulated, sums: Sums | None = None) -> Array:
    """Waits for the host of each part by itself, or of ``sums`` of parts."""
    of = (lambda values: values) if sums is None else sums.of
    whole, towers = (table.duration_s, table.host_s), (table.tower_s, table.tower_host_s)
    return gaps_with_tower(*map(of, (*whole, *towers))) if table.tower_host_s.any() else host_gaps(*map(of, whole))


def _highest_clocks(plans: Sequence[Plan], layout: Layout, top_mhz: float) -> HighestClocks:
    def of(row: int, kind: str) -> float:
        if kind == FORWARD_BACKWARD:
            return min(of(row, FORWARD), of(row, BACKWARD))
        clock = plans[layout.plan_of_rank[row]].power.clock_mhz(int(layout.first_rank[row]), PLAN_NAMES[kind])
        return top_mhz if clock is None else clock

    kinds = KINDS[: len(layout.often)]
    by_rank = np.full((len(kinds) + 1, len(layout.ranks)), top_mhz)
    sets = np.array([bool(plan.power.clocks_mhz) for plan in plans])
    for row in np.flatnonzero(sets[layout.plan_of_rank]):
        by_rank[:, row] = [of(int(row), kind) for kind in (*kinds, OPTIMIZER)]
    return HighestClocks(by_rank[:-1, layout.stages.rank], by_rank[-1], by_rank.max(0))


def _held_clocks(plans: Sequence[Plan], layout: Layout, parts: Parts, stages: Amounts, tails: Amounts) -> StageClocks:
    """Highest clocks at which its limit lets the mean card run what plans that set all clocks run, tails distinct."""
    top, kinds = parts.gpu.max_clock_mhz, len(layout.often)
    of_stages, of_tails = np.full((kinds, len(layout.stages.rank)), top), np.full(len(layout.tails.rank), top)
    often = np.zeros((kinds, len(layout.stages.rank)))
    np.add.at(often.T, layout.stages.index, layout.often.T)
    for rank in np.flatnonzero(np.array([is_locked(plan) for plan in plans])[layout.plan_of_rank]).tolist():
        plan = plans[layout.plan_of_rank[rank]]
        own, tail = np.flatnonzero(layout.stages.rank == rank), layout.tails.index[rank]
        rows = stages.values[:, :, own].reshape(4, -1, len(parts.clocks_mhz))
        time, energy, exposed, _ = np.concatenate([rows, tails.values[:, tail, None]], axis=1)
        waiting = _waiting_s(time - exposed, lag_of_cards(plan, parts.clocks_mhz, parts.gpu), parts)
        time, energy = time + waiting, energy + waiting * parts.waiting_w
        runs = np.append(often[:, own].ravel(), 0.0)
        limit = float(layout.limit_w[rank]) * group_limit_share(plan.tp, parts.gpu)
        found = held_clock_mhz(parts.clocks_mhz, time, energy, runs, limit, parts.gpu)[1][:, 0]
        of_stages[:, own], of_tails[tail] = found[:-1].reshape(kinds, -1), found[-1]
    return StageClocks(of_stages, of_tails)


def _holds_locks(plans: Sequence[Plan], layout: Layout, highest: HighestClocks, held: StageClocks) -> Bool:
    """Plans that set all clocks, of which the mean card holds each, shape ``(n,)``."""
    holds = np.asarray(highest.tail_mhz <= held.tail_mhz[layout.tails.index])
    stages = np.asarray((highest.stage_mhz <= held.stage_mhz).all(0))
    np.logical_and.at(holds, layout.rank_of_stage, stages[layout.stages.index])
    locked = np.array([is_locked(plan) for plan in plans])
    np.logical_and.at(locked, layout.plan_of_rank, holds)
    return locked


def _keep_pace(
    stages: Amounts,
    tails: Amounts,
    plans: Sequence[Plan],
    layout: Layout,
    parts: Parts,
    highest: HighestClocks,
    held: StageClocks,
    locked: Bool,
) -> None:
    """Stretch compute to the pace of each plan's groups, the GPUs waiting meanwhile."""
    groups: dict[object, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault((pace_key(plan), bool(locked[number])), []).append(number)
    for members in groups.values():
        plan = plans[members[0]]
        within = np.zeros(len(plans), dtype=bool)
        within[members] = True
        of_stages, of_tails = (within[layout.plan_of_rank[rows.rank]] for rows in (layout.stages, layout.tails))
        each = [(stages[k], of_stages, highest.stage_mhz[k], held.stage_mhz[k]) for k in range(len(layout.often))]
        for amounts, rows, top_mhz, held_mhz in (
            *each,
            (tails, of_tails, highest.tail_mhz[layout.tails.rank], held.tail_mhz),
        ):
            top, slowest = top_mhz[rows][:, None], held_mhz[rows][:, None] if is_locked(plan) else None
            # A clock that is held is read between two of the grid.
            clocks = top if locked[members[0]] else parts.clocks_mhz
            lag = lag_of(plan, clocks, parts.gpu, top, slowest)
            if lag.any():
                _stretch(amounts, rows, lag, parts)


def _stretch(amounts: Amounts, rows: Bool, lag: Array, parts: Parts) -> None:
    """Make some rows as slow as the slowest GPU of their groups."""
    waiting = _waiting_s(amounts.time_s[rows] - amounts.exposed_s[rows], lag, parts)
    amounts.time_s[rows] += waiting
    amounts.energy_j[rows] += waiting * parts.waiting_w


def _waiting_s(compute_s: Array, lag: Array, parts: Parts) -> Array:
    return at_pace(compute_s, parts.clocks_mhz, lag) - compute_s


def _let_kinds_settle(
    stages: Amounts, plans: Sequence[Plan], layout: Layout, parts: Parts, highest: HighestClocks, locked: Bool
) -> None:
    """Let each kind of a stage run at a clock of its own where plans set none.

    That is so where weight gradients are apart, where all of a kind follow each other, for longer than the fast loop
    remembers, and where one kind is held by the limit and another is not.
    """
    free = highest.stage_mhz.min(0) >= parts.gpu.max_clock_mhz
    plan_of_stage = layout.plan_of_rank[layout.stages.rank]
    free &= ~locked[plan_of_stage]
    phases = np.array([in_phases(plan) for plan in plans])[plan_of_stage]
    apart = stages.time_s[KINDS.index(BACKWARD_WEIGHT), :, 0] > 0
    limit_w = layout.limit_w[layout.stages.rank]
    straddle = _straddles(stages, limit_w, parts.gpu) & ~phases
    for rows, fast_s in ((free & (apart | straddle), parts.gpu["governor.fast_s"]), (free & phases, 0.0)):
        numbers = np.flatnonzero(rows)
        for start in range(0, len(numbers), STAGES_AT_ONCE):
            some = numbers[start : start + STAGES_AT_ONCE]
            stages.values[:, :, some] = tables_at_mean_clock(stages.values.take(some, axis=2), parts.clocks_mhz, fast_s)


def _straddles(stages: Amounts, limit_w: Array, gpu: GpuModel) -> Bool:
    """Stages of which a kind draws more than the limit lets bursts at the highest clock, and another less than it.

    ``limit_w`` has shape ``(u,)``.
    """
    time, energy = stages.time_s[..., -1], stages.energy_j[..., -1]
    runs = time > 0
    power = np.divide(energy, time, out=np.zeros_like(time), where=runs)
    least = np.where(runs, power, np.inf).min(0)
    return np.asarray(
        (power.max(0) > gpu["governor.burst_share"] * limit_w) & (least < gpu["governor.settled_share"] * limit_w)
    )


def _hold_below(
    stages: Amounts, tails: Amounts, drain_s: Array, layout: Layout, clocks_mhz: Array, highest: HighestClocks
) -> None:
    """Above the clocks that plans set, what happens at them."""
    top = highest.rank_mhz
    for values in (stages.time_s, stages.energy_j):
        for kind in range(len(layout.often)):
            values[kind] = _held(values[kind], clocks_mhz, highest.stage_mhz[kind], top[layout.stages.rank])
    for values in (tails.time_s, tails.energy_j, drain_s):
        values[...] = _held(values, clocks_mhz, highest.tail_mhz, top)


def _held(values: Array, clocks_mhz: Array, highest_mhz: Array, top_mhz: Array) -> Array:
    """``top_mhz`` is the highest clock of a row's rank; up to it values are read, between two clocks of the grid."""
    below = np.append(-np.inf, clocks_mhz[:-1])
    free = (clocks_mhz <= highest_mhz[:, None]) | ((below < highest_mhz[:, None]) & (highest_mhz >= top_mhz)[:, None])
    return np.where(free, values, interpolated(values, clocks_mhz, highest_mhz)[:, None])
