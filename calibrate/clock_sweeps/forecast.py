"""Forecast of rows that were left out of a sweep, from the rows of the same card that were not.

The fit sees training rows and what is asked for (workload and setting), never a measured value of an asked row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array, Bool
from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.fit import SweepFit, fit_sweep, highest_power_w
from joulecast.calibrate.clock_sweeps.newton import Observed, robust_weight
from joulecast.calibrate.clock_sweeps.parameters import Belief
from joulecast.calibrate.clock_sweeps.physics import settle
from joulecast.calibrate.clock_sweeps.residuals import learn_correction
from joulecast.calibrate.clock_sweeps.rows import SweepRow, WorkloadKey

#: Error of the physics' form for each unit of ln(setting) between a question and its workload's nearest row: what
#: left-out settings of published A100, A40 and V100 sweeps show beyond parameters and noise.
FORM_ERROR = 0.08
#: Fewest settings of a card's training rows from which anything is forecast.
FEWEST_SETTINGS = 2


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a workload (of the training rows' card) at a setting."""

    workload: WorkloadKey
    setting: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Answers for ``n`` questions, of one GPU.

    Attributes
    ----------
    time_s, power_w
        Most likely time and mean power, ``(n,)``.
    clock_mhz
        Clock at which the card settles, ``None`` for sweeps of limits.
    held
        Whether a power limit holds the clock back, for some of the work at least.
    time_sd, energy_sd, power_sd
        Relative standard deviation of one measured row around them, by the fit's uncertainty and the rows' noise.
    """

    time_s: Array
    power_w: Array
    clock_mhz: Array | None
    held: Bool
    time_sd: Array
    energy_sd: Array
    power_sd: Array


def forecast(training: Sequence[SweepRow], asked: Sequence[Question], limit_w: float | None = None) -> Forecast:
    """Fit one card's training rows and answer.

    Parameters
    ----------
    training
        Usable rows of one card and one kind, at three settings or more.
    asked
        Questions about the same card; every workload needs one training row at least.
    limit_w
        The board's limit by its data sheet, of sweeps of clocks [W].
    """
    training = sorted(training, key=lambda row: (row.key, row.setting))
    names, places = _workloads(training)
    kind = training[0].kind
    top = max([row.setting for row in training] + [q.setting for q in asked]) if kind == "clock" else 1.0
    observed = _observed(training, places, len(names), top)
    known = _known(training, limit_w, highest_power_w(observed))
    fit = fit_sweep(kind, observed, [dict(name) for name in names], known)
    setting = np.array([q.setting for q in asked]) / top
    workload = np.array([places[q.workload] for q in asked])
    settled = settle(setting, fit.card, fit.work[workload], fit.given)
    value, covariance = fit.respond_with_covariance(setting, workload)
    value, covariance = _corrected(value, covariance, fit, observed, setting, workload)
    form = FORM_ERROR * _distance(setting, workload, observed)
    return Forecast(
        time_s=np.exp(value[:, 0]),
        power_w=np.exp(value[:, 1]),
        clock_mhz=settled.x[:, 0] * top if kind == "clock" else None,
        held=np.any(settled.held | settled.lowest, axis=1),
        time_sd=np.sqrt(covariance[:, 0, 0] + form**2),
        energy_sd=np.sqrt(covariance.sum(axis=(1, 2)) + form**2),
        power_sd=np.sqrt(covariance[:, 1, 1] + form**2),
    )


def _known(training: Sequence[SweepRow], limit_w: float | None, scale_w: float) -> dict[str, Belief]:
    """What is known of the board's limit by its data sheet, or by training rows that are said to have reached it."""
    known: dict[str, Belief] = {}
    if limit_w is not None:
        known["log_limit"] = Belief(float(np.log(limit_w / scale_w)), p.SHEET_LIMIT_SD, "data sheet")
    at_limit = [_power_w(row) for row in training if row.at_limit]
    if at_limit:
        reached = float(np.log(np.median(at_limit) / scale_w))
        known["log_limit"] = Belief(reached, p.REACHED_LIMIT_SD, "rows at the limit")
    return known


def _distance(setting: Array, workload: NDArray[np.intp], observed: Observed) -> Array:
    """Distance of every question from the nearest row of its workload, in ln(setting), ``(n,)``."""
    apart = np.abs(np.log(setting)[:, None] - np.log(observed.setting))
    return np.asarray(np.where(workload[:, None] == observed.workload, apart, np.inf).min(axis=1))


def _power_w(row: SweepRow) -> float:
    """Mean power of one of a row's GPUs [W]; only usable rows come here."""
    return float(row.measured.power_w or 0.0) / row.gpus


def _workloads(training: Sequence[SweepRow]) -> tuple[list[WorkloadKey], dict[WorkloadKey, int]]:
    """Distinct workloads and the place of each; those whose rows are all the same measurement count as one."""
    rows: dict[WorkloadKey, list[tuple[float, float | None, float | None]]] = {}
    for row in training:
        rows.setdefault(row.key, []).append((row.setting, row.measured.time_s, row.measured.energy_j))
    first: dict[tuple[object, ...], int] = {}
    names: list[WorkloadKey] = []
    places: dict[WorkloadKey, int] = {}
    for key, values in rows.items():
        signature = tuple(values)
        if signature not in first:
            first[signature] = len(names)
            names.append(key)
        places[key] = first[signature]
    return names, places


def _observed(training: Sequence[SweepRow], places: dict[WorkloadKey, int], workloads: int, top: float) -> Observed:
    """Arrays of the training rows; of workloads that are copies of one measurement, one."""
    seen: dict[int, WorkloadKey] = {}
    mine = [row for row in training if seen.setdefault(places[row.key], row.key) == row.key]
    value = [[np.log(row.measured.time_s or 0.0), np.log(_power_w(row))] for row in mine]
    return Observed(
        np.array([row.setting for row in mine]) / top,
        np.array(value),
        np.array([places[row.key] for row in mine]),
        workloads,
    )


def _corrected(
    value: Array, covariance: Array, fit: SweepFit, observed: Observed, setting: Array, workload: NDArray[np.intp]
) -> tuple[Array, Array]:
    """Answers with the residuals that neighbouring settings share, and with the noise of one row."""
    value, covariance = value.copy(), covariance.copy()
    residual = observed.value - fit.respond(observed.setting, observed.workload)
    weight = robust_weight(-residual / fit.noise[observed.workload])
    low, high = observed.setting.min(), observed.setting.max()
    for k in range(2):
        noise = fit.noise[workload, k]
        variance = noise**2
        correction = learn_correction(
            residual[:, k],
            weight[:, k],
            replace(observed, setting=(observed.setting - low) / (high - low)),
            fit.noise[observed.workload, k],
        )
        if correction is not None:
            shift, variance = correction.at((setting - low) / (high - low), workload, noise)
            value[:, k] += shift
        covariance[:, k, k] += variance
    return value, covariance
