"""Megatron's linear layers on tensor-parallel ranks: products, their communication, and what FP8 adds.

A column-parallel layer stands behind a norm and splits its outputs; a row-parallel layer splits its inputs and sums
over the ranks. With sequence parallelism the former gathers its input (again in the backward, beside the product) and
the latter scatters its sum; in FP8 they gather FP8.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model import fp8_kernels
from joulecast.model import transformer_layer as eager
from joulecast.model.launches import (
    Launch,
    Shard,
    collective,
    input_gradient,
    linear_forward,
    streaming,
    weight_gradient,
)
from joulecast.model.operators import DTYPE_BYTES


def column_forward(norm: str, name: str, s: Shard, outputs: int) -> tuple[Launch, ...]:
    """Norm, gathering and product whose outputs are split."""
    hidden, dtype, fp8 = s.config.hidden, s.implementation.dtype, s.implementation.fp8
    product = linear_forward(name, s.tokens, outputs, hidden, dtype)
    if fp8 is None:
        return (eager.norm_forward(norm, s), *gathering(f"{name}.all_gather", s), product)
    rows = s.norm_tokens
    width = fp8.value_bytes / DTYPE_BYTES[dtype] if fp8.norms_cast else 1.0
    kernel = streaming(s.config.norm, norm, rows * hidden, writes=width, dtype=dtype, rows=rows, columns=hidden)
    cast: tuple[Launch, ...] = ()
    if not fp8.norms_cast:
        copies = 1 if gathers(s) and fp8.transposes else fp8.copies
        cast = fp8_kernels.quantise(f"{name}.input", rows * hidden, fp8, dtype, copies)
    return (kernel, *cast, *gathering(f"{name}.all_gather", s), fp8_kernels.product(product, fp8))


def row_forward(name: str, s: Shard, inputs: int) -> tuple[Launch, ...]:
    """Product whose inputs are split, and the sum over the ranks."""
    dtype, fp8 = s.implementation.dtype, s.implementation.fp8
    product = linear_forward(name, s.tokens, s.config.hidden, inputs, dtype)
    cast = () if fp8 is None else fp8_kernels.quantise(f"{name}.input", s.tokens * inputs, fp8, dtype)
    return (*cast, fp8_kernels.product(product, fp8), *eager.leave_forward(name, s))


def row_backward(name: str, s: Shard, inputs: int) -> tuple[Launch, ...]:
    """Gradients of a product whose inputs are split over the ranks."""
    hidden, dtype, fp8 = s.config.hidden, s.implementation.dtype, s.implementation.fp8
    dgrad = fp8_kernels.product(input_gradient(name, s.tokens, hidden, inputs, dtype), fp8)
    wgrad = fp8_kernels.product(weight_gradient(name, s.tokens, hidden, inputs, dtype, completes=f"{name}.weight"), fp8)
    label = f"{name}.grad.all_gather"
    if fp8 is None:
        return (*gathering(label, s), dgrad, wgrad)
    late = gathers(s) and fp8.transposes  # the second copy is made from the gathered first one
    copies = 1 if late else fp8.copies
    cast = fp8_kernels.quantise(f"{name}.grad", s.norm_tokens * hidden, fp8, dtype, copies)
    turned = (fp8_kernels.transpose(f"{name}.grad", s.tokens * hidden),) if late else ()
    return (*cast, *gathering(label, s, copies), *turned, dgrad, wgrad)


def column_backward(name: str, s: Shard, outputs: int) -> tuple[Launch, ...]:
    """Gradients of a product whose outputs are split, with its communication beside the products."""
    hidden, dtype, fp8 = s.config.hidden, s.implementation.dtype, s.implementation.fp8
    dgrad = fp8_kernels.product(input_gradient(name, s.tokens, outputs, hidden, dtype), fp8)
    wgrad = fp8_kernels.product(
        weight_gradient(name, s.tokens, outputs, hidden, dtype, completes=f"{name}.weight"), fp8
    )
    before: tuple[Launch, ...] = ()
    last = [wgrad]
    if fp8 is not None:
        before = fp8_kernels.quantise(f"{name}.grad", s.tokens * outputs, fp8, dtype)
        if fp8.transposes and (gathers(s) or fp8.norms_cast):
            last.insert(0, fp8_kernels.transpose(f"{name}.input", s.tokens * hidden))
    implementation = s.implementation
    if implementation.tensor_parallel == 1:
        return (*before, dgrad, *last)
    if not implementation.sequence_parallel:
        total = collective("all_reduce", f"{name}.grad.all_reduce", s.activation_bytes, implementation, waits=False)
        return (*before, dgrad, total, *last)
    last[0] = replace(last[0], waits=True, outstanding=1)  # for its input, not for what is scattered beside it
    scatter = collective(
        "reduce_scatter", f"{name}.grad.reduce_scatter", s.activation_bytes, implementation, waits=False
    )
    return (*before, *gathering(f"{name}.input.all_gather", s, waits=False), dgrad, scatter, *last)


def gathers(s: Shard) -> bool:
    """Whether the sequence is split between linear layers."""
    return s.implementation.sequence_parallel and s.implementation.tensor_parallel > 1


def gathering(name: str, s: Shard, copies: int = 1, *, waits: bool = True) -> tuple[Launch, ...]:
    """All-gather of a residual-stream tensor over the tensor-parallel ranks: in FP8 ``copies`` of it."""
    if not gathers(s):
        return ()
    fp8, size = s.implementation.fp8, s.activation_bytes
    if fp8 is not None:
        size = float(s.tokens * s.config.hidden * copies * fp8.value_bytes)
    return (collective("all_gather", name, size, s.implementation, waits=waits),)
