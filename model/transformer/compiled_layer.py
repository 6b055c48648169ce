"""One transformer layer of PyTorch that ``torch.compile`` has fused: element-wise kernels and norms, not products.

Inductor leaves products, attention and communication to the libraries. Between them it makes one kernel of what reads
and writes the same values, and computes cheap results again instead of keeping them:

    norm, qkv, attention, output, (residual + norm), up, (activation · gate), down, (both residuals)
    down, (gradient of the gated activation, and its result again), up, (gradient of norm + residual), output, …

Sources: PyTorch 2.11's Inductor as it compiled the layers of `validate/recorded/h200_sxm/train_float8.jsonl`; the
paces are those of kernels of the same access pattern, none is fitted to these rows.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import core_attention, float8_linear, linear
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.rotary import head_norm_backward, head_norm_forward


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    return (
        _norm("norm1", s, reads=1),
        *eager.enter_forward("qkv", s),
        *float8_linear.forward(linear.qkv(s), s),
        *head_norm_forward(s),
        *_rotary("rotary", s),
        *core_attention.core_attention(s, "forward"),
        *float8_linear.forward(linear.output(s), s),
        *eager.leave_forward("output", s),
        _norm("norm2", s, reads=2),
        *eager.enter_forward("up", s),
        *float8_linear.forward(linear.up(s), s),
        _activation(s),
        *float8_linear.forward(linear.down(s), s),
        *eager.leave_forward("down", s),
        _residual(s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """Backward of a layer."""
    return (
        *eager.leave_backward("down", s),
        *eager.linear_backward(linear.down(s), s, accumulate),
        _activation_backward(s),
        *eager.linear_backward(linear.up(s), s, accumulate),
        *_norm_backward("norm2", "up", s, accumulate, reads=4),
        *eager.leave_backward("output", s),
        *eager.linear_backward(linear.output(s), s, accumulate),
        *core_attention.backward(s),
        *_rotary("rotary.grad", s),
        *head_norm_backward(s, accumulate),
        streaming("cat", "qkv.cat", s.tokens * s.qkv_width, dtype=s.dtype),
        *eager.linear_backward(linear.qkv(s), s, accumulate),
        *_norm_backward("norm1", "qkv", s, accumulate, reads=3),
        *((eager.residual_addition("norm1.grad.leaf", s),) if leaf_input else ()),
    )


def _norm(name: str, s: Shard, *, reads: int) -> Launch:
    """A norm of the residual stream, or of its sum with a block's result."""
    rows, columns = s.norm_tokens, s.hidden
    pattern, dtype = s.config.norm, s.dtype
    return row_wise(pattern, name, rows, columns, reads=reads, dtype=dtype)


def _residual(s: Shard) -> Launch:
    return streaming("add", "residual", s.stream_values, reads=3, dtype=s.dtype)


def _activation(s: Shard) -> Launch:
    gated, elements = s.config.gated_mlp, s.tokens * s.ffn
    pattern = "swiglu" if gated else "gelu" if s.config.activation == "gelu" else "unary"
    return streaming(pattern, "activation", elements, reads=2 if gated else 1, dtype=s.dtype)


def _activation_backward(s: Shard) -> Launch:
    """Gradient of the activation, with its result again for the weights' gradient; of a gate, on strided halves."""
    elements, dtype = s.tokens * s.ffn, s.dtype
    if s.config.gated_mlp:
        return streaming("strided_binary", "activation.grad", elements, reads=3, writes=3, dtype=dtype)
    pattern = "gelu_backward" if s.config.activation == "gelu" else "mul"
    return streaming(pattern, "activation.grad", elements, reads=2, writes=2, dtype=dtype)


def _norm_backward(norm: str, linear: str, s: Shard, accumulate: bool, *, reads: int) -> tuple[Launch, ...]:
    """Gradient of a norm with the residual stream's gradient; communication stands where eager mode has it."""
    kernels, sums = eager.norm_backward(norm, s, accumulate, reads=reads)
    return (*eager.enter_backward(linear, s), *kernels, *sums)


def _rotary(name: str, s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and keys, or its gradient, in one kernel."""
    if not (s.config.rotary and s.implementation.rotary):
        return ()
    values = s.tokens * (s.heads + s.kv_heads) * s.config.head_dim
    return (streaming("rope", name, values, dtype=s.dtype),)
