"""One layer of transformers or torchtitan that ``torch.compile`` has fused.

Products stay the library's, each of its own. Inductor makes one kernel of norm and residual addition, of the activated
gate and its product, and keeps what these make for the backward. In torchtitan's layers, compiled one by one, complex
numbers are left to PyTorch's own kernel, and the last addition ends the layer.

transformers' models are compiled whole. Tracing does not see that a mask is merely causal: the mask is made as a tensor
and added to every score of the square, and keys and values are repeated for every head. Rotation is one kernel each for
queries and keys. Under ``torch.autocast`` weights are still rounded one by one, norms write what products read.

Source: PyTorch 2.11's Inductor in four rows of `validate/recorded/h200_sxm/train_modules.jsonl`.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, issued, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.attention import GRAPH_MASK
from joulecast.model.transformer import (
    autocast_linear,
    core_attention,
    linear,
    masked_attention,
    modules_layer,
    torchtitan_rotary,
)
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.rotary import normed_parts

#: Cycles of an SM for a value that is rotated, forward and backward: 16 kernels of one row [estimates, +-4 %].
ROTATED, ROTATED_GRADIENT = 0.79, 1.15
#: Rows of partial sums that a norm's fused gradient leaves, and cycles for a value of their sum [estimates, +-10 %].
PARTIAL_ROWS, PARTIAL = 512, 1.9


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    whole = s.implementation.whole_graph
    return (
        _norm("norm1", s, reads=1 if whole else 0, writes=1 if whole else 0),
        *eager.enter_forward("qkv", s),
        *_linears(linear.projections(s), s),
        *_head_norms(s),
        *(_rotary(s) if whole else torchtitan_rotary.forward(s)),
        *attention(s, "forward"),
        *_linears((linear.output(s),), s),
        *eager.leave_forward("output", s),
        _norm("norm2", s, reads=1, writes=1 if whole else 0),
        *eager.enter_forward("up", s),
        *_linears(linear.first_products(s), s),
        _activation(s),
        *_linears((linear.down(s),), s),
        *eager.leave_forward("down", s),
        *(() if whole else (_residual(s),)),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """Backward of a layer."""
    whole, firsts, projections = s.implementation.whole_graph, linear.first_products(s), linear.projections(s)
    return (
        *eager.leave_backward("down", s),
        *_linears_backward((linear.down(s),), s, accumulate),
        _activation_backward(s),
        *_linears_backward(firsts, s, accumulate),
        *_norm_backward("norm2", "up", s, accumulate, branches=len(firsts)),
        *eager.leave_backward("output", s),
        *_linears_backward((linear.output(s),), s, accumulate),
        *(attention(s, "forward") if s.implementation.recomputes("core_attn") else ()),
        *attention(s, "backward"),
        *(_rotary_backward(s) if whole else torchtitan_rotary.backward(s)),
        *_head_norms_backward(s, accumulate),
        *(() if len(projections) > 1 else (modules_layer.joined(s),)),
        *_linears_backward(projections, s, accumulate),
        *_norm_backward("norm1", "qkv", s, accumulate, branches=len(projections)),
        *((eager.residual_addition("norm1.grad.leaf", s.stream),) if leaf_input else ()),
    )


def attention(s: Shard, direction: str) -> tuple[Launch, ...]:
    """Attention; in a graph of the whole model with a mask for every score, and keys and values for every head."""
    launches = core_attention.core_attention(s, direction)
    if not s.implementation.whole_graph:
        return launches
    return masked_attention.with_mask(launches, s, GRAPH_MASK)


def _norm(name: str, s: Shard, *, reads: int, writes: int) -> Launch:
    """A norm of the residual stream and of so many blocks' results added to it, which is written so many times."""
    rows, columns, dtype = s.norm_tokens, s.hidden, s.dtype
    pattern = "add" if reads else s.config.norm
    read, written = _wide(s) + reads, 1 + writes * _wide(s)
    return row_wise(pattern, name, rows, columns, reads=read, writes=written, dtype=dtype)


def _residual(s: Shard) -> Launch:
    """The last addition of a layer that is compiled alone: stream and both blocks' results."""
    elements, dtype = s.stream_values, s.dtype
    return streaming("add", "residual", elements, reads=2 + _wide(s), writes=_wide(s), dtype=dtype)


def _wide(s: Shard) -> float:
    """A value of the residual stream over one of what products multiply."""
    return s.stream.value_bytes / s.value_bytes


def _linears(products: tuple[Linear, ...], s: Shard) -> tuple[Launch, ...]:
    """Products of one input, which the kernel that makes it rounds; a graph computes its one cast to FP8 once."""
    return tuple(
        launch
        for place, layer in enumerate(products)
        for launch in autocast_linear.forward(layer, s, wide=False, shared=place > 0)
    )


def _norm_backward(norm: str, entered: str, s: Shard, accumulate: bool, *, branches: int) -> tuple[Launch, ...]:
    """Gradient of a norm: sums of the products' branches and of the residual stream's in one kernel."""
    rows, columns, dtype = s.norm_tokens, s.hidden, s.dtype
    _, sums = eager.norm_backward(norm, s.stream, accumulate)
    partial = min(rows, PARTIAL_ROWS) * columns
    gamma = issued("reduce", f"{norm}.gamma.grad", partial, PARTIAL * partial, activity=1.0, writes=0, dtype="fp32")
    read, written = branches + 2 * _wide(s), _wide(s) + s.implementation.autocast
    return (
        *eager.enter_backward(entered, s),
        row_wise("mul", f"{norm}.grad", rows, columns, reads=read, writes=written, dtype=dtype),
        replace(gamma, completes="" if accumulate else f"{norm}.weight"),
        *sums,
    )


def _linears_backward(products: tuple[Linear, ...], s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of products that share their input, the last first."""
    return tuple(
        launch
        for place, layer in enumerate(reversed(products))
        for launch in autocast_linear.backward(layer, s, accumulate, wide=False, shared=place > 0)
    )


def _activation(s: Shard) -> Launch:
    gated, elements = s.config.gated_mlp, s.tokens * s.ffn
    return streaming("mul" if gated else "unary", "activation", elements, reads=1 + gated, dtype=s.dtype)


def _activation_backward(s: Shard) -> Launch:
    gated, elements = s.config.gated_mlp, s.tokens * s.ffn
    return streaming("mul", "activation.grad", elements, reads=2 + gated, writes=1 + gated, dtype=s.dtype)


def _rotary(s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and of keys, which are repeated for every head, as values are."""
    values, share = s.tokens * s.heads * s.config.head_dim, s.kv_heads / s.heads
    copy = streaming("copy", "rotary.value.repeat", values, reads=share, dtype=s.dtype)
    return (
        *_rotated("rotary.query", values, ROTATED, 1.0, s),
        *_rotated("rotary.key", values, ROTATED, share, s),
        *((copy,) if share < 1 else ()),
    )


def _rotary_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`_rotary`: sums over the heads that share keys and values."""
    dtype, values = s.dtype, s.tokens * s.heads * s.config.head_dim
    share = s.kv_heads / s.heads
    sums = ("key.sine", "value") if share < 1 else ()
    return (
        *(streaming("copy", f"rotary.{part}.grad.sum", values, writes=share, dtype=dtype) for part in sums),
        *_rotated("rotary.key.grad", values * share, ROTATED_GRADIENT, 1 / share, s),
        *_rotated("rotary.query.grad", values, ROTATED_GRADIENT, 1.0, s),
    )


def _rotated(name: str, values: float, cycles: float, reads: float, s: Shard) -> tuple[Launch, ...]:
    if not (s.config.rotary and s.implementation.rotary):
        return ()
    return (issued("unary", name, values, cycles * values, activity=1.0, reads=reads, dtype=s.dtype),)


def _head_norms(s: Shard) -> tuple[Launch, ...]:
    """Norms of query and key heads in one kernel each."""
    return tuple(streaming("unary", f"{part}_norm", n * size, dtype=s.dtype) for part, n, size in normed_parts(s))


def _head_norms_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`_head_norms`."""
    launches: list[Launch] = []
    for part, rows, columns in reversed(normed_parts(s)):
        made = streaming("mul", f"{part}_norm.grad", rows * columns, reads=2, dtype=s.dtype)
        launches += eager.gradient_of(f"{part}_norm.weight", made, s.config.head_dim, s.dtype, accumulate)
    return tuple(launches)
