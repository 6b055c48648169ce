"""Gradients of norms in Megatron, and of all parameters whose gradient no product adds to their buffer."""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer import eager_layer as eager

#: Cycles of an SM for a value of one type that PyTorch adds to one of another: embeddings of 32,000 to 128,256 words in
#: iterations on an H200, 0.82 to 0.86.
MIXED_ADD = 0.84


def recomputed_norm(name: str, s: Shard) -> tuple[Launch, ...]:
    """A norm's output made again, where selective recomputation does so."""
    return eager.block_norm_forward(name, s) if s.implementation.recomputes("layernorm") else ()


def block_norm_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of the norm in front of a block, where the model has one."""
    return norm_backward(name, s) if eager.before_block(s, name) else ()


def branch_norm_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of norm and scaling between a block and the residual stream, where the model has them."""
    normed = norm_backward(eager.branch_norm(name, s), s) if eager.after_block(s) else ()
    return (*eager.branch_scaling(f"{name}.branch.grad.scale", s), *normed)


def norm_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of a norm; it needs the communication that ran beside the product before it."""
    rows, columns, dtype = s.norm_tokens, s.hidden, s.dtype
    kernel = streaming(
        "norm_backward", f"{name}.grad", rows * columns, reads=2, dtype=dtype, rows=rows, columns=columns
    )
    return (
        replace(kernel, waits=s.implementation.tensor_parallel > 1),
        *accumulation(f"{name}.weight", columns, s.implementation),
        *(accumulation(f"{name}.bias", columns, s.implementation) if s.config.norm_bias else ()),
    )


def accumulation(parameter: str, elements: int, implementation: Implementation) -> tuple[Launch, ...]:
    """Addition of a parameter's gradient to the gradients' buffer."""
    buffer, name = implementation.gradient_dtype, f"{parameter}.accumulate"
    if buffer == implementation.dtype:
        return (streaming("add", name, elements, reads=2, dtype=buffer, completes=parameter),)
    reads = 1 + DTYPE_BYTES[implementation.dtype] / DTYPE_BYTES[buffer]
    wide = issued("add", name, elements, MIXED_ADD * elements, activity=1.0, reads=reads, dtype=buffer)
    return (replace(wide, completes=parameter),)
