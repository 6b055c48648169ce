"""What the board's limits do to kernels and to groups of GPUs, beyond one settled clock.

Above an instant limit the SMs skip cycles: the voltage and the energy of an operation stay, time stretches until the
power meets the limit. Under a power limit clocks also wander: recorded H200 clocks move by 7 % around their mean,
within tens of milliseconds and on every board for itself. GPUs that wait for each other at every collective run at the
slowest clock of their group, those at work faster wait at low power, and no board reaches its limit all the time. Cards
of one kind differ as well, and a job runs at the pace of its slowest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulecast.model.cluster.extremes import slowest_of
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import KernelTimes, clock_tree_power_w, idle_power_w

Array = NDArray[np.float64]

#: Relative standard deviation of SM clocks at the power limit between cards of different nodes, beyond that of cards in
#: one: an estimate from the variability of large installations, where equal cards run one program at speeds that span
#: 8 % on average, about six standard deviations (Sinha et al., SC 2022, arXiv:2208.11035).
NODE_CLOCK_SPREAD = 0.013
#: Share of a lag that boards faster than the slowest take back: while they wait they draw less, so that their average
#: lets them run faster. The slowest, which sets the pace, cannot. From (1 − P_wait/P_limit)/κ with P ~ f^κ at the
#: limit, P_wait a quarter of the limit and κ about 2.5.
TAKEN_BACK = 0.3
#: Distance below the highest clock, as a share of it, from which on the clock wanders in full.
FULL_WANDER = 0.05
#: Furthest that a wandering clock is below its mean, in standard deviations: it swings between bounds, as a sine does,
#: where the extreme of many normal values has none. As far as the slowest of eight, the most recorded in step.
#: Published steps that wait for each other layer by layer do not grow from 64 GPUs to 2,048 (JAX's FSDP on H100).
FURTHEST = math.sqrt(2.0)


def skip_cycles(times: KernelTimes, clocks_mhz: Array, peak_w: float, gpu: GpuModel) -> KernelTimes:
    """Kernels under an instant limit: those above it take longer at the same dynamic energy.

    ``t' = (E − P_idle·t) / (P_peak − P_idle)``; arrays of shape ``(clocks, kernels)``.
    """
    idle = idle_power_w(clocks_mhz, gpu)[:, None]
    tree = clock_tree_power_w(clocks_mhz, gpu)[:, None]
    longer = np.maximum((times.energy_j - idle * times.time_s) / np.maximum(peak_w - idle, 1.0), times.time_s)
    extra = longer - times.time_s
    parts = dict(times.components_j)
    parts["static"] = parts["static"] + (idle - tree) * extra
    parts["clock"] = parts["clock"] + tree * extra
    return _never_slower(replace(times, time_s=longer, energy_j=times.energy_j + idle * extra, components_j=parts))


def _never_slower(times: KernelTimes) -> KernelTimes:
    """A higher requested clock never slows a kernel: what it cannot use it leaves to the skipped cycles."""
    fastest = np.minimum.accumulate(times.time_s, axis=0)
    reached = np.where(times.time_s <= fastest, np.arange(len(fastest))[:, None], 0)
    row = np.maximum.accumulate(reached, axis=0)

    def taken(values: Array) -> Array:
        return np.take_along_axis(np.broadcast_to(values, fastest.shape), row, 0)

    parts = {component: taken(values) for component, values in times.components_j.items()}
    return replace(times, time_s=fastest, energy_j=taken(times.energy_j), components_j=parts)


def group_lag(clocks_mhz: Array, in_step: int, members: int, gpu: GpuModel, node_spread: float = 0.0) -> Array:
    """Relative distance of the pace of a group from its mean clock, at each mean clock.

    Parameters
    ----------
    in_step
        GPUs that wait for each other many times an iteration: those that share a layer, a sequence or a layer's
        experts, and the ranks that gather parameters or add up gradients layer by layer (FSDP).
    members
        GPUs that wait for each other once an iteration (with the replicas).
    node_spread
        Relative standard deviation of clocks between nodes, where they are on several.
    """
    spread = float(np.hypot(gpu["governor.card_clock_spread"], node_spread / (1.0 - TAKEN_BACK)))
    full = min(slowest_of(in_step), FURTHEST) * gpu["governor.wander"] + slowest_of(members) * spread
    below = (gpu.max_clock_mhz - clocks_mhz) / gpu.max_clock_mhz
    return np.asarray(full * np.clip(below / FULL_WANDER, 0.0, 1.0))


def group_limit_share(in_step: int, gpu: GpuModel) -> float:
    """Share of the limit that boards reach on average when each waits for the slowest of ``in_step``.

    Of tensor-parallel groups: boards whose communication runs beside computation, as FSDP's does, reached the limit,
    and so did pairs that share a sequence or experts.
    """
    return 1.0 - gpu["governor.in_step_loss"] * slowest_of(in_step) ** 4
