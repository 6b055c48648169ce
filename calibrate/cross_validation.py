"""How far forecasts are off on rows that their fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.fit import collect
from joulecast.calibrate.fit_collectives import collective_rows, mean_power_w
from joulecast.calibrate.row_operators import group_key
from joulecast.calibrate.rows import Row
from joulecast.model.families import FAMILIES
from joulecast.model.gpu_model import GpuModel
from joulecast.model.lowering import lower
from joulecast.model.operators import Collective, Operator
from joulecast.model.predict import Work, predict_work

Array = NDArray[np.float64]

#: Parts into which rows are dealt.
FOLDS = 5
#: Least relative discrepancy: no two measurements of one kernel agree better.
LEAST_DISCREPANCY = 0.005
#: Half-width of a 90 % interval in standard deviations.
NINETY_PERCENT = 1.645
#: Collectives below this size are bound by the host's launches.
LEAST_COLLECTIVE_BYTES = 16e6

#: Table, then operator family, then quantity to relative standard deviation.
Discrepancies = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class HeldOut:
    """Rows of kernels and collectives as forecasts need them; ``n`` rows.

    Attributes
    ----------
    rows, work, families
        The rows, what each repeats, and its operator family.
    time_s, power_w
        Measured, mean over GPUs; NaN where not measured.
    """

    rows: tuple[Row, ...]
    work: tuple[Work, ...]
    families: tuple[str, ...]
    time_s: Array
    power_w: Array


def held_out(rows: Sequence[Row], gpu: GpuModel) -> HeldOut:
    """Rows with a measured time and their operators; collectives only where the link binds."""
    data = collect(rows)
    kept, times, powers = list(data.rows), data.time_s.tolist(), data.power_w.tolist()
    owned: list[list[Operator]] = [[] for _ in kept]
    for operator, owner in zip(data.operators, data.owner, strict=True):
        owned[owner].append(operator)
    for row, operator in collective_rows(rows):
        if isinstance(operator, Collective) and operator.bytes >= LEAST_COLLECTIVE_BYTES:
            kept.append(row)
            owned.append([operator])
            times.append(float(row.measured.time_s or np.nan))
            powers.append(mean_power_w(row))
    families = lower([operators[-1] for operators in owned], gpu).family
    return HeldOut(
        tuple(kept),
        tuple(Work(tuple(operators)) for operators in owned),
        tuple(FAMILIES[int(f)] for f in families),
        np.array(times),
        np.array(powers),
    )


def discrepancies(rows: Sequence[Row], fit: Callable[[Sequence[Row]], GpuModel]) -> Discrepancies:
    """Cross-validated relative errors of forecasts (clock not given) by operator family, as standard deviations."""
    errors: dict[str, list[tuple[float, float]]] = {}
    groups = sorted({repr(group_key(r.configuration)) for r in rows})
    fold_of = {key: i % FOLDS for i, key in enumerate(groups)}
    for fold in range(FOLDS):
        inside = [fold_of[repr(group_key(r.configuration))] == fold for r in rows]
        model = fit([r for r, held in zip(rows, inside, strict=True) if not held])
        for family, pair in _errors([r for r, held in zip(rows, inside, strict=True) if held], model):
            errors.setdefault(family, []).append(pair)
    found = {family: _spread(np.array(pairs)) for family, pairs in errors.items()}
    return {
        "kernel": {f: s for f, s in sorted(found.items()) if f != "collective"},
        "collective": {f: s for f, s in found.items() if f == "collective"},
    }


def _errors(rows: Sequence[Row], gpu: GpuModel) -> list[tuple[str, tuple[float, float]]]:
    """Family and logarithmic errors of time and energy of held-out rows; energy is NaN where it was not measured."""
    data = held_out(rows, gpu)
    if not data.rows:
        return []
    settle = np.array([row.settle_s for row in data.rows])
    window = np.array([row.window_s for row in data.rows])
    forecast = predict_work(data.work, gpu, settle_s=settle, window_s=window)
    slow = np.log(forecast.time_s / data.time_s)
    costly = np.log(forecast.energy_j / (data.power_w * data.time_s))
    return list(zip(data.families, zip(slow.tolist(), costly.tolist(), strict=True), strict=True))


def _spread(pairs: Array) -> dict[str, float]:
    """Standard deviations whose 90 % intervals hold 90 % of the errors."""
    found = {}
    for column, quantity in enumerate(("time", "energy")):
        values = np.abs(pairs[:, column])
        values = values[np.isfinite(values)]
        wide = float(np.quantile(values, 0.9)) / NINETY_PERCENT if len(values) else 0.05
        found[quantity] = float(f"{max(wide, LEAST_DISCREPANCY):.3g}")
    return found
