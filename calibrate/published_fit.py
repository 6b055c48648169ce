"""The factors of training that the catalogue ships, fitted to published steps.

``python -m joulecast.calibrate.published_fit DATA model/catalogue_data/training/published.toml`` fits all of them and
writes the file; as the model is linearised near the factors that are there, twice is better.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from joulecast.calibrate.published_left_out import by_source, kind_of, left_out, log_measured, may_be_fitted, runs_of
from joulecast.calibrate.published_plans import PlannedRow, plan_row
from joulecast.calibrate.published_rows import read_published
from joulecast.calibrate.training_fit import Linearised, fit, linearise
from joulecast.calibrate.training_write import training_toml
from joulecast.files import write_text
from joulecast.model.catalogue import load_training


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
            error = float(np.log(forecast.time_s / one.row.measured_step_time_s))
            errors.setdefault(kind_of(one), []).append(error)
    spread = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in errors.items()}
    sources = sorted({one.row.source for one in planned if may_be_fitted(one)})
    return training_toml(fitted, spread, f"fit to {int(use.sum())} published training steps: {'; '.join(sources)}")


def main(data: str, out: str) -> None:
    """Fit the published rows of ``data`` and write the catalogue's file of factors."""
    planned = [plan_row(row) for row in read_published(data)]
    write_text(Path(out), shipped_factors(planned, linearised(planned)))


if __name__ == "__main__":
    main(*sys.argv[1:])
