"""A cheap estimate from the rows so far: Gauss-Newton steps on all parameters at once, where a fit searches in stages.

    z' = z + argmin over d of |(r - H·d) / s|² + |z + d|²

with z the parameters' distances from their priors in prior standard deviations, r the logarithms of measured over
predicted times and powers at the observed clocks, s their noise and H their slopes. Its purpose is to choose what to
measure next; the description comes from the fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.choose.belief import FORM_ERROR
from joulecast.calibrate.choose.information import free_parameters
from joulecast.calibrate.choose.sensitivity import sensitivity
from joulecast.calibrate.device_priors import DevicePriors
from joulecast.calibrate.fit import IDLE_NOISE, POWER_NOISE, TIME_NOISE, bursts
from joulecast.calibrate.row_operators import operator_of
from joulecast.calibrate.rows import Row
from joulecast.model.gpu_model import GpuModel
from joulecast.model.predict import Work

Array = NDArray[np.float64]

#: Steps, and the farthest that one of them moves a parameter, in prior standard deviations.
STEPS, FARTHEST = 2, 1.5
#: Residuals beyond so many standard deviations count less, as in Huber's loss.
ROBUST_SCALE = 2.0


def estimate(rows: Sequence[Row], gpu: GpuModel, priors: DevicePriors) -> GpuModel:
    """Parameters that fit the rows better than ``gpu``'s do, within their bounds.

    Parameters
    ----------
    rows
        All rows so far; others than kernels back to back, the busy parts of pulses and cards at rest are left out.
    gpu
        Where to start: the priors, or the last estimate.
    priors
        Of the card.
    """
    known = [row for row in (*rows, *bursts(rows).rows) if _is_read(row)]
    for _ in range(STEPS if known else 0):
        gpu = _step(known, gpu, priors)
    return gpu


def _is_read(row: Row) -> bool:
    work, measured = operator_of(row.configuration), row.measured
    if measured.sm_clock_mhz is None or row.gpus > 1:
        return False
    if row.op == "idle":
        return bool(measured.power_w)
    return bool(work.operators) and work.busy_fraction == 1.0 and not work.exception and measured.time_s is not None


def _step(rows: Sequence[Row], gpu: GpuModel, priors: DevicePriors) -> GpuModel:
    free = free_parameters(priors)
    works = [operator_of(row.configuration) for row in rows]
    clock = np.array([row.measured.sm_clock_mhz for row in rows], dtype=np.float64)
    found = sensitivity([Work(w.operators, w.counts) for w in works], clock, gpu, free)
    measured = [row.measured for row in rows]
    time, power = (
        np.array([np.nan if (v := getattr(m, name)) is None else v for m in measured]) for name in ("time_s", "power_w")
    )
    slopes = np.concatenate([found.time, found.energy - found.time])
    residual = np.log(np.concatenate([time / found.time_s, power / found.power_w]))
    noise = np.repeat(np.hypot(FORM_ERROR, (TIME_NOISE, POWER_NOISE)), len(rows))
    noise[len(rows) :][[not w.operators for w in works]] = IDLE_NOISE
    seen = np.isfinite(residual)
    slopes, residual, noise = slopes[seen], residual[seen], noise[seen]
    start, scale = np.array([p.start for p in free.values()]), np.array([p.sd for p in free.values()])
    now = np.array([gpu[name] for name in free])
    weight = np.minimum(1.0, ROBUST_SCALE / np.maximum(np.abs(residual) / noise, 1e-12)) / noise**2
    precision = slopes.T @ (weight[:, None] * slopes) + np.eye(len(now))
    move = np.linalg.solve(precision, slopes.T @ (weight * residual) - (now - start) / scale)
    moved = now + np.clip(move, -FARTHEST, FARTHEST) * scale
    bounded = np.clip(moved, [p.lower for p in free.values()], [p.upper for p in free.values()])
    return gpu.with_values(dict(zip(free, bounded.tolist(), strict=True)))
