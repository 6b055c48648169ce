"""PyTorch's attention where none of its fused kernels takes the tensors: a kernel for each operation, in fp32.

Falcon-7B gives one key and value for all queries as they are, with a mask and without saying that queries share them.
Flash and memory-efficient kernels and cuDNN's refuse that, and ``_scaled_dot_product_attention_math`` is left. So it is
of fp32 where queries share keys, as kernels for fp32 want a key for every query (`validate/recorded/wide_values`). It
widens queries, keys and values, spreads the latter over the heads, multiplies in fp32, and after the softmax looks for
rows that a mask leaves empty. The whole square passes through memory in fp32 some thirty times.

Source: ``aten/src/ATen/native/transformers/attention.cpp`` of PyTorch 2.11 (``_safe_softmax``), as many kernels as it
dispatches but for what it splits beyond 2³¹ bytes; kernels of Falcon-7B on an H200, which was forecast 60 % too short
before (`validate/recorded/h200_sxm/train_families_third.jsonl`).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import masked_values, transformers_attention, transformers_rotary
from joulecast.model.transformer.expert_weights import MIXED_SHARED
from joulecast.model.transformer.row_operators import from_fp32, to_fp32
from joulecast.model.transformer.unfused_attention import product, score_count

#: Cycles of an SM for one of a row's flags that are combined (``all``), from Falcon-7B [estimate, +-10 %].
COMBINED = 0.144
#: Bytes of an fp32 value over those of a flag.
FLAG = 0.25


def applies(s: Shard) -> bool:
    """Whether PyTorch's attention is given fewer keys than queries, without being told so or in fp32."""
    run = s.implementation
    if s.config.kv_heads == s.config.heads or run.modules == "joint" or run.attention_backend == "unfused":
        return False
    return (s.family == "falcon" and s.config.kv_heads == 1) or run.dtype == "fp32"


def forward(s: Shard) -> tuple[Launch, ...]:
    """From rotated queries, one key and one value to the heads' results, tokens first."""
    width, scores, dtype = s.config.head_dim, score_count(s), s.dtype
    each, shared = _values(s)
    return (
        *to_fp32("attention.query.widen", each, dtype),
        *to_fp32("attention.key.widen", shared, dtype),
        *to_fp32("attention.value.widen", shared, dtype),
        streaming("unary", "attention.query.scale", each, dtype="fp32"),
        streaming("unary", "attention.key.scale", shared, dtype="fp32"),
        transformers_rotary.turn("attention.query.clone", each, s, "fp32"),
        transformers_rotary.turn("attention.key.spread", each, s, "fp32"),
        product("attention.scores", s, s.sequence, s.sequence, width, "tn", "fp32"),
        issued("unary", "attention.masked", scores, MIXED_SHARED * scores, activity=1.0, dtype="fp32"),
        *_safe_softmax(s),
        transformers_rotary.turn("attention.value.spread", each, s, "fp32"),
        product("attention.values", s, s.sequence, width, s.sequence, "nn", "fp32"),
        *from_fp32("attention.result.round", each, dtype),
        transformers_rotary.turn("attention.clone", each, s),
    )


def _safe_softmax(s: Shard) -> tuple[Launch, ...]:
    """Softmax; zeros where all scores of a row were masked; and its copy in the inputs' type, which nobody reads."""
    scores, name = score_count(s), "attention.softmax"
    return (
        transformers_attention.row_softmax(s),
        streaming("unary", f"{name}.masked", scores, writes=FLAG, dtype="fp32"),
        issued("unary", f"{name}.all", scores, COMBINED * scores, activity=1.0, reads=FLAG, writes=0, dtype="fp32"),
        masked_values.filled(f"{name}.where", scores, "fp32"),
        *from_fp32(f"{name}.round", scores, s.dtype),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    width, (each, shared), dtype = s.config.head_dim, _values(s), s.dtype
    return (
        *to_fp32("attention.grad.widen", each, dtype),
        transformers_rotary.turn("attention.grad.clone", each, s, "fp32"),
        product("attention.values.dgrad", s, s.sequence, width, s.sequence, "nt", "fp32"),
        product("attention.softmax.dgrad", s, s.sequence, s.sequence, width, "tn", "fp32"),
        streaming("copy", "attention.value.grad.sum", each, writes=shared / each, dtype="fp32"),
        *transformers_attention.row_softmax_gradient(s),
        product("attention.keys.dgrad", s, width, s.sequence, s.sequence, "nt", "fp32"),
        product("attention.queries.dgrad", s, s.sequence, width, s.sequence, "nn", "fp32"),
        streaming("copy", "attention.key.grad.sum", each, writes=shared / each, dtype="fp32"),
        streaming("unary", "attention.key.scale.grad", shared, dtype="fp32"),
        streaming("unary", "attention.query.scale.grad", each, dtype="fp32"),
        *from_fp32("attention.value.grad.round", shared, dtype),
        *from_fp32("attention.key.grad.round", shared, dtype),
        *from_fp32("attention.query.grad.round", each, dtype),
    )


def kept_bytes(s: Shard) -> float:
    """Softmax, and queries, keys and values for every head, in fp32."""
    return 4.0 * (score_count(s) + 3.0 * _values(s)[0])


def gradient_bytes(s: Shard) -> float:
    """Gradient of the softmax, its product with the softmax, and the scores' gradient, which are there at once."""
    return 3.0 * 4.0 * score_count(s)


def _values(s: Shard) -> tuple[int, int]:
    """Values of all queries, and of the one key."""
    return s.tokens * s.heads * s.config.head_dim, s.tokens * s.kv_heads * s.config.head_dim
