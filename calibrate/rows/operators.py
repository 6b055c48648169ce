"""Which kernel a measured row ran, read from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np

from joulecast.calibrate.rows.fields import (
    Configuration,
    dtype_of,
    optional_count,
    positive,
    rows_and_columns,
    sides_of,
    whole_number,
)
from joulecast.calibrate.rows.framework_kernels import framework_kernels
from joulecast.calibrate.rows.optimizer_steps import optimizer_launches
from joulecast.calibrate.rows.training_kernels import training_kernels
from joulecast.errors import DataError
from joulecast.model.cluster.collectives import REFERENCE_EFFICIENCY, REFERENCE_STEP_S
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.kernels.attention import MASK
from joulecast.model.kernels.documents import Documents, gathered
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Collective, Gemm, Operator, Streaming, Tile

#: PyTorch's names of its own backends; besides, its flex attention, FlashAttention-2's own package, cuDNN as
#: Transformer Engine calls it and what a GPU's vendor ships.
ATTENTION_BACKENDS = {
    "FLASH_ATTENTION": "flash-attention-2",
    "CUDNN_ATTENTION": "cudnn",
    "FLASH_ATTENTION_3": "flash-attention-3",
    "FLASH_ATTN": "flash-attn-2",
    "FLEX_ATTENTION": "flex",
    "TE_CUDNN": "te-cudnn",
    "VENDOR_ATTENTION": "cudnn",
}
#: Rows of one kernel, by the pattern under which the model knows it.
STREAMING_PATTERNS = {
    "copy": "copy",
    "exp": "exp",
    "fill": "fill",
    "sum": "sum",
    "reduce_min": "reduce_min",
    "rms_norm": "rmsnorm",
    "rmsnorm": "rmsnorm",
    "layer_norm": "layernorm",
    "layernorm": "layernorm",
    "softmax": "softmax",
    "add": "add",
    "gemv": "gemv",
    "adamw": "adamw",
    "tile_rmsnorm": "tile_rmsnorm",
    "tile_layernorm": "tile_layernorm",
    "tile_softmax": "tile_softmax",
    "tile_exp": "tile_exp",
    "tile_reduce_min": "tile_reduce_min",
    "gelu": "gelu",
    "vllm_rms_norm": "vllm_rms_norm",
    "vllm_silu_and_mul": "vllm_silu_and_mul",
    "vllm_rotary": "vllm_rotary",
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
COLLECTIVE_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "p2p": "send_recv",
    "send_recv": "send_recv",
}
COMPOSITE_OPS = ("duty", "interleave", "idle")
KERNEL_OPS = (
    "gemm",
    "tile_gemm",
    "flash_attn",
    "tile_attention",
    "stream",
    "cast",
    "expert_rows",
    "optimizer_step",
    "pulse",
    *STREAMING_PATTERNS,
    *COMPOSITE_OPS,
)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a row's window repeats.

    Attributes
    ----------
    operators, counts
        Kernels in order, and how often each runs in a row.
    busy_fraction
        Share of the time that the GPU works; below 1 it sleeps in between.
    reason
        Why there are no operators; empty if there are.
    """

    operators: tuple[Operator, ...] = ()
    counts: tuple[int, ...] = ()
    busy_fraction: float = 1.0
    reason: str = ""

    @property
    def is_single(self) -> bool:
        """Whether one kernel runs back to back."""
        return len(self.operators) == 1 and self.busy_fraction == 1.0

    @property
    def is_sequence(self) -> bool:
        """Whether several kernels run in turn without a pause."""
        return len(self.operators) > 1 and self.busy_fraction == 1.0


def operator_of(configuration: Configuration) -> KernelWork:
    """Operators of a row of kernels or collectives; an unknown kind gives a reason instead."""
    op = str(configuration.get("op") or "")
    build = _BUILDERS.get(op)
    if build is None:
        return KernelWork(reason=f"unknown op {op!r}" if op else "the row has no op")
    try:
        work = build(configuration)
    except DataError as error:
        return KernelWork(reason=error.message)
    return work


def group_key(configuration: Configuration) -> tuple[Hashable, ...]:
    """Near-duplicates share this key, so that cross-validation never has one of them on each side.

    Same kind, data type and shape, whatever the input values, the attention backend and direction, or the source file;
    tiles are part of a kernel's shape, its warps and stages are not. Collectives are grouped by the number of GPUs.
    """
    op = str(configuration.get("op") or "")
    get = configuration.get
    if op in COLLECTIVE_KINDS:
        return ("collective", get("gpus") or 2)
    if op in ("gemm", "tile_gemm", "pulse"):
        tile = (get("tile_m"), get("tile_n"), get("tile_k")) if op == "tile_gemm" else ()
        return (op, get("dtype"), get("M"), get("N"), get("K"), *tile)
    if op in ("flash_attn", "tile_attention"):
        shape = tuple(get(name) for name in ("dtype", "B", "Hq", "Hkv", "S", "D", "Dv"))
        return (op, *shape, bool(get("causal")), bool(get("mask")), str(get("documents")), get("window"))
    if op in STREAMING_PATTERNS or op == "stream":
        pattern = str(get("pattern")) if op == "stream" else STREAMING_PATTERNS[op]
        return (pattern, get("dtype"), get("bytes"), get("tile_rows"), get("tile_cols"))
    return (op, get("name"))


def _one(operator: Operator) -> KernelWork:
    return KernelWork((operator,), (1,))


def _gemm(row: Configuration) -> KernelWork:
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
    operator = Gemm(
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
    return _one(operator)


def _attention(row: Configuration) -> KernelWork:
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
    return _one(
        Attention(
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


def _streaming(row: Configuration) -> KernelWork:
    op, dtype = str(row["op"]), dtype_of(row)
    pattern = STREAMING_PATTERNS[op]
    total = positive(row, "bytes")
    read = total * READ_SHARE.get(pattern, 0.5)
    rows, columns = rows_and_columns(row)
    elements = positive(row, "params") if "params" in row else max(read, total - read) / DTYPE_BYTES[dtype]
    if pattern == "add":
        elements /= 2
    operator = Streaming(
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
    return KernelWork((operator,), (optional_count(row, "launches", 1) or 1,))


def _training_kernel(row: Configuration) -> KernelWork:
    """A kernel of a training step, or the few that one autograd call launches."""
    for key in ("pattern", "bytes_read", "bytes_written", "shape"):
        if row.get(key) is None:
            raise DataError(f"field {key!r} is missing")
    sides_of(row)
    kernels = training_kernels(row)
    return KernelWork(kernels, (1,) * len(kernels))


def _framework_kernels(row: Configuration) -> KernelWork:
    """What PyTorch launches for one operation, as a plan's layers launch it."""
    launches = framework_kernels(row)
    return KernelWork(tuple(launch.operator for launch in launches), tuple(launch.repeat for launch in launches))


def _optimizer_step(row: Configuration) -> KernelWork:
    """A whole step over a list of parameters."""
    launches = optimizer_launches(row)
    return KernelWork(tuple(launch.operator for launch in launches), tuple(launch.repeat for launch in launches))


def _collective(row: Configuration) -> KernelWork:
    return _one(
        Collective(
            COLLECTIVE_KINDS[str(row["op"])],
            bytes=positive(row, "bytes"),
            gpus=whole_number(row, "gpus"),
            ctas=None if row.get("ctas") is None else whole_number(row, "ctas"),
            fabric=_fabric(row),
            dtype=dtype_of(row),
        )
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


def _square(size: int, row: Configuration) -> Gemm:
    return Gemm(size, size, size, dtype_of(row))


def _pulse(row: Configuration) -> KernelWork:
    """One product again and again for ``busy_s``, then nothing for ``idle_s``."""
    busy, idle = positive(row, "busy_s"), positive(row, "idle_s")
    return replace(_gemm(row), busy_fraction=busy / (busy + idle))


def _duty(row: Configuration) -> KernelWork:
    share = positive(row, "duty")
    if share > 1:
        raise DataError("field 'duty' is above 1")
    return KernelWork((_square(8192, row),), (10,), busy_fraction=share)


def _interleave(row: Configuration) -> KernelWork:
    """``n8`` GEMMs of 8192³, ``nv`` GEMVs of 8192 x 8192 and ``n2`` GEMMs of 2048³."""
    gemv = Streaming("gemv", 2.0 * 8192**2, 0.0, elements=8192.0**2, rows=8192, columns=8192, name="gemv")
    parts: list[tuple[Operator, int]] = [
        (_square(8192, row), optional_count(row, "n8")),
        (gemv, optional_count(row, "nv")),
        (_square(2048, row), optional_count(row, "n2")),
    ]
    present = [(operator, count) for operator, count in parts if count]
    if not present:
        raise DataError("fields 'n8', 'nv' and 'n2' are all zero or missing")
    return KernelWork(tuple(o for o, _ in present), tuple(c for _, c in present))


def _idle(row: Configuration) -> KernelWork:
    return KernelWork(busy_fraction=0.0)


_BUILDERS: dict[str, Callable[[Configuration], KernelWork]] = {
    "gemm": _gemm,
    "tile_gemm": _gemm,
    "flash_attn": _attention,
    "tile_attention": _attention,
    "stream": _training_kernel,
    "cast": _framework_kernels,
    "expert_rows": _framework_kernels,
    "optimizer_step": _optimizer_step,
    "pulse": _pulse,
    "duty": _duty,
    "interleave": _interleave,
    "idle": _idle,
    **dict.fromkeys(STREAMING_PATTERNS, _streaming),
    **dict.fromkeys(COLLECTIVE_KINDS, _collective),
}
