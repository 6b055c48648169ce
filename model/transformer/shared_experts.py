"""The shared experts of a Mixture of Experts in PyTorch's eager mode: an MLP that sees every token, beside the routed.

It runs before the routed experts' results are summed. Its result may be scaled by a gate of its own, one number for a
token (Qwen2-MoE). None was measured.

Source: TorchTitan, ``models/moe``, whose shared experts are the dense layers' MLP.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import float8_linear
from joulecast.model.transformer.expert_rows import experts_of
from joulecast.model.transformer.linear import shared_down, shared_up


def forward(s: Shard) -> tuple[Launch, ...]:
    """The MLP and its gate; nothing without shared experts."""
    if not s.ffn:
        return ()
    return (
        *eager.enter_forward("shared_up", s),
        *float8_linear.forward(shared_up(s), s),
        *eager.activation_forward(s),
        *float8_linear.forward(shared_down(s), s),
        *eager.leave_forward("shared_down", s),
        *_gate_forward(s),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, to which that of the routed experts' input is added."""
    if not s.ffn:
        return ()
    return (
        *_gate_backward(s, accumulate),
        *eager.leave_backward("shared_down", s),
        *eager.linear_backward(shared_down(s), s, accumulate),
        *eager.activation_backward(s),
        *eager.linear_backward(shared_up(s), s, accumulate),
        *eager.enter_backward("shared_up", s),
        eager.residual_addition("shared.grad.join", s),
    )


def _gate_forward(s: Shard) -> tuple[Launch, ...]:
    """Each token's number, from a product with one column, and the MLP's result times it."""
    if not experts_of(s).shared_gate:
        return ()
    values, dtype = s.stream_values, s.dtype
    return (
        streaming("reduce", "shared.gate.score", values, writes=1.0 / s.hidden, dtype=dtype),
        streaming("unary", "shared.gate.sigmoid", s.norm_tokens, dtype=dtype),
        streaming("mul", "shared.gate", values, reads=2, dtype=dtype),
    )


def _gate_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the result, of the tokens' numbers and of the column that makes them."""
    if not experts_of(s).shared_gate:
        return ()
    hidden, dtype, values = s.hidden, s.dtype, s.stream_values
    column = streaming("reduce", "shared.gate.column.grad", values, writes=1.0 / s.norm_tokens, dtype=dtype)
    return (
        streaming("mul", "shared.gate.grad", values, reads=2, dtype=dtype),
        streaming("mul", "shared.gate.score.product", values, reads=2, dtype=dtype),
        streaming("reduce", "shared.gate.score.grad", values, writes=1.0 / hidden, dtype=dtype),
        streaming("unary", "shared.gate.sigmoid.grad", s.norm_tokens, dtype=dtype),
        *eager.gradient_of("shared_gate.weight", column, hidden, dtype, accumulate),
    )
