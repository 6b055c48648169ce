"""Attention as transformers calls it: PyTorch's own kernel takes a window, or documents, as a mask, others take sizes.

A layer whose window is not longer than the sequence gets a mask of true and false, as does every layer where positions
begin anew within a sequence (``find_packed_sequence_indices``), which PyTorch turns into a tensor
that is added to every score; keys and values are then repeated for every head, and nothing of the square is skipped.
Such kernels of cuDNN were seen in compiled models (:mod:`joulecast.model.transformer.modules_compiled`). The mask
itself is made once in a forward, for all layers; that is left out. PyTorch's kernel has no soft-capping, and
transformers drops it.

Source: ``sdpa_attention_forward`` and ``sdpa_mask`` of transformers 5.17; ``aten::where`` in PyTorch's
``scaled_dot_product_attention``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.attention import MASK
from joulecast.model.kernels.operators import Attention
from joulecast.model.transformer import (
    attention_kernel,
    core_attention,
    family_attention,
    math_attention,
    transformers_attention,
    transformers_rotary,
)
from joulecast.model.transformer.masked_values import chosen


def masked(s: Shard) -> bool:
    """Whether attention takes a mask: for its window, for documents or images in a sequence, in Falcon always."""
    run = s.implementation
    if run.modules != "transformers" or transformers_attention.applies(s) or not s.config.causal:
        return False
    blocks = run.images is not None and s.config.vision is not None and s.config.vision.blocks
    local = 0 < s.config.window <= s.sequence and run.attention_backend not in attention_kernel.TAKES_WINDOWS
    return local or blocks or attention_kernel.masks_documents(s) or s.family == "falcon"


def forward(s: Shard) -> tuple[Launch, ...]:
    """Attention of :func:`repeated` keys and values, behind the mask's conversion where it takes one."""
    if transformers_attention.applies(s):
        return _written_forward(s)
    launches = core_attention.core_attention(s, "forward")
    if not masked(s):
        return launches
    dtype, scores = s.dtype, s.batch * s.sequence**2
    return (chosen("attention.mask", scores, dtype), *with_mask(launches, s))


def repeated(s: Shard) -> tuple[Launch, ...]:
    """Keys and values for every head, where a fused kernel takes a mask; other code repeats them itself."""
    return transformers_attention.repeated(s) if _fused_with_mask(s) and not s.family else ()


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, behind attention's forward again where that is recomputed selectively."""
    if transformers_attention.applies(s):
        again = _written_forward(s) if s.implementation.recomputes("core_attn") else ()
        undone = family_attention.backward if s.family else transformers_attention.backward
        return (*again, *undone(s))
    launches = core_attention.backward(s)
    return with_mask(launches, s) if masked(s) else launches


def summed(s: Shard) -> tuple[Launch, ...]:
    """Gradients of :func:`repeated`, of which a family that groups heads has its own."""
    grouped = not s.family or family_attention.grouped(s)
    return transformers_attention.summed(s) if _fused_with_mask(s) and grouped else ()


def _fused_with_mask(s: Shard) -> bool:
    return masked(s) and not math_attention.applies(s)


def _written_forward(s: Shard) -> tuple[Launch, ...]:
    return (family_attention.forward if s.family else transformers_attention.forward)(s)


def turned(part: str, s: Shard) -> tuple[Launch, ...]:
    """Copy of the gradient of queries, keys or values from heads first to tokens first.

    So rotation leaves it, code that transformers writes itself, and sums over repeated heads of keys and values.
    """
    if s.family == "gptj":  # whose rotation is tokens first
        return (_turn(part, s),) if part == "value" else ()
    rotated = transformers_rotary.turned(part, s)
    summed = masked(s) and s.heads != s.kv_heads and part != "query"
    if rotated or not (transformers_attention.applies(s) or summed):
        return rotated
    return (_turn(part, s),)


def _turn(part: str, s: Shard) -> Launch:
    heads = s.heads if part == "query" else s.kv_heads
    return transformers_rotary.turn(f"attention.{part}.grad.clone", s.tokens * heads * s.config.head_dim, s)


def with_mask(launches: tuple[Launch, ...], s: Shard, mask: str = MASK) -> tuple[Launch, ...]:
    """Attention that adds a ``mask`` to every score of the square, with keys and values for every head."""
    return tuple(
        replace(one, operator=replace(one.operator, causal=False, kv_heads=s.heads, each_score=mask, window=0))
        if isinstance(one.operator, Attention)
        else one
        for one in launches
    )
