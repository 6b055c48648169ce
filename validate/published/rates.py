"""Model operations of published iterations, and the trivial rule: a constant rate per GPU, data type and source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from joulecast.calibrate.published.rows import PublishedRow
from joulecast.validate.scoring.metrics import geometric_mean

#: What rows share a rate: those of one source, else all of a GPU and data type; without either there is no answer.
KINDS: tuple[Callable[[PublishedRow], tuple[str, ...]], ...] = (
    lambda row: (row.gpu, row.dtype, row.source),
    lambda row: (row.gpu, row.dtype),
)


def executed_flops(row: PublishedRow) -> float | None:
    """Floating-point operations of one step, all GPUs, of layers, causal attention and head.

    Three passes over the weights, a fourth over the layers' where the whole forward is repeated.
    """
    if row.tokens is None:
        return None
    width = row.head_dim or row.hidden // row.heads
    queries, keys = row.heads * width, (row.kv_heads or row.heads) * width
    mlp = row.hidden * row.ffn_hidden * (2 if row.gated_mlp is False else 3)
    layer = 2.0 * (row.hidden * (2.0 * queries + 2.0 * keys) + mlp) + 2.0 * queries * row.seq_len
    passes = 4.0 if row.recompute == "full" else 3.0
    return row.tokens * (passes * row.num_layers * layer + 6.0 * row.hidden * row.vocab)


def rates(rows: Sequence[PublishedRow]) -> np.ndarray:
    """Achieved rate of each row [FLOP/s per GPU], NaN where its step was not measured."""
    return np.array([_rate(row) for row in rows])


def _rate(row: PublishedRow) -> float:
    flops = executed_flops(row)
    if flops is None or row.measured_step_time_s is None:
        return float("nan")
    return flops / row.num_gpus / row.measured_step_time_s


def constant_rate_s(row: PublishedRow, known: Iterable[tuple[PublishedRow, float]]) -> float | None:
    """Step time at the geometric mean rate of the rows most like this one [s].

    Parameters
    ----------
    known
        Rows that may be read, with their rates.
    """
    flops, pairs = executed_flops(row), list(known)
    for kind in KINDS:
        alike = np.array([rate for other, rate in pairs if kind(other) == kind(row)])
        rate = geometric_mean(alike)
        if rate and flops:
            return flops / row.num_gpus / rate
    return None
