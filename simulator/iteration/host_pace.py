"""How much longer an iteration may take because its host launches kernels more slowly than the GPU runs them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import idle_power_w
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.simulator.fluid.prepared import Prepared
from joulecast.simulator.fluid.steady_state import SteadyState
from joulecast.simulator.instructions.host import HOST_EXPONENT, host_gaps, launches_of
from joulecast.simulator.plan_file.gpu import launch_s
from joulecast.simulator.plan_file.plan import Plan

#: Host's time for a launch of the doctor's, the slowest seen: virtual machines with an H100 or H200 took 28 to 57 us
#: [s; measured]. How far one program differs from another, and from itself a minute later, in such launches on one
#: machine, standard deviation of the logarithm (`validate/recorded/host_launches`) [measured].
SLOW_HOST_S, LAUNCH_SD = 57e-6, 0.2
#: The same for a launch of Megatron's modules: virtual machines with an H200 on which layers of experts waited for it
#: [s; estimate from such layers, +-20 %].
SLOW_MODULES_S = 280e-6
#: Least change of the time's logarithm by a slow host that a forecast mentions and its interval includes.
SAID_FROM = 0.02


@dataclass(frozen=True, eq=False)
class HostChanges:
    """How far a quicker and a slower host change ``n`` plans, at the ends of a 90 % interval.

    Attributes
    ----------
    time, energy
        Changes of their logarithms with the quicker and with the slower host, shape ``(2, n)`` [1].
    """

    time: Array
    energy: Array


def open_paces_s(plan: Plan, gpu: GpuModel) -> tuple[float, float] | None:
    """Quickest and slowest launch that the host may need: a stated one errs, one that is not may be slow [s].

    ``None`` where no pace is open: Megatron's host has its time, and its part in the spread of steps, from published
    steps, but for layers of experts, in which it waits for the GPU.
    """
    implementation, own = plan.implementation, launch_s(plan, gpu)
    stated, megatron = implementation.host_launch_us is not None, implementation.framework == "megatron"
    known = megatron and not stated and plan.workload.model.experts is None
    if known or implementation.cuda_graphs or (stated and own == 0):
        return None
    if stated:
        far = math.exp(NINETY_PERCENT * LAUNCH_SD)
        return own / far, own * far
    return (own, max(own, SLOW_MODULES_S)) if megatron else (0.0, SLOW_HOST_S)


def changes(plan: Plan, waits: Array, time_s: Array, waits_j: Array, energy_j: Array) -> HostChanges:
    """Changes where ``n`` plans' ``r`` ranks wait longer; nothing where a pace that is not stated hardly matters.

    Parameters
    ----------
    waits
        Of each rank, in an iteration, with the quicker and the slower host, shape ``(2, n, r)`` [s].
    waits_j
        What all GPUs need for that, shape ``(2, n)`` [J].
    time_s, energy_j
        Of the plans, shape ``(n,)`` [s], [J].
    """
    most = np.take_along_axis(waits, np.abs(waits).argmax(axis=2)[..., None], axis=2)[..., 0]
    time, energy = np.log1p(most / time_s), np.log1p(waits_j / energy_j)
    counts = (time[1] >= SAID_FROM) | (plan.implementation.host_launch_us is not None)
    return HostChanges(time * counts, energy * counts)


def host_changes(steady: SteadyState, energy_j: float) -> HostChanges | None:
    """What the pace of PyTorch's host leaves open of one simulated plan; ``energy_j`` is that of its iteration."""
    prepared, plan = steady.prepared, steady.prepared.program.plan
    paces = open_paces_s(plan, prepared.gpu)
    if paces is None:
        return None
    own, gpus = launch_s(plan, prepared.gpu), plan.tp * plan.replicas
    longer, more = np.zeros((2, 1, len(prepared.tables))), np.zeros((2, 1))
    for rank, (table, run) in enumerate(zip(prepared.tables, prepared.program.ranks, strict=True)):
        launches = launches_of(plan, run.types)[:, None]
        idle = idle_power_w(prepared.clocks_mhz[prepared.columns[rank]], prepared.gpu)
        executed = steady.executed(rank) / steady.iterations
        for side, one_s in enumerate(paces):
            waits = more_waits_s(table.duration_s, own * launches, one_s * launches) * executed
            longer[side, 0, rank] = waits.sum()
            more[side, 0] += gpus * float((waits * idle).sum())
    return changes(plan, longer, np.array([steady.step_time_s]), more, np.array([energy_j]))


def more_waits_s(duration_s: Array, own_s: Array, other_s: Array) -> Array:
    """What kernels take longer with a host of ``other_s`` than ``duration_s``, with one of ``own_s`` [s]."""
    kernels = without_host(duration_s, own_s)
    return np.asarray(kernels + host_gaps(kernels, other_s) - duration_s)


def without_host(duration_s: Array, host_s: Array) -> Array:
    """Time of kernels alone, where they take ``duration_s`` with a host that needs ``host_s``; undoes gaps [s]."""
    alone = np.maximum(duration_s**HOST_EXPONENT - host_s**HOST_EXPONENT, 0.0)
    return np.asarray(alone ** (1.0 / HOST_EXPONENT))


def launch_pace_s(prepared: Prepared, time_s: float) -> float:
    """Time between two launches that an iteration leaves its host [s]."""
    plan, ranks = prepared.program.plan, prepared.program.ranks
    return time_s / max(float(launches_of(plan, run.types)[list(run.order)].sum()) for run in ranks)
