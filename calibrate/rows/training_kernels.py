"""Operators of the rows that measure single kernels of a training step (op ``stream``).

Some rows time an autograd call that launches several kernels; they map to the same kernels as a training step's.
"""

from __future__ import annotations

from collections.abc import Callable

from joulecast.calibrate.rows.fields import Configuration, dtype_of
from joulecast.model.kernels.operators import DTYPE_BYTES, Streaming


def training_kernels(row: Configuration) -> tuple[Streaming, ...]:
    """Kernels of a ``stream`` row, from its pattern and shape alone."""
    rows, columns = (int(v) for v in row["shape"])
    pattern = str(row["pattern"])
    build = _COMPOSITES.get(pattern)
    if build is not None:
        return build(rows, columns, row)
    name = _RENAMED.get(pattern, pattern)
    return (_one(name, float(row["bytes_read"]), float(row["bytes_written"]), rows, columns, dtype_of(row)),)


def _one(pattern: str, read: float, written: float, rows: int, columns: int, dtype: str = "bf16") -> Streaming:
    elements = max(read, written) / DTYPE_BYTES[dtype]
    return Streaming(pattern, read, written, elements, dtype, rows=rows, columns=columns, name=pattern)


def _norm_backward_both(rows: int, columns: int, row: Configuration) -> tuple[Streaming, ...]:
    n = 2.0 * rows * columns
    return (*_norm_backward(rows, columns, row), _one("gamma_backward", 2 * n, 2.0 * columns, rows, columns))


def _norm_backward(rows: int, columns: int, row: Configuration) -> tuple[Streaming, ...]:
    n = 2.0 * rows * columns
    return (_one("norm_backward", 2 * n, n, rows, columns),)


def _cross_entropy(rows: int, columns: int, row: Configuration) -> tuple[Streaming, ...]:
    n = 2.0 * rows * columns
    return (_one("log_softmax", n, n, rows, columns), _one("nll_loss", 2.0 * rows, 2.0 * rows, rows, 0))


def _cross_entropy_backward(rows: int, columns: int, row: Configuration) -> tuple[Streaming, ...]:
    n = 2.0 * rows * columns
    return (
        _one("fill", 0.0, n, rows, columns),
        _one("nll_loss_backward", 2.0 * rows, 2.0 * rows, rows, 0),
        _one("log_softmax_backward", 2 * n, n, rows, columns),
    )


def _embedding_backward(rows: int, columns: int, row: Configuration) -> tuple[Streaming, ...]:
    table, elements = 2.0 * rows * columns, float(row["elements"])
    tokens = elements / columns
    return (
        _one("embedding_sort", 8 * 2 * tokens * 8, 8 * 2 * tokens * 8, int(tokens), 0),
        _one("fill", 0.0, table, rows, columns),
        _one("embedding_segments", 2 * tokens * 8, tokens * 8, int(tokens), 0),
        _one("embedding_backward", 2 * elements, 4 * elements, int(tokens), columns),
        _one("embedding_backward", 4 * elements, 2 * elements, int(tokens), columns),
    )


def _adamw(parameters: int, tensors: int, row: Configuration) -> tuple[Streaming, ...]:
    read, written = float(row["bytes_read"]), float(row["bytes_written"])
    return (Streaming("adamw", read, written, elements=float(parameters), name="adamw"),)


_COMPOSITES: dict[str, Callable[[int, int, Configuration], tuple[Streaming, ...]]] = {
    "rmsnorm_backward_both": _norm_backward_both,
    "layernorm_backward_both": _norm_backward_both,
    "rmsnorm_backward_input": _norm_backward,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "embedding_backward": _embedding_backward,
    "adamw_bf16": _adamw,
}
_RENAMED = {"foreach_zero": "zero_grad"}
