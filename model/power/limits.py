"""What the board's limits do to kernels and to groups of GPUs, beyond one settled clock.

An instant limit holds single kernels below the clock that the board has set, within tens of microseconds. Under a power
limit clocks also wander: recorded H200 clocks move by 7 % around their mean, within tens of milliseconds and on every
board for itself. GPUs that wait for each other at every collective run at the slowest clock of their group, those at
work faster wait at low power, and no board reaches its limit all the time. Cards of one kind differ as well, and a job
runs at the pace of its slowest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.cluster.extremes import slowest_of
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.governor import REMEMBERED, settle_clock_mhz
from joulecast.model.power.kernel_power import KernelTimes, clock_tree_power_w, idle_power_w

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
#: Share of its clock by which a kernel is below the instant limit where that begins to act, and above it where it acts
#: in full: from 0.08 to 0.13 the times of products and attention of an H200 and an H100 are met equally well.
PEAK_WIDTH = 0.11
#: Furthest that a wandering clock is below its mean, in standard deviations: it swings between bounds, as a sine does,
#: where the extreme of many normal values has none. As far as the slowest of eight, the most recorded in step.
#: Published steps that wait for each other layer by layer do not grow from 64 GPUs to 2,048 (JAX's FSDP on H100).
FURTHEST = math.sqrt(2.0)


def hold_at_peak(times: KernelTimes, clocks_mhz: Array, peak_w: float, gpu: GpuModel) -> KernelTimes:
    """Kernels under an instant limit: those near it or above run at a lower clock than the board has set.

        f' = f − w·f_peak·(1 + d)²/4,    d = (f/f_peak − 1)/w between −1 and 1

    and f below, f_peak above, with f_peak the clock at which the kernel alone draws ``peak_w`` and w
    :data:`PEAK_WIDTH`: a kernel's power fluctuates, so that the limit acts a little before its mean. Voltage and energy
    are those of the lower clock. What draws more at the lowest clock skips cycles there.

    Parameters
    ----------
    times
        Kernels at every clock that the board may set, arrays of shape ``(clocks, kernels)``.
    clocks_mhz
        Those clocks, ascending, shape ``(clocks,)``.
    peak_w
        The limit [W].

    Notes
    -----
    At ten clocks that the boards of an H200 and an H100 had set, 1.45 to 1.98 GHz, products and attention took as long
    as this form says within 1 % on average and 2.7 % at worst; the energy of products between rests was met within
    1.5 % (``validate/recorded/clocks``).
    """
    times = skip_cycles(times, clocks_mhz, peak_w, gpu)
    if len(clocks_mhz) == 1:  # there is no lower clock to run at
        return times
    peak = _clock_at_power(times.power_w, clocks_mhz, peak_w)
    near = np.flatnonzero(peak * (1.0 - PEAK_WIDTH) < clocks_mhz[-1])
    if not len(near):
        return times
    width = PEAK_WIDTH * peak[near]
    over = np.clip((clocks_mhz[:, None] - peak[near]) / width, -1.0, 1.0)
    granted = np.minimum(clocks_mhz[:, None], peak[near] + width) - width * (1.0 + over) ** 2 / 4.0
    return _at_clocks(times, clocks_mhz, near, np.maximum(granted, clocks_mhz[0]))


def _clock_at_power(power_w: Array, clocks_mhz: Array, peak_w: float) -> Array:
    """Clock at which each kernel first draws ``peak_w``, beyond the grid by its last slope; shape ``(kernels,)``."""
    over = power_w >= peak_w
    upper = np.where(over.any(axis=0), np.maximum(over.argmax(axis=0), 1), len(clocks_mhz) - 1)
    columns = np.arange(power_w.shape[1])
    p0, p1 = power_w[upper - 1, columns], power_w[upper, columns]
    f0, f1 = clocks_mhz[upper - 1], clocks_mhz[upper]
    rising = p1 > p0
    share = np.divide(peak_w - p0, p1 - p0, out=np.full_like(p0, np.inf), where=rising)
    return np.asarray(np.maximum(f0 + (f1 - f0) * share, clocks_mhz[0]))


def _at_clocks(times: KernelTimes, clocks_mhz: Array, kernels: Int, wanted_mhz: Array) -> KernelTimes:
    """Some kernels at other clocks than the grid's, shape ``(clocks, kernels)``, between its steps."""
    upper = np.clip(np.searchsorted(clocks_mhz, wanted_mhz), 1, len(clocks_mhz) - 1)
    share = (wanted_mhz - clocks_mhz[upper - 1]) / (clocks_mhz[upper] - clocks_mhz[upper - 1])
    tables = np.empty((2 + len(times.components_j), *times.time_s.shape))
    for place, values in enumerate((times.time_s, times.energy_j, *times.components_j.values())):
        tables[place] = values
    some, columns = tables[:, :, kernels], np.arange(len(kernels))
    tables[:, :, kernels] = (1.0 - share) * some[:, upper - 1, columns] + share * some[:, upper, columns]
    parts = dict(zip(times.components_j, tables[2:], strict=True))
    return replace(times, time_s=tables[0], energy_j=tables[1], components_j=parts)


def skip_cycles(times: KernelTimes, clocks_mhz: Array, peak_w: float, gpu: GpuModel) -> KernelTimes:
    """At the lowest of some clocks, or at the only one, kernels above a limit take longer at the same dynamic energy.

    ``t' = (E − P_idle·t) / (P_peak − P_idle)``; arrays of shape ``(clocks, kernels)``.
    """
    time, energy = times.time_s[0], times.energy_j[0]
    if not (energy > peak_w * time).any():
        return times
    idle, tree = float(idle_power_w(clocks_mhz[0], gpu)), float(clock_tree_power_w(clocks_mhz[0], gpu))
    extra = np.maximum((energy - idle * time) / max(peak_w - idle, 1.0), time) - time

    def first(values: Array, more: Array | float) -> Array:
        changed = np.broadcast_to(values, times.time_s.shape).copy()
        changed[0] += more
        return changed

    parts = dict(times.components_j)
    parts["static"] = first(parts["static"], (idle - tree) * extra)
    parts["clock"] = first(parts["clock"], tree * extra)
    slower = first(times.time_s, extra)
    return replace(times, time_s=slower, energy_j=first(times.energy_j, idle * extra), components_j=parts)


def group_lag(
    clocks_mhz: Array,
    in_step: int,
    members: int,
    gpu: GpuModel,
    node_spread: float = 0.0,
    locked_mhz: Array | None = None,
    held_mhz: Array | None = None,
) -> Array:
    """Relative distance of the pace of a group from its mean clock, at each mean clock.

    Boards wander, each for itself, below the highest clock that they may take, and cards of one kind settle apart below
    the highest that they have. A locked clock keeps boards from wandering above it, so that those near it are nearly in
    step and go faster than under the governor alone; of cards that differ only those are below it that would exceed
    their limit (:func:`card_lag_at_lock`).

    Parameters
    ----------
    in_step
        GPUs that wait for each other many times an iteration: those that share a layer, a sequence or a layer's
        experts, and the ranks that gather parameters or add up gradients layer by layer (FSDP).
    members
        GPUs that wait for each other once an iteration (with the replicas).
    node_spread
        Relative standard deviation of clocks between nodes, where they are on several.
    locked_mhz
        The clock that a plan sets, which those that the limit spares hold alike; of several instructions each its own,
        shape ``(types, 1)``, and the answer is of shape ``(types, clocks)``.
    held_mhz
        With it, from :func:`held_clock_mhz`, of the same shape.
    """
    highest = gpu.max_clock_mhz if locked_mhz is None else locked_mhz
    wander = min(slowest_of(in_step), FURTHEST) * gpu["governor.wander"] * _freedom(clocks_mhz, highest, gpu)
    if held_mhz is None:
        return np.asarray(wander + card_lag(clocks_mhz, members, gpu, node_spread))
    return np.asarray(wander + card_lag_at_lock(clocks_mhz, held_mhz, members, gpu, node_spread))


def card_lag(clocks_mhz: Array, members: int, gpu: GpuModel, node_spread: float = 0.0) -> Array:
    """Of :func:`group_lag` what is due to cards that differ, where all are held by their limit."""
    spread = float(np.hypot(gpu["governor.card_clock_spread"], node_spread / (1.0 - TAKEN_BACK)))
    return slowest_of(members) * spread * _freedom(clocks_mhz, gpu.max_clock_mhz, gpu)


def card_lag_at_lock(
    clocks_mhz: Array, held_mhz: Array, members: int, gpu: GpuModel, node_spread: float = 0.0
) -> Array:
    """The same at locked clocks: only a card that its limit holds below the lock lags.

    ``x = 1 - f_held·(1 - d)/f`` between 0 and d: where the limit holds the mean card at ``f_held``, the slowest is d
    below it, from :func:`card_lag`, and stays there whatever lower clock above its own is locked.
    """
    most = card_lag(held_mhz, members, gpu, node_spread)
    return np.asarray(np.clip(1.0 - held_mhz * (1.0 - most) / clocks_mhz, 0.0, most))


def held_clock_mhz(
    clocks_mhz: Array, time_s: Array, energy_j: Array, often: Array, limit_w: float, gpu: GpuModel
) -> tuple[Array, Array]:
    """Highest clock at which the mean card's limit lets each of several instructions run, shape ``(types, 1)`` [MHz].

    That of the fast loop alone, and that of both. The slow loop holds the mean power of a rank's work. The fast one
    holds what an instruction brings the power of the last milliseconds to, ``P + (1 - exp(-t / 2τ))·(P_k - P)`` where
    the others draw P on average: recorded clocks fall in every load of 20 ms and more, although the average is far
    below the limit (``validate/recorded/clocks``).

    Parameters
    ----------
    time_s, energy_j
        Of each instruction at each clock, with the wait for cards that lag in full, shape ``(types, clocks)`` [s], [J].
    often
        How often each runs in the work that the slow loop averages, shape ``(types,)``; 0 of what runs once.
    """
    power = np.divide(energy_j, time_s, out=np.zeros_like(time_s), where=time_s > 0)
    mean = (often @ energy_j) / np.maximum(often @ time_s, 1e-12)
    follows = -np.expm1(-time_s / (REMEMBERED * gpu["governor.fast_s"]))
    burst = mean + follows * (power - mean)
    slow, fast = limit_w * gpu["governor.settled_share"], limit_w * gpu["governor.burst_share"]
    top = gpu.max_clock_mhz
    held = settle_clock_mhz(clocks_mhz, burst.T, fast, top)
    on_average = np.where(often > 0, settle_clock_mhz(clocks_mhz, mean[:, None], slow, top), top)
    return held[:, None], np.minimum(held, on_average)[:, None]


def _freedom(clocks_mhz: Array, highest_mhz: Array | float, gpu: GpuModel) -> Array:
    """From 0 at the highest clock that boards may take to 1 from :data:`FULL_WANDER` below it on."""
    return np.clip((highest_mhz - clocks_mhz) / gpu.max_clock_mhz / FULL_WANDER, 0.0, 1.0)


def group_limit_share(in_step: int, gpu: GpuModel) -> float:
    """Share of the limit that boards reach on average when each waits for the slowest of ``in_step``.

    Of tensor-parallel groups: boards whose communication runs beside computation, as FSDP's does, reached the limit,
    and so did pairs that share a sequence or experts.
    """
    return 1.0 - gpu["governor.in_step_loss"] * slowest_of(in_step) ** 4
