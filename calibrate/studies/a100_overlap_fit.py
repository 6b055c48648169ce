"""Fits of the overlapped attention layer: its parameters on rows at the highest clock, then a few rows of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.studies.a100_overlap_physics import Configurations, energy_j, forecast, walk
from joulecast.model.hardware.gpu_model import GpuModel

#: Relative error of the forms in time and in energy; residuals beyond twice as much count less [1].
TIME_NOISE, ENERGY_NOISE = 0.006, 0.005
#: Rows of neighbouring SM counts err alike: so many tell as much about the parameters as one.
_ALIKE = 10.0
#: Share of what the forms miss of a configuration at one clock, in time and in energy, that they miss of it at another
#: as well [1]. Estimate: two windows that are one experiment (5-6 and 6-6) share 0.98 of it in time and 0.4 in energy,
#: whose repeats scatter as far.
_REPEATS = (0.8, 0.4)
#: Step of a numerical slope in standard deviations of the parameter.
_STEP = 1e-2

TIME_PRIORS: dict[str, Prior] = {
    "norm_s": Prior(4e-4, 1e-5, 2e-3, 1.0, "s", "0.2 GB at 1.3 TB/s and as much again for kernels that are not fused"),
    "qkv_s": Prior(4e-4, 1e-5, 2e-3, 0.5, "s", "103 GFLOP at 80 % of the data sheet's 312 TFLOP/s"),
    "rotary_s": Prior(3e-4, 1e-5, 2e-3, 1.0, "s", "as bias-dropout-add and layer norm"),
    "fifth_s": Prior(4e-4, 1e-5, 2e-3, 0.7, "s", "34 GFLOP at 80 % of the peak, or attention"),
    "sixth_s": Prior(6e-4, 1e-5, 3e-3, 0.7, "s", "as the fifth"),
    "copy_s": Prior(9e-3, 2e-3, 3e-2, 0.4, "s", "33.5 MB through one block of 512 threads at some GB/s"),
    "threads_exponent": Prior(0.85, 0.2, 1.2, 0.3),
    "link_s": Prior(4e-4, 5e-5, 2e-3, 0.5, "s", "33.5 MB at some 100 GB/s"),
    "series_exponent": Prior(3.0, 1.0, 12.0, 0.3, "", "3.4 on recorded all-reduces of another card"),
    "latency_s": Prior(5e-5, 0.0, 5e-4, 1.0, "s"),
    "lead": Prior(0.9, 0.0, 1.0, 0.3),
    "drag.memory": Prior(4.0, 0.0, 20.0, 0.5),
    "drag.matrix": Prior(0.1, 0.0, 3.0, 1.0),
    "sm_exponent.memory": Prior(0.5, 0.0, 3.0, 0.6, "", "0.5 to 0.8 on recorded parts of layers of another card"),
    "sm_exponent.qkv": Prior(0.6, 0.0, 3.0, 0.6, "", "0.5 to 0.8 on recorded parts of layers of another card"),
    "sm_exponent.fifth": Prior(0.6, 0.0, 3.0, 0.6, "", "0.5 to 0.8 on recorded parts of layers of another card"),
    "sm_exponent.sixth": Prior(0.6, 0.0, 3.0, 0.6, "", "0.5 to 0.8 on recorded parts of layers of another card"),
}
ENERGY_PRIORS: dict[str, Prior] = {
    "base_w": Prior(170.0, 50.0, 300.0, 0.3, "W", "two A100 that wait: 84 W each (Perseus, SOSP'24)"),
    "operators_j": Prior(1.35, 0.2, 4.0, 0.5, "J", "0.55 TFLOP at some 2 pJ with what feeds them"),
    "copying_w": Prior(1.0, 0.0, 10.0, 1.0, "W"),
    "sharing_j.memory": Prior(0.0, -0.5, 0.5, 0.05, "J"),
    "sharing_j.qkv": Prior(0.0, -0.5, 0.5, 0.05, "J"),
    "sharing_j.attention": Prior(0.0, -0.5, 0.5, 0.05, "J"),
}
#: What rows at one clock cannot tell: how time and energy change with the clock.
CLOCK_PRIORS: dict[str, Prior] = {
    "fixed_share.memory": Prior(0.8, 0.0, 1.0, 0.25),
    "fixed_share.matrix": Prior(0.05, 0.0, 0.6, 1.0),
    "copy_clock_exponent": Prior(0.6, 0.0, 1.5, 0.5, "", "between the SMs' clock and the link's and memory's"),
    "memory_energy_share": Prior(0.1, 0.0, 0.5, 0.5, "", "some GB at 50 pJ/B beside the tensor cores"),
    "clock_power_share": Prior(0.35, 0.0, 0.9, 0.3, "", "another A100's idle power by clock: 41 W and 23 W"),
    "voltage.floor_ratio": Prior(0.776, 0.5, 1.0, 0.06, "", "another A100: 693.75 mV of 893.75 mV"),
    "voltage.slope": Prior(0.81, 0.0, 1.6, 0.3, "", "another A100: rising from 1020 MHz to 1410 MHz"),
}


@dataclass(frozen=True, eq=False)
class Readings:
    """What was measured: means over the repeats, arrays of shape ``(n,)``."""

    time_s: Array
    energy_j: Array


@dataclass(frozen=True, eq=False)
class LayerFit:
    """A fitted layer.

    Attributes
    ----------
    values
        Every parameter; those of :data:`CLOCK_PRIORS` at their priors until rows of another clock were fitted.
    spreads
        Fitted groups of parameters: their names and a square root of their covariance, shape ``(p, p)``.
    time_sd, energy_sd, power_sd
        Relative scatter around the fit of the rows that were fitted [1].
    """

    gpu: GpuModel
    values: Mapping[str, float]
    spreads: tuple[tuple[tuple[str, ...], Array], ...]
    time_sd: float
    energy_sd: float
    power_sd: float


@dataclass(frozen=True, eq=False)
class LayerForecast:
    """Forecasts with relative standard deviations, arrays of shape ``(n,)``."""

    time_s: Array
    energy_j: Array
    clock_mhz: Array
    time_sd: Array
    energy_sd: Array
    power_sd: Array


def fit_layer(rows: Configurations, measured: Readings, gpu: GpuModel) -> LayerFit:
    """Fit time, and then energy at the fitted times, to rows at the card's highest clock."""
    clock = {name: p.start for name, p in CLOCK_PRIORS.items()}

    def time_errors(own: Mapping[str, float]) -> Array:
        return np.asarray(np.log(walk({**clock, **own}, rows, gpu).time_s / measured.time_s))

    of_time = solve(lambda own: time_errors(own) / TIME_NOISE, TIME_PRIORS, list(TIME_PRIORS))
    walked = walk({**clock, **of_time.as_dict()}, rows, gpu)

    def energy_errors(own: Mapping[str, float]) -> Array:
        return np.asarray(np.log(energy_j({**clock, **own}, rows, walked, gpu) / measured.energy_j))

    of_energy = solve(lambda own: energy_errors(own) / ENERGY_NOISE, ENERGY_PRIORS, list(ENERGY_PRIORS))
    time, energy = time_errors(of_time.as_dict()), energy_errors(of_energy.as_dict())
    return LayerFit(
        gpu,
        {**clock, **of_time.as_dict(), **of_energy.as_dict()},
        (_spread(of_time, _ALIKE), _spread(of_energy, _ALIKE), _prior_spread()),
        *(float(np.sqrt(np.mean(errors**2))) for errors in (time, energy, energy - time)),
    )


def fit_clock(fit: LayerFit, rows: Configurations, measured: Readings, before: Readings | None) -> LayerFit:
    """Fit how time and energy change with the clock to a few rows at another one; the layer stays as it is.

    Parameters
    ----------
    before
        Readings of the same configurations at the highest clock, NaN where there are none. What the forms miss of a
        configuration there is not laid to the clock.
    """
    missed_time, missed_energy = _missed(fit, rows, before)

    def errors(own: Mapping[str, float]) -> Array:
        time, energy, _ = forecast({**fit.values, **own}, rows, fit.gpu)
        of_time = (np.log(time / measured.time_s) - missed_time) / fit.time_sd
        return np.concatenate([of_time, (np.log(energy / measured.energy_j) - missed_energy) / fit.energy_sd])

    found = solve(errors, CLOCK_PRIORS, list(CLOCK_PRIORS))
    values = {**fit.values, **found.as_dict()}
    return replace(fit, values=values, spreads=(*fit.spreads[:2], _spread(found, 1.0)))


def _missed(fit: LayerFit, rows: Configurations, before: Readings | None) -> tuple[Array, Array]:
    """Logarithmic errors of time and energy at the highest clock, zero where nothing was measured there."""
    if before is None:
        return np.zeros_like(rows.sms), np.zeros_like(rows.sms)
    same = replace(rows, clock_mhz=np.full_like(rows.clock_mhz, fit.gpu.max_clock_mhz))
    time, energy, _ = forecast(fit.values, same, fit.gpu)
    of_time, of_energy = np.log(time / before.time_s), np.log(energy / before.energy_j)
    known = np.isfinite(of_time) & np.isfinite(of_energy)
    return np.where(known, of_time, 0.0), np.where(known, of_energy, 0.0)


def choose_rows(fit: LayerFit, rows: Configurations, count: int) -> Int:
    """Rows at another clock that, once measured, leave the least variance in the forecasts of all; no reading enters.

    Greedy: each next row is the one after which the mean predicted variance of time and energy is smallest, by the
    slopes of the forecasts and the priors of :data:`CLOCK_PRIORS`.
    """
    time, energy = _slopes(fit.values, *_prior_spread(), rows, fit.gpu)
    slopes = np.stack([time / fit.time_sd, energy / fit.energy_sd], axis=1)
    covariance = np.eye(slopes.shape[2])
    every = slopes.reshape(-1, slopes.shape[2])
    chosen: list[int] = []
    for _ in range(min(count, len(slopes))):
        reached = slopes @ covariance
        inside = reached @ slopes.transpose(0, 2, 1) + np.eye(2)
        seen = np.einsum("tp,rqp->trq", every, reached)
        removed = np.einsum("trq,rqs,trs->r", seen, np.linalg.inv(inside), seen)
        removed[chosen] = -np.inf
        best = int(np.argmax(removed))
        chosen.append(best)
        gain = reached[best]
        covariance = covariance - gain.T @ np.linalg.solve(inside[best], gain)
    return np.array(sorted(chosen), dtype=np.int64)


def forecast_layer(fit: LayerFit, rows: Configurations, before: Readings | None) -> LayerForecast:
    """Forecast rows with standard deviations from the parameters' and from what the forms miss.

    Parameters
    ----------
    before
        Readings of the same configurations at the highest clock, where the rows are of another: most of what the forms
        miss of a configuration there they miss again.
    """
    time, energy, clock = forecast(fit.values, rows, fit.gpu)
    missed = _missed(fit, rows, before)
    time, energy = (x * np.exp(-share * m) for x, share, m in zip((time, energy), _REPEATS, missed, strict=True))
    variances = [np.full(len(time), sd**2) for sd in (fit.time_sd, fit.energy_sd, fit.power_sd)]
    for names, root in fit.spreads:
        of_time, of_energy = _slopes(fit.values, names, root, rows, fit.gpu)
        for variance, slopes in zip(variances, (of_time, of_energy, of_energy - of_time), strict=True):
            variance += np.sum(slopes**2, axis=1)
    return LayerForecast(time, energy, clock, *(np.sqrt(variance) for variance in variances))


def _slopes(
    values: Mapping[str, float], names: Sequence[str], root: Array, rows: Configurations, gpu: GpuModel
) -> tuple[Array, Array]:
    """Relative changes of time and energy per standard deviation along each column of ``root``, shape ``(n, p)``."""
    time, energy, _ = forecast(values, rows, gpu)
    changes = []
    for direction in root.T:
        moved = {name: values[name] + _STEP * d for name, d in zip(names, direction, strict=True)}
        other_time, other_energy, _ = forecast({**values, **moved}, rows, gpu)
        changes.append((np.log(other_time / time) / _STEP, np.log(other_energy / energy) / _STEP))
    return np.stack([c[0] for c in changes], axis=1), np.stack([c[1] for c in changes], axis=1)


def _spread(solution: Solution, factor: float) -> tuple[tuple[str, ...], Array]:
    """Names and a root of the covariance, its variances ``factor`` times larger."""
    size, axes = np.linalg.eigh(solution.covariance)
    return solution.names, axes * np.sqrt(np.maximum(size, 0.0) * factor)


def _prior_spread() -> tuple[tuple[str, ...], Array]:
    return tuple(CLOCK_PRIORS), np.diag([p.sd for p in CLOCK_PRIORS.values()])
