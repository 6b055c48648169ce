"""Queries times a number that grows with their position: of Llama 4 where it rotates none, Ministral 3 and Mistral 4.

Sources: ``Llama4TextAttention`` (``attn_temperature_tuning``), ``Ministral3Attention`` and ``Mistral4Attention`` of
transformers 5.17.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard


def scaled(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """The product, or its gradient, which is one with the same number; nothing where the model has none."""
    if not s.config.scaled_queries:
        return ()
    pattern = "unary" if s.implementation.framework == "megatron" else "strided_unary"
    width = s.config.head_dim if s.config.latent is None else s.config.latent.key_dim
    values = s.tokens * s.heads * width
    return (streaming(pattern, f"query.scale{suffix}", values, dtype=s.dtype),)
