"""Model operations of published iterations, and the trivial rule: a constant rate per GPU, data type and source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from joulecast.calibrate.published.plans import PlannedRow
from joulecast.calibrate.published.rows import PublishedRow
from joulecast.model.architecture.model_flops import training_flops
from joulecast.validate.scoring.metrics import geometric_mean

#: What rows share a rate: those of one source, else all of a GPU and data type; without either there is no answer.
KINDS: tuple[Callable[[PublishedRow], tuple[str, ...]], ...] = (
    lambda row: (row.gpu, row.dtype, row.source),
    lambda row: (row.gpu, row.dtype),
)


def executed_flops(planned: PlannedRow) -> float | None:
    """Floating-point operations of one step, all GPUs: those of the model, and layers' forward where it is repeated."""
    row, model = planned.row, planned.plan.workload.model
    if row.tokens is None:
        return None
    flops = training_flops(model, row.seq_len, row.tokens)
    layers = flops / 3.0 - 2.0 * row.tokens * (1 + model.mtp_layers) * model.hidden * model.vocab
    return flops + (layers if row.recompute == "full" else 0.0)


def rates(rows: Sequence[PlannedRow]) -> np.ndarray:
    """Achieved rate of each row [FLOP/s per GPU], NaN where its step was not measured."""
    return np.array([_rate(row) for row in rows])


def _rate(planned: PlannedRow) -> float:
    flops, row = executed_flops(planned), planned.row
    if flops is None or row.measured_step_time_s is None:
        return float("nan")
    return flops / row.num_gpus / row.measured_step_time_s


def constant_rate_s(planned: PlannedRow, known: Iterable[tuple[PublishedRow, float]]) -> float | None:
    """Step time at the geometric mean rate of the rows most like this one [s].

    Parameters
    ----------
    known
        Rows that may be read, with their rates.
    """
    flops, row, pairs = executed_flops(planned), planned.row, list(known)
    for kind in KINDS:
        alike = np.array([rate for other, rate in pairs if kind(other) == kind(row)])
        rate = geometric_mean(alike)
        if rate and flops:
            return flops / row.num_gpus / rate
    return None
