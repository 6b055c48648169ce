"""One transformer layer as Megatron-Core with Transformer Engine launches it, forward and backward.

What differs from PyTorch's eager mode (:mod:`joulecast.model.transformer_layer`):

- activation and gate product are one kernel (SwiGLU, bias-GELU, squared ReLU), in both directions, so nothing is
  concatenated in the MLP's backward;
- rotary embedding is one kernel each for queries and keys;
- a norm's backward writes the partial sums of its weight's gradient itself;
- the weight-gradient product adds into an fp32 gradient buffer (``gradient_accumulation_fusion``), so that no separate
  addition runs except for norms, biases and the embedding;
- the input-gradient product comes first, and its communication runs beside the weight-gradient product; with sequence
  parallelism the layer's input is gathered again in the backward, beside the input-gradient product;
- full recomputation repeats the whole forward, its communication included;
- linear layers may run in FP8 (:mod:`joulecast.model.fp8`);
- the loss is vocabulary-parallel and in fp32, the optimizer keeps fp32 master weights.

Dropout is taken as zero.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model import context_parallel
from joulecast.model import megatron_linear as linear
from joulecast.model import transformer_layer as eager
from joulecast.model import unfused_attention as unfused
from joulecast.model.launches import Launch, Shard, streaming
from joulecast.model.operators import DTYPE_BYTES


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    return (
        *linear.column_forward("norm1", "qkv", s, s.qkv_width),
        *_head_norms(s, "rmsnorm", ""),
        *_rotary(s, ""),
        *attention(s, "forward"),
        *linear.row_forward("output", s, s.attention_width),
        eager.residual_addition("residual1", s),
        *linear.column_forward("norm2", "up", s, s.up_width),
        _activation(s),
        *linear.row_forward("down", s, s.ffn),
        eager.residual_addition("residual2", s),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """Backward of a layer without recomputation in front."""
    config = s.config
    again = attention(s, "forward") if s.implementation.recompute == "selective" else ()
    return (
        *_bias(s, "down", s.norm_tokens, config.hidden, config.mlp_bias),
        *linear.row_backward("down", s, s.ffn),
        _activation_backward(s),
        *_bias(s, "up", s.tokens, s.up_width, config.mlp_bias),
        *linear.column_backward("up", s, s.up_width),
        *norm_backward("norm2", s),
        eager.residual_addition("norm2.grad.join", s),
        *_bias(s, "output", s.norm_tokens, config.hidden, config.output_bias),
        *linear.row_backward("output", s, s.attention_width),
        *again,
        *attention(s, "backward"),
        *_rotary(s, ".grad"),
        *_head_norms(s, "norm_backward", ".grad"),
        streaming("cat", "qkv.cat", s.tokens * s.qkv_width, dtype=s.implementation.dtype),
        *linear.column_backward("qkv", s, s.qkv_width),
        *norm_backward("norm1", s),
        eager.residual_addition("norm1.grad.join", s),
    )


def attention(s: Shard, direction: str) -> tuple[Launch, ...]:
    """The core of attention, in one fused kernel or in several, or with other ranks' keys and values."""
    if s.implementation.context_parallel > 1:
        return context_parallel.attention(s, direction)
    if s.implementation.attention_backend != "unfused":
        return (Launch(eager.attention(s, direction)),)
    return unfused.attention_forward(s) if direction == "forward" else unfused.attention_backward(s)


def norm_backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of a norm; it needs the communication that ran beside the product before it."""
    rows, columns, dtype = s.norm_tokens, s.config.hidden, s.implementation.dtype
    kernel = streaming(
        "norm_backward", f"{name}.grad", rows * columns, reads=2, dtype=dtype, rows=rows, columns=columns
    )
    return (
        replace(kernel, waits=s.implementation.tensor_parallel > 1),
        *accumulation(f"{name}.weight", columns, dtype),
        *(accumulation(f"{name}.bias", columns, dtype) if s.config.norm_bias else ()),
    )


def accumulation(parameter: str, elements: int, dtype: str) -> tuple[Launch, ...]:
    """Addition of a parameter's gradient to the fp32 buffer."""
    reads = 1 + DTYPE_BYTES[dtype] / DTYPE_BYTES["fp32"]
    return (streaming("add", f"{parameter}.accumulate", elements, reads=reads, dtype="fp32", completes=parameter),)


def _activation(s: Shard) -> Launch:
    elements, kind, dtype = s.tokens * s.ffn, s.config.activation, s.implementation.dtype
    if s.config.gated_mlp:
        return streaming("swiglu", f"gate.{kind}", elements, reads=2, dtype=dtype)
    return streaming("gelu" if kind == "gelu" else "unary", f"activation.{kind}", elements, dtype=dtype)


def _activation_backward(s: Shard) -> Launch:
    elements, kind, dtype = s.tokens * s.ffn, s.config.activation, s.implementation.dtype
    if s.config.gated_mlp:
        return streaming("swiglu_backward", f"gate.{kind}.grad", elements, reads=3, writes=2, dtype=dtype)
    pattern = "gelu_backward" if kind == "gelu" else "mul"
    return streaming(pattern, f"activation.{kind}.grad", elements, reads=2, dtype=dtype)


def _bias(s: Shard, name: str, tokens: int, outputs: int, present: bool) -> tuple[Launch, ...]:
    """Column sum of a bias that is added outside the product (all but the projection to queries, keys, values)."""
    if not present:
        return ()
    dtype = s.implementation.dtype
    total = streaming(
        "bias_reduce",
        f"{name}.bias.grad",
        tokens * outputs,
        writes=1 / tokens,
        dtype=dtype,
        rows=tokens,
        columns=outputs,
    )
    return (total, *accumulation(f"{name}.bias", outputs, dtype))


def _rotary(s: Shard, suffix: str) -> tuple[Launch, ...]:
    if not (s.config.rotary and s.implementation.rotary):
        return ()
    dtype, width = s.implementation.dtype, s.config.head_dim
    return tuple(
        streaming("rope", f"rotary.{part}{suffix}", s.tokens * heads * width, dtype=dtype)
        for part, heads in (("query", s.heads), ("key", s.kv_heads))
    )


def _head_norms(s: Shard, pattern: str, suffix: str) -> tuple[Launch, ...]:
    if not s.config.qk_norm:
        return ()
    dtype, columns = s.implementation.dtype, s.config.head_dim
    launches: list[Launch] = []
    for part, heads in (("query", s.heads), ("key", s.kv_heads)):
        rows = s.tokens * heads
        reads = 2 if suffix else 1
        name = f"{part}_norm{suffix}"
        launches.append(streaming(pattern, name, rows * columns, reads=reads, dtype=dtype, rows=rows, columns=columns))
        if suffix:
            launches += accumulation(f"{part}_norm.weight", columns, dtype)
    return tuple(launches)
