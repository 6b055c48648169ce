"""Operator families: groups of kernels whose forecasts err by about as much, so that one error is stated for all.

A kind of operator (products, attention, kernels that move data, collectives) has several families where the model's
form errs differently:

- products: those that leave most SMs idle, multiply special values, belong to experts, or run in FP8 or FP4;
- attention: each direction, and kinds of which no row was measured;
- kernels that move data: from L2, with reductions, or bound by their instructions;
- scans: all kernels of state-space mixers;
- collectives: all-reduces, small messages, communication between nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.kernels.attention import looking
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Operator, Scan, Streaming
from joulecast.model.kernels.positions import WINDOWS

#: Every family; the first word is the kind, whose figure stands in where a family has none.
FAMILIES = (
    "gemm",
    "gemm_small",
    "gemm_values",
    "gemm_grouped_gradient",
    "gemm_separate",
    "gemm_fp8",
    "attention_forward",
    "attention_backward",
    "streaming",
    "streaming_l2",
    "streaming_reduction",
    "streaming_issued",
    "tile_gemm",
    "tile_rows",
    "tile_attention",
    "collective",
    "collective_all_reduce",
    "collective_small",
    "network",
    "attention_unmeasured",
    "gemm_fp4",
    "streaming_fp4",
    "attention_positions",
    "scan",
)
_INDEX = {family: index for index, family in enumerate(FAMILIES)}
#: Patterns that combine values of a row or a column.
REDUCTIONS = frozenset(
    {
        *("sum", "reduce", "reduce_min", "bias_reduce", "gamma_backward", "softmax", "log_softmax", "rmsnorm"),
        *("layernorm", "norm_backward", "nll_loss", "embedding_backward", "embedding_segments", "embedding_sort"),
        "vllm_rms_norm",
    }
)
#: Smaller messages are bound by latencies and launches, not by the link [bytes].
SMALL_MESSAGE = 16e6
#: A product is small when its outputs make fewer tiles of this size than half the SMs.
TILE_OUTPUTS = 128 * 128


#: Heads that are twice as wide as any whose attention was measured.
WIDE_HEADS = 256


def families_of(operators: Sequence[Operator], device: Mapping[str, float]) -> Int:
    """Index into :data:`FAMILIES` of each operator on a GPU with these data-sheet facts, shape ``(n,)``."""
    sizes = 0.5 * TILE_OUTPUTS * device["sm_count"], device["l2_bytes"]
    found = [_INDEX[_BY_KIND[type(operator)](operator, *sizes)] for operator in operators]
    return np.array(found, dtype=np.int64)


def _product(operator: Gemm, small_outputs: float, cache_bytes: float) -> str:
    if operator.tile is not None:
        return "tile_gemm"
    if operator.dtype == "fp4":
        return "gemm_fp4"
    if operator.m * operator.parts * operator.n * operator.batch < small_outputs:
        return "gemm_small"
    return _large_product(operator)


def _large_product(operator: Gemm) -> str:
    """Of a library's product that fills the GPU."""
    if operator.grouped and operator.layout == "nt":
        return "gemm_grouped_gradient"
    if operator.separate:
        return "gemm_separate"
    if operator.dtype == "fp8" and operator.out_dtype:  # as frameworks call it, with scales and a wider result
        return "gemm_fp8"
    return "gemm" if operator.data == "randn" else "gemm_values"


def _attention(operator: Attention, small_outputs: float, cache_bytes: float) -> str:
    """Of attention: kernels with soft-capping, ALiBi or wide heads were measured on no card.

    Which of its backwards in FP8 cuDNN chooses is not known.
    """
    if operator.tile is not None:
        return "tile_attention"
    if (operator.dtype, operator.direction) == ("fp8", "backward"):
        return "attention_unmeasured"
    if operator.each_score in ("softcap", "alibi") or operator.head_dim >= WIDE_HEADS:
        return "attention_unmeasured"
    if operator.documents is not None or 0 < operator.window < operator.keys:
        return "attention_positions" if looking(operator.backend) in WINDOWS else "attention_unmeasured"
    return f"attention_{operator.direction}"


def _streaming(operator: Streaming, small_outputs: float, cache_bytes: float) -> str:
    if operator.warps:
        return "tile_rows"
    if operator.dtype == "fp4":
        return "streaming_fp4"
    if operator.sm_cycles:
        return "streaming_issued"
    own = operator.bytes_read + operator.bytes_written
    touched = own if operator.footprint_bytes is None else operator.footprint_bytes
    if touched < cache_bytes:
        return "streaming_l2"
    return "streaming_reduction" if operator.pattern in REDUCTIONS else "streaming"


def _collective(operator: Collective, small_outputs: float, cache_bytes: float) -> str:
    if operator.fabric is not None and operator.fabric.domains > 1:
        return "network"
    if operator.bytes < SMALL_MESSAGE:
        return "collective_small"
    return "collective_all_reduce" if operator.kind == "all_reduce" else "collective"


#: What tells the family of each kind of operator; a table, as a chain of questions takes half as many calls again.
_BY_KIND: Mapping[type, Callable[..., str]] = {
    Gemm: _product,
    Attention: _attention,
    Streaming: _streaming,
    Collective: _collective,
    Scan: lambda *_: "scan",
}


def spread_of_families(known: Mapping[str, Mapping[str, float]], quantity: str, unknown: float) -> Array:
    """Relative standard deviation of every family; its kind's or ``unknown`` where it has none."""

    def of(family: str) -> float:
        own = known.get(family) or known.get(family.partition("_")[0]) or {}
        return float(own.get(quantity, unknown))

    return np.array([of(family) for family in FAMILIES])
