"""Published rows left out of a fit: half of them, or one source after the other.

``python -m joulecast.calibrate.published_fit DATA model/catalogue_data/training/published.toml`` fits all of them and
writes the factors that the catalogue ships; as the model is linearised near those that are there, twice is better.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.published_plans import PlannedRow, plan_row
from joulecast.calibrate.published_rows import read_published
from joulecast.calibrate.training_fit import Fitted, Linearised, TrainingRun, fit, linearise
from joulecast.calibrate.training_write import training_toml
from joulecast.files import write_text
from joulecast.model.catalogue import load_gpu, load_training
from joulecast.model.uncertainty import NINETY_PERCENT

Array = NDArray[np.float64]


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
    seen: NDArray[np.bool_]


def may_be_fitted(planned: PlannedRow) -> bool:
    """Whether a row may calibrate: MLPerf's runs only validate."""
    return planned.row.measured_step_time_s is not None and not planned.row.source.startswith("MLPerf")


def runs_of(planned: Sequence[PlannedRow]) -> list[TrainingRun]:
    """Rows as the fit takes them."""
    return [TrainingRun(p.row.id, p.plan, p.row.measured_step_time_s) for p in planned]


def by_source(planned: Sequence[PlannedRow], folds: int) -> list[NDArray[np.bool_]]:
    """Rows of each fold: sources, in the order of their names, dealt into so many folds."""
    place = {source: i % folds for i, source in enumerate(sorted({p.row.source for p in planned}))}
    of = np.array([place[p.row.source] for p in planned])
    return [of == fold for fold in range(max(place.values()) + 1)]


def left_out(planned: Sequence[PlannedRow], parts: Sequence[NDArray[np.bool_]], model: Linearised) -> Refitted:
    """Forecast each part by a fit to all rows that may be fitted and are not in it."""
    usable = np.array([may_be_fitted(one) for one in planned])
    measured = log_measured(planned)
    times: list[StepTime | None] = [None] * len(planned)
    seen = np.zeros((len(planned), len(planned)), dtype=bool)
    for part in parts:
        use = usable & ~part
        fitted = fit(model, measured, use.astype(float))
        for row in np.flatnonzero(part):
            times[row] = step_time(model, fitted, int(row))
            seen[row] = use
    return Refitted(tuple(times), seen)


def log_measured(planned: Sequence[PlannedRow]) -> Array:
    """Logarithms of measured step times, NaN where there is none."""
    return np.log([p.row.measured_step_time_s or np.nan for p in planned])


def step_time(model: Linearised, fitted: Fitted, row: int) -> StepTime:
    """Step time of one row."""
    time = float(np.exp(model.log_time(fitted.values)[row]))
    slopes = model.slopes[row]
    spread = float(np.sqrt(slopes @ fitted.covariance @ slopes + fitted.residual_sd**2))
    factor = float(np.exp(NINETY_PERCENT * spread))
    return StepTime(time, time / factor, time * factor)


def linearised(planned: Sequence[PlannedRow]) -> Linearised:
    """The model near the shipped factors."""
    factors = {name: p.number for name, p in load_training().items() if ".spread." not in name}
    return linearise(runs_of(planned), factors)


def shipped_factors(planned: Sequence[PlannedRow], model: Linearised) -> str:
    """Text of the catalogue's file of factors: a fit to all rows that may be fitted.

    How far off a forecast may be is what sources showed that were left out, by architecture and data type.
    """
    use = np.array([float(may_be_fitted(one)) for one in planned])
    fitted = fit(model, log_measured(planned), use)
    found = left_out(planned, by_source(planned, len(planned)), model)
    errors: dict[str, list[float]] = {}
    for one, forecast in zip(planned, found.times, strict=True):
        if forecast is not None and one.row.measured_step_time_s:
            architecture = load_gpu(one.plan.cluster.gpu).text("architecture")
            error = float(np.log(forecast.time_s / one.row.measured_step_time_s))
            errors.setdefault(f"{architecture}.{one.row.dtype}", []).append(error)
    spread = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in errors.items()}
    sources = sorted({one.row.source for one in planned if may_be_fitted(one)})
    return training_toml(fitted, spread, f"fit to {int(use.sum())} published training steps: {'; '.join(sources)}")


def main(data: str, out: str) -> None:
    """Fit the published rows of ``data`` and write the catalogue's file of factors."""
    planned = [plan_row(row) for row in read_published(data)]
    write_text(Path(out), shipped_factors(planned, linearised(planned)))


if __name__ == "__main__":
    main(*sys.argv[1:])
