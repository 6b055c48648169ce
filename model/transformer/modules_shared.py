"""Shared experts as transformers writes them: an MLP that sees every token, added to what the routed experts make.

Its products and activation are those of the dense layers of such models; Qwen2-MoE multiplies its result by a sigmoid
of one number for a token. Counted from code, not measured.

Source: ``Glm4MoeMoE`` and ``Qwen2MoeSparseMoeBlock`` of transformers 5.17, as many kernels as they dispatch.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, input_gradient, linear_forward, streaming, weight_gradient
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import autocast_linear, expert_weights, linear, modules_mlp
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.expert_rows import experts_of


def forward(s: Shard) -> tuple[Launch, ...]:
    """The MLP, its gate, and the addition to the routed experts' result; nothing without shared experts."""
    if not s.ffn:
        return ()
    return (
        *modules_mlp.forward(linear.shared_first(s), s, s),
        *autocast_linear.forward(linear.shared_down(s), s),
        *_scaled(s),
        eager.residual_addition("shared.add", s),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, and its sum with that of the routed experts' input."""
    if not s.ffn:
        return ()
    branches = eager.residual_addition("shared.grad.branches", s)
    return (
        *_scaled_backward(s, accumulate),
        *autocast_linear.backward(linear.shared_down(s), s, accumulate),
        *modules_mlp.backward(linear.shared_first(s), s, s, accumulate, branches),
        eager.residual_addition("shared.grad.join", s),
    )


def _scaled(s: Shard) -> tuple[Launch, ...]:
    """Each token's number, and the result times its sigmoid."""
    if not experts_of(s).shared_gate:
        return ()
    hidden, tokens, dtype = s.hidden, s.norm_tokens, s.dtype
    return (
        linear_forward("shared_scale", tokens, 1, hidden, dtype),
        streaming("unary", "shared.scale.sigmoid", tokens, dtype=dtype),
        expert_weights.by_row("shared.scaled", s, tokens * hidden),
    )


def _scaled_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    if not experts_of(s).shared_gate:
        return ()
    hidden, tokens, dtype, weight = s.hidden, s.norm_tokens, s.dtype, "shared_gate.weight"
    values, done = s.stream_values, "" if accumulate else weight
    return (
        expert_weights.by_row("shared.scaled.grad", s, values),
        streaming("mul", "shared.scale.product", values, reads=2, dtype=dtype),
        streaming("reduce", "shared.scale.sum", values, writes=1.0 / hidden, dtype=dtype),
        streaming("unary", "shared.scale.sigmoid.grad", tokens, dtype=dtype),
        weight_gradient("shared_scale", tokens, 1, hidden, dtype, completes=done),
        input_gradient("shared_scale", tokens, 1, hidden, dtype),
        *eager.accumulation(weight, hidden, dtype, accumulate),
        eager.residual_addition("shared.scale.grad.join", s),
    )


def kept_bytes(s: Shard) -> float:
    """Beside what an MLP of their width keeps: the result that is scaled, and its numbers."""
    scaled = s.hidden + 1 if experts_of(s).shared_gate else 0
    return s.value_bytes * s.norm_tokens * scaled
