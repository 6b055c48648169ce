"""Fits a whole GPU description: kernels, power, collectives, governor, and how far the forms themselves are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.assemble import assemble
from joulecast.calibrate.fit import FitRows, bursts, collect, fit_power, fit_times
from joulecast.calibrate.fit_collectives import collective_rows, fit_collectives, mean_power_w
from joulecast.calibrate.priors import FIXED
from joulecast.calibrate.row_operators import group_key
from joulecast.calibrate.rows import Row
from joulecast.calibrate.solve import Solution
from joulecast.errors import InputError
from joulecast.model.costs import FAMILIES
from joulecast.model.description import GpuDescription
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.lowering import lower
from joulecast.model.predict import Work, predict_work

Array = NDArray[np.float64]

#: Files of the shipped rows that a fit reads.
FIT_FILES = ("collectives.jsonl", "kernels.jsonl", "kernels_steady.jsonl", "kernels_training.jsonl", "pulses.jsonl")
#: Parts into which rows are dealt for cross-validation.
FOLDS = 5
#: Least relative discrepancy: no two measurements of one kernel agree better.
LEAST_DISCREPANCY = 0.005
#: Half-width of a 90 % interval in standard deviations.
NINETY_PERCENT = 1.645


@dataclass(frozen=True)
class Fitted:
    """Values of all parameters, and the solutions of the stages that gave them."""

    model: GpuModel
    solutions: tuple[Solution, ...]


def fit_model(rows: Sequence[Row], base: GpuDescription) -> Fitted:
    """Fit every table on rows; what no row identifies stays at its prior."""
    data = collect(rows)
    if not data.rows:
        raise InputError("no row of a kernel with time and clock to fit on", remedy="Give rows of single kernels.")
    gpu = gpu_model(base).with_values({name: p.start for name, p in FIXED.items()})
    gpu, times = fit_times(data, gpu)
    gpu, power = fit_power(data, bursts(rows), gpu)
    gpu, collectives = fit_collectives(rows, gpu)
    governor = fit_governor(data, gpu)
    gpu = gpu.with_values(governor.as_dict())
    found = [*times, power, governor, *([collectives] if collectives is not None else [])]
    return Fitted(gpu, tuple(found))


def fit_governor(data: FitRows, gpu: GpuModel) -> Solution:
    """Share of the limit at which long windows settle, and the clock of the limit on tensor throughput."""
    limit = gpu.device["power_limit_w"]
    raw = [r.measured.raw for r in data.rows]
    capped = np.array([float(r.get("power_cap_fraction") or 0.0) > 0.95 for r in raw])
    at_limit = data.settled & capped & (data.power_w > 0.96 * limit)
    share, spread = _mean(data.power_w[at_limit] / limit, 0.988, 0.01)
    use = _tensor_use(data, gpu)
    held = data.settled & capped & (data.power_w < 0.9 * limit) & (use > 0.5)
    clock, clock_spread = _mean(data.clock_mhz[held] * use[held], 1440.0, 50.0)
    names = ("governor.settled_share", "governor.tensor_clock_mhz")
    known = np.array([float(at_limit.any()), float(held.any())])
    return Solution(names, np.array([share, clock]), np.diag([spread**2, clock_spread**2]), known)


def _mean(values: Array, default: float, default_spread: float) -> tuple[float, float]:
    if not len(values):
        return default, default_spread
    return float(np.mean(values)), float(np.std(values)) if len(values) > 1 else default_spread


def _tensor_use(data: FitRows, gpu: GpuModel) -> Array:
    costs = lower(data.operators, gpu)
    return np.asarray(np.bincount(data.owner, costs.tensor_use, len(data.rows)))


def fit_description(
    rows: Sequence[Row],
    base: GpuDescription,
    *,
    name: str | None = None,
    provenance: str = "fitted from given rows",
    cross_validate: bool = True,
) -> GpuDescription:
    """Fit a description of ``base``'s device to measured rows of kernels and collectives.

    Parameters
    ----------
    rows
        Measured rows; those of blocks, overlaps and iterations are refused so that they stay independent.
    base
        Gives the device's data-sheet facts, and the discrepancies where ``cross_validate`` is false.
    cross_validate
        Refit without each fifth of the rows to learn how far forecasts are off; five times the work.

    Raises
    ------
    InputError
        No usable row, or rows kept for validation.
    """
    kept = [r for r in rows if r.op not in VALIDATION_OPS]
    fitted = fit_model(kept, base)
    if cross_validate:
        discrepancy = discrepancies(kept, base)
    else:
        discrepancy = {t: dict(getattr(base, t).discrepancy) for t in ("kernel", "collective")}
    return assemble(base, name or base.name, fitted.solutions, discrepancy, provenance)


#: Kinds of rows that only ever validate.
VALIDATION_OPS = ("block", "train_step", "train_iter", "overlap")


def discrepancies(rows: Sequence[Row], base: GpuDescription) -> dict[str, dict[str, dict[str, float]]]:
    """Cross-validated relative errors of forecasts (clock not given) by operator family, as standard deviations."""
    errors: dict[str, list[tuple[float, float]]] = {}
    groups = sorted({repr(group_key(r.configuration)) for r in rows})
    fold_of = {key: i % FOLDS for i, key in enumerate(groups)}
    for fold in range(FOLDS):
        inside = [fold_of[repr(group_key(r.configuration))] == fold for r in rows]
        model = fit_model([r for r, held in zip(rows, inside, strict=True) if not held], base).model
        for family, pairs in _errors([r for r, held in zip(rows, inside, strict=True) if held], model).items():
            errors.setdefault(family, []).extend(pairs)
    found = {family: _spread(np.array(pairs)) for family, pairs in errors.items()}
    return {
        "kernel": {f: s for f, s in sorted(found.items()) if f != "collective"},
        "collective": {f: s for f, s in found.items() if f == "collective"},
    }


def _errors(rows: Sequence[Row], gpu: GpuModel) -> dict[str, list[tuple[float, float]]]:
    """Logarithmic errors of time and energy of held-out rows; energy is NaN where it was not measured."""
    data = collect(rows)
    errors: dict[str, list[tuple[float, float]]] = {}
    work, times, powers, families, settle, window = [], [], [], [], [], []
    for index, row in enumerate(data.rows):
        work.append(Work(tuple(o for o, k in zip(data.operators, data.owner, strict=True) if k == index)))
        times.append(float(data.time_s[index]))
        powers.append(float(data.power_w[index]))
        families.append(FAMILIES[int(lower(work[-1].operators[-1:], gpu).family[0])])
        settle.append(row.settle_s)
        window.append(row.window_s)
    for row, operator in collective_rows(rows):
        if float(getattr(operator, "bytes", 0.0)) < 16e6:
            continue
        work.append(Work((operator,)))
        times.append(float(row.measured.time_s or np.nan))
        powers.append(mean_power_w(row))
        families.append("collective")
        settle.append(row.settle_s)
        window.append(row.window_s)
    if not work:
        return errors
    forecast = predict_work(work, gpu, settle_s=np.array(settle), window_s=np.array(window))
    slow = np.log(forecast.time_s / np.array(times))
    costly = np.log(forecast.energy_j / (np.array(powers) * np.array(times)))
    for family, a, b in zip(families, slow, costly, strict=True):
        errors.setdefault(family, []).append((float(a), float(b)))
    return errors


def _spread(pairs: Array) -> dict[str, float]:
    """Standard deviations whose 90 % intervals hold 90 % of the errors."""
    found = {}
    for column, quantity in enumerate(("time", "energy")):
        values = np.abs(pairs[:, column])
        values = values[np.isfinite(values)]
        wide = float(np.quantile(values, 0.9)) / NINETY_PERCENT if len(values) else 0.05
        found[quantity] = float(f"{max(wide, LEAST_DISCREPANCY):.3g}")
    return found
