"""A cheap estimate from the rows so far: Gauss-Newton steps on all parameters at once, where a fit searches in stages.

    z' = z + argmin over d of |(r - H·d) / s|² + |z + d|²

with z the parameters' distances from their priors in prior standard deviations, r the logarithms of measured over
predicted times and powers at the observed clocks, s their noise and H their slopes. Beside the parameters, every other
card whose rows are there has a factor on the dynamic energy of its chip and of its memory. The purpose is to choose
what to measure next; the description comes from the fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.power import bursts, card_priors
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import ROBUST_SCALE
from joulecast.calibrate.fit.tables import IDLE_NOISE, POWER_NOISE, TIME_NOISE, at_board_clocks
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import group_key, operator_of
from joulecast.calibrate.sessions.belief import FORM_ERROR
from joulecast.calibrate.sessions.information import free_parameters
from joulecast.calibrate.sessions.sensitivity import Sensitivity, sensitivity
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.repeated_work import Work

#: Steps, and the farthest that one of them moves a parameter, in prior standard deviations.
STEPS, FARTHEST = 2, 1.5


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
    rows = at_board_clocks(rows)
    known = [row for row in (*rows, *bursts(rows).rows) if is_read(row)]
    for _ in range(STEPS if known else 0):
        gpu = _step(known, gpu, priors)
    return gpu


def is_read(row: Row) -> bool:
    """Whether an estimate learns from a row."""
    work, measured = operator_of(row.configuration), row.measured
    if measured.sm_clock_mhz is None or row.gpus > 1:
        return False
    if row.op == "idle":
        return bool(measured.power_w)
    return bool(work.operators) and work.busy_share == 1.0 and measured.time_s is not None


@dataclass(frozen=True)
class Residuals:
    """How ``m`` times and powers differ from what is expected at the observed clocks.

    Attributes
    ----------
    priors
        Of ``p`` parameters, those of single cards last.
    slopes
        Of the logarithms, along each parameter in units of its prior standard deviation, shape ``(m, p)``.
    residual, noise
        Logarithm of measured over expected, and its standard error but for that of the form, shape ``(m,)``.
    form
        Relative error of the form, shape ``(m,)``.
    group
        Near-duplicates have one error of the form, and share a number, shape ``(m,)``.
    """

    priors: Mapping[str, Prior]
    slopes: Array
    residual: Array
    noise: Array
    form: Array
    group: Int


def _of_cards(rows: Sequence[Row], found: Sensitivity, gpu: GpuModel) -> tuple[dict[str, Prior], Array, Array]:
    """What single cards add to the logarithm of power: priors by card and part, slopes, and ``gpu``'s share."""
    cards = np.array([str(row.configuration.get("card") or "") for row in rows])
    factors = card_priors(sorted(set(cards.tolist())))
    shares = {"core": found.core_share, "memory": found.memory_share}
    slopes, offset = np.zeros((len(rows), len(factors))), np.zeros(len(rows))
    for place, (name, prior) in enumerate(factors.items()):
        _, card, part = name.split(".")
        share = np.where(cards == card, shares[part], 0.0)
        slopes[:, place] = share * prior.sd
        offset += share * np.log(gpu.get(name, 1.0))
    return factors, slopes, offset


def residuals(rows: Sequence[Row], gpu: GpuModel, priors: DevicePriors) -> Residuals:
    """Residuals of rows that :func:`is_read` accepts, and their slopes at ``gpu``."""
    free, works = free_parameters(priors), [operator_of(row.configuration) for row in rows]
    measured = [row.measured for row in rows]
    clock = np.array([m.sm_clock_mhz for m in measured], dtype=np.float64)
    found = sensitivity([Work(w.operators, w.counts) for w in works], clock, gpu, free)
    factors, by_card, offset = _of_cards(rows, found, gpu)
    time, power = (
        np.array([np.nan if (v := getattr(m, name)) is None else v for m in measured]) for name in ("time_s", "power_w")
    )
    times, powers = np.hstack([found.time, np.zeros_like(by_card)]), np.hstack([found.energy - found.time, by_card])
    residual = np.log(np.concatenate([time / found.time_s, power / found.power_w]))
    residual[len(rows) :] -= offset
    noise, form = (np.repeat(of, len(rows)) for of in ((TIME_NOISE, POWER_NOISE), FORM_ERROR))
    resting = np.append(np.zeros(len(rows), dtype=np.bool_), [not w.operators for w in works])
    noise[resting], form[resting] = IDLE_NOISE, 0.0
    groups: dict[Hashable, int] = {}
    own = np.array([groups.setdefault(group_key(row.configuration), len(groups)) for row in rows], dtype=np.int64)
    seen = np.isfinite(residual)
    return Residuals(
        {**free, **factors},
        np.concatenate([times, powers])[seen],
        residual[seen],
        noise[seen],
        form[seen],
        np.append(own, own + len(groups))[seen],
    )


def _step(rows: Sequence[Row], gpu: GpuModel, priors: DevicePriors) -> GpuModel:
    found = residuals(rows, gpu, priors)
    known = found.priors.values()
    start, scale = np.array([p.start for p in known]), np.array([p.sd for p in known])
    now = np.array([gpu.get(name, p.start) for name, p in found.priors.items()])
    noise = np.hypot(found.noise, found.form)
    weight = np.minimum(1.0, ROBUST_SCALE / np.maximum(np.abs(found.residual) / noise, 1e-12)) / noise**2
    precision = found.slopes.T @ (weight[:, None] * found.slopes) + np.eye(len(now))
    move = np.linalg.solve(precision, found.slopes.T @ (weight * found.residual) - (now - start) / scale)
    moved = now + np.clip(move, -FARTHEST, FARTHEST) * scale
    bounded = np.clip(moved, [p.lower for p in known], [p.upper for p in known])
    return gpu.with_values(dict(zip(found.priors, bounded.tolist(), strict=True)))
