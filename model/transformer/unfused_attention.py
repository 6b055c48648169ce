"""Attention as separate kernels, as Megatron-LM ran it before fused attention: two batched products around a softmax.

Forward: scores = Q·Kᵀ; one kernel scales, masks and takes the softmax; dropout, where there is any; then the product
with V. The products do not know the mask and compute all of the square. The backward has two products for each of the
forward's, and reads the softmax and its gradient. Keys and values that queries share are copied for each of them.

Sources: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, figure 4:
softmax, dropout mask (one byte a score) and dropped-out scores are kept, or recomputed selectively. Without dropout
PyTorch launches nothing for it, and the softmax alone is kept: ``DotProductAttention`` of Megatron-Core 0.16 and
``UnfusedDotProductAttention`` of Transformer Engine 2.11.
"""

from __future__ import annotations

import math

from joulecast.model.framework.launches import Launch, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm


def attention_forward(s: Shard) -> tuple[Launch, ...]:
    """Scores, softmax, dropout and the weighted sum of the values."""
    scores, dtype = score_count(s), s.dtype
    return (
        *_shared("repeat", s, reads=s.kv_heads / s.heads, writes=1.0),
        product("attention.scores", s, s.sequence, s.sequence, s.config.head_dim, "tn"),
        *_biased(s),
        row_wise("softmax", "attention.softmax", score_rows(s), s.sequence, dtype=dtype),
        *_dropped(streaming("unary", "attention.dropout", scores, writes=1.0 + _mask(dtype), dtype=dtype), s),
        product("attention.values", s, s.sequence, s.config.head_dim, s.sequence, "nn"),
    )


def attention_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of values, dropout, softmax, queries and keys."""
    scores, dtype, width = score_count(s), s.dtype, s.config.head_dim
    return (
        product("attention.dropped.dgrad", s, s.sequence, s.sequence, width, "tn"),
        product("attention.values.dgrad", s, s.sequence, width, s.sequence, "nt"),
        *_dropped(streaming("mul", "attention.dropout.grad", scores, reads=1.0 + _mask(dtype), dtype=dtype), s),
        row_wise("log_softmax_backward", "attention.softmax.grad", score_rows(s), s.sequence, reads=2, dtype=dtype),
        product("attention.queries.dgrad", s, s.sequence, width, s.sequence, "nn"),
        product("attention.keys.dgrad", s, s.sequence, width, s.sequence, "nt"),
        *_shared("grad.sum", s, reads=1.0, writes=s.kv_heads / s.heads),
    )


def _dropped(launch: Launch, s: Shard) -> tuple[Launch, ...]:
    """A kernel of dropout, where there is any."""
    return (launch,) if s.implementation.dropout else ()


def _shared(name: str, s: Shard, *, reads: float, writes: float) -> tuple[Launch, ...]:
    """Keys and values that several queries share, for each of them, or the sums of their gradients."""
    return () if s.heads == s.kv_heads else keys_and_values(name, s, reads=reads, writes=writes)


def keys_and_values(name: str, s: Shard, *, reads: float, writes: float) -> tuple[Launch, ...]:
    """A kernel each that moves keys and values, with ``reads`` and ``writes`` of a value for every query head."""
    values, dtype = s.tokens * s.heads * s.config.head_dim, s.dtype
    return tuple(
        streaming("copy", f"attention.{part}.{name}", values, reads=reads, writes=writes, dtype=dtype)
        for part in ("key", "value")
    )


def _biased(s: Shard) -> tuple[Launch, ...]:
    """ALiBi, which the product of queries and keys adds to: copied to where the scores will be, and read again."""
    if not s.config.alibi:
        return ()
    return (streaming("add", "attention.alibi", score_count(s), reads=2, dtype=s.dtype),)


def kept_bytes(s: Shard) -> float:
    """Softmax, and of dropout its mask and the dropped-out scores, which the backward reads [bytes]."""
    size = s.value_bytes
    return score_count(s) * (2.0 * size + 1.0 if s.implementation.dropout else size)


def product(name: str, s: Shard, m: int, n: int, k: int, layout: str, dtype: str = "") -> Launch:
    """A product of every head of every sequence."""
    batch, dtype = s.batch * s.heads, dtype or s.dtype
    return Launch(Gemm(m, n, k, dtype=dtype, layout=layout, batch=batch, footprint_bytes=math.inf, name=name))


def score_rows(s: Shard) -> int:
    """Rows of scores: one for each head's query."""
    return s.batch * s.heads * s.sequence


def score_count(s: Shard) -> float:
    """Scores of the whole square."""
    return float(score_rows(s)) * s.sequence


def _mask(dtype: str) -> float:
    """A byte for each value of ``dtype``."""
    return 1.0 / DTYPE_BYTES[dtype]
