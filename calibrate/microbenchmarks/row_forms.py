"""Rows of microbenchmarks in the fields of the recorded rows, with the bytes and FLOPs that follow from the shape."""

from __future__ import annotations

from typing import Any

from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Gemm

Row = dict[str, Any]
MEBI = 1 << 20
#: Reads and writes of a tensor of a row's shape, as multiples of it, by pattern of op ``stream``.
TRAFFIC = {
    "copy": (1, 1),
    "exp": (1, 1),
    "add": (2, 1),
    "mul": (2, 1),
    "cat": (1, 1),
    "strided_unary": (1, 1),
    "strided_binary": (2, 1),
    "strided_silu_backward": (2, 1),
    "rmsnorm": (1, 1),
    "rmsnorm_backward_input": (2, 1),
    "rmsnorm_backward_both": (4, 1),
    "layernorm": (1, 1),
    "layernorm_backward_both": (4, 1),
    "softmax": (1, 1),
    "gelu": (1, 1),
    "gelu_backward": (2, 1),
    "cross_entropy": (1, 1),
    "cross_entropy_backward": (2, 1),
    "embedding": (1, 1),
}
#: Bytes of one element of these rows (bf16).
ELEMENT = 2
#: Bytes that a fused step reads and writes of each bf16 parameter, and in all of each fp32 parameter.
ADAMW_BF16, ADAMW_FP32 = (8, 6), 28
#: Backends of attention rows by the model's name.
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash-attention-2": "FLASH_ATTENTION"}
#: Tensors that a buffer row reads or writes.
BUFFER_TRAFFIC = {"copy": 2, "exp": 2, "fill": 1, "sum": 1}


def gemm_row(
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    *,
    data: str = "randn",
    layout: str = "tn",
    batch: int = 1,
    bias: bool = False,
) -> Row:
    """A product of the vendor's library."""
    flops = Gemm(m, n, k, batch=batch).flops
    row: Row = {"op": "gemm", "M": m, "N": n, "K": k, "dtype": dtype, "data": data, "layout": layout, "flops": flops}
    if batch > 1:
        row["batch"] = batch
    if bias:
        row["bias"] = True
    return row


def attention_row(
    batch: int,
    heads: int,
    kv_heads: int,
    sequence: int,
    head_dim: int,
    *,
    causal: bool = True,
    backend: str = "cudnn",
    backward: bool = False,
) -> Row:
    """Fused attention in bf16; ``backend`` is the model's word."""
    work = Attention(
        batch,
        heads,
        kv_heads,
        sequence,
        head_dim,
        causal=causal,
        direction="backward" if backward else "forward",
    )
    return {
        "op": "flash_attn",
        "B": batch,
        "Hq": heads,
        "Hkv": kv_heads,
        "S": sequence,
        "D": head_dim,
        "causal": causal,
        "dtype": "bf16",
        "backend": BACKENDS[backend],
        "direction": "bwd" if backward else "fwd",
        "flops": work.flops,
    }


def buffer_row(op: str, mebibytes: int, *, data: str = "randn") -> Row:
    """A kernel on flat buffers of so many MiB each."""
    row: Row = {"op": op, "bytes": float(BUFFER_TRAFFIC[op] * mebibytes * MEBI), "mb": mebibytes, "dtype": "bf16"}
    return row if data == "randn" else {**row, "data": data}


def shaped_row(op: str, rows: int, columns: int) -> Row:
    """An fp32 row-wise reduction or element-wise kernel of an explicit shape: ``reduce_min`` or ``exp``."""
    tensors = 1 if op == "reduce_min" else 2
    return {
        "op": op,
        "shape": [rows, columns],
        "bytes": float(tensors * rows * columns * DTYPE_BYTES["fp32"]),
        "dtype": "fp32",
    }


def stream_row(pattern: str, rows: int, columns: int, *, tokens: int = 0) -> Row:
    """A kernel of a training step on a bf16 tensor of ``rows`` × ``columns``.

    Of ``adamw_bf16`` and ``foreach_zero`` these are parameters and tensors, of ``embedding_backward`` vocabulary and
    width with ``tokens`` looked up.
    """
    size, elements = ELEMENT * rows * columns, rows * columns
    extra: Row = {}
    if pattern == "adamw_bf16":
        read, written, elements = ADAMW_BF16[0] * rows, ADAMW_BF16[1] * rows, rows
    elif pattern == "foreach_zero":
        read, written, elements = 0, ELEMENT * rows, rows
    elif pattern == "bias_reduce":
        read, written = size, ELEMENT * columns
    elif pattern == "embedding_backward":
        elements = tokens * columns
        read, written = ELEMENT * elements, size
    else:
        reads, writes = TRAFFIC[pattern]
        read, written = reads * size, writes * size
        extra = {"vocabulary": tokens} if pattern == "embedding" and tokens else {}
    return {
        "op": "stream",
        "pattern": pattern,
        "bytes_read": float(read),
        "bytes_written": float(written),
        "bytes": float(read + written),
        "elements": float(elements),
        "shape": [rows, columns],
        "dtype": "bf16",
        **extra,
    }


def gemv_row(rows: int, columns: int) -> Row:
    """A matrix times a vector."""
    return {"op": "gemv", "M": rows, "N": 1, "K": columns, "bytes": float(ELEMENT * rows * columns), "dtype": "bf16"}


def adamw_row(parameters: int) -> Row:
    """One fused step on fp32 parameters."""
    return {"op": "adamw", "params": parameters, "bytes": float(ADAMW_FP32 * parameters), "dtype": "fp32"}


def tile_gemm_row(m: int, n: int, k: int, tile: tuple[int, int, int], warps: int, stages: int) -> Row:
    """A product with explicit tiles."""
    return {
        "op": "tile_gemm",
        "M": m,
        "N": n,
        "K": k,
        "tile_m": tile[0],
        "tile_n": tile[1],
        "tile_k": tile[2],
        "warps": warps,
        "stages": stages,
        "dtype": "bf16",
        "flops": Gemm(m, n, k).flops,
    }


def tile_attention_row(
    batch: int,
    heads: int,
    sequence: int,
    head_dim: int,
    tile: tuple[int, int],
    warps: int,
    stages: int,
    *,
    causal: bool = True,
    backward: bool = False,
) -> Row:
    """Fused attention with explicit tiles, of as many key-value heads as heads."""
    row = attention_row(batch, heads, heads, sequence, head_dim, causal=causal, backward=backward)
    del row["backend"]
    sides = {"tile_m": tile[0], "tile_n": tile[1], "warps": warps, "stages": stages}
    return {**row, "op": "tile_attention", **sides}


def tile_whole_rows_row(op: str, rows: int, hidden: int, tile_rows: int, warps: int) -> Row:
    """A norm or a softmax that takes ``tile_rows`` whole rows at a time."""
    size = float(2 * ELEMENT * rows * hidden)
    return {
        "op": op,
        "rows": rows,
        "hidden": hidden,
        "tile_rows": tile_rows,
        "warps": warps,
        "bytes": size,
        "dtype": "bf16",
    }


def tile_exp_row(rows: int, columns: int, tile_columns: int, warps: int) -> Row:
    """Exponentials of fp32 values, ``tile_columns`` at a time."""
    row = tile_reduce_min_row(rows, columns, 1, tile_columns, warps)
    return {**row, "op": "tile_exp", "bytes": 2.0 * row["bytes"]}


def tile_reduce_min_row(rows: int, columns: int, tile_rows: int, tile_columns: int, warps: int) -> Row:
    """The least value of every row, in tiles."""
    return {
        "op": "tile_reduce_min",
        "rows": rows,
        "cols": columns,
        "tile_rows": tile_rows,
        "tile_cols": tile_columns,
        "warps": warps,
        "bytes": float(DTYPE_BYTES["fp32"] * rows * columns),
        "dtype": "fp32",
    }


def pulse_row(side: int, busy_s: float, idle_s: float, data: str) -> Row:
    """A square product again and again for ``busy_s``, then nothing for ``idle_s``."""
    return {**gemm_row(side, side, side, data=data), "op": "pulse", "busy_s": busy_s, "idle_s": idle_s}


def duty_row(share: float) -> Row:
    """Ten products of 8192³, then nothing, so that the card is busy this share of the time."""
    return {"op": "duty", "duty": share, "dtype": "bf16"}


def interleave_row(n8: int, nv: int, n2: int) -> Row:
    """Products of 8192³, of matrix and vector (8192), and of 2048³ in turn."""
    return {"op": "interleave", "n8": n8, "nv": nv, "n2": n2, "dtype": "bf16"}


def idle_row(awake_every_s: float | None = None) -> Row:
    """Nothing; or a tiny kernel now and then that keeps the clock up."""
    row: Row = {"op": "idle", "dtype": "bf16"}
    return row if awake_every_s is None else {**row, "awake_every_s": awake_every_s}
