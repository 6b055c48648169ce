"""Megatron's linear layers on tensor-parallel ranks: products, their communication, and what FP8 and FP4 add.

A column-parallel layer stands behind a norm and splits its outputs; a row-parallel layer splits its inputs and sums
over the ranks. With sequence parallelism the former gathers its input (again in the backward, beside the product) and
the latter scatters its sum; in FP8 and FP4 they gather these. With ``tp_comm_overlap`` they do so in steps beside the
products (:mod:`joulecast.model.transformer.pipelined_products`); in the column-parallel backward both run beside whole
ones either way.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import (
    Launch,
    added_up,
    collective,
    input_gradient,
    linear_forward,
    row_wise,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import narrow_kernels, pipelined_products, stored_narrow


def column_forward(norm: str, name: str, s: Shard, outputs: int) -> tuple[Launch, ...]:
    """Norm, gathering and product whose outputs are split; without a norm of its own where ``norm`` is empty."""
    hidden, dtype, narrow = s.hidden, s.dtype, s.implementation.narrow
    bias = name == "qkv" and s.config.qkv_bias and narrow is None  # all others are added outside
    product = narrow_kernels.product(linear_forward(name, s.tokens, outputs, hidden, dtype, bias=bias), narrow)
    multiplied = gathered_product(name, product, s)
    if narrow is None:
        return (*((eager.norm_forward(norm, s),) if norm else ()), *multiplied)
    rows = s.norm_tokens
    fused = narrow.norms_cast and norm != ""
    width = narrow.value_bytes / DTYPE_BYTES[dtype] if fused else 1.0
    kernel = row_wise(s.config.norm, norm, rows, hidden, writes=width, dtype=dtype)
    cast: tuple[Launch, ...] = ()
    if not fused:
        copies = 1 if s.implementation.splits_sequence and narrow.transposes else narrow.copies
        cast = narrow_kernels.quantise(f"{name}.input", rows * hidden, narrow, dtype, copies)
    return (*((kernel,) if norm else ()), *cast, *multiplied)


def attention_output_forward(s: Shard) -> tuple[Launch, ...]:
    """Product behind attention, whose input may be kept in a format of its own."""
    copies = 1 if s.implementation.packs_attention_output else None
    return (*stored_narrow.packed_output(s), *row_forward("output", s, s.attention_width, copies))


def attention_output_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of the product behind attention."""
    return (*stored_narrow.unpacked_output(s), *row_backward("output", s, s.attention_width))


def row_forward(name: str, s: Shard, inputs: int, copies: int | None = None) -> tuple[Launch, ...]:
    """Product whose inputs are split, and the sum over the ranks; ``copies`` of the input in FP8, else the recipe's."""
    dtype, narrow = s.dtype, s.implementation.narrow
    product = narrow_kernels.product(linear_forward(name, s.tokens, s.hidden, inputs, dtype), narrow)
    cast = narrow_kernels.quantise(f"{name}.input", s.tokens * inputs, narrow, dtype, copies)
    if pipelined(s):
        values = float(s.tokens * s.hidden)
        return (*cast, *pipelined_products.scattered_product(name, product, values, s.implementation))
    return (*cast, product, *eager.leave_forward(name, s))


def row_backward(name: str, s: Shard, inputs: int) -> tuple[Launch, ...]:
    """Gradients of a product whose inputs are split over the ranks."""
    hidden, dtype, narrow = s.hidden, s.dtype, s.implementation.narrow
    dgrad = narrow_kernels.product(input_gradient(name, s.tokens, hidden, inputs, dtype), narrow)
    wgrad = fused_weight_gradient(name, s, hidden, inputs)
    if narrow is None:
        return (*gathered_product(f"{name}.grad", dgrad, s), wgrad)
    late = s.implementation.splits_sequence and narrow.transposes  # the second copy is made from the gathered first one
    copies = 1 if late else narrow.copies
    cast = narrow_kernels.quantise(f"{name}.grad", s.norm_tokens * hidden, narrow, dtype, copies, gradient=True)
    turned = (narrow_kernels.transpose(f"{name}.grad", s.tokens * hidden),) if late else ()
    return (*cast, *gathered_product(f"{name}.grad", dgrad, s, copies), *turned, wgrad)


def column_backward(name: str, s: Shard, outputs: int, *, normed: bool = True) -> tuple[Launch, ...]:
    """Gradients of a product whose outputs are split, with its communication beside the products.

    ``normed``: the input comes from the layer's own norm, which in FP8 may have written one copy only.
    """
    hidden, dtype, narrow = s.hidden, s.dtype, s.implementation.narrow
    dgrad = narrow_kernels.product(input_gradient(name, s.tokens, outputs, hidden, dtype), narrow)
    wgrad = fused_weight_gradient(name, s, outputs, hidden)
    before: tuple[Launch, ...] = ()
    last = [wgrad]
    if narrow is not None:
        before = narrow_kernels.quantise(f"{name}.grad", s.tokens * outputs, narrow, dtype, gradient=True)
        if narrow.transposes and (s.implementation.splits_sequence or (narrow.norms_cast and normed)):
            last.insert(0, narrow_kernels.transpose(f"{name}.input", s.tokens * hidden))
    implementation = s.implementation
    if implementation.tensor_parallel == 1:
        return (*before, dgrad, *last)
    if not implementation.sequence_parallel:
        return (*before, dgrad, _beside("all_reduce", f"{name}.grad.all_reduce", s.activation_bytes, s), *last)
    last[0] = replace(last[0], waits=True, outstanding=1)  # for its input, not for what is scattered beside it
    gather = _beside("all_gather", f"{name}.input.all_gather", gathered_bytes(s), s)
    scatter = _beside("reduce_scatter", f"{name}.grad.reduce_scatter", s.activation_bytes, s)
    return (*before, gather, dgrad, scatter, *last)


def whole_forward(s: Shard, name: str, width: int) -> tuple[Launch, ...]:
    """Product that every tensor-parallel rank has whole, on its share of the sequence."""
    hidden, dtype, narrow = s.hidden, s.dtype, s.implementation.narrow
    cast = narrow_kernels.quantise(f"{name}.input", s.norm_tokens * hidden, narrow, dtype)
    return (*cast, narrow_kernels.product(linear_forward(name, s.norm_tokens, width, hidden, dtype), narrow))


def whole_backward(s: Shard, name: str, width: int) -> tuple[Launch, ...]:
    """Gradients of :func:`whole_forward`."""
    hidden, dtype, narrow = s.hidden, s.dtype, s.implementation.narrow
    cast = narrow_kernels.quantise(f"{name}.grad", s.norm_tokens * width, narrow, dtype, gradient=True)
    own = replace(s, tokens=s.norm_tokens)
    dgrad = narrow_kernels.product(input_gradient(name, s.norm_tokens, width, hidden, dtype), narrow)
    return (*cast, dgrad, fused_weight_gradient(name, own, width, hidden))


def _beside(kind: str, name: str, size_bytes: float, s: Shard) -> Launch:
    """A collective beside the product launched behind it."""
    return replace(collective(kind, name, size_bytes, s.implementation, waits=False), prompt=True)


def fused_weight_gradient(name: str, s: Shard, outputs: int, inputs: int) -> Launch:
    """Weight gradient added to the gradients' buffer within the product (``gradient_accumulation_fusion``)."""
    launch = weight_gradient(name, s.tokens, outputs, inputs, s.dtype, completes=f"{name}.weight")
    return narrow_kernels.product(added_up(launch, s.implementation.gradient_dtype), s.implementation.narrow)


def pipelined(s: Shard) -> bool:
    """Whether that is gathered and scattered in steps beside the products."""
    return s.implementation.splits_sequence and s.implementation.tp_comm_overlap


def gathered_product(name: str, product: Launch, s: Shard, copies: int = 1) -> tuple[Launch, ...]:
    """A product of a tensor that is gathered before it, in FP8 ``copies`` of it."""
    if pipelined(s):
        return pipelined_products.gathered_product(name, product, gathered_bytes(s, copies), s.implementation)
    if not s.implementation.splits_sequence:
        return (product,)
    return (collective("all_gather", f"{name}.all_gather", gathered_bytes(s, copies), s.implementation), product)


def gathered_bytes(s: Shard, copies: int = 1) -> float:
    """Bytes of a gathered residual-stream tensor, in FP8 of ``copies`` of it."""
    narrow = s.implementation.narrow
    return s.activation_bytes if narrow is None else float(s.tokens * s.hidden * copies * narrow.value_bytes)
