"""Time, power and energy of many plans in closed form, some ten thousand plans a second.

Kernels, instructions and memory are those of :mod:`joulecast.simulator.fluid.prepared`, tabulated on a coarser grid of
clocks. In place of the simulation stand a formula for the schedule's length
(:mod:`joulecast.simulator.closed_form.pipeline_formula`) and an equilibrium for the governor
(:mod:`joulecast.simulator.closed_form.clocks`). Both are approximations; tests quote how far they are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.governor import settled_power_w
from joulecast.model.power.limits import group_limit_share
from joulecast.simulator.closed_form.behind import communication_behind
from joulecast.simulator.closed_form.clocks import Board, Settled, at, settle
from joulecast.simulator.closed_form.guards import check_ranks, check_summary
from joulecast.simulator.closed_form.keys import pace_key
from joulecast.simulator.closed_form.layout import Layout, lay_out, recipes_of
from joulecast.simulator.closed_form.pipelines import Pipelines, transfers_s
from joulecast.simulator.closed_form.tabulated import Parts, Recipe, Sums, Tabulated
from joulecast.simulator.fluid.prepared import lag_of
from joulecast.simulator.instructions.clock_columns import PLAN_NAMES, is_locked
from joulecast.simulator.instructions.host import host_gaps
from joulecast.simulator.instructions.tables import at_pace
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, OPTIMIZER

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Forecasts of ``n`` plans, every field of shape ``(n,)``.

    Attributes
    ----------
    time_s, energy_j, power_w
        Time of an iteration, and energy and mean power of all GPUs together.
    clock_mhz
        Mean SM clock over GPUs at work.
    waiting_share, communication_share
        Shares of its time in which the mean GPU waits, and communicates without computing [1].
    """

    time_s: Array
    energy_j: Array
    power_w: Array
    clock_mhz: Array
    waiting_share: Array
    communication_share: Array


class Shared:
    """What plans have in common, kept from one call of :func:`closed_form` to the next."""

    def __init__(self) -> None:
        self._parts: dict[object, Parts] = {}

    def parts(self, key: object, plan: Plan, gpu: GpuDescription | None = None) -> Parts:
        """Parts of plans like one on its or another GPU, that are ``key``'s; begun anew when they have become many."""
        if key not in self._parts or len(self._parts[key]) > MOST_PARTS:
            self._parts[key] = Parts(gpu_model(gpu or gpu_of(plan)), dict(plan.power.component_limits_w))
        return self._parts[key]

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Ask for the parts of plans that will be forecast a few at a time, so that they are tabulated together."""
        for key, own in _by_gpu(plans).items():
            parts = self.parts(key, plans[own[0]])
            for number in own:
                recipes_of(plans[number], parts)


#: Plans evaluated together: their arrays stay in a core's cache.
AT_ONCE = 1024
#: Most parts that are kept from call to call, some hundred megabytes.
MOST_PARTS = 10_000


def closed_form(plans: Sequence[Plan], gpu: GpuDescription | None = None, shared: Shared | None = None) -> ClosedForm:
    """Forecast many plans at once; the larger the batch and the more alike its plans, the faster.

    Parameters
    ----------
    plans
        Plans, whether they fit memory or not.
    gpu
        Description to use in place of the plans' own.
    shared
        What earlier plans, of the same ``gpu``, had in common.
    """
    out = ClosedForm(*(np.empty(len(plans)) for _ in fields(ClosedForm)))
    shared = shared or Shared()
    for key, own in _by_gpu(plans, gpu).items():
        for start in range(0, len(own), AT_ONCE):
            some = own[start : start + AT_ONCE]
            made = _of_gpu([plans[i] for i in some], shared.parts(key, plans[own[0]], gpu))
            for field in fields(ClosedForm):
                getattr(out, field.name)[some] = getattr(made, field.name)
    return out


def _by_gpu(plans: Sequence[Plan], gpu: GpuDescription | None = None) -> dict[tuple[object, ...], list[int]]:
    """Plans that have parts in common, under what tells their GPUs apart; ``gpu`` stands for all of these."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, plan in enumerate(plans):
        rows.setdefault(_board_key(plan) if gpu is None else plan.power.component_limits_w, []).append(i)
    return rows


def _board_key(plan: Plan) -> tuple[object, ...]:
    run = plan.implementation
    return (plan.cluster.gpu, run.framework, run.generation, plan.power.component_limits_w)


def neighbours_key(plan: Plan) -> tuple[object, ...]:
    """What to sort plans by that are forecast a few at a time: those with one formula and one pace come together."""
    return (_board_key(plan), plan.schedule.name, plan.pp, plan.tp)


def _of_gpu(plans: Sequence[Plan], parts: Parts) -> ClosedForm:
    gpu, clocks = parts.gpu, parts.clocks_mhz
    layout = lay_out(plans, parts)
    limit = layout.limit_w
    work = _work(layout, parts, limit)
    highest = _highest_clocks(plans, layout, gpu.max_clock_mhz)
    still = np.array([is_locked(plan) for plan in plans])
    if still.any():
        below = _highest_power_w(work, layout, clocks, highest) <= settled_power_w(limit, gpu)
        still &= np.bincount(layout.plan_of_rank, ~below, len(plans)) == 0
    _keep_pace(work, plans, layout, parts, still)
    work.on_ranks(layout)
    _add_communication_behind(work, plans, layout, parts)
    if min(highest.stage_mhz.min(), highest.tail_mhz.min()) < gpu.max_clock_mhz:
        _hold_below(work, layout, clocks, highest)
    ends = work.tail_s, work.drain_s
    pipelines = Pipelines(plans, layout, work.stage_s, ends, clocks, transfers_s(plans, parts))
    reached = limit * np.array([group_limit_share(plan.tp, gpu) for plan in plans])[layout.plan_of_rank]
    board = Board(
        clocks_mhz=clocks,
        wait_power_w=parts.waiting_w,
        settled_w=reached * gpu["governor.settled_share"],
        burst_w=reached * gpu["governor.burst_share"],
        top_mhz=highest.of_rank_mhz,
        governed=~still[layout.plan_of_rank],
        slow_s=gpu["governor.slow_s"],
        fast_s=gpu["governor.fast_s"],
    )
    settled = settle(pipelines.load(work.stage_j, work.tail_j), board, pipelines.waits)
    exposed = pipelines.of_iteration(work.stage_exposed_s, work.tail_exposed_s, settled)
    time = pipelines.time_s(settled.clock_mhz, settled.tail_clock_mhz)
    busy, worked = (
        pipelines.of_iteration(*of, settled) for of in ((work.stage_s, work.tail_s), (work.stage_j, work.tail_j))
    )
    check_ranks(plans, layout, board, settled, busy, worked, time, gpu)
    if parts.limits_w:
        spent = pipelines.of_iteration(work.stage_clock_mhz * work.stage_s, work.tail_clock_mhz * work.tail_s, settled)
        settled = replace(settled, clock_mhz=spent / busy)
    made = _summary(plans, layout, settled, time, exposed)
    check_summary(plans, made)
    return made


def _summary(plans: Sequence[Plan], layout: Layout, settled: Settled, time_s: Array, exposed_s: Array) -> ClosedForm:
    gpus = np.array([float(plan.cluster.gpus) for plan in plans])
    ranks = np.array([float(plan.pp) for plan in plans])

    def mean(of_rank: Array) -> Array:
        return np.asarray(np.bincount(layout.plan_of_rank, layout.ranks * of_rank, len(plans)) / ranks)

    energy = mean(settled.energy_j) * gpus
    waiting, exposed = (mean(part / time_s[layout.plan_of_rank]) for part in (settled.wait_s, exposed_s))
    return ClosedForm(time_s, energy, energy / time_s, mean(settled.clock_mhz), waiting, exposed)


@dataclass(eq=False)
class _Work:
    """Work on the grid of clocks: distinct stages' forward, backward and weight gradient ``(3, u, c)``, tails.

    Tails are distinct ones ``(v, c)`` until :meth:`_Work.on_ranks` lays them on rank rows ``(r, c)``. ``exposed`` is
    communication without compute beside it, ``clock`` the mean clock of the kernels. ``drain_s`` is what of a tail the
    rank before it waits for.
    """

    stage_s: Array
    stage_exposed_s: Array
    stage_j: Array
    stage_clock_mhz: Array
    tail_s: Array
    tail_exposed_s: Array
    tail_j: Array
    tail_clock_mhz: Array
    drain_s: Array

    def on_ranks(self, layout: Layout) -> None:
        """Give every rank row a tail of its own."""
        self.tail_s, self.tail_exposed_s, self.tail_j, self.tail_clock_mhz, self.drain_s = (
            values[layout.tails.of]
            for values in (self.tail_s, self.tail_exposed_s, self.tail_j, self.tail_clock_mhz, self.drain_s)
        )


def _work(layout: Layout, parts: Parts, limit_w: Array) -> _Work:
    """``limit_w`` is the power limit of every rank row's board."""
    clocks = len(parts.clocks_mhz)
    stages, tails = (3, len(layout.stages.part), clocks), (len(layout.tails.part), clocks)
    work = _Work(*(np.zeros(shape) for shape in (*[stages] * 4, *[tails] * 5)))
    for limit in sorted(set(limit_w.tolist())):
        table = parts.tabulate(limit)
        own = np.flatnonzero(limit_w[layout.stages.rank] == limit)
        recipes = [parts.stage_recipes[part] for part in layout.stages.part[own]]
        for kind in range(3):
            into = work.stage_s[kind], work.stage_exposed_s[kind], work.stage_j[kind], work.stage_clock_mhz[kind]
            _sum_parts(into, own, [recipe[kind] for recipe in recipes], table, parts)
        own = np.flatnonzero(limit_w[layout.tails.rank] == limit)
        tail = [parts.tail_recipes[part] for part in layout.tails.part[own]]
        _sum_parts((work.tail_s, work.tail_exposed_s, work.tail_j, work.tail_clock_mhz), own, tail, table, parts)
        drain = [parts.drain_recipes[part] for part in layout.tails.part[own]]
        if any(drain):
            work.drain_s[own] = Sums(drain).of(table.duration_s)
    return work


def _sum_parts(
    into: tuple[Array, Array, Array, Array],
    rows: NDArray[np.int64],
    recipes: Sequence[Recipe],
    table: Tabulated,
    parts: Parts,
) -> None:
    """Rows of time, exposed communication, energy and clock from their parts, and the waits for their host."""
    if not any(recipes):
        return
    sums = Sums(recipes)
    time, exposed, energy = (sums.of(values) for values in (table.duration_s, table.exposed_s, table.energy_j))
    if parts.limits_w:
        spent = sums.of(table.clock_mhz * table.duration_s)
        into[3][rows] = np.divide(spent, time, out=np.zeros_like(time), where=time > 0)
    gaps = host_gaps(time, sums.of(table.host_s)) if table.is_launched else np.zeros_like(time)
    into[0][rows], into[1][rows], into[2][rows] = time + gaps, exposed, energy + gaps * parts.idle_w


@dataclass(frozen=True, eq=False)
class _Highest:
    """Highest clocks that plans set, of distinct stages ``(3, u)``, tails ``(r,)`` and whole ranks ``(r,)`` [MHz]."""

    stage_mhz: Array
    tail_mhz: Array
    of_rank_mhz: Array


def _highest_clocks(plans: Sequence[Plan], layout: Layout, top_mhz: float) -> _Highest:
    def of(row: int, kind: str) -> float:
        clock = plans[layout.plan_of_rank[row]].power.clock_mhz(int(layout.first_rank[row]), PLAN_NAMES[kind])
        return top_mhz if clock is None else clock

    by_rank = np.full((4, len(layout.ranks)), top_mhz)
    sets = np.array([bool(plan.power.clocks_mhz) for plan in plans])
    for row in np.flatnonzero(sets[layout.plan_of_rank]):
        by_rank[:, row] = [of(int(row), kind) for kind in (FORWARD, BACKWARD, BACKWARD_WEIGHT, OPTIMIZER)]
    return _Highest(by_rank[:3, layout.stages.rank], by_rank[3], by_rank.max(0))


def _highest_power_w(work: _Work, layout: Layout, clocks_mhz: Array, highest: _Highest) -> Array:
    """Power of each rank row's most demanding instruction at the clock that the plan sets, shape ``(r,)`` [W]."""
    stage = [
        at(work.stage_j[k], clocks_mhz, highest.stage_mhz[k])
        / np.maximum(at(work.stage_s[k], clocks_mhz, highest.stage_mhz[k]), 1e-12)
        for k in range(3)
    ]
    rows = layout.tails.of
    out = at(work.tail_j, clocks_mhz, highest.tail_mhz, rows) / np.maximum(
        at(work.tail_s, clocks_mhz, highest.tail_mhz, rows), 1e-12
    )
    np.maximum.at(out, layout.rank_of_stage, np.max(stage, axis=0)[layout.stages.of])
    return np.asarray(out)


def _keep_pace(work: _Work, plans: Sequence[Plan], layout: Layout, parts: Parts, still: NDArray[np.bool_]) -> None:
    """Stretch compute to the pace of each plan's groups, the GPUs waiting meanwhile."""
    gpu, clocks = parts.gpu, parts.clocks_mhz
    groups: dict[object, list[int]] = {}
    for number, plan in enumerate(plans):
        if not still[number]:
            groups.setdefault(pace_key(plan), []).append(number)
    for members in groups.values():
        lag = lag_of(plans[members[0]], clocks, gpu)
        within = np.zeros(len(plans), dtype=bool)
        within[members] = True
        stages, tails = (within[layout.plan_of_rank[rows.rank]] for rows in (layout.stages, layout.tails))
        for kind in range(3):
            _pace(
                work.stage_s[kind], work.stage_exposed_s[kind], work.stage_j[kind], stages, clocks, lag, parts.waiting_w
            )
        _pace(work.tail_s, work.tail_exposed_s, work.tail_j, tails, clocks, lag, parts.waiting_w)


def _pace(
    time_s: Array,
    exposed_s: Array,
    energy_j: Array,
    rows: NDArray[np.bool_],
    clocks_mhz: Array,
    lag: Array,
    waiting_w: Array,
) -> None:
    compute = time_s[rows] - exposed_s[rows]
    behind = at_pace(compute, clocks_mhz, lag) - compute
    time_s[rows] += behind
    energy_j[rows] += behind * waiting_w


def _add_communication_behind(work: _Work, plans: Sequence[Plan], layout: Layout, parts: Parts) -> None:
    """What travels beside instructions, on account of the tails."""
    for added in communication_behind(plans, layout, parts, work.stage_s):
        work.tail_s[added.rows] += added.time_s
        work.tail_exposed_s[added.rows] += added.exposed_s
        work.tail_j[added.rows] += added.energy_j


def _hold_below(work: _Work, layout: Layout, clocks_mhz: Array, highest: _Highest) -> None:
    """Above the clocks that plans set, what happens at them."""
    top = highest.of_rank_mhz
    for values in (work.stage_s, work.stage_j):
        for kind in range(3):
            values[kind] = _held(values[kind], clocks_mhz, highest.stage_mhz[kind], top[layout.stages.rank])
    work.tail_s, work.tail_j, work.drain_s = (
        _held(values, clocks_mhz, highest.tail_mhz, top) for values in (work.tail_s, work.tail_j, work.drain_s)
    )


def _held(values: Array, clocks_mhz: Array, highest_mhz: Array, top_mhz: Array) -> Array:
    """``top_mhz`` is the highest clock of a row's rank; up to it values are read, between two clocks of the grid."""
    below = np.append(-np.inf, clocks_mhz[:-1])
    free = (clocks_mhz <= highest_mhz[:, None]) | ((below < highest_mhz[:, None]) & (highest_mhz >= top_mhz)[:, None])
    return np.where(free, values, at(values, clocks_mhz, highest_mhz)[:, None])
