"""Attention whose result is multiplied by a sigmoid of as many values, which the product for queries makes too.

Queries and gates stand side by side in each head of that product. Operators are those that such a layer dispatched,
their times counted, not measured.

Source: ``Qwen3NextAttention`` of transformers 5.17.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, reordered, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import transformers_rotary


def cut_out(s: Shard) -> tuple[Launch, ...]:
    """Gates out of the product; queries are widened where they stand."""
    return (reordered("gate.cut", _values(s), s.dtype),) if s.config.gated_attention else ()


def forward(s: Shard) -> tuple[Launch, ...]:
    """The result times the gate's sigmoid."""
    if not s.config.gated_attention:
        return ()
    values, dtype = _values(s), s.dtype
    return (
        streaming("unary", "attention.gate.sigmoid", values, dtype=dtype),
        streaming("mul", "attention.gated", values, reads=2, dtype=dtype),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of the result and of the gate."""
    if not s.config.gated_attention:
        return ()
    steps = ("gated.grad", "gate.grad", "gate.sigmoid.grad")
    return tuple(streaming("mul", f"attention.{step}", _values(s), reads=2, dtype=s.dtype) for step in steps)


def joined(s: Shard) -> tuple[Launch, ...]:
    """Gradients of queries, heads first, and of gates joined head by head."""
    return (transformers_rotary.joined("query.grad.cat", 2 * _values(s), s),)


def kept_width(s: Shard) -> int:
    """Values of a token that the backward reads beside those of attention: the sigmoid, and what it multiplied."""
    return 2 * s.attention_width if s.config.gated_attention else 0


def _values(s: Shard) -> int:
    return s.tokens * s.attention_width
