"""Refuses work that no kernel has, before it becomes a number that means nothing."""

from __future__ import annotations

import math
from numbers import Real

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.attention import EACH_SCORE, EFFICIENT, MASKS, RESEMBLES
from joulecast.model.kernels.documents import Documents
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Collective, Gemm, Operator, Scan, Streaming, Tile
from joulecast.model.kernels.row_blocks import THREADS as ROW_BLOCKS

#: Orders of a product's operands, and what attention computes and in which types.
LAYOUTS, DIRECTIONS, ATTENTION_DTYPES = ("tn", "nn", "nt"), ("forward", "backward"), ("bf16", "fp16", "fp8")


def check_operator(operator: Operator, gpu: GpuModel) -> None:
    """Refuse sizes that are not whole or too small, bytes that are negative, and words that the GPU does not know.

    Raises
    ------
    InputError
        One message with the field, its value and the remedy.
    """
    if isinstance(operator, Gemm):
        _check_gemm(operator)
    elif isinstance(operator, Attention):
        _check_attention(operator, gpu)
    elif isinstance(operator, Streaming):
        _check_streaming(operator, gpu)
    elif isinstance(operator, Scan):
        _check_scan(operator)
    elif isinstance(operator, Collective):
        _whole(operator, "gpus")
        _optional(operator, "ctas", "threads")
        _amounts(operator, "bytes")
        _kind_of(operator, "fabric", Fabric)
    else:
        kinds = "Gemm, Attention, Streaming, Collective or Scan"
        raise InputError(f"{type(operator).__name__} is no kernel", remedy=f"Give a {kinds}.")


def _check_gemm(gemm: Gemm) -> None:
    _whole(gemm, "m", "n", "k", "batch", "parts")
    _named(gemm, "dtype", "data type", tuple(DTYPE_BYTES))
    _named(gemm, "out_dtype", "data type", ("", *DTYPE_BYTES))
    _named(gemm, "layout", "layout", LAYOUTS)
    _footprint(gemm)
    _kind_of(gemm, "tile", Tile)


def _check_attention(attention: Attention, gpu: GpuModel) -> None:
    _whole(attention, "batch", "heads", "kv_heads", "sequence", "head_dim")
    _whole(attention, "kv_sequence", least=0)
    _named(attention, "direction", "direction", DIRECTIONS)
    _kind_of(attention, "tile", Tile)
    _whole(attention, "deterministic", least=0)
    _check_documents(attention)
    if attention.each_score:
        _named(attention, "each_score", "work on each score", (*EACH_SCORE, *MASKS))
    if attention.tile is None:
        _named(attention, "backend", "backend of attention", (*_known("kernel.attention.", gpu), *RESEMBLES))
        known = ("fp32",) if attention.backend == EFFICIENT else ATTENTION_DTYPES
        _named(attention, "dtype", "data type of attention", known)
    if attention.heads % attention.kv_heads:
        raise InputError(
            f"{attention.heads} heads cannot share {attention.kv_heads} of keys and values",
            key="kv_heads",
            remedy="Use a divisor of heads.",
        )


def _check_documents(attention: Attention) -> None:
    """Documents are Documents, fill a causal sequence at most, and are in a kernel of the library."""
    documents = attention.documents
    if documents is None:
        return
    _kind_of(attention, "documents", Documents)
    there = all(count > 0 and 0 < length <= attention.sequence for length, count in documents.pieces)
    tokens = sum(length * count for length, count in documents.pieces)
    if not there or not 0 < tokens <= attention.sequence * (1.0 + 1e-6):
        remedy = "Give pairs of a length and how many documents are as long, together no longer than the sequence."
        raise InputError(f"documents of {attention.sequence} tokens", key="documents", remedy=remedy)
    for field in ("deterministic", "tile"):
        if getattr(attention, field):
            remedy = "Leave one of them out."
            raise InputError(f"documents and {field} are not known together", key=field, remedy=remedy)
    if not attention.causal or attention.kv_sequence:
        raise InputError("documents are causal, each over its own keys", key="documents", remedy="Leave them out.")


def _check_streaming(streaming: Streaming, gpu: GpuModel) -> None:
    _amounts(streaming, "bytes_read", "bytes_written", "far_bytes", "elements")
    _whole(streaming, "rows", "columns", least=1 if streaming.pattern in ROW_BLOCKS else 0)
    _footprint(streaming)
    if not streaming.warps:
        _named(streaming, "pattern", "access pattern", (*_known("kernel.streaming.", gpu), *ROW_BLOCKS))


def _check_scan(scan: Scan) -> None:
    from joulecast.model.kernels.scan import KERNELS

    _named(scan, "kernel", "kernel of a state-space mixer", tuple(KERNELS))
    _named(scan, "dtype", "data type of a scan", ATTENTION_DTYPES[:2])
    _whole(scan, "batch", "sequence", "heads", "head_dim", "groups", "state", "chunk")
    if scan.heads % scan.groups:
        raise InputError(
            f"{scan.heads} heads are not divisible by {scan.groups} groups", key="groups", remedy="Use a divisor."
        )


def _known(prefix: str, gpu: GpuModel) -> tuple[str, ...]:
    """Names that stand behind a prefix among the GPU's parameters of more than one part."""
    rests = (key.removeprefix(prefix) for key in gpu.parameters if key.startswith(prefix))
    return tuple(dict.fromkeys(rest.partition(".")[0] for rest in rests if "." in rest))


def _whole(operator: Operator, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(operator, name)
        if not (_number(value) >= least and _number(value).is_integer()):
            raise InputError(f"{name} = {value!r}", key=name, remedy=f"It is a whole number of {least} or more.")


def _number(value: object) -> float:
    """A value as a number; NaN where it is none, which no bound holds."""
    return float(value) if isinstance(value, Real) else math.nan


def _optional(operator: Operator, *names: str) -> None:
    _whole(operator, *(name for name in names if getattr(operator, name) is not None))


def _amounts(operator: Operator, *names: str) -> None:
    for name in names:
        value = getattr(operator, name)
        if not 0 <= _number(value) < math.inf:
            raise InputError(f"{name} = {value!r}", key=name, remedy="It is a number of 0 or more.")


def _footprint(operator: Gemm | Streaming) -> None:
    value = operator.footprint_bytes
    if value is not None and not _number(value) >= 0:
        raise InputError(
            f"footprint_bytes = {value!r}", key="footprint_bytes", remedy="It is a number of 0 or more, inf, or None."
        )


def _kind_of(operator: Operator, field: str, kind: type) -> None:
    value = getattr(operator, field)
    if value is not None and not isinstance(value, kind):
        raise InputError(f"{field} = {value!r}", key=field, remedy=f"It is a {kind.__name__}, or None.")


def _named(operator: Operator, field: str, kind: str, known: tuple[str, ...]) -> None:
    value = getattr(operator, field)
    if value not in known:
        raise UnknownNameError(kind, str(value), [name for name in known if name], key=field)
