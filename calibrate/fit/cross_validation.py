"""How far forecasts are off on rows that their fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.fit.collectives import collective_rows, mean_power_w
from joulecast.calibrate.fit.tables import collect
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import group_key
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.families import FAMILIES
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Operator
from joulecast.model.predict import Work, parameter_spread, predict_work
from joulecast.model.uncertainty import NINETY_PERCENT, UNKNOWN_DISCREPANCY

Array = NDArray[np.float64]

#: Parts into which rows are dealt.
FOLDS = 5
#: Least relative discrepancy: no two measurements of one kernel agree better.
LEAST_DISCREPANCY = 0.005

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
    """Rows with a measured time and their operators.

    Rows that ran beside a companion, or whose clock or limit was set, are left out: the card did not decide on their
    clock. So are repeats of one kernel on many cards, which would count its error many times.
    """
    data = collect([r for r in rows if not (r.configuration.get("companion") or r.is_set or _is_repeat(r))])
    kept, times, powers = list(data.rows), data.time_s.tolist(), data.power_w.tolist()
    owned: list[list[Operator]] = [[] for _ in kept]
    for operator, owner in zip(data.operators, data.owner, strict=True):
        owned[owner].append(operator)
    for row, operator in collective_rows(rows):
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


def _is_repeat(row: Row) -> bool:
    return str(row.configuration.get("card", "")).startswith("others-")


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a forecast of a held-out row is off, relative, and how far its parameters' uncertainty lets it be.

    ``energy`` is NaN where it was not measured.
    """

    time: float
    energy: float
    time_spread: float
    energy_spread: float


def discrepancies(rows: Sequence[Row], fit: Callable[[Sequence[Row]], GpuModel]) -> Discrepancies:
    """What the form gets wrong by operator family, cross-validated, as relative standard deviations.

    Parameters
    ----------
    rows
        Measured rows.
    fit
        From rows to a GPU with its description, whose covariance tells the parameters' part.

    Returns
    -------
    dict
        Added to the parameters' part, they make 90 % intervals hold 90 % of the held-out rows of each family.
    """
    misses: dict[str, list[Miss]] = {}
    groups = sorted({repr(group_key(r.configuration)) for r in rows})
    fold_of = {key: i % FOLDS for i, key in enumerate(groups)}
    for fold in range(FOLDS):
        inside = [fold_of[repr(group_key(r.configuration))] == fold for r in rows]
        gpu = fit([r for r, held in zip(rows, inside, strict=True) if not held])
        for family, miss in held_out_misses([r for r, held in zip(rows, inside, strict=True) if held], gpu):
            misses.setdefault(family, []).append(miss)
    found: dict[str, dict[str, float]] = {}
    for family, of in sorted(misses.items()):
        found[family] = {
            "time": form_spread(np.array([m.time for m in of]), np.array([m.time_spread for m in of])),
            "energy": form_spread(np.array([m.energy for m in of]), np.array([m.energy_spread for m in of])),
        }
    return {
        "kernel": {f: s for f, s in found.items() if not f.startswith("collective")},
        "collective": {f: s for f, s in found.items() if f.startswith("collective")},
    }


def held_out_misses(rows: Sequence[Row], gpu: GpuModel) -> list[tuple[str, Miss]]:
    """Family and miss of every row of a kernel or collective, its clock not given."""
    data = held_out(rows, gpu)
    if not data.rows:
        return []
    settle = np.array([row.settle_s for row in data.rows])
    window = np.array([row.window_s for row in data.rows])
    forecast = predict_work(data.work, gpu, settle_s=settle, window_s=window)
    spreads = parameter_spread(data.work, gpu, settle_s=settle, window_s=window)
    slow = np.log(forecast.time_s / data.time_s)
    costly = np.log(forecast.energy_j / (data.power_w * data.time_s))
    columns = np.stack([slow, costly, *spreads], axis=1).tolist()
    return [(family, Miss(*row)) for family, row in zip(data.families, columns, strict=True)]


def form_spread(errors: Array, spreads: Array) -> float:
    """Standard deviation of the form that, beside ``spreads``, makes 90 % intervals hold 90 % of the errors."""
    known = np.isfinite(errors)
    excess = (errors[known] / NINETY_PERCENT) ** 2 - spreads[known] ** 2
    wide = float(np.quantile(excess, 0.9, method="lower")) if len(excess) else UNKNOWN_DISCREPANCY**2
    return float(f"{max(wide, LEAST_DISCREPANCY**2) ** 0.5:.3g}")
