"""Kernels of rows of one operation of PyTorch: casts to FP8 (op ``cast``), and what moves experts' rows."""

from __future__ import annotations

import math

from joulecast.calibrate.rows.fields import Configuration, dtype_of, whole_number
from joulecast.errors import DataError
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer import float8_linear, row_operators


def framework_kernels(row: Configuration) -> tuple[Launch, ...]:
    """Kernels of a row of either kind.

    Raises
    ------
    DataError
        Of this operation no kernels are known.
    """
    launches = _cast(row) if row["op"] == "cast" else _expert_rows(row)
    if not launches:
        raise DataError(f"no plan launches {row.get('cast', row.get('kernel'))!r} this way")
    return launches


def _cast(row: Configuration) -> tuple[Launch, ...]:
    values, dtype = whole_number(row, "rows") * whole_number(row, "cols"), dtype_of(row)
    kind, compiled = str(row.get("cast")), row.get("by") == "compiled"
    if row.get("by") not in ("eager", "compiled"):
        return ()
    if kind == "fp8_turn" and not compiled:
        return (float8_linear.turned("values", values),)
    if kind == "amax":
        return float8_linear.greatest("values", values, dtype, compiled=compiled)
    options = {
        "tensorwise": {},
        "tensorwise_turned": {"also_turned": True},
        "cast": {"known": True},
        "rowwise": {"rowwise": True},
    }.get(kind)
    if options is None or not (compiled or kind == "tensorwise"):
        return ()
    return float8_linear.cast("values", values, dtype, compiled=compiled, **options)


def _expert_rows(row: Configuration) -> tuple[Launch, ...]:
    tokens, hidden, experts, chosen = (
        whole_number(row, key) for key in ("tokens", "hidden", "experts", "experts_per_token")
    )
    kind, dtype, rows = str(row.get("kernel")), dtype_of(row), tokens * chosen
    if kind == "topk":
        return (row_operators.choice(tokens, experts),)
    if kind in ("argsort", "argsort_stable"):
        return (row_operators.order(rows),)
    if kind in ("scatter_add", "index_add"):
        return (row_operators.added(kind, kind, rows, tokens, hidden, dtype),)
    if kind == "index_put":
        return row_operators.put(kind, rows, hidden, dtype)[1:]
    if kind == "index_put_accumulate":
        return row_operators.accumulated(kind, rows, tokens, hidden, dtype)[1:]
    if kind in ("index", "gather"):
        return (streaming("embedding", kind, rows * hidden, dtype=dtype, rows=rows, columns=hidden),)
    if kind == "combine_bmm":
        return (row_operators.combined(kind, tokens, chosen, hidden, dtype),)
    if kind == "weigh_fp32":
        return row_operators.weighed(kind, rows * hidden, dtype)
    return _products(row, kind, rows // experts, hidden, experts)


def _products(row: Configuration, kind: str, rows: int, hidden: int, experts: int) -> tuple[Launch, ...]:
    """Products of all experts in one kernel, batched or grouped."""
    family, _, way = kind.partition("_")
    if family not in ("bmm", "grouped") or way not in ("fwd", "dgrad", "wgrad"):
        return ()
    width = whole_number(row, "width")
    m, n, k, layout = {
        "fwd": (rows, width, hidden, "tn"),
        "dgrad": (rows, hidden, width, "nn"),
        "wgrad": (width, hidden, rows, "nt"),
    }[way]
    product = Gemm(m, n, k, dtype_of(row), layout=layout, batch=experts, grouped=family == "grouped", name=kind)
    if not math.isfinite(product.flops):
        raise DataError("sizes beyond any product")
    return (Launch(product),)
