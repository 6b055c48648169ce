"""Bytes of everything that one layer's backward reads, by framework."""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory import modules_kept
from joulecast.model.memory.recomputation import latent_vectors, narrow_copies, normed_latents
from joulecast.model.transformer import (
    context_parallel,
    state_space,
    stored_narrow,
    unfused_attention,
)
from joulecast.model.transformer.expert_rows import expert_bytes
from joulecast.model.transformer.state_space_context import scanned

#: Bytes of an fp32 statistic a row (softmax's log-sum-exp, a norm's scale or mean).
_STATISTIC_BYTES = 4.0


def boundary_bytes(s: Shard) -> float:
    """A residual-stream tensor as a rank holds and sends it; ``torch.autocast`` leaves it in the parameters' type."""
    return s.stream_values * s.stream.value_bytes


def whole_layer_bytes(s: Shard) -> float:
    """Bytes of everything that a layer's backward reads, nothing recomputed."""
    config, implementation = s.config, s.implementation
    if implementation.modules != "joint":
        return modules_kept.layer_bytes(s)
    values = _stream_tokens(s) * config.hidden + s.tokens * _inner_width(s)
    experts = 0.0 if config.experts is None else expert_bytes(s)
    mixed = state_space.kept_bytes(scanned(s)) + context_parallel.kept_bytes(s)
    kept = DTYPE_BYTES[implementation.dtype] * values + _STATISTIC_BYTES * _statistics(s) + mixed
    return kept + experts + _fp8_difference_bytes(s) + _unfused_bytes(s) - stored_narrow.saved_bytes(s)


def _stream_tokens(s: Shard) -> float:
    """Kept tokens of the residual stream's width.

    Norm inputs stay sharded; their outputs are kept as the products' inputs, in eager mode after the gathering. A norm
    behind a block keeps the block's result, whose product reads the stream itself.
    """
    config, megatron = s.config, s.implementation.megatron
    kept = float(config.norm_inputs * s.norm_tokens + config.block_inputs * (s.norm_tokens if megatron else s.tokens))
    if config.latent is not None:  # whose queries and keys are put together when they are rotated
        kept += latent_vectors(config.latent) * s.norm_tokens / config.hidden
    return kept - 2 * s.tokens if s.implementation.casts_anew else kept


def _inner_width(s: Shard) -> float:
    """Values of a token that attention and the MLP keep between their products."""
    config, implementation = s.config, s.implementation
    kept = s.qkv_width + s.attention_width + s.up_width + s.ffn
    heads = (s.heads + s.kv_heads) * config.head_dim
    if config.qk_norm:
        kept += heads
    if config.latent is None and config.rotary and implementation.rotary and not _parted(s):
        kept += heads  # rotated queries and keys; the joint product lives on as long as the values, its view
    elif config.latent is None and config.scaled_queries:
        kept += s.heads * config.head_dim
    if not implementation.megatron:
        kept += eager_activation_extra(s)
    return kept - s.ffn if s.implementation.casts_anew else kept


def _parted(s: Shard) -> bool:
    """Whether values are copied out of the joint product, which goes: Transformer Engine's fused attention does."""
    run = s.implementation
    return run.megatron and run.attention_backend != "unfused" and not run.recomputes("core_attn")


def _statistics(s: Shard) -> int:
    """Kept numbers of norms' rows and of softmax's."""
    config, implementation = s.config, s.implementation
    moments = 2 if config.norm == "layernorm" else 1
    statistics = config.layer_norms * moments * s.norm_tokens + s.heads * s.tokens
    if config.qk_norm:
        statistics += (2 if config.qk_norm_whole else s.heads + s.kv_heads) * s.tokens
    if implementation.recomputes("core_attn") or implementation.attention_backend == "unfused":
        statistics -= s.heads * s.tokens
    return statistics


def _unfused_bytes(s: Shard) -> float:
    """Scores of attention whose kernels are not fused; selective recomputation leaves them out."""
    implementation = s.implementation
    if implementation.attention_backend != "unfused" or implementation.recomputes("core_attn"):
        return 0.0
    return unfused_attention.kept_bytes(s)


def _fp8_difference_bytes(s: Shard) -> float:
    """What FP8 changes: products keep one copy of their inputs, attention its output in ``dtype`` beside it."""
    narrow, wide = s.implementation.kept_narrow, s.value_bytes
    if narrow is None:
        return 0.0
    replaced = s.config.halves * s.stream_values + s.tokens * s.ffn
    if s.config.experts is not None:  # their rows are counted in FP8 already; the router's input stays wide
        replaced -= s.stream_values
    if s.config.latent is not None:
        replaced += s.norm_tokens * normed_latents(s.config.latent)
    again = narrow.value_bytes * narrow_copies(s) * s.stream_values
    kept = again + (narrow.value_bytes - wide) * replaced
    if narrow.copies_attention:
        kept += narrow.value_bytes * s.tokens * s.attention_width
    if s.implementation.attention_fp8:  # one copy of queries, keys and values in FP8 with one scale each
        rotated = (s.heads + s.kv_heads) * s.config.head_dim if s.config.rotary and s.implementation.rotary else 0
        kept += s.tokens * (s.qkv_width - wide * (s.qkv_width + rotated))
    return kept


def eager_activation_extra(s: Shard) -> int:
    """Width of the intermediate results that unfused activations keep besides their input and output."""
    return s.ffn if s.config.gated_mlp and not s.implementation.compiled else 0
