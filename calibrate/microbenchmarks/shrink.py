"""Rows of the same kind that a CPU does in milliseconds, so that the same code runs without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.calibrate.microbenchmarks import row_forms as forms
from joulecast.calibrate.microbenchmarks.row_forms import MEBI, Row

#: Sides of matrices, rows and columns of tensors, sequence lengths and heads are at most this.
SIDE, ROWS, COLUMNS, SEQUENCE, HEADS, BATCH = 64, 16, 64, 32, 4, 2
PARAMETERS = 4096
#: Waiting times shrink to this [s].
PAUSE_S = 0.002


def shrink(row: Mapping[str, Any]) -> Row:
    """A small row of the same op, data type, layout and pattern, with FLOPs and bytes to match."""
    op = str(row.get("op"))
    maker = _MAKERS.get(op, _buffer)
    small = maker(row)
    kept = {key: row[key] for key in ("data", "companion", "dtype") if key in row}
    return {**small, **kept, "op": op, "side": SIDE}


def _least(value: Any, most: int) -> int:
    return max(1, min(int(value), most))


def _gemm(row: Mapping[str, Any]) -> Row:
    m, n, k = (_least(row[key], SIDE) for key in ("M", "N", "K"))
    return forms.gemm_row(
        m,
        n,
        k,
        layout=str(row.get("layout") or "tn"),
        batch=_least(row.get("batch") or 1, BATCH),
        bias=bool(row.get("bias")),
    )


def _pulse(row: Mapping[str, Any]) -> Row:
    return {**_gemm(row), "busy_s": min(float(row["busy_s"]), PAUSE_S), "idle_s": min(float(row["idle_s"]), PAUSE_S)}


def _attention(row: Mapping[str, Any]) -> Row:
    group = max(1, int(row["Hq"]) // int(row["Hkv"]))
    shared = max(1, HEADS // group)
    small = forms.attention_row(
        _least(row["B"], BATCH),
        group * shared,
        shared,
        _least(row["S"], SEQUENCE),
        _least(row["D"], SIDE),
        causal=bool(row["causal"]),
        backward=row["direction"] == "bwd",
    )
    return {**small, "backend": row["backend"]}


def _stream(row: Mapping[str, Any]) -> Row:
    pattern, (rows, columns) = str(row["pattern"]), (int(side) for side in row["shape"])
    if pattern in ("adamw_bf16", "foreach_zero"):
        return forms.stream_row(pattern, PARAMETERS, _least(columns, BATCH))
    tokens = ROWS if pattern in ("embedding", "embedding_backward") else 0
    return forms.stream_row(pattern, _least(rows, ROWS), _least(columns, COLUMNS), tokens=tokens)


def _buffer(row: Mapping[str, Any]) -> Row:
    """A kernel on flat buffers, or of an explicit shape."""
    op = str(row["op"])
    if row.get("shape") is not None:
        rows, columns = (int(side) for side in row["shape"])
        small = {"op": op, "shape": [_least(rows, ROWS), _least(columns, COLUMNS)]}
        return {**small, "bytes": float(row["bytes"]) * ROWS * COLUMNS / (rows * columns)}
    return {**forms.buffer_row(op, 1), "mb": 1 / 64, "bytes": forms.BUFFER_TRAFFIC[op] * MEBI / 64}


def _tile_gemm(row: Mapping[str, Any]) -> Row:
    tile = (int(row["tile_m"]), int(row["tile_n"]), int(row["tile_k"]))
    return forms.tile_gemm_row(2 * tile[0], tile[1] + 8, 2 * tile[2], tile, int(row["warps"]), int(row["stages"]))


def _tile_attention(row: Mapping[str, Any]) -> Row:
    tile = int(row["tile_m"]), int(row["tile_n"])
    shape = 1, 2, 2 * max(tile), int(row["D"])
    backward, causal = row["direction"] == "bwd", bool(row["causal"])
    return forms.tile_attention_row(
        *shape, tile, int(row["warps"]), int(row["stages"]), causal=causal, backward=backward
    )


def _tile_whole_rows(row: Mapping[str, Any]) -> Row:
    tile_rows = int(row["tile_rows"])
    return forms.tile_whole_rows_row(str(row["op"]), 2 * tile_rows, COLUMNS, tile_rows, int(row["warps"]))


def _tile_exp(row: Mapping[str, Any]) -> Row:
    tile_columns = int(row["tile_cols"])
    return forms.tile_exp_row(2, 2 * tile_columns, tile_columns, int(row["warps"]))


def _tile_reduce_min(row: Mapping[str, Any]) -> Row:
    tile = int(row["tile_rows"]), int(row["tile_cols"])
    return forms.tile_reduce_min_row(2 * tile[0], 2 * tile[1], *tile, int(row["warps"]))


def _interleave(row: Mapping[str, Any]) -> Row:
    return forms.interleave_row(*(min(2, int(row.get(key) or 0)) for key in ("n8", "nv", "n2")))


def _idle(row: Mapping[str, Any]) -> Row:
    every = row.get("awake_every_s")
    return forms.idle_row(None if every is None else PAUSE_S)


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Row]] = {
    "gemm": _gemm,
    "pulse": _pulse,
    "flash_attn": _attention,
    "stream": _stream,
    "gemv": lambda row: forms.gemv_row(_least(row["M"], SIDE), _least(row["K"], SIDE)),
    "adamw": lambda row: forms.adamw_row(PARAMETERS),
    "tile_gemm": _tile_gemm,
    "tile_attention": _tile_attention,
    **dict.fromkeys(("tile_rmsnorm", "tile_layernorm", "tile_softmax"), _tile_whole_rows),
    "tile_exp": _tile_exp,
    "tile_reduce_min": _tile_reduce_min,
    "duty": lambda row: forms.duty_row(float(row["duty"])),
    "interleave": _interleave,
    "idle": _idle,
}
