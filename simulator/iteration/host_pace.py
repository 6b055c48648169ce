"""How much longer an iteration may take because its host launches kernels more slowly than the GPU runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.power.kernel_power import idle_power_w
from joulecast.simulator.fluid.prepared import Prepared, step_time_s
from joulecast.simulator.fluid.simulation import FluidResult
from joulecast.simulator.instructions.host import HOST_EXPONENT, host_gaps, launches_of
from joulecast.simulator.plan_file.gpu import launch_s

Array = NDArray[np.float64]

#: Host's time for each kernel that PyTorch launches, the slowest seen: virtual machines with an H200 took 23 to 56 us
#: over programs whose GPU waited for them, one of them 45 in the mean [s; measured]. How far one program's differs
#: from another's on the same machine, standard deviation of the logarithm [measured].
SLOW_HOST_S, LAUNCH_SD = 55e-6, 0.2
#: From which change of the time's logarithm by a slow host a forecast speaks of it, and its interval holds it.
SAID_FROM = 0.02


@dataclass(frozen=True)
class HostSpread:
    """Changes of the logarithms of time and energy to the quicker and the slower side, two standard deviations [1].

    Attributes
    ----------
    time, energy
        Downwards and upwards, both at least 0.
    """

    time: tuple[float, float] = (0.0, 0.0)
    energy: tuple[float, float] = (0.0, 0.0)


def host_spread(prepared: Prepared, result: FluidResult, first: int, energy_j: float) -> HostSpread:
    """What the pace of PyTorch's host leaves open: a stated one errs, one that is not stated may be slow.

    Megatron's host has its time, and its part in the spread of steps, from published steps. ``energy_j`` is that of one
    iteration on all GPUs.
    """
    implementation, own = prepared.program.plan.implementation, launch_s(prepared.program.plan, prepared.gpu)
    stated = implementation.host_launch_us is not None
    if implementation.framework != "pytorch-eager" or implementation.cuda_graphs or (stated and own == 0):
        return HostSpread()
    far = math.exp(1.645 * LAUNCH_SD)
    paces = (own / far, own * far) if stated else (0.0, SLOW_HOST_S)
    launches = [launches_of(prepared.program.plan, run.types)[:, None] for run in prepared.program.ranks]
    changes = [_with_host(prepared, result, first, energy_j, launches, pace) for pace in paces]
    (low, low_j), (high, high_j) = changes
    if not stated and high < SAID_FROM:
        return HostSpread()
    return HostSpread((-low, high), (-low_j, high_j))


def _with_host(
    prepared: Prepared, result: FluidResult, first: int, energy_j: float, launches: Sequence[Array], one_s: float
) -> tuple[float, float]:
    """Change of the logarithms of an iteration's time and energy with a host that takes ``one_s`` for a launch [1].

    ``launches``: what each rank's types of instructions cost the host, shape ``(types, 1)``.
    """
    plan, count = prepared.program.plan, len(result.iteration_end_s) - first
    own, gpus = launch_s(plan, prepared.gpu), plan.tp * plan.replicas
    longer, more = [], 0.0
    for rank, (table, count_of) in enumerate(zip(prepared.tables, launches, strict=True)):
        kernels = without_host(table.duration_s, own * count_of)
        waits = kernels + host_gaps(kernels, one_s * count_of) - table.duration_s
        waits = waits * result.executed[rank][first:].sum(0) / count
        longer.append(float(waits.sum()))
        idle = idle_power_w(prepared.clocks_mhz[prepared.columns[rank]], prepared.gpu)
        more += gpus * float((waits * idle).sum())
    return math.log1p(max(longer, key=abs) / step_time_s(result, first)), math.log1p(more / energy_j)


def without_host(duration_s: Array, host_s: Array) -> Array:
    """What kernels take that are waited for ``duration_s`` long with a host that needs ``host_s`` [s]."""
    alone = np.maximum(duration_s**HOST_EXPONENT - host_s**HOST_EXPONENT, 0.0)
    return np.asarray(alone ** (1.0 / HOST_EXPONENT))


def launch_pace_s(prepared: Prepared, time_s: float) -> float:
    """Time between two launches that an iteration leaves its host [s]."""
    plan, ranks = prepared.program.plan, prepared.program.ranks
    return time_s / max(float(launches_of(plan, run.types)[list(run.order)].sum()) for run in ranks)
