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

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.limits import group_limit_share
from joulecast.simulator.closed_form.clocks import Board, Settled, settle
from joulecast.simulator.closed_form.guards import check_ranks, check_summary
from joulecast.simulator.closed_form.layout import Layout, lay_out, recipes_of
from joulecast.simulator.closed_form.pipelines import Pipelines
from joulecast.simulator.closed_form.tabulated import Parts
from joulecast.simulator.closed_form.work import Work, work_of
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan


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

    def parts(self, plan: Plan) -> Parts:
        """Parts of plans on the GPU of one; begun anew when they have become many."""
        key = _board_key(plan)
        if key not in self._parts or len(self._parts[key]) > MOST_PARTS:
            self._parts[key] = Parts(gpu_model(gpu_of(plan)), dict(plan.power.component_limits_w))
        return self._parts[key]

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Ask for the parts of plans that will be forecast a few at a time, so that they are tabulated together."""
        for own in _by_gpu(plans):
            parts = self.parts(plans[own[0]])
            for number in own:
                recipes_of(plans[number], parts)


#: Plans evaluated together: their arrays stay in a core's cache.
AT_ONCE = 1024
#: Most parts that are kept from call to call, some hundred megabytes.
MOST_PARTS = 10_000


def closed_form(plans: Sequence[Plan], shared: Shared | None = None) -> ClosedForm:
    """Forecast many plans at once; the larger the batch and the more alike its plans, the faster.

    Parameters
    ----------
    plans
        Plans, whether they fit memory or not.
    shared
        What earlier plans had in common.
    """
    out = ClosedForm(*(np.empty(len(plans)) for _ in fields(ClosedForm)))
    shared = shared or Shared()
    for own in _by_gpu(plans):
        for start in range(0, len(own), AT_ONCE):
            some = own[start : start + AT_ONCE]
            made = _of_gpu([plans[i] for i in some], shared.parts(plans[own[0]]))
            for field in fields(ClosedForm):
                getattr(out, field.name)[some] = getattr(made, field.name)
    return out


def _by_gpu(plans: Sequence[Plan]) -> list[list[int]]:
    """Numbers of plans that have parts in common."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, plan in enumerate(plans):
        rows.setdefault(_board_key(plan), []).append(i)
    return list(rows.values())


def _board_key(plan: Plan) -> tuple[object, ...]:
    run = plan.implementation
    return (plan.cluster.gpu, run.framework, run.generation, plan.power.component_limits_w)


def neighbours_key(plan: Plan) -> tuple[object, ...]:
    """What to sort plans by that are forecast a few at a time: those with one formula and one pace come together."""
    return (_board_key(plan), plan.schedule.name, plan.pp, plan.tp)


def _of_gpu(plans: Sequence[Plan], parts: Parts) -> ClosedForm:
    """Forecasts of plans on one GPU, in the steps that the docstring of this package names."""
    layout = lay_out(plans, parts)
    work = work_of(plans, layout, parts)
    pipelines = Pipelines(plans, layout, work, parts)
    board = _board(plans, layout, work, parts)
    settled = settle(pipelines.load(), board, pipelines.waits, pipelines.walk_again)
    time = pipelines.time_s(settled.clock_mhz, settled.tail_clock_mhz)

    def of_iteration(name: str) -> Array:
        return pipelines.of_iteration(getattr(work.stages, name), getattr(work.tails, name), settled)

    busy = of_iteration("time_s")
    check_ranks(plans, layout, board, settled, busy, of_iteration("energy_j"), time, parts.gpu)
    exposed = of_iteration("exposed_s")
    if parts.component_limits_w:
        stages, tails = (of.clock_mhz * of.time_s for of in (work.stages, work.tails))
        settled = replace(settled, clock_mhz=pipelines.of_iteration(stages, tails, settled) / busy)
    made = _summary(plans, layout, settled, time, exposed)
    check_summary(plans, made)
    return made


def _board(plans: Sequence[Plan], layout: Layout, work: Work, parts: Parts) -> Board:
    """What holds the clocks of every rank row."""
    gpu = parts.gpu
    reached = layout.limit_w * np.array([group_limit_share(plan.tp, gpu) for plan in plans])[layout.plan_of_rank]
    return Board(
        clocks_mhz=parts.clocks_mhz,
        wait_power_w=parts.waiting_w,
        settled_w=reached * gpu["governor.settled_share"],
        burst_w=reached * gpu["governor.burst_share"],
        top_mhz=work.highest.rank_mhz,
        governed=~work.locked[layout.plan_of_rank],
        slow_s=gpu["governor.slow_s"],
        fast_s=gpu["governor.fast_s"],
    )


def _summary(plans: Sequence[Plan], layout: Layout, settled: Settled, time_s: Array, exposed_s: Array) -> ClosedForm:
    gpus = np.array([float(plan.cluster.gpus) for plan in plans])
    ranks = np.array([float(plan.pp) for plan in plans])

    def mean(of_rank: Array) -> Array:
        return np.asarray(np.bincount(layout.plan_of_rank, layout.ranks * of_rank, len(plans)) / ranks)

    energy = mean(settled.energy_j) * gpus
    waiting, exposed = (mean(part / time_s[layout.plan_of_rank]) for part in (settled.wait_s, exposed_s))
    return ClosedForm(time_s, energy, energy / time_s, mean(settled.clock_mhz), waiting, exposed)
