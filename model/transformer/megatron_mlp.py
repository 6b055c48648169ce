"""The MLP half of a layer in Megatron, forward and backward; activation and gate product are one kernel."""

from __future__ import annotations

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.launches import Launch, column_sums, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer import stored_narrow
from joulecast.model.transformer.megatron_norm import (
    accumulation,
    block_norm_backward,
    branch_norm_backward,
)


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, MLP and residual addition."""
    return (*_mlp_forward(s), *eager.branch_norm_forward("norm2", s), eager.residual_addition("residual2", s))


def _mlp_forward(s: Shard) -> tuple[Launch, ...]:
    return (
        *linear.column_forward("norm2" if eager.before_block(s, "norm2") else "", "up", s, s.up_width),
        *stored_narrow.stored_input("gate", s.tokens * s.up_width, s.implementation),
        activation(s.config, s.tokens * s.ffn, s.dtype),
        *linear.row_forward("down", s, s.ffn),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the one before the norm."""
    config = s.config
    whole = s.implementation.recomputes("mlp")
    return (
        *branch_norm_backward("norm2", s),
        *(_mlp_forward(s) if whole else ()),
        *bias_backward(s, "down", s.norm_tokens, config.hidden, config.mlp_bias),
        *linear.row_backward("down", s, s.ffn),
        *stored_narrow.restored_input("gate", s.tokens * s.up_width, s.implementation),
        activation_backward(s.config, s.tokens * s.ffn, s.dtype),
        *bias_backward(s, "up", s.tokens, s.up_width, config.mlp_bias),
        *linear.column_backward("up", s, s.up_width, normed=eager.before_block(s, "norm2")),
        *block_norm_backward("norm2", s),
        eager.residual_addition("norm2.grad.join", s),
    )


#: Cycles of an SM for each value that the gradient of a gated activation writes, in the one kernel that Inductor makes
#: of it: it computes the gate anew for either half of the result. Kernels of five iterations on an H200, 0.45 to 0.47.
GATED_BACKWARD = 0.455


def activation(config: ModelConfig, elements: float, dtype: str) -> Launch:
    """Between the two products, for ``elements`` values of its result."""
    kind = config.activation
    if config.gated_mlp:
        return streaming("mul", f"gate.{kind}", elements, reads=2, dtype=dtype)
    return streaming("gelu" if kind == "gelu" else "unary", f"activation.{kind}", elements, dtype=dtype)


def activation_backward(config: ModelConfig, elements: float, dtype: str) -> Launch:
    """Gradient of :func:`activation`."""
    kind = config.activation
    if config.gated_mlp:
        cycles = GATED_BACKWARD * 2 * elements
        return issued("mul", f"gate.{kind}.grad", elements, cycles, activity=1.5, reads=3, writes=2, dtype=dtype)
    pattern = "gelu_backward" if kind == "gelu" else "mul"
    return streaming(pattern, f"activation.{kind}.grad", elements, reads=2, dtype=dtype)


def bias_backward(s: Shard, name: str, tokens: int, outputs: int, present: bool) -> tuple[Launch, ...]:
    """Column sum of a bias that is added outside the product (all but the projection to queries, keys, values)."""
    if not present:
        return ()
    total = column_sums(f"{name}.bias.grad", tokens, outputs, s.dtype)
    return (total, *accumulation(f"{name}.bias", outputs, s.implementation))
