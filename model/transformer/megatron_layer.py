"""One transformer layer as Megatron-Core with Transformer Engine launches it, forward and backward.

What differs from PyTorch's eager mode (:mod:`joulecast.model.transformer.eager_layer`):

- activation and gate product are one kernel (SwiGLU, bias-GELU, squared ReLU), in both directions, so nothing is
  concatenated in the MLP's backward;
- rotary embedding is one kernel each for queries and keys, which are copied out of the joint product before it, or
  several (:mod:`joulecast.model.transformer.megatron_rotary`);
- a norm's backward writes the partial sums of its weight's gradient itself;
- the weight-gradient product adds into an fp32 gradient buffer (``gradient_accumulation_fusion``), so that no separate
  addition runs except for norms, biases and the embedding;
- the input-gradient product comes first, and its communication runs beside the weight-gradient product; with sequence
  parallelism the layer's input is gathered again in the backward, beside the input-gradient product;
- full recomputation repeats the whole forward, its communication included;
- the MLP may be a Mixture of Experts (:mod:`joulecast.model.transformer.moe`), attention may be latent
  (:mod:`joulecast.model.transformer.latent_attention`); a hybrid's layers may have a state space in its place
  (:mod:`joulecast.model.transformer.megatron_state_space`), or one half of the two alone;
- linear layers may run in FP8 (:mod:`joulecast.model.framework.narrow`);
- the loss is vocabulary-parallel and in fp32, the optimizer keeps fp32 master weights.

Dropout is taken as zero.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, reordered, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import (
    core_attention,
    latent_attention,
    megatron_mlp,
    megatron_rotary,
    megatron_state_space,
    moe,
)
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.megatron_mlp import bias_backward
from joulecast.model.transformer.megatron_norm import (
    accumulation,
    block_norm_backward,
    branch_norm_backward,
)
from joulecast.model.transformer.rotary import normed_parts, scaled_queries

#: Cycles of an SM for a value of gradients that PyTorch joins where they are views of one tensor, as those of queries,
#: keys and values without a rotation are: 126 million values in an iteration on an H200 [estimate, +-10 %].
JOINED_VIEWS = 0.94


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    return (*_mixed_forward(s), *_fed_forward(s))


def _mixed_forward(s: Shard) -> tuple[Launch, ...]:
    """What mixes positions, where a layer does."""
    if s.state_space is not None:
        return megatron_state_space.forward(s)
    if not s.config.attends:
        return ()
    return attention_forward(s) if s.config.latent is None else latent_attention.forward(s)


def _fed_forward(s: Shard) -> tuple[Launch, ...]:
    """MLP or experts, where a layer has them."""
    if not s.config.feeds_forward:
        return ()
    return megatron_mlp.forward(s) if s.config.experts is None else moe.forward(s)


def backward(s: Shard) -> tuple[Launch, ...]:
    """Backward of a layer without recomputation in front."""
    return (*_fed_backward(s), *_mixed_backward(s))


def _mixed_backward(s: Shard) -> tuple[Launch, ...]:
    if s.state_space is not None:
        return megatron_state_space.backward(s)
    if not s.config.attends:
        return ()
    return attention_backward(s) if s.config.latent is None else latent_attention.backward(s)


def _fed_backward(s: Shard) -> tuple[Launch, ...]:
    if not s.config.feeds_forward:
        return ()
    return megatron_mlp.backward(s) if s.config.experts is None else moe.backward(s)


def attention_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, attention block and residual addition."""
    return (
        *linear.column_forward("norm1" if eager.before_block(s) else "", "qkv", s, s.qkv_width),
        *_parted(s),
        *_head_norms(s, "rmsnorm", ""),
        *megatron_rotary.forward(s),
        *scaled_queries(s),
        *core_attention.core_attention(s, "forward"),
        *linear.attention_output_forward(s),
        *eager.branch_norm_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def attention_backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the first residual addition to the layer's input gradient."""
    config = s.config
    return (
        *branch_norm_backward("norm1", s),
        *bias_backward(s, "output", s.norm_tokens, config.hidden, config.output_bias),
        *linear.attention_output_backward(s),
        *core_attention.backward(s),
        *scaled_queries(s, ".grad"),
        *megatron_rotary.backward(s),
        *_head_norms(s, "norm_backward", ".grad"),
        _joined(s),
        *linear.column_backward("qkv", s, s.qkv_width, normed=eager.before_block(s)),
        *block_norm_backward("norm1", s),
        eager.residual_addition("norm1.grad.join", s),
    )


def _parted(s: Shard) -> tuple[Launch, ...]:
    """Copies out of the joint product: of queries that share keys, and of values once the others lie elsewhere."""
    copied = []
    if s.heads != s.kv_heads:
        copied.append(("query", s.heads))
    if s.config.rotary and s.implementation.rotary:
        copied.append(("value", s.kv_heads))
    width, dtype = s.tokens * s.config.head_dim, s.dtype
    return tuple(reordered(f"qkv.{part}.copy", width * heads, dtype) for part, heads in copied)


def _joined(s: Shard) -> Launch:
    """Gradients of queries, keys and values put into the joint product's, in which those of each head lie together."""
    elements, dtype = s.tokens * s.qkv_width, s.dtype
    if s.config.rotary and s.implementation.rotary:
        return streaming("cat", "qkv.cat", elements, dtype=dtype)
    return issued("cat", "qkv.cat", elements, JOINED_VIEWS * elements, activity=1.0, dtype=dtype)


def _head_norms(s: Shard, pattern: str, suffix: str) -> tuple[Launch, ...]:
    launches: list[Launch] = []
    for part, rows, columns in normed_parts(s):
        reads = 2 if suffix else 1
        name = f"{part}_norm{suffix}"
        launches.append(row_wise(pattern, name, rows, columns, reads=reads, dtype=s.dtype))
        if suffix and not s.config.qk_norm_plain:
            launches += accumulation(f"{part}_norm.weight", columns, s.implementation)
    return tuple(launches)
