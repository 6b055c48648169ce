"""Published steps forecast by fits that have not seen them: half of the rows, a source, or a GPU left out.

How far off such a forecast may be has two parts. The factors' uncertainty is the fit's own. What remains differs
from source to source: versions of a framework, machines, what was tuned. It is found by leaving out each source of the
fitted rows in turn, by architecture and data type, as wide as it takes to hold 90 % of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array, Bool
from joulecast.calibrate.fit.form_errors import form_spread
from joulecast.calibrate.published.fit import RESIDUAL_SD, Fitted, Linearised, fit, log_times, owner_of
from joulecast.calibrate.published.plans import PlannedRow
from joulecast.model.uncertainty import NINETY_PERCENT

#: Rows of an architecture and data type from which on they have a spread of their own; fewer share that of all.
ENOUGH = 10


@dataclass(frozen=True)
class StepTime:
    """Forecast time of one step with its 90 % interval."""

    time_s: float
    time_s_p05: float
    time_s_p95: float


@dataclass(frozen=True)
class Refitted:
    """Forecasts of published rows by fits that have not seen them.

    Attributes
    ----------
    times
        Of each row, ``None`` for one that every fit has seen.
    seen
        Which rows the fit behind each row's forecast has seen, shape ``(rows, rows)``.
    """

    times: tuple[StepTime | None, ...]
    seen: Bool


def may_be_fitted(planned: PlannedRow) -> bool:
    """Whether a row may calibrate with others: MLPerf's and PyTorch's only validate, some generations are separate."""
    generation = planned.generation
    fits_no_other = generation.separate or generation.framework != "megatron"
    only_validates = fits_no_other or planned.row.source.startswith("MLPerf")
    return planned.row.measured_step_time_s is not None and not only_validates


def may_fit(planned: Sequence[PlannedRow]) -> Array:
    """Weight of each row in a fit to all that may calibrate, shape ``(rows,)``."""
    return np.array([float(may_be_fitted(one)) for one in planned])


def log_measured(planned: Sequence[PlannedRow]) -> Array:
    """Logarithms of measured step times, NaN where there is none."""
    return np.log([p.row.measured_step_time_s or np.nan for p in planned])


def by_source(planned: Sequence[PlannedRow], folds: int) -> list[Bool]:
    """Rows of each fold: sources, in the order of their names, dealt into so many folds."""
    return _dealt([one.row.source for one in planned], folds)


def by_gpu(planned: Sequence[PlannedRow]) -> list[Bool]:
    """Rows of each GPU."""
    return _dealt([one.plan.cluster.gpu for one in planned], len(planned))


def _dealt(names: Sequence[str], folds: int) -> list[Bool]:
    place = {name: i % folds for i, name in enumerate(sorted(set(names)))}
    of = np.array([place[name] for name in names])
    return [of == fold for fold in range(max(place.values()) + 1)]


def kind_of(planned: PlannedRow) -> str:
    """Whose factors act on a row and its data type, as shipped spreads are named."""
    return f"{owner_of(planned.plan.cluster.gpu)}.{planned.row.dtype}"


def left_out(planned: Sequence[PlannedRow], parts: Sequence[Bool], model: Linearised, *, far: bool = False) -> Refitted:
    """Forecast each part by a fit to all rows that may be fitted and are not in it.

    Parameters
    ----------
    far
        Whether the factors that act on a part are found far from where the model was linearised, as those of a GPU
        without rows: its rows are then forecast anew.
    """
    usable = may_fit(planned) > 0
    measured = log_measured(planned)
    times: list[StepTime | None] = [None] * len(planned)
    seen = np.zeros((len(planned), len(planned)), dtype=bool)
    for part in parts:
        use = usable & ~part
        fitted = fit(model, measured, use.astype(float))
        rows = np.flatnonzero(part)
        logs = model.log_time(fitted.values)[rows]
        if far:
            logs = log_times([planned[i].plan for i in rows.tolist()], fitted.factors())
        spread = np.hypot(factor_spread(model, fitted, rows), unseen_spread(planned, use, model)[rows])
        for row, time, width in zip(rows, np.exp(logs), np.exp(NINETY_PERCENT * spread), strict=True):
            times[row] = StepTime(float(time), float(time / width), float(time * width))
            seen[row] = use
    return Refitted(tuple(times), seen)


def factor_spread(model: Linearised, fitted: Fitted, rows: NDArray[np.intp]) -> Array:
    """Relative standard deviation of steps from the factors' uncertainty, shape ``(rows,)``."""
    slopes = model.slopes[rows]
    return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slopes, fitted.covariance, slopes)))


def unseen_spread(planned: Sequence[PlannedRow], use: Bool, model: Linearised) -> Array:
    """Relative standard deviation beside the factors' of a step whose source is not among the fitted rows.

    Parameters
    ----------
    use
        The fitted rows, each of whose sources is left out once; no other row is read, shape ``(rows,)``.

    Returns
    -------
    ndarray
        Of every row by its architecture and data type, never below what a step differs by from the best factors'
        forecast, shape ``(rows,)``.
    """
    measured, kinds = log_measured(planned), np.array([kind_of(one) for one in planned])
    errors, spreads = np.full(len(planned), np.nan), np.zeros(len(planned))
    for part in by_source(planned, len(planned)):
        held = np.flatnonzero(part & use)
        fitted = fit(model, measured, (use & ~part).astype(float))
        errors[held] = (model.log_time(fitted.values) - measured)[held]
        spreads[held] = factor_spread(model, fitted, held)
    alike = {kind: use & (kinds == kind) for kind in set(kinds.tolist())}
    found = {
        kind: form_spread(errors[rows], spreads[rows])
        for kind, rows in {**alike, "": use}.items()
        if rows.sum() >= ENOUGH or not kind
    }
    return np.maximum([found.get(kind, found[""]) for kind in kinds.tolist()], RESIDUAL_SD)
