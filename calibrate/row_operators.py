"""Which kernel a measured row ran, read from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from joulecast.calibrate.training_kernels import training_kernels
from joulecast.model.collectives import REFERENCE_EFFICIENCY, REFERENCE_STEP_S
from joulecast.model.fabric import Fabric
from joulecast.model.operators import DTYPE_BYTES, Attention, Collective, Gemm, Operator, Streaming, Tile

Configuration = Mapping[str, Any]

ATTENTION_BACKENDS = {
    "FLASH_ATTENTION": "flash-attention-2",
    "CUDNN_ATTENTION": "cudnn",
    "FLASH_ATTENTION_3": "flash-attention-3",
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
    exception
        Why nobody can predict this kernel from its configuration; empty for the others. Such rows are predicted and
        listed, but counted apart.
    reason
        Why there are no operators; empty if there are.
    """

    operators: tuple[Operator, ...] = ()
    counts: tuple[int, ...] = ()
    busy_fraction: float = 1.0
    exception: str = ""
    reason: str = ""

    @property
    def is_single(self) -> bool:
        """Whether one kernel runs back to back."""
        return len(self.operators) == 1 and self.busy_fraction == 1.0

    @property
    def is_sequence(self) -> bool:
        """Whether several kernels run in turn without a pause."""
        return len(self.operators) > 1 and self.busy_fraction == 1.0


class _MissingFieldError(LookupError):
    """A row lacks a field that its kind needs."""


def operator_of(configuration: Configuration) -> KernelWork:
    """Operators of a row of kernels or collectives; an unknown kind gives a reason instead."""
    op = str(configuration.get("op") or "")
    build = _BUILDERS.get(op)
    if build is None:
        return KernelWork(reason=f"unknown op {op!r}" if op else "the row has no op")
    try:
        work = build(configuration)
    except _MissingFieldError as missing:
        return KernelWork(reason=str(missing))
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
        return (op, get("dtype"), get("B"), get("Hq"), get("Hkv"), get("S"), get("D"), bool(get("causal")))
    if op in STREAMING_PATTERNS or op == "stream":
        pattern = str(get("pattern")) if op == "stream" else STREAMING_PATTERNS[op]
        return (pattern, get("dtype"), get("bytes"), get("tile_rows"), get("tile_cols"))
    return (op, get("name"))


def _whole(configuration: Configuration, key: str) -> int:
    value = configuration.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value != int(value):
        raise _MissingFieldError(f"field {key!r} is missing or not a positive whole number")
    return int(value)


def _count(configuration: Configuration, key: str, default: int = 0) -> int:
    """A whole number that a row may leave out."""
    value = configuration.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise _MissingFieldError(f"field {key!r} is not a whole number")
    return int(value)


def _positive(configuration: Configuration, key: str) -> float:
    value = configuration.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _MissingFieldError(f"field {key!r} is missing or not a positive number")
    return float(value)


def _dtype(configuration: Configuration, key: str = "dtype", default: str = "bf16") -> str:
    dtype = str(configuration.get(key) or default)
    if dtype and dtype not in DTYPE_BYTES:
        raise _MissingFieldError(f"unknown data type {dtype!r}")
    return dtype


def _one(operator: Operator, exception: str = "") -> KernelWork:
    return KernelWork((operator,), (1,), exception=exception)


def _gemm(row: Configuration) -> KernelWork:
    dtype = _dtype(row)
    m, n, k = _whole(row, "M"), _whole(row, "N"), _whole(row, "K")
    tile, exception = None, ""
    if row.get("op") == "tile_gemm":
        tile = Tile(
            _whole(row, "tile_m"),
            _whole(row, "tile_n"),
            _whole(row, "tile_k"),
            _whole(row, "warps"),
            _whole(row, "stages"),
            _count(row, "split_k", 1) or 1,
        )
    elif (align := _alignment(dtype)) and (n % align or (m if row.get("layout") == "nt" else k) % align):
        exception = f"the library falls back to a slow kernel where N or K is not a multiple of {align}"
    operator = Gemm(
        m,
        n,
        k,
        dtype=dtype,
        data=str(row.get("data") or "randn"),
        layout=str(row.get("layout") or "tn"),
        batch=_count(row, "batch", 1) or 1,
        tile=tile,
        footprint_bytes=None if row.get("footprint_bytes") is None else _positive(row, "footprint_bytes"),
        out_dtype=_dtype(row, "out_dtype", ""),
        accumulate=bool(row.get("accumulate", False)),
        separate=bool(row.get("separate", False)),
        name=str(row["op"]),
    )
    return _one(operator, exception)


def _alignment(dtype: str) -> int:
    """Elements in 16 bytes, which the fast kernels load at once; 1 where there is no such kernel."""
    return 16 // DTYPE_BYTES[dtype] if dtype in ("bf16", "fp16", "fp8", "tf32") else 1


def _attention(row: Configuration) -> KernelWork:
    tile = None
    if row.get("op") == "tile_attention":
        sides = _whole(row, "tile_m"), _whole(row, "tile_n")
        tile = Tile(*sides, warps=_whole(row, "warps"), stages=_whole(row, "stages"))
    word = str(row.get("backend") or "FLASH_ATTENTION" * (tile is not None))
    backend = ATTENTION_BACKENDS.get(word)
    if backend is None:
        raise _MissingFieldError(f"unknown attention backend {word!r}")
    direction = {"fwd": "forward", "bwd": "backward"}.get(str(row.get("direction") or ""))
    if direction is None:
        raise _MissingFieldError(f"unknown direction {row.get('direction')!r}")
    return _one(
        Attention(
            batch=_whole(row, "B"),
            heads=_whole(row, "Hq"),
            kv_heads=_whole(row, "Hkv"),
            sequence=_whole(row, "S"),
            head_dim=_whole(row, "D"),
            causal=bool(row.get("causal", True)),
            backend=backend,
            direction=direction,
            dtype=_dtype(row),
            tile=tile,
        )
    )


def _streaming(row: Configuration) -> KernelWork:
    op, dtype = str(row["op"]), _dtype(row)
    pattern = STREAMING_PATTERNS[op]
    total = _positive(row, "bytes")
    read = total * READ_SHARE.get(pattern, 0.5)
    rows, columns = _shape(row)
    elements = _positive(row, "params") if "params" in row else max(read, total - read) / DTYPE_BYTES[dtype]
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
        tile_rows=_count(row, "tile_rows"),
        tile_columns=_count(row, "tile_cols"),
        warps=_count(row, "warps"),
        footprint_bytes=None if row.get("footprint_bytes") is None else _positive(row, "footprint_bytes"),
        far_bytes=float(_count(row, "far_bytes")),
        name=op,
    )
    return KernelWork((operator,), (_count(row, "launches", 1) or 1,))


def _training_kernel(row: Configuration) -> KernelWork:
    """A kernel of a training step, or the few that one autograd call launches."""
    for key in ("pattern", "bytes_read", "bytes_written", "shape"):
        if row.get(key) is None:
            raise _MissingFieldError(f"field {key!r} is missing")
    _sides(row)
    kernels = training_kernels(row)
    return KernelWork(kernels, (1,) * len(kernels))


def _shape(row: Configuration) -> tuple[int, int]:
    """Rows and columns of a row-wise kernel, 0 where the row has no shape."""
    if row.get("shape") is not None:
        sides = _sides(row)
        return sides[0], sides[-1]
    if row["op"] == "gemv":
        return _whole(row, "M"), _whole(row, "K")
    return _count(row, "rows"), _count(row, "cols") or _count(row, "hidden")


def _sides(row: Configuration) -> list[int]:
    """Sides of a row's tensor."""
    shape = row["shape"]
    if not isinstance(shape, list) or not shape:
        raise _MissingFieldError("field 'shape' is not a list of whole numbers")
    return [_whole({"shape": side}, "shape") for side in shape]


def _collective(row: Configuration) -> KernelWork:
    return _one(
        Collective(
            COLLECTIVE_KINDS[str(row["op"])],
            bytes=_positive(row, "bytes"),
            gpus=_whole(row, "gpus"),
            ctas=None if row.get("ctas") is None else _whole(row, "ctas"),
            fabric=_fabric(row),
            dtype=_dtype(row),
        )
    )


def _fabric(row: Configuration) -> Fabric | None:
    """Links of a row that spans several nodes of 400 Gbit/s a GPU; within one they are the GPU's own."""
    nodes = _count(row, "nodes", 1) or 1
    if nodes == 1:
        return None
    local = -(-_whole(row, "gpus") // nodes)
    return Fabric(
        nodes,
        exit_bytes_per_s=local * NETWORK_BYTES_PER_S,
        step_latency_s=REFERENCE_STEP_S,
        efficiency=REFERENCE_EFFICIENCY,
    )


def _square(size: int) -> Gemm:
    return Gemm(size, size, size)


def _pulse(row: Configuration) -> KernelWork:
    """One product again and again for ``busy_s``, then nothing for ``idle_s``."""
    busy, idle = _positive(row, "busy_s"), _positive(row, "idle_s")
    return replace(_gemm(row), busy_fraction=busy / (busy + idle))


def _duty(row: Configuration) -> KernelWork:
    share = _positive(row, "duty")
    if share > 1:
        raise _MissingFieldError("field 'duty' is above 1")
    return KernelWork((_square(8192),), (10,), busy_fraction=share)


def _interleave(row: Configuration) -> KernelWork:
    """``n8`` GEMMs of 8192³, ``nv`` GEMVs of 8192 x 8192 and ``n2`` GEMMs of 2048³."""
    gemv = Streaming("gemv", 2.0 * 8192**2, 0.0, elements=8192.0**2, rows=8192, columns=8192, name="gemv")
    parts: list[tuple[Operator, int]] = [
        (_square(8192), _count(row, "n8")),
        (gemv, _count(row, "nv")),
        (_square(2048), _count(row, "n2")),
    ]
    present = [(operator, count) for operator, count in parts if count]
    if not present:
        raise _MissingFieldError("fields 'n8', 'nv' and 'n2' are all zero or missing")
    return KernelWork(tuple(o for o, _ in present), tuple(c for _, c in present))


def _idle(row: Configuration) -> KernelWork:
    return KernelWork(busy_fraction=0.0)


_BUILDERS: dict[str, Callable[[Configuration], KernelWork]] = {
    "gemm": _gemm,
    "tile_gemm": _gemm,
    "flash_attn": _attention,
    "tile_attention": _attention,
    "stream": _training_kernel,
    "pulse": _pulse,
    "duty": _duty,
    "interleave": _interleave,
    "idle": _idle,
    **dict.fromkeys(STREAMING_PATTERNS, _streaming),
    **dict.fromkeys(COLLECTIVE_KINDS, _collective),
}
