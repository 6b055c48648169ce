"""The halves of a transformer layer as PyTorch's eager mode launches them, forward and backward.

The order and the sizes were checked against profiles of the real kernels: linear layers are single matrix products (a
bias sits in the epilogue), the MLP's gate and up halves are strided views of one product, so that activation and gate
product run as non-vectorised element-wise kernels; in the backward, gradients of views are concatenated, branches of
the residual stream are added, and each parameter's gradient is added to the one accumulated before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from joulecast.model.framework.launches import Launch, collective, column_sums, norm_gradients, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import core_attention, float8_linear, linear
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.rotary import (
    head_norm_backward,
    head_norm_forward,
    rotary_backward,
    rotary_forward,
    scaled_queries,
)
from joulecast.model.transformer.row_operators import rounded

Launches = tuple[Launch, ...]


def attention_half_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, attention block and residual addition."""
    return (
        *block_norm_forward("norm1", s),
        *enter_forward("qkv", s),
        *float8_linear.forward(linear.qkv(s), s),
        *head_norm_forward(s),
        *rotary_forward(s),
        *scaled_queries(s),
        *core_attention.core_attention(s, "forward"),
        *float8_linear.forward(linear.output(s), s),
        *leave_forward("output", s),
        *branch_norm_forward("norm1", s),
        residual_addition("residual1", s),
    )


def mlp_half_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, MLP and residual addition."""
    return (
        *block_norm_forward("norm2", s),
        *enter_forward("up", s),
        *float8_linear.forward(linear.up(s), s),
        *activation_forward(s),
        *float8_linear.forward(linear.down(s), s),
        *leave_forward("down", s),
        *branch_norm_forward("norm2", s),
        residual_addition("residual2", s),
    )


def mlp_half_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """From the gradient after the second residual addition to the one before the second norm."""
    return (
        *branch_norm_backward("norm2", s, accumulate),
        *leave_backward("down", s),
        *linear_backward(linear.down(s), s, accumulate),
        *activation_backward(s),
        *linear_backward(linear.up(s), s, accumulate),
        *norm_half_backward("norm2", "up", s, accumulate),
    )


def attention_half_backward(s: Shard, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient after the first residual addition to the layer's input gradient."""
    return (
        *branch_norm_backward("norm1", s, accumulate),
        *leave_backward("output", s),
        *linear_backward(linear.output(s), s, accumulate),
        *core_attention.backward(s),
        *sinks_backward(s, accumulate),
        *scaled_queries(s, ".grad"),
        *rotary_backward(s),
        *head_norm_backward(s, accumulate),
        streaming("cat", "qkv.cat", s.tokens * s.qkv_width, dtype=s.dtype),
        *linear_backward(linear.qkv(s), s, accumulate),
        *norm_half_backward("norm1", "qkv", s, accumulate, leaf_input=leaf_input),
    )


def before_block(s: Shard, norm: str = "norm1") -> bool:
    """Whether a norm stands in front of a block: one that serves both is the first block's."""
    return s.config.norm_place != "after" and not (s.config.shared_norm and norm == "norm2")


def after_block(s: Shard) -> bool:
    """Whether a norm stands between each block and the residual stream."""
    return s.config.norm_place != "before"


def branch_norm(norm: str, s: Shard) -> str:
    """Name of the norm behind a block whose own norm is ``norm``: the same where it is the only one."""
    return f"{norm}_after" if s.config.norm_place == "around" else norm


def block_norm_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Norm in front of a block, where the model has one."""
    return (norm_forward(name, s),) if before_block(s, name) else ()


def branch_norm_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Norm and scaling between a block and the residual stream, where the model has them."""
    normed = (norm_forward(branch_norm(name, s), s),) if after_block(s) else ()
    return (*normed, *branch_scaling(f"{name}.branch.scale", s))


def branch_scaling(name: str, s: Shard) -> tuple[Launch, ...]:
    """A block's result, or its gradient, times a number, where the model has one."""
    if not s.config.scaled_branches:
        return ()
    return (streaming("unary", name, s.stream_values, dtype=s.dtype),)


def branch_norm_backward(name: str, s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`branch_norm_forward`."""
    scaling = branch_scaling(f"{name}.branch.grad.scale", s)
    if not after_block(s):
        return scaling
    kernels, accumulations = norm_backward(branch_norm(name, s), s, accumulate)
    return (*scaling, *kernels, *accumulations)


def sinks_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the heads' learned scores, sums over the softmax's statistics; nothing without them."""
    if not s.config.attention_sinks:
        return ()
    total = streaming("reduce", "sinks.grad", s.tokens * s.heads, writes=1 / s.tokens, dtype="fp32")
    return gradient_of("sinks", total, s.heads, s.dtype, accumulate)


def norm_forward(name: str, s: Shard) -> Launch:
    """RMSNorm or LayerNorm over the hidden size."""
    rows, columns = s.norm_tokens, s.hidden
    return row_wise(s.config.norm, name, rows, columns, dtype=s.dtype)


def residual_addition(name: str, s: Shard) -> Launch:
    """Vectorised addition of two residual-stream tensors."""
    return streaming("add", name, s.stream_values, reads=2, dtype=s.dtype)


def enter_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Into a tensor-parallel region: nothing, or the gathering of the sequence."""
    if not s.implementation.splits_sequence:
        return ()
    if float8_linear.gathers(s):
        return float8_linear.gathered(name, s)
    return (collective("all_gather", f"{name}.all_gather", s.activation_bytes, s.implementation),)


def leave_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Out of a tensor-parallel region: the sum over the ranks."""
    if s.implementation.tensor_parallel == 1:
        return ()
    kind = "reduce_scatter" if s.implementation.sequence_parallel else "all_reduce"
    return (collective(kind, f"{name}.{kind}", s.activation_bytes, s.implementation),)


def leave_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`leave_forward`: nothing, or the gathering of the sequence."""
    return enter_forward(f"{name}.grad", s)


def enter_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`enter_forward`: the sum over the ranks."""
    return leave_forward(f"{name}.grad", s)


def activation_forward(s: Shard) -> tuple[Launch, ...]:
    """Between the two products of the MLP."""
    elements, dtype, kind = s.tokens * s.ffn, s.dtype, s.config.activation
    if s.config.gated_mlp:
        pattern = "strided_unary"
        return (
            streaming(pattern, f"gate.{kind}", elements, dtype=dtype),
            streaming("strided_binary", "gate.product", elements, reads=2, dtype=dtype),
        )
    if kind == "relu2":
        return (
            streaming("unary", "activation.relu", elements, dtype=dtype),
            streaming("unary", "activation.square", elements, dtype=dtype),
        )
    pattern = "gelu" if kind == "gelu" else "unary"
    return (streaming(pattern, f"activation.{kind}", elements, dtype=dtype),)


def activation_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`activation_forward`."""
    elements, dtype, kind = s.tokens * s.ffn, s.dtype, s.config.activation
    if s.config.gated_mlp:
        return (
            streaming("mul", "gate.product.grad_up", elements, reads=2, dtype=dtype),
            streaming("strided_binary", "gate.product.grad_gate", elements, reads=2, dtype=dtype),
            streaming("strided_silu_backward", f"gate.{kind}.grad", elements, reads=2, dtype=dtype),
            streaming("cat", "gate.cat", 2 * elements, dtype=dtype),
        )
    if kind == "relu2":
        return (
            streaming("unary", "activation.square.power", elements, dtype=dtype),
            streaming("unary", "activation.square.double", elements, dtype=dtype),
            streaming("mul", "activation.square.grad", elements, reads=2, dtype=dtype),
            streaming("mul", "activation.relu.grad", elements, reads=2, dtype=dtype),
        )
    pattern = "gelu_backward" if kind == "gelu" else "mul"
    return (streaming(pattern, f"activation.{kind}.grad", elements, reads=2, dtype=dtype),)


def linear_backward(layer: Linear, s: Shard, accumulate: bool, *, shared: bool = False) -> tuple[Launch, ...]:
    """Weight and input gradient of a linear layer, bias sum and accumulation; FP8 of its input may be ``shared``.

    Without a bias autograd takes the weight's gradient first, with one the input's, and in FP8 always the input's.
    """
    weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
    products = float8_linear.backward(layer, s, "" if accumulate else weight, shared=shared)
    added = accumulation(weight, layer.weights, s.dtype, accumulate)
    if not layer.bias:
        return (*products, *added)
    total = column_sums(f"{bias}.grad", s.tokens, layer.outputs, s.dtype)
    return (
        *(products if s.implementation.narrow is not None else reversed(products)),
        *gradient_of(bias, total, layer.outputs, s.dtype, accumulate),
        *added,
    )


def gradient_of(parameter: str, made: Launch, elements: int, dtype: str, accumulate: bool) -> tuple[Launch, ...]:
    """The launch that makes a parameter's gradient, and the addition to an earlier one, which then completes it."""
    if not accumulate:
        return (replace(made, completes=parameter),)
    return (made, *accumulation(parameter, elements, dtype, accumulate))


def small_gradients(sizes: Mapping[str, int], dtype: str, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of parameters of so few values that are summed in fp32: rounded, and added to earlier ones."""
    return tuple(
        launch
        for name, size in sizes.items()
        for launch in gradient_of(name, rounded(f"{name}.grad.round", size), size, dtype, accumulate)
    )


def accumulation(parameter: str, elements: int, dtype: str, accumulate: bool) -> tuple[Launch, ...]:
    """Addition of a parameter's new gradient to the accumulated one; nothing where it is simply kept."""
    if not accumulate:
        return ()
    return (streaming("add", f"{parameter}.accumulate", elements, reads=2, dtype=dtype, completes=parameter),)


def norm_half_backward(
    norm: str, entered: str, s: Shard, accumulate: bool, *, leaf_input: bool = False
) -> tuple[Launch, ...]:
    """Gradient of what enters a block, from that of the block's first products to the residual stream's."""
    gradient = norm_backward(norm, s, accumulate) if before_block(s, norm) else ((), ())
    return met_with_stream(norm, entered, s, gradient, leaf_input=leaf_input)


def met_with_stream(
    norm: str, entered: str, s: Shard, gradient: tuple[Launches, Launches], *, leaf_input: bool
) -> Launches:
    """Communication, a norm's gradient and its sum with the residual stream's, and with an input's of its own.

    In plain tensor parallelism the sum over the ranks stands before the norm, that is after its gradient here.
    """
    kernels, accumulations = gradient
    ends = ("join", "leaf") if leaf_input else ("join",)
    joined = [residual_addition(f"{norm}.grad.{end}", s.stream) for end in ends]
    entering = enter_backward(entered, s)
    if entering and not s.implementation.sequence_parallel:
        # The parameters' accumulation is ready before the collective's node and has the highest priority.
        return (*kernels, *accumulations, *entering, *joined)
    return (*entering, *kernels, *joined, *accumulations)


def norm_backward(
    name: str, s: Shard, accumulate: bool, *, reads: int = 2
) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Gradient kernels of a norm, and the accumulation of its parameters' gradients."""
    config, dtype, weight = s.config, s.dtype, f"{name}.weight"
    columns, done = config.hidden, "" if accumulate else weight
    kernels = norm_gradients(name, s.norm_tokens, columns, dtype, done, reads)
    sums = accumulation(weight, columns, dtype, accumulate)
    if config.norm_bias:
        sums += accumulation(f"{name}.bias", columns, dtype, accumulate)
    return kernels, sums
