"""Time, power and energy of many plans in closed form, some ten thousand plans a second.

Kernels, instructions and memory are those of :mod:`joulecast.simulator.forecast`, tabulated on a coarser grid of
clocks. In place of the simulation stand a formula for the schedule's length
(:mod:`joulecast.simulator.pipeline_formula`) and an equilibrium for the governor
(:mod:`joulecast.simulator.closed_form_clocks`). Both are approximations; tests quote how far they are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from joulecast.model.description import GpuDescription
from joulecast.model.governor import settled_power_w
from joulecast.model.gpu_model import gpu_model
from joulecast.model.limits import group_limit_share
from joulecast.model.lowering import lower
from joulecast.model.operators import Collective
from joulecast.model.power import at_clock, idle_power_w, wait_power_w
from joulecast.simulator.clock_columns import PLAN_NAMES, is_locked
from joulecast.simulator.closed_form_behind import communication_behind
from joulecast.simulator.closed_form_clocks import Board, Settled, at, settle
from joulecast.simulator.closed_form_layout import Layout, Pipelines, lay_out
from joulecast.simulator.closed_form_parts import Parts, Sums, Tabulated, transfer_key
from joulecast.simulator.forecast import board_limits_w, lag_of
from joulecast.simulator.part_limits import wait_columns
from joulecast.simulator.plan import Cluster, Plan
from joulecast.simulator.plan_gpu import gpu_of
from joulecast.simulator.program import stage_transfers
from joulecast.simulator.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, OPTIMIZER
from joulecast.simulator.tables import at_pace, host_gaps

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


def closed_form(plans: Sequence[Plan], gpu: GpuDescription | None = None) -> ClosedForm:
    """Forecast many plans at once; the larger the batch and the more alike its plans, the faster.

    Parameters
    ----------
    plans
        Plans, whether they fit memory or not.
    gpu
        Description to use in place of the plans' own.
    """
    out = ClosedForm(*(np.empty(len(plans)) for _ in fields(ClosedForm)))
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, plan in enumerate(plans):
        run = plan.implementation
        kind = (plan.cluster.gpu, run.framework, run.generation) if gpu is None else ()
        rows.setdefault((*kind, plan.power.component_limits_w), []).append(i)
    for own in rows.values():
        description = gpu_of(plans[own[0]]) if gpu is None else gpu
        limits = dict(plans[own[0]].power.component_limits_w)
        made = _of_gpu([plans[i] for i in own], Parts(gpu_model(description), limits))
        for field in fields(ClosedForm):
            getattr(out, field.name)[own] = getattr(made, field.name)
    return out


def _of_gpu(plans: Sequence[Plan], parts: Parts) -> ClosedForm:
    layout = lay_out(plans, parts)
    gpu, clocks = parts.gpu, parts.clocks_mhz
    limits = [board_limits_w(plan, gpu) for plan in plans]
    limit = np.array([limits[number][r] for number, r in zip(layout.plan_of_rank, layout.first_rank, strict=True)])
    work = _work(layout, parts, limit)
    highest = _highest_clocks(plans, layout, gpu.max_clock_mhz)
    still = np.array([is_locked(plan) for plan in plans])
    if still.any():
        below = _highest_power_w(work, layout, clocks, highest) <= settled_power_w(limit, gpu)
        still &= np.bincount(layout.plan_of_rank, ~below, len(plans)) == 0
    _keep_pace(work, plans, layout, parts, still)
    _add_communication_behind(work, plans, layout, parts)
    if min(highest.stage_mhz.min(), highest.tail_mhz.min()) < gpu.max_clock_mhz:
        _hold_below(work, clocks, highest)
    pipelines = Pipelines(plans, layout, work.stage_s, work.tail_s, clocks, _transfers_s(plans, parts))
    reached = limit * np.array([group_limit_share(plan.tp, gpu) for plan in plans])[layout.plan_of_rank]
    board = Board(
        clocks_mhz=clocks,
        wait_power_w=_wait_power_w(parts),
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
    if parts.limits_w:
        spent = pipelines.of_iteration(work.stage_clock_mhz * work.stage_s, work.tail_clock_mhz * work.tail_s, settled)
        settled = replace(settled, clock_mhz=spent / pipelines.of_iteration(work.stage_s, work.tail_s, settled))
    return _summary(plans, layout, settled, time, exposed)


def _wait_power_w(parts: Parts) -> Array:
    """Power of a waiting GPU where the governor sets a clock, shape ``(clocks,)`` [W]."""
    columns = wait_columns(parts.clocks_mhz, parts.limits_w, parts.gpu)
    return np.asarray(wait_power_w(parts.clocks_mhz[columns], parts.gpu))


def _summary(plans: Sequence[Plan], layout: Layout, settled: Settled, time_s: Array, exposed_s: Array) -> ClosedForm:
    gpus = np.array([float(plan.cluster.gpus) for plan in plans])
    ranks = np.array([float(plan.pp) for plan in plans])

    def mean(of_rank: Array) -> Array:
        return np.asarray(np.bincount(layout.plan_of_rank, layout.ranks * of_rank, len(plans)) / ranks)

    energy = mean(settled.energy_j) * gpus
    waiting, speaking = (mean(part / time_s[layout.plan_of_rank]) for part in (settled.wait_s, exposed_s))
    return ClosedForm(time_s, energy, energy / time_s, mean(settled.clock_mhz), waiting, speaking)


@dataclass(eq=False)
class _Work:
    """Work on the grid of clocks: stages' forward, backward and weight gradient ``(3, q, c)``, ranks' tails ``(r, c)``.

    ``exposed`` is communication without compute beside it, ``clock`` the mean clock of the kernels.
    """

    stage_s: Array
    stage_exposed_s: Array
    stage_j: Array
    stage_clock_mhz: Array
    tail_s: Array
    tail_exposed_s: Array
    tail_j: Array
    tail_clock_mhz: Array


def _work(layout: Layout, parts: Parts, limit_w: Array) -> _Work:
    clocks, idle_w = len(parts.clocks_mhz), idle_power_w(parts.clocks_mhz, parts.gpu)
    stages, ranks = (3, len(layout.chunks), clocks), (len(layout.ranks), clocks)
    work = _Work(*(np.zeros(shape) for shape in (*[stages] * 4, *[ranks] * 4)))
    for limit in np.unique(limit_w):
        table = parts.tabulate(float(limit))
        own_stages = np.flatnonzero(limit_w[layout.rank_of_stage] == limit)
        own_ranks = np.flatnonzero(limit_w == limit)
        for kind in range(3):
            sums = Sums([layout.stage_recipes[kind][row] for row in own_stages])
            work.stage_s[kind, own_stages] = sums.of(table.duration_s)
            work.stage_exposed_s[kind, own_stages] = sums.of(table.exposed_s)
            work.stage_j[kind, own_stages] = sums.of(table.energy_j)
            if parts.limits_w:
                work.stage_clock_mhz[kind, own_stages] = _mean_clock_mhz(sums, table)
            gaps = host_gaps(work.stage_s[kind, own_stages], sums.of(table.host_s))
            work.stage_s[kind, own_stages] += gaps
            work.stage_j[kind, own_stages] += gaps * idle_w
        sums = Sums([layout.tail_recipes[row] for row in own_ranks])
        work.tail_s[own_ranks] = sums.of(table.duration_s)
        work.tail_exposed_s[own_ranks] = sums.of(table.exposed_s)
        work.tail_j[own_ranks] = sums.of(table.energy_j)
        if parts.limits_w:
            work.tail_clock_mhz[own_ranks] = _mean_clock_mhz(sums, table)
        gaps = host_gaps(work.tail_s[own_ranks], sums.of(table.host_s))
        work.tail_s[own_ranks] += gaps
        work.tail_j[own_ranks] += gaps * idle_w
    return work


def _mean_clock_mhz(sums: Sums, table: Tabulated) -> Array:
    time = sums.of(table.duration_s)
    return np.asarray(np.divide(sums.of(table.clock_mhz * table.duration_s), time, out=time * 0.0, where=time > 0))


@dataclass(frozen=True, eq=False)
class _Highest:
    """Highest clocks that plans set, of stages ``(3, q)``, tails ``(r,)`` and whole ranks ``(r,)`` [MHz]."""

    stage_mhz: Array
    tail_mhz: Array
    of_rank_mhz: Array


def _highest_clocks(plans: Sequence[Plan], layout: Layout, top_mhz: float) -> _Highest:
    def of(row: int, kind: str) -> float:
        clock = plans[layout.plan_of_rank[row]].power.clock_mhz(int(layout.first_rank[row]), PLAN_NAMES[kind])
        return top_mhz if clock is None else clock

    by_rank = np.full((4, len(layout.ranks)), top_mhz)
    for row in np.flatnonzero([bool(plans[p].power.clocks_mhz) for p in layout.plan_of_rank]):
        by_rank[:, row] = [of(int(row), kind) for kind in (FORWARD, BACKWARD, BACKWARD_WEIGHT, OPTIMIZER)]
    return _Highest(by_rank[:3, layout.rank_of_stage], by_rank[3], by_rank.max(0))


def _highest_power_w(work: _Work, layout: Layout, clocks_mhz: Array, highest: _Highest) -> Array:
    """Power of each rank row's most demanding instruction at the clock that the plan sets, shape ``(r,)`` [W]."""
    stage = [
        at(work.stage_j[k], clocks_mhz, highest.stage_mhz[k])
        / np.maximum(at(work.stage_s[k], clocks_mhz, highest.stage_mhz[k]), 1e-12)
        for k in range(3)
    ]
    tail = at(work.tail_j, clocks_mhz, highest.tail_mhz) / np.maximum(
        at(work.tail_s, clocks_mhz, highest.tail_mhz), 1e-12
    )
    out = np.asarray(tail)
    np.maximum.at(out, layout.rank_of_stage, np.max(stage, axis=0))
    return out


def _keep_pace(work: _Work, plans: Sequence[Plan], layout: Layout, parts: Parts, still: NDArray[np.bool_]) -> None:
    """Stretch compute to the pace of each plan's groups, the GPUs waiting meanwhile."""
    gpu, clocks = parts.gpu, parts.clocks_mhz
    waiting_w = _wait_power_w(parts)
    groups: dict[tuple[int, int, Cluster], list[int]] = {}
    for number, plan in enumerate(plans):
        if not still[number]:
            groups.setdefault((plan.tp, plan.replicas, plan.cluster), []).append(number)
    for members in groups.values():
        lag = lag_of(plans[members[0]], clocks, gpu)
        within = np.zeros(len(plans), dtype=bool)
        within[members] = True
        stages, ranks = within[layout.plan_of_stage], within[layout.plan_of_rank]
        for kind in range(3):
            _pace(work.stage_s[kind], work.stage_exposed_s[kind], work.stage_j[kind], stages, clocks, lag, waiting_w)
        _pace(work.tail_s, work.tail_exposed_s, work.tail_j, ranks, clocks, lag, waiting_w)


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


def _hold_below(work: _Work, clocks_mhz: Array, highest: _Highest) -> None:
    """Above the clocks that plans set, what happens at them."""
    for values in (work.stage_s, work.stage_j):
        for kind in range(3):
            values[kind] = _held(values[kind], clocks_mhz, highest.stage_mhz[kind])
    work.tail_s = _held(work.tail_s, clocks_mhz, highest.tail_mhz)
    work.tail_j = _held(work.tail_j, clocks_mhz, highest.tail_mhz)


def _held(values: Array, clocks_mhz: Array, highest_mhz: Array) -> Array:
    return np.where(clocks_mhz <= highest_mhz[:, None], values, at(values, clocks_mhz, highest_mhz)[:, None])


def _transfers_s(plans: Sequence[Plan], parts: Parts) -> Array:
    """Mean time of a transfer from one of a plan's stages to the next, 0 with one stage [s]."""
    distinct: dict[Collective, int] = {}
    places, owner = [], []
    for number, plan in enumerate(plans):
        hops = plan.pp if plan.vp > 1 else plan.pp - 1
        for transfer in parts.once(transfer_key(plan), partial(stage_transfers, plan))[:hops]:
            places.append(distinct.setdefault(transfer, len(distinct)))
            owner.append(number)
    if not distinct:
        return np.zeros(len(plans))
    times = at_clock(lower(tuple(distinct), parts.gpu), parts.gpu.max_clock_mhz, parts.gpu).time_s
    count = np.bincount(owner, minlength=len(plans))
    return np.asarray(np.bincount(owner, times[places], len(plans)) / np.maximum(count, 1))
