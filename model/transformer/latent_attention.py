"""Multi-head latent attention as Megatron runs it: narrow latent vectors, unfolded by every rank for its heads.

The two products that make the latent vectors are not split: every tensor-parallel rank has them whole and runs them on
its share of the sequence. Their norms, gathering and the unfolding products are column-parallel linear layers of narrow
inputs. Keys of all heads share one rotary part. The attention kernel has keys wider than values; work and bytes are
those of their mean size.

Source: DeepSeek-V2, arXiv 2405.04434, section 2.1; Megatron-Core ``multi_latent_attention``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.experts import LatentAttention
from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import core_attention
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.megatron_norm import norm_backward, recomputed_norm
from joulecast.model.transformer.rotary import scaled_queries


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, attention block and residual addition."""
    latent = _shape(s)
    return (
        eager.norm_forward("norm1", s),
        *_query_forward(s, latent),
        *linear.whole_forward(s, "key_down", latent.kv_rank + latent.rotary_dim),
        *_shared_key_gathering(s, latent, ""),
        *linear.column_forward("key_norm", "key_up", _narrow(s, latent.kv_rank), _key_width(s, latent)),
        *_rotary(s, latent, ""),
        streaming("cat", "key.cat", s.tokens * s.heads * latent.key_dim, dtype=s.dtype),
        *scaled_queries(s),
        *core_attention.core_attention(s, "forward"),
        *linear.attention_output_forward(s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the first residual addition to the layer's input gradient."""
    latent, dtype = _shape(s), s.dtype
    shared = s.tokens * s.heads * latent.rotary_dim
    return (
        *recomputed_norm("norm1", s),
        *linear.attention_output_backward(s),
        *(_unfold(s, latent) if s.implementation.recomputes("mla_up_proj") else ()),
        *core_attention.backward(s),
        *scaled_queries(s, ".grad"),
        streaming("cat", "key.cat.grad", s.tokens * s.heads * latent.key_dim, dtype=dtype),
        streaming("reduce", "key.shared.grad", shared, writes=1 / s.heads, dtype=dtype),
        *_rotary(s, latent, ".grad"),
        *_unfolded_backward(s, "key", latent.kv_rank, _key_width(s, latent)),
        *_shared_key_gathering(s, latent, ".grad"),
        *linear.whole_backward(s, "key_down", latent.kv_rank + latent.rotary_dim),
        *_query_backward(s, latent),
        eager.residual_addition("latent.grad.join", s),
        *norm_backward("norm1", s),
        eager.residual_addition("norm1.grad.join", s),
    )


def _unfold(s: Shard, latent: LatentAttention) -> tuple[Launch, ...]:
    """Queries, keys and values made again from the latent vectors, which are kept with their norms' inputs."""
    ups = linear.column_forward("key_norm", "key_up", _narrow(s, latent.kv_rank), _key_width(s, latent))
    if latent.query_rank:
        narrow, width = _narrow(s, latent.query_rank), s.heads * latent.key_dim
        ups = (*linear.column_forward("query_norm", "query_up", narrow, width), *ups)
    copy = streaming("cat", "key.cat", s.tokens * s.heads * latent.key_dim, dtype=s.dtype)
    return (*ups, *_rotary(s, latent, ""), copy, *scaled_queries(s))


def _shape(s: Shard) -> LatentAttention:
    if s.config.latent is None:
        raise TypeError("a model without latent attention")
    return s.config.latent


def _narrow(s: Shard, width: int) -> Shard:
    """The same tokens with a latent vector of ``width`` in place of the residual stream."""
    return replace(s, config=replace(s.config, hidden=width))


def _key_width(s: Shard, latent: LatentAttention) -> int:
    return s.heads * (latent.plain_dim + latent.value_dim)


def _query_forward(s: Shard, latent: LatentAttention) -> tuple[Launch, ...]:
    width = s.heads * latent.key_dim
    if not latent.query_rank:
        return linear.column_forward("", "query_up", s, width)
    narrow = _narrow(s, latent.query_rank)
    down = linear.whole_forward(s, "query_down", latent.query_rank)
    return (*down, *linear.column_forward("query_norm", "query_up", narrow, width))


def _query_backward(s: Shard, latent: LatentAttention) -> tuple[Launch, ...]:
    width = s.heads * latent.key_dim
    if not latent.query_rank:
        return linear.column_backward("query_up", s, width, normed=False)
    unfolded = _unfolded_backward(s, "query", latent.query_rank, width)
    return (*unfolded, *linear.whole_backward(s, "query_down", latent.query_rank))


def _unfolded_backward(s: Shard, part: str, rank: int, width: int) -> tuple[Launch, ...]:
    narrow = _narrow(s, rank)
    return (*linear.column_backward(f"{part}_up", narrow, width), *norm_backward(f"{part}_norm", narrow))


def _shared_key_gathering(s: Shard, latent: LatentAttention, suffix: str) -> tuple[Launch, ...]:
    """Gathering of the keys' shared part, and in the backward the scattering of its gradient's sum."""
    if not s.implementation.splits_sequence:
        return ()
    kind = "reduce_scatter" if suffix else "all_gather"
    size = s.tokens * latent.rotary_dim * s.value_bytes
    return (collective(kind, f"key.shared{suffix}.{kind}", size, s.implementation),)


def _rotary(s: Shard, latent: LatentAttention, suffix: str) -> tuple[Launch, ...]:
    if not s.implementation.rotary:
        return ()
    dtype, width = s.dtype, latent.rotary_dim
    return (
        streaming("rope", f"rotary.query{suffix}", s.tokens * s.heads * width, dtype=dtype),
        streaming("rope", f"rotary.key{suffix}", s.tokens * width, dtype=dtype),
    )
