"""What measuring a microbenchmark would tell the fit, and what forecasts need to know, both to first order.

A fit sees a measured row as its time at the observed clock, and as its power at the observed clock and time. A forecast
is told no clock: where the power limit P* sets it, it moves with every parameter,

    d log f = (d log P* - d log P(f, z)) / (d log P / d log f),

and where the limit on tensor throughput does, f = f_tensor / use, which falls as a kernel takes more cycles.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.choose.sensitivity import Sensitivity, sensitivity
from joulecast.calibrate.device_priors import DevicePriors
from joulecast.calibrate.fit import IDLE_NOISE, POWER_NOISE, SETTLED_WINDOW_S, SHORT_POWER_NOISE, SHORT_TIME_NOISE
from joulecast.calibrate.fit import TIME_NOISE as SETTLED_TIME_NOISE
from joulecast.calibrate.priors import Prior
from joulecast.calibrate.row_operators import KernelWork, group_key, operator_of
from joulecast.errors import InputError
from joulecast.model.gpu_model import GpuModel
from joulecast.model.lowering import lower
from joulecast.model.operators import Collective, Operator
from joulecast.model.predict import Forecast, Work, predict_work

Array = NDArray[np.float64]

#: Relative noise of a clock that the card chose: it wanders, and its readings are steps of 15 MHz.
CLOCK_NOISE = 0.01
#: Clock of a kernel between products of these values, as a share of the highest; means of recorded rows.
COMPANIONS = {"randn": 0.77, "zeros": 0.92, "none": 1.0}
#: Settling and window of a measurement, where a configuration does not say [s].
SETTLE_S, WINDOW_S = 1.0, 2.5
#: A card as far below its highest clock is held back: by the power limit if it draws this share of its settled power,
#: by the limit on tensor throughput otherwise.
BELOW, LIMITED = 0.002, 0.98
#: Relative noise of the share of the limit at which a row settles, and of the tensor clock that follows from one.
SHARE_NOISE, TENSOR_NOISE = 0.005, 0.03
#: What the governor's two estimates are read from.
SETTLED, TENSOR = "governor.settled_share", "governor.tensor_clock_mhz"
#: Least slope of power along the clock: a kernel that hardly feels it would seem to move it without end.
LEAST_STEEPNESS = 0.2


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that could be measured.

    Attributes
    ----------
    name
        Unique.
    configuration
        Of the row that it would become; no measured value. ``clock_mhz`` and ``power_limit_w`` are what is set.
    stratum
        Kind of work.
    cost_s
        Seconds that measuring it takes.
    """

    name: str
    configuration: Mapping[str, Any]
    stratum: str
    cost_s: float

    @property
    def work(self) -> KernelWork:
        """What it repeats."""
        return operator_of(self.configuration)


@dataclass(frozen=True, slots=True)
class Reference:
    """A kernel whose forecast matters.

    Attributes
    ----------
    operator
        The kernel.
    clock_share
        Its clock, as a share of the highest; ``None`` leaves it to the card under its own limit.
    """

    operator: Operator
    clock_share: float | None = None


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
    group: NDArray[np.int64]


def free_parameters(priors: DevicePriors) -> dict[str, Prior]:
    """Priors of everything that is fitted."""
    free = {**priors.time, **priors.power, **priors.collective, **priors.governor}
    return {name: prior for name, prior in free.items() if prior.sd > 0}


def usable(candidates: Sequence[Candidate], gpu: GpuModel) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Candidates that the fit can read on this card, and the others' names with the reason."""
    kept, dropped = [], []
    for candidate in candidates:
        work = candidate.work
        reason = work.reason or work.exception
        if 0.0 < work.busy_fraction < 1.0 and candidate.configuration.get("op") != "pulse":
            reason = "the fit reads no duty cycles"
        if not reason:
            try:
                lower(work.operators, gpu)
            except InputError as error:
                reason = error.message
        if reason:
            dropped.append((candidate.name, reason))
        else:
            kept.append(candidate)
    return kept, dropped


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
    works = [_work(c.work) for c in candidates]
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

    limited: NDArray[np.bool_]
    held: NDArray[np.bool_]
    limit: Array
    tensor: Array

    def take(self, rows: slice) -> _Governed:
        """Some of the pieces."""
        return _Governed(self.limited[rows], self.held[rows], self.limit, self.tensor)


def _govern(
    found: Sensitivity, clock_mhz: Array, chosen: NDArray[np.bool_], gpu: GpuModel, priors: DevicePriors
) -> _Governed:
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
    speaks = np.array([any(isinstance(o, Collective) for o in w.operators) for w in works], dtype=np.bool_)
    of_time, of_power, of_collective = (
        np.array([name in table for name in found.names]) for table in (priors.time, priors.power, priors.collective)
    )
    # Collectives' powers are fitted together with their times, other rows' at their observed times.
    timing = np.where(speaks[:, None], found.time * of_collective, found.time * of_time)
    power = np.where(speaks[:, None], (found.energy - found.time) * of_collective, found.energy * of_power)
    groups: dict[Hashable, int] = {}
    group = [groups.setdefault(_group(c, own), len(groups)) for c, own in zip(candidates, speaks, strict=True)]
    kept_back = governed.limited[:, None] * governed.limit + governed.held[:, None] * governed.tensor
    variances = _variances(candidates, works, found, governed)
    return Observations(
        np.concatenate([timing, power, kept_back]), np.concatenate(variances), np.array(group, dtype=np.int64)
    )


def _variances(
    candidates: Sequence[Candidate], works: Sequence[KernelWork], found: Sensitivity, governed: _Governed
) -> tuple[Array, Array, Array]:
    """Variance of time and of power as the fit weighs them, with that of the clock where they are seen; of limits."""
    window = np.array([_seconds(c, "target_window_s", WINDOW_S) for c in candidates], dtype=np.float64)
    settled = window >= SETTLED_WINDOW_S
    clock = np.array([0.0 if c.configuration.get("clock_mhz") else CLOCK_NOISE for c in candidates])
    time = np.where(settled, SETTLED_TIME_NOISE, SHORT_TIME_NOISE) ** 2 + (found.time_by_clock * clock) ** 2
    # At the observed time only what does not flow all the time follows the clock through the time.
    steepness = found.energy_by_clock - found.flowing_share * found.time_by_clock
    power = np.where(settled, POWER_NOISE, SHORT_POWER_NOISE) ** 2 + (steepness * clock) ** 2
    resting = np.array([not w.operators for w in works], dtype=np.bool_)
    paused = np.array([w.busy_fraction != 1.0 for w in works], dtype=np.bool_)
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


def candidate_clocks_mhz(candidates: Sequence[Candidate], gpu: GpuModel) -> Array:
    """Clock at which each candidate is expected to run, shape ``(n,)`` [MHz]."""
    clocks = np.full(len(candidates), gpu.max_clock_mhz)
    alike: dict[tuple[Any, Any], list[int]] = {}
    for place, candidate in enumerate(candidates):
        companion = candidate.configuration.get("companion")
        if companion is not None:
            clocks[place] = COMPANIONS.get(companion, 1.0) * gpu.max_clock_mhz
        else:
            key = (candidate.configuration.get("clock_mhz"), candidate.configuration.get("power_limit_w"))
            alike.setdefault(key, []).append(place)
    for (clock, limit), places in alike.items():
        forecast = _forecast([candidates[i] for i in places], gpu, clock, limit)
        clocks[places] = forecast.clock_mhz
    return clocks


def _forecast(candidates: Sequence[Candidate], gpu: GpuModel, clock_mhz: Any, limit_w: Any) -> Forecast:
    return predict_work(
        [_work(c.work) for c in candidates],
        gpu,
        clock_mhz=clock_mhz,
        power_limit_w=limit_w,
        settle_s=np.array([_seconds(c, "settle_s", SETTLE_S) for c in candidates]),
        window_s=np.array([_seconds(c, "target_window_s", WINDOW_S) for c in candidates]),
    )


def _seconds(candidate: Candidate, key: str, default: float) -> float:
    value = candidate.configuration.get(key)
    return default if value is None else float(value)


def _work(work: KernelWork) -> Work:
    return Work(work.operators, work.counts, work.busy_fraction)


def reference_clocks_mhz(reference: Sequence[Reference], gpu: GpuModel) -> Array:
    """Clock of each reference kernel, shape ``(k,)`` [MHz]."""
    chosen = predict_work([Work((kernel.operator,)) for kernel in reference], gpu).clock_mhz
    return np.array(
        [
            clock if kernel.clock_share is None else kernel.clock_share * gpu.max_clock_mhz
            for kernel, clock in zip(reference, chosen, strict=True)
        ]
    )


def _forecast_slopes(found: Sensitivity, governed: _Governed) -> Array:
    steepness = np.maximum(found.power_by_clock, LEAST_STEEPNESS)[:, None]
    by_power = (governed.limit - (found.energy - found.time)) / steepness
    by_tensor = governed.tensor + found.time  # more cycles, less use
    moved = governed.limited[:, None] * by_power + governed.held[:, None] * by_tensor
    time = found.time + moved * found.time_by_clock[:, None]
    energy = found.energy + moved * found.energy_by_clock[:, None]
    return np.concatenate([time, energy])
