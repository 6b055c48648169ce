"""What measuring a microbenchmark would tell the fit, and what forecasts need to know, both to first order.

A fit sees a measured row as its time at the observed clock, and as its power at the observed clock and time. A forecast
is told no clock: where the power limit P* sets it, it moves with every parameter,

    d log f = (d log P* - d log P(f, z)) / (d log P / d log f),

and where the limit on tensor throughput does, f = f_tensor / use, which falls as a kernel takes more cycles.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.tables import (
    IDLE_NOISE,
    POWER_NOISE,
    SETTLED_WINDOW_S,
    SHORT_POWER_NOISE,
    SHORT_TIME_NOISE,
)
from joulecast.calibrate.fit.tables import TIME_NOISE as SETTLED_TIME_NOISE
from joulecast.calibrate.rows.operators import KernelWork, group_key
from joulecast.calibrate.sessions.candidates import (
    WINDOW_S,
    Candidate,
    Reference,
    candidate_clocks_mhz,
    reference_clocks_mhz,
    seconds_of,
)
from joulecast.calibrate.sessions.sensitivity import Sensitivity, sensitivity
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Collective
from joulecast.model.repeated_work import Work

#: Relative noise of a clock that the card chose: it wanders, and its readings are steps of 15 MHz.
CLOCK_NOISE = 0.01
#: A card as far below its highest clock is held back: by the power limit if it draws this share of its settled power,
#: by the limit on tensor throughput otherwise.
BELOW, LIMITED = 0.002, 0.98
#: Relative noise of the share of the limit at which a row settles, and of the tensor clock that follows from one.
SHARE_NOISE, TENSOR_NOISE = 0.005, 0.03
#: What the governor's two estimates are read from.
SETTLED, TENSOR = "governor.settled_share", "governor.tensor_clock_mhz"
#: Least slope of power along the clock: a kernel that hardly feels it would seem to move it without end.
LEAST_STEEPNESS = 0.2


@dataclass(frozen=True)
class Observations:
    """What ``n`` candidates would show: times, then powers, then what holds the clock back, ``3·n`` quantities.

    Attributes
    ----------
    slopes
        Of the logarithms, along each parameter in units of its prior standard deviation, shape ``(3·n, p)``.
    variance
        Of their relative noise, shape ``(3·n,)``; infinite for what a candidate does not show.
    group
        Near-duplicates share a number, shape ``(n,)``.
    """

    slopes: Array
    variance: Array
    group: Int


def free_parameters(priors: DevicePriors) -> dict[str, Prior]:
    """Priors of everything that is fitted."""
    free = {**priors.time, **priors.power, **priors.collective, **priors.governor}
    return {name: prior for name, prior in free.items() if prior.sd > 0}


def linearise(
    candidates: Sequence[Candidate], reference: Sequence[Reference], gpu: GpuModel, priors: DevicePriors
) -> tuple[Observations, Array]:
    """What usable candidates would show the fit, and slopes of forecasts, both around ``gpu``.

    Parameters
    ----------
    candidates
        ``n`` usable ones.
    reference
        ``k`` kernels, each back to back.
    gpu
        Where the slopes are taken: the priors, or a fit so far.
    priors
        Of the card.

    Returns
    -------
    Observations
        Of the candidates.
    ndarray
        Slopes of the logarithms of forecast times, then energies, along each parameter in units of its prior standard
        deviation, shape ``(2·k, p)``.
    """
    works = [c.work for c in candidates]
    kernels = [Work((kernel.operator,)) for kernel in reference]
    clocks = np.concatenate([candidate_clocks_mhz(candidates, gpu), reference_clocks_mhz(reference, gpu)])
    split = len(candidates)
    found = sensitivity([*works, *kernels], clocks, gpu, free_parameters(priors))
    chosen = [_chooses(c) for c in candidates] + [kernel.clock_share is None for kernel in reference]
    governed = _govern(found, clocks, np.array(chosen, dtype=np.bool_), gpu, priors)
    seen, told = slice(0, split), slice(split, None)
    return (
        _observations(candidates, found.take(seen), governed.take(seen), priors),
        _forecast_slopes(found.take(told), governed.take(told)),
    )


@dataclass(frozen=True)
class _Governed:
    """What sets the clocks of ``n`` pieces of work.

    Attributes
    ----------
    limited, held
        Whether the power limit does, and whether the limit on tensor throughput does, shape ``(n,)``.
    limit, tensor
        Slopes of the logarithms of either limit along each parameter, shape ``(p,)``.
    """

    limited: Bool
    held: Bool
    limit: Array
    tensor: Array

    def take(self, rows: slice) -> _Governed:
        """Some of the pieces."""
        return _Governed(self.limited[rows], self.held[rows], self.limit, self.tensor)


def _govern(found: Sensitivity, clock_mhz: Array, chosen: Bool, gpu: GpuModel, priors: DevicePriors) -> _Governed:
    below = chosen & (clock_mhz < gpu.max_clock_mhz * (1.0 - BELOW))
    limited = found.power_w > LIMITED * gpu.device["power_limit_w"] * gpu[SETTLED]

    def slope(name: str) -> Array:
        return np.where(np.array(found.names) == name, priors.governor[name].sd / priors.governor[name].start, 0.0)

    return _Governed(below & limited, below & ~limited, slope(SETTLED), slope(TENSOR))


def _chooses(candidate: Candidate) -> bool:
    """Whether the card chooses the clock of a candidate by its own limits."""
    return not any(candidate.configuration.get(key) for key in ("clock_mhz", "power_limit_w", "companion"))


def _observations(
    candidates: Sequence[Candidate], found: Sensitivity, governed: _Governed, priors: DevicePriors
) -> Observations:
    works = [c.work for c in candidates]
    communicates = np.array([any(isinstance(o, Collective) for o in w.operators) for w in works], dtype=np.bool_)
    of_time, of_power, of_collective = (
        np.array([name in table for name in found.names]) for table in (priors.time, priors.power, priors.collective)
    )
    # Collectives' powers are fitted together with their times, other rows' at their observed times.
    timing = np.where(communicates[:, None], found.time * of_collective, found.time * of_time)
    power = np.where(communicates[:, None], (found.energy - found.time) * of_collective, found.energy * of_power)
    groups: dict[Hashable, int] = {}
    group = [groups.setdefault(_group(c, own), len(groups)) for c, own in zip(candidates, communicates, strict=True)]
    kept_back = governed.limited[:, None] * governed.limit + governed.held[:, None] * governed.tensor
    variances = _variances(candidates, works, found, governed)
    return Observations(
        np.concatenate([timing, power, kept_back]), np.concatenate(variances), np.array(group, dtype=np.int64)
    )


def _variances(
    candidates: Sequence[Candidate], works: Sequence[KernelWork], found: Sensitivity, governed: _Governed
) -> tuple[Array, Array, Array]:
    """Variance of time and of power as the fit weighs them, with that of the clock where they are seen; of limits."""
    window = np.array([seconds_of(c, "target_window_s", WINDOW_S) for c in candidates], dtype=np.float64)
    settled = window >= SETTLED_WINDOW_S
    clock = np.array([0.0 if c.configuration.get("clock_mhz") else CLOCK_NOISE for c in candidates])
    time = np.where(settled, SETTLED_TIME_NOISE, SHORT_TIME_NOISE) ** 2 + (found.time_by_clock * clock) ** 2
    # At the observed time only what does not flow all the time follows the clock through the time.
    steepness = found.energy_by_clock - found.flowing_share * found.time_by_clock
    power = np.where(settled, POWER_NOISE, SHORT_POWER_NOISE) ** 2 + (steepness * clock) ** 2
    resting = np.array([not w.operators for w in works], dtype=np.bool_)
    paused = np.array([w.busy_share != 1.0 for w in works], dtype=np.bool_)
    bursts = np.array([c.configuration.get("op") == "pulse" for c in candidates], dtype=np.bool_)
    beside = np.array([c.configuration.get("companion") is not None for c in candidates], dtype=np.bool_)
    power = np.where(resting, IDLE_NOISE**2, power)
    no_time = resting | (paused & ~bursts)
    no_power = beside | (paused & ~bursts & ~resting)
    kept_back = np.where(governed.limited, SHARE_NOISE, TENSOR_NOISE) ** 2
    no_limit = ~settled | paused | resting | ~(governed.limited | governed.held)
    return (
        np.where(no_time, np.inf, time),
        np.where(no_power, np.inf, power),
        np.where(no_limit, np.inf, kept_back),
    )


def _group(candidate: Candidate, is_collective: bool) -> Hashable:
    configuration = candidate.configuration
    if is_collective:
        return tuple(configuration.get(key) for key in ("op", "gpus", "bytes", "ctas"))
    return group_key({"name": candidate.name, **configuration})


def _forecast_slopes(found: Sensitivity, governed: _Governed) -> Array:
    steepness = np.maximum(found.power_by_clock, LEAST_STEEPNESS)[:, None]
    by_power = (governed.limit - (found.energy - found.time)) / steepness
    by_tensor = governed.tensor + found.time  # more cycles, less use
    moved = governed.limited[:, None] * by_power + governed.held[:, None] * by_tensor
    time = found.time + moved * found.time_by_clock[:, None]
    energy = found.energy + moved * found.energy_by_clock[:, None]
    return np.concatenate([time, energy])
