"""The one kernel or collective that a measured row ran."""

from __future__ import annotations

import numpy as np

from joulecast.calibrate.rows.fields import (
    Configuration,
    ctas_of,
    dtype_of,
    optional_count,
    positive,
    rows_and_columns,
    whole_number,
)
from joulecast.errors import DataError
from joulecast.model.cluster.collectives import REFERENCE_EFFICIENCY, REFERENCE_STEP_S
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.kernels.attention import MASK
from joulecast.model.kernels.documents import Documents, gathered
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Collective, Gemm, Streaming, Tile

#: PyTorch's names of its own backends; besides, its flex attention, FlashAttention-2's own package, cuDNN as
#: Transformer Engine calls it and what a GPU's vendor ships.
ATTENTION_BACKENDS = {
    "FLASH_ATTENTION": "flash-attention-2",
    "CUDNN_ATTENTION": "cudnn",
    "FLASH_ATTENTION_3": "flash-attention-3",
    "FLASH_ATTN": "flash-attn-2",
    "FLEX_ATTENTION": "flex",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "TE_CUDNN": "te-cudnn",
    "VENDOR_ATTENTION": "cudnn",
}
#: Rows of one kernel, by the pattern under which the model knows it.
STREAMING_PATTERNS = {"rms_norm": "rmsnorm", "layer_norm": "layernorm"} | {
    name: name
    for name in (
        *(
            "copy",
            "exp",
            "fill",
            "sum",
            "reduce_min",
            "rmsnorm",
            "layernorm",
            "softmax",
            "add",
            "gemv",
            "adamw",
            "gelu",
        ),
        *("tile_rmsnorm", "tile_layernorm", "tile_softmax", "tile_exp", "tile_reduce_min"),
        *("vllm_rms_norm", "vllm_silu_and_mul", "vllm_rotary"),
    )
}
#: Share of a row's ``bytes`` that is read; the rest is written.
READ_SHARE = {
    "fill": 0.0,
    "sum": 1.0,
    "reduce_min": 1.0,
    "tile_reduce_min": 1.0,
    "gemv": 1.0,
    "add": 2 / 3,
    "vllm_silu_and_mul": 2 / 3,
    "adamw": 16 / 28,  # reads parameter, gradient and two moments, writes all but the gradient
}
#: Line rate of each GPU's network card where a row of several nodes does not tell [B/s].
NETWORK_BYTES_PER_S = 50e9
COLLECTIVE_KINDS = {"p2p": "send_recv"} | {
    name: name for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
}


def gemm(row: Configuration) -> Gemm:
    """A product, with the tile that the row names."""
    dtype = dtype_of(row)
    m, n, k = whole_number(row, "M"), whole_number(row, "N"), whole_number(row, "K")
    tile = None
    if row.get("op") == "tile_gemm":
        tile = Tile(
            whole_number(row, "tile_m"),
            whole_number(row, "tile_n"),
            whole_number(row, "tile_k"),
            whole_number(row, "warps"),
            whole_number(row, "stages"),
            optional_count(row, "split_k", 1) or 1,
        )
    return Gemm(
        m,
        n,
        k,
        dtype=dtype,
        data=str(row.get("data") or "randn"),
        layout=str(row.get("layout") or "tn"),
        batch=optional_count(row, "batch", 1) or 1,
        tile=tile,
        footprint_bytes=None if row.get("footprint_bytes") is None else positive(row, "footprint_bytes"),
        out_dtype=dtype_of(row, "out_dtype", ""),
        accumulate=bool(row.get("accumulate", False)),
        separate=bool(row.get("separate", False)),
        grouped=bool(row.get("grouped", False)),
        fast_accumulation=bool(row.get("fast_accumulation", False)),
        block_scaled=bool(row.get("block_scaled", False)),
        row_scaled=bool(row.get("row_scaled", False)),
        bias=bool(row.get("bias", False)),
        name=str(row["op"]),
    )


def attention(row: Configuration) -> Attention:
    """Attention of one backend and direction."""
    tile = None
    if row.get("op") == "tile_attention":
        sides = whole_number(row, "tile_m"), whole_number(row, "tile_n")
        tile = Tile(*sides, warps=whole_number(row, "warps"), stages=whole_number(row, "stages"))
    word = str(row.get("backend") or "FLASH_ATTENTION" * (tile is not None))
    backend = ATTENTION_BACKENDS.get(word)
    if backend is None:
        raise DataError(f"unknown attention backend {word!r}")
    direction = {"fwd": "forward", "bwd": "backward"}.get(str(row.get("direction") or ""))
    if direction is None:
        raise DataError(f"unknown direction {row.get('direction')!r}")
    masked = bool(row.get("mask", False))
    key = whole_number(row, "D")
    value = optional_count(row, "Dv", key) or key
    return Attention(
        batch=whole_number(row, "B"),
        heads=whole_number(row, "Hq"),
        kv_heads=whole_number(row, "Hkv"),
        sequence=whole_number(row, "S"),
        head_dim=(key + value) // 2,
        value_dim=value if value != key else 0,
        causal=bool(row.get("causal", True)) and not masked,
        each_score=MASK if masked else "",
        documents=None if masked else _documents(row),
        window=optional_count(row, "window"),
        backend=backend,
        direction=direction,
        dtype=dtype_of(row),
        tile=tile,
    )


def _documents(row: Configuration) -> Documents | None:
    """Documents that fill the row's sequence and that its kernel keeps apart."""
    lengths = row.get("documents")
    if lengths is None:
        return None
    whole = isinstance(lengths, list) and all(isinstance(length, int) and length > 0 for length in lengths)
    if not whole or sum(lengths) != whole_number(row, "S"):
        raise DataError("field 'documents' is not a list of lengths that fill the sequence")
    return None if len(lengths) == 1 else gathered(np.array(lengths, dtype=np.float64), np.ones(len(lengths)))


def streaming(row: Configuration) -> Streaming:
    """A kernel that moves ``bytes``, of which :data:`READ_SHARE` is read."""
    op, dtype = str(row["op"]), dtype_of(row)
    pattern = STREAMING_PATTERNS[op]
    total = positive(row, "bytes")
    read = total * READ_SHARE.get(pattern, 0.5)
    rows, columns = rows_and_columns(row)
    elements = max(read, total - read) / DTYPE_BYTES[dtype]
    if pattern == "add":
        elements /= 2
    if pattern == "adamw":  # 0: as many parameters as the bytes say
        elements = positive(row, "params") if "params" in row else 0.0
    return Streaming(
        pattern,
        bytes_read=read,
        bytes_written=total - read,
        elements=elements,
        dtype=dtype,
        data=str(row.get("data") or "randn"),
        rows=rows,
        columns=columns,
        tile_rows=optional_count(row, "tile_rows"),
        tile_columns=optional_count(row, "tile_cols"),
        warps=optional_count(row, "warps"),
        footprint_bytes=None if row.get("footprint_bytes") is None else positive(row, "footprint_bytes"),
        far_bytes=float(optional_count(row, "far_bytes")),
        name=op,
    )


def collective(row: Configuration) -> Collective:
    """A collective of ``bytes`` among ``gpus``."""
    return Collective(
        COLLECTIVE_KINDS[str(row["op"])],
        bytes=positive(row, "bytes"),
        gpus=whole_number(row, "gpus"),
        ctas=ctas_of(row),
        fabric=_fabric(row),
        dtype=dtype_of(row),
    )


def _fabric(row: Configuration) -> Fabric | None:
    """Links of a row that spans several nodes of 400 Gbit/s a GPU; within one they are the GPU's own."""
    nodes = optional_count(row, "nodes", 1) or 1
    if nodes == 1:
        return None
    local = -(-whole_number(row, "gpus") // nodes)
    return Fabric(
        nodes,
        exit_bytes_per_s=local * NETWORK_BYTES_PER_S,
        step_latency_s=REFERENCE_STEP_S,
        efficiency=REFERENCE_EFFICIENCY,
    )
