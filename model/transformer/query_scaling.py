"""Queries times a number that grows with their position: Llama 4's without rotary embedding, Ministral 3's.

Sources: ``Llama4TextAttention`` (``attn_temperature_tuning``) and ``Ministral3Attention`` of transformers 5.17.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard


def scaled(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """The product, or its gradient, which is one with the same number; nothing where the model has none."""
    if not s.config.scaled_queries:
        return ()
    pattern = "unary" if s.implementation.framework == "megatron" else "strided_unary"
    values = s.tokens * s.heads * s.config.head_dim
    return (streaming(pattern, f"query.scale{suffix}", values, dtype=s.implementation.dtype),)
