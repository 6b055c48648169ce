"""Attention as transformers calls it: PyTorch's own kernel, which takes a window as a mask.

A layer whose window is not longer than the sequence gets a mask of true and false, which PyTorch turns into a tensor
that is added to every score; keys and values are then repeated for every head, and nothing of the square is skipped.
Such kernels of cuDNN were seen in compiled models (:mod:`joulecast.model.transformer.modules_compiled`). The mask
itself is made once in a forward, for all layers; that is left out. PyTorch's kernel has no soft-capping, and
transformers drops it.

Source: ``sdpa_attention_forward`` and ``sdpa_mask`` of transformers 5.17; ``aten::where`` in PyTorch's
``scaled_dot_product_attention``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Attention
from joulecast.model.transformer import core_attention, turned_rotary


def masked(s: Shard) -> bool:
    """Whether attention takes a mask for its window."""
    return s.implementation.modules == "transformers" and 0 < s.config.window <= s.sequence


def forward(s: Shard) -> tuple[Launch, ...]:
    """Attention, behind repeated keys and values and the mask's conversion where it takes one."""
    if not masked(s):
        return core_attention.core_attention(s, "forward")
    dtype, scores = s.implementation.dtype, s.batch * s.sequence**2
    mask = streaming("unary", "attention.mask", scores, reads=0.5, dtype=dtype)
    return (*_repeated(s), mask, *with_mask(core_attention.core_attention(s, "forward"), s))


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, behind attention's forward again where that is recomputed selectively."""
    launches = core_attention.backward(s)
    return (*with_mask(launches, s), *_summed(s)) if masked(s) else launches


def turned_values(s: Shard) -> tuple[Launch, ...]:
    """Copy of repeated values' summed gradient from heads first to tokens first."""
    if not masked(s) or s.heads == s.kv_heads:
        return ()
    return (turned_rotary.turn("attention.value.grad.clone", s.tokens * s.kv_heads * s.config.head_dim, s),)


def with_mask(launches: tuple[Launch, ...], s: Shard) -> tuple[Launch, ...]:
    """Attention that adds a mask to every score of the square, with keys and values for every head."""
    return tuple(
        replace(one, operator=replace(one.operator, causal=False, kv_heads=s.heads, each_score="mask", window=0))
        if isinstance(one.operator, Attention)
        else one
        for one in launches
    )


def _repeated(s: Shard) -> tuple[Launch, ...]:
    """Keys and values for every head."""
    share, values = s.kv_heads / s.heads, s.tokens * s.heads * s.config.head_dim
    if share == 1:
        return ()
    dtype = s.implementation.dtype
    return tuple(streaming("copy", f"attention.{part}.repeat", values, reads=share, dtype=dtype) for part in _PARTS)


def _summed(s: Shard) -> tuple[Launch, ...]:
    """Gradients of keys and values summed over the heads that share them."""
    share, values = s.kv_heads / s.heads, s.tokens * s.heads * s.config.head_dim
    if share == 1:
        return ()
    dtype = s.implementation.dtype
    return tuple(streaming("copy", f"attention.{part}.grad.sum", values, writes=share, dtype=dtype) for part in _PARTS)


_PARTS = ("key", "value")
