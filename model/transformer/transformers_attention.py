"""Attention as transformers writes it (``eager_attention_forward``): a kernel for each operation on the scores.

Keys and values are copied for every head, queries heads first; then product, scaling, soft-capping where the
model has it, the addition of a mask, softmax in fp32 and the product with the values. Of a model with sinks (gpt-oss)
each row's learned score is joined behind its scores, the row's maximum subtracted, and the softmax taken in the scores'
type; what follows reads rows that are one value longer and not aligned. Nothing of the square is skipped.

Source: transformers 5.17, as many kernels as it dispatches forward and backward. Iterations of Gemma 2 were met within
2 % before they were looked at; one of gpt-oss gave the cycles of rows that are not aligned
(`validate/recorded/h200_sxm/train_families_second.jsonl`). Kernels of BLOOM and MPT then showed that errors had
cancelled: a softmax holds a row in registers and takes a third of what it was given, its gradient first multiplies both
tensors in a kernel of its own, and masks cost more (``…_third.jsonl``).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.row_softmax import PATTERN, WARP_COLUMNS
from joulecast.model.transformer import softcap, transformers_rotary, unfused_norm
from joulecast.model.transformer.row_operators import from_fp32, to_fp32
from joulecast.model.transformer.unfused_attention import keys_and_values, product, score_count, score_rows

#: Cycles of an SM for a score in a row that is one value longer than its aligned ones: joined, its row's maximum found,
#: softmax, and its gradient. From gpt-oss with 2,048 tokens [estimates, +-10 %].
JOINED, LARGEST, SOFTMAX, SOFTMAX_GRADIENT = 1.55, 0.25, 1.38, 0.73
#: Of an aligned score: its softmax, where a warp holds a row, and the addition of a mask that heads share, of scores of
#: two and of four bytes, by rows of 512 to 2,048 on one H200 (``validate/recorded/eager_attention``) [+-5 %].
ROW_SOFTMAX, MASK_ADDED, WIDE_MASK_ADDED = 0.35, 0.71, 0.86
#: Of a value of keys and values that is copied for every head. StarCoder2, 12 heads to one [estimate, +-10 %].
REPEATED = 0.8


def applies(s: Shard) -> bool:
    """Whether attention is transformers' own code."""
    return s.implementation.modules == "transformers" and s.implementation.attention_backend == "unfused"


def repeated(s: Shard) -> tuple[Launch, ...]:
    """Keys and values for every head."""
    if s.heads == s.kv_heads:
        return ()
    values, share = s.tokens * s.heads * s.config.head_dim, s.kv_heads / s.heads
    return tuple(repeat(f"attention.{part}", values, share, s) for part in ("key", "value"))


def repeat(name: str, values: int, share: float, s: Shard) -> Launch:
    """Heads copied for several others, so many values in all, of which there were a ``share``."""
    busy = transformers_rotary.BUSY
    return issued("unary", f"{name}.repeat", values, REPEATED * values, activity=busy, reads=share, dtype=s.dtype)


def summed(s: Shard) -> tuple[Launch, ...]:
    """Gradients of keys and values summed over the heads that share them."""
    if s.heads == s.kv_heads:
        return ()
    return keys_and_values("grad.sum", s, reads=1.0, writes=s.kv_heads / s.heads)


def forward(s: Shard) -> tuple[Launch, ...]:
    """From rotated queries and keys to the heads' results, tokens first."""
    scores, dtype, width, more = score_count(s), s.dtype, s.config.head_dim, s.config.attention_sinks
    return (
        *_copied(s),
        *_copied_queries(s),
        product("attention.scores", s, s.sequence, s.sequence, width, "tn"),
        streaming("unary", "attention.scale", scores, dtype=dtype),
        *softcap.forward("attention", scores, dtype, present=s.config.attention_softcap),
        mask_added("attention.masked", s, dtype),
        *(_softmax_with_sinks(s) if more else _softmax(s)),
        product("attention.values", s, s.sequence, width, s.sequence + more, "nn"),
        transformers_rotary.turn("attention.clone", s.tokens * s.attention_width, s),
    )


def _copied(s: Shard) -> tuple[Launch, ...]:
    """Keys and values heads first, for every head."""
    return repeated(s) or keys_and_values("copy", s, reads=1.0, writes=1.0)


def _copied_queries(s: Shard) -> tuple[Launch, ...]:
    """Queries heads first; joined parts of them are so already."""
    if s.config.half_rotary or transformers_rotary.parted(s):
        return ()
    return (transformers_rotary.turn("attention.query.copy", s.tokens * s.attention_width, s),)


def _softmax(s: Shard) -> tuple[Launch, ...]:
    name, scores, dtype = "attention.softmax", score_count(s), s.dtype
    return (*to_fp32(f"{name}.widen", scores, dtype), row_softmax(s), *from_fp32(f"{name}.round", scores, dtype))


def _softmax_with_sinks(s: Shard) -> tuple[Launch, ...]:
    rows, dtype, columns = score_rows(s), s.dtype, s.sequence + 1
    longer = rows * columns
    return (
        issued("cat", "attention.sinks.cat", longer, JOINED * longer, activity=1.0, dtype=dtype),
        issued("unary", "attention.max", longer, LARGEST * longer, activity=1.0, writes=1 / columns, dtype=dtype),
        unfused_norm.by_column("attention.shifted", longer, dtype),
        issued("unary", "attention.softmax", longer, SOFTMAX * longer, activity=1.0, dtype=dtype),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, to those of keys and values of their own heads."""
    scores, dtype, width, more = score_count(s), s.dtype, s.config.head_dim, s.config.attention_sinks
    scale = streaming("strided_unary" if more else "unary", "attention.scale.grad", scores, dtype=dtype)
    return (
        transformers_rotary.turn("attention.grad.clone", s.tokens * s.attention_width, s),
        product("attention.values.dgrad", s, s.sequence + more, width, s.sequence, "nt"),
        product("attention.softmax.dgrad", s, s.sequence, s.sequence, width, "tn"),
        *(_softmax_with_sinks_backward(s) if more else _softmax_backward(s)),
        *softcap.backward("attention", scores, dtype, present=s.config.attention_softcap),
        scale,
        product("attention.keys.dgrad", s, width, s.sequence, s.sequence, "nt"),
        product("attention.queries.dgrad", s, s.sequence, width, s.sequence, "nn"),
        *summed(s),
    )


def _softmax_backward(s: Shard) -> tuple[Launch, ...]:
    name, scores, dtype = "attention.softmax.grad", score_count(s), s.dtype
    narrow = from_fp32(f"{name}.round", scores, dtype)
    return (*to_fp32(f"{name}.widen", scores, dtype), *row_softmax_gradient(s), *narrow)


def row_softmax(s: Shard, dtype: str = "fp32") -> Launch:
    """Softmax of every row of scores: up to 2,048 of them by a warp that holds a row, else by a block."""
    scores, name = score_count(s), "attention.softmax"
    if s.sequence > WARP_COLUMNS:
        return row_wise(PATTERN, name, score_rows(s), s.sequence, dtype=dtype)
    return issued("unary", name, scores, ROW_SOFTMAX * scores, activity=1.0, dtype=dtype)


def row_softmax_gradient(s: Shard, dtype: str = "fp32") -> tuple[Launch, ...]:
    """Its gradient: the product of both tensors, which the second kernel sums by rows."""
    scores, name = score_count(s), "attention.softmax.grad"
    return (
        streaming("mul", f"{name}.product", scores, reads=2, dtype=dtype),
        streaming("unary", name, scores, reads=2, dtype=dtype),
    )


def mask_added(name: str, s: Shard, dtype: str) -> Launch:
    """A mask that heads share added to every score."""
    scores, reads = score_count(s), 1.0 + 1.0 / s.heads
    cycles = (WIDE_MASK_ADDED if dtype == "fp32" else MASK_ADDED) * scores
    return issued("unary", name, scores, cycles, activity=1.0, reads=reads, dtype=dtype)


def _softmax_with_sinks_backward(s: Shard) -> tuple[Launch, ...]:
    rows, dtype, columns = score_rows(s), s.dtype, s.sequence + 1
    longer = rows * columns
    return (
        streaming("fill", "attention.sinks.slice.fill", longer, reads=0, dtype=dtype),
        streaming("strided_unary", "attention.sinks.slice.copy", score_count(s), dtype=dtype),
        streaming("mul", "attention.softmax.grad.product", longer, reads=2, dtype=dtype),
        issued(
            "unary", "attention.softmax.grad", longer, SOFTMAX_GRADIENT * longer, activity=1.0, reads=2, dtype=dtype
        ),
        streaming("unary", "attention.shifted.grad", longer, dtype=dtype),
        row_wise("reduce", "attention.max.grad", rows, columns, writes=1 / columns, dtype=dtype),
        streaming("fill", "attention.max.grad.fill", longer, reads=0, dtype=dtype),
        streaming("unary", "attention.max.grad.put", rows, dtype=dtype),
        streaming("add", "attention.max.grad.add", longer, reads=2, dtype=dtype),
    )


def kept_bytes(s: Shard) -> float:
    """What the backward reads of scores: softmax in fp32 and rounded, or with sinks once; the capped ones' tangent."""
    size = s.value_bytes
    if s.config.attention_sinks:
        return size * score_rows(s) * (s.sequence + 1)
    wide = 4.0 if size < 4.0 else 0.0
    return score_count(s) * (size + wide + size * s.config.attention_softcap)


def gradient_bytes(s: Shard) -> float:
    """What the softmax's gradient holds beside what is kept, less the rounded softmax, of which the values' was made.

    The softmax's gradient in fp32, its product with the softmax and the scores' gradient are there at once, as peaks of
    two iterations on an H200 show.
    """
    size = s.value_bytes
    if s.config.attention_sinks:
        return 3.0 * size * score_rows(s) * (s.sequence + 1)
    return (12.0 - size * (size < 4.0)) * score_count(s)
