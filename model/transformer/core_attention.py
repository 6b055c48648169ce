"""What stands between attention's linear layers: one kernel, several, or other ranks' keys and values."""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import (
    attention_kernel,
    context_parallel,
    math_attention,
    narrow_kernels,
    pytorch_context,
)
from joulecast.model.transformer import unfused_attention as unfused


def core_attention(s: Shard, direction: str) -> tuple[Launch, ...]:
    """softmax(Q·Kᵀ)·V of one rank, ``forward`` or ``backward``."""
    run = s.implementation
    if run.context_parallel > 1 and run.modules == "torchtitan" and run.cp_comm_type != "a2a":
        return pytorch_context.forward(s) if direction == "forward" else pytorch_context.backward(s)
    if run.context_parallel > 1:
        return (*_cast(s, direction), *context_parallel.attention(s, direction))
    if math_attention.applies(s):
        return math_attention.forward(s) if direction == "forward" else math_attention.backward(s)
    if s.implementation.attention_backend != "unfused":
        return (*_cast(s, direction), Launch(attention_kernel.attention(s, direction)))
    return unfused.attention_forward(s) if direction == "forward" else unfused.attention_backward(s)


def _cast(s: Shard, direction: str) -> tuple[Launch, ...]:
    """FP8 copies of queries, keys and values, or of the gradient of the result, with one scale for each tensor."""
    narrow = s.implementation.narrow
    if narrow is None or not s.implementation.attention_fp8:
        return ()
    name, width = ("attention.qkv", s.qkv_width) if direction == "forward" else ("attention.grad", s.attention_width)
    scaled = replace(narrow, recipe="delayed" if narrow.recipe == "delayed" else "tensorwise")
    return narrow_kernels.quantise(name, s.tokens * width, scaled, s.dtype, copies=1)


def backward(s: Shard) -> tuple[Launch, ...]:
    """The gradient, behind the forward again where that is recomputed selectively."""
    again = core_attention(s, "forward") if s.implementation.recomputes("core_attn") else ()
    return (*again, *core_attention(s, "backward"))
