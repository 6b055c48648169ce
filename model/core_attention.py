"""What stands between attention's linear layers in Megatron: one kernel, several, or other ranks' keys and values."""

from __future__ import annotations

from joulecast.model import context_parallel
from joulecast.model import transformer_layer as eager
from joulecast.model import unfused_attention as unfused
from joulecast.model.launches import Launch, Shard


def core_attention(s: Shard, direction: str) -> tuple[Launch, ...]:
    """softmax(Q·Kᵀ)·V of one rank, ``forward`` or ``backward``."""
    if s.implementation.context_parallel > 1:
        return context_parallel.attention(s, direction)
    if s.implementation.attention_backend != "unfused":
        return (Launch(eager.attention(s, direction)),)
    return unfused.attention_forward(s) if direction == "forward" else unfused.attention_backward(s)


def backward(s: Shard) -> tuple[Launch, ...]:
    """The gradient, behind the forward again where that is recomputed selectively."""
    again = core_attention(s, "forward") if s.implementation.recomputes("core_attn") else ()
    return (*again, *core_attention(s, "backward"))
