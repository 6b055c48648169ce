"""Rotary embedding as Megatron-Core runs it on queries and keys: one kernel each, or PyTorch's operations.

Transformer Engine's kernel knows no factor beside sines and cosines. Where the model has one (YaRN of gpt-oss),
Megatron runs ``t·cos + rotate_half(t)·sin`` as written, ``apply_rope_fusion`` or not, and joins the result to what of a
head is not rotated, which may be nothing but is copied. The table is made anew for queries and for keys. In the
backward the gradient of what is not rotated is all zeros, and added.

Source: Megatron-Core ``apply_rotary_pos_emb`` and ``_apply_rotary_pos_emb_bshd``; Transformer Engine
``FusedRoPEFunc``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer.rotary import rotated

#: Kernels that make a table: cosine and sine in fp32, each times the factor, each rounded.
TABLE = 6


def forward(s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and keys; nothing where the model or the implementation has none."""
    if not s.config.scaled_rotary:
        return _fused(s, "")
    return tuple(launch for part, values in rotated(s) for launch in _unfused(s, f"rotary.unfused.{part}", values))


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    if not s.config.scaled_rotary:
        return _fused(s, ".grad")
    return tuple(
        launch for part, values in rotated(s) for launch in _unfused_backward(s, f"rotary.unfused.{part}.grad", values)
    )


def _fused(s: Shard, suffix: str) -> tuple[Launch, ...]:
    return tuple(streaming("rope", f"rotary.{part}{suffix}", values, dtype=s.dtype) for part, values in rotated(s))


def _unfused(s: Shard, name: str, whole: int) -> tuple[Launch, ...]:
    dtype, values = s.dtype, whole * s.config.rotary_fraction
    angles = s.sequence * s.config.head_dim * s.config.rotary_fraction
    return (
        replace(streaming("unary", f"{name}.table", angles, dtype="fp32"), repeat=TABLE),
        streaming("strided_binary", f"{name}.cos", values, dtype=dtype),
        streaming("strided_unary", f"{name}.neg", values / 2, dtype=dtype),
        streaming("cat", f"{name}.cat", values, dtype=dtype),
        streaming("strided_binary", f"{name}.sin", values, dtype=dtype),
        streaming("add", f"{name}.add", values, reads=2, dtype=dtype),
        streaming("cat", f"{name}.pass", whole, dtype=dtype),
    )


def _unfused_backward(s: Shard, name: str, whole: int) -> tuple[Launch, ...]:
    dtype, values = s.dtype, whole * s.config.rotary_fraction
    return (
        streaming("strided_binary", f"{name}.sin", values, dtype=dtype),
        streaming("strided_unary", f"{name}.neg", values / 2, dtype=dtype),
        streaming("cat", f"{name}.halves", values, dtype=dtype),
        streaming("strided_binary", f"{name}.cos", values, dtype=dtype),
        streaming("add", f"{name}.add", values, reads=2, dtype=dtype),
        streaming("fill", f"{name}.pass.fill", whole, reads=0, dtype=dtype),
        streaming("add", f"{name}.pass", whole, reads=2, dtype=dtype),
    )
