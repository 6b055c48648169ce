"""Bytes that one layer, head or boundary keeps between forward and backward, by framework and recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory import liger_kept, lora_kept, loss_kept, modules_kept
from joulecast.model.memory.recomputation import latent_vectors, narrow_copies, normed_latents, saved_bytes
from joulecast.model.transformer import (
    attention_kernel,
    context_parallel,
    delta_net,
    hybrid_exchange,
    liger_loss,
    log_probabilities,
    masked_attention,
    math_attention,
    modules_experts,
    multi_token,
    operator_checkpoints,
    state_space,
    stored_narrow,
    transformers_attention,
    unfused_attention,
    value_head,
)
from joulecast.model.transformer.expert_rows import expert_bytes, expert_shard, row_width
from joulecast.model.transformer.head import head_words
from joulecast.model.transformer.megatron_linear import gathered_bytes
from joulecast.model.transformer.state_space_context import scanned

#: Bytes of an fp32 statistic a row (softmax's log-sum-exp, a norm's scale or mean).
_STATISTIC_BYTES = 4.0
#: Tensors of logits in fp32 that PyTorch's loss of split logits holds beside the log-softmax.
LOSS_PARALLEL_TENSORS = 3


@dataclass(frozen=True, slots=True)
class MicroBatchBytes:
    """What one micro-batch takes wherever a stage stands; all but ``shard``, its sizes, in bytes.

    Attributes
    ----------
    layer, ends
        Kept by one layer, and behind the last one by head and modules that predict further tokens.
    boundary, logits
        The residual stream between two stages, and the logits.
    layer_transient, loss_transient
        Temporary results at the worst moment of a layer's backward, and of the loss's.
    layer_anew
        The former with the gradient of the weight that stays by then, where gradients come anew.
    attention_transient
        At attention of separate kernels, when the loss has freed what it kept; 0 where attention is one kernel.
    user_buffers, exchange_buffers
        Masks that all layers share and buffers of stepwise communication (:func:`_user_buffer_bytes`); HybridEP's
        buffers, outside PyTorch's allocator.
    """

    shard: Shard
    layer: float
    ends: float
    boundary: float
    logits: float
    layer_transient: float
    layer_anew: float
    loss_transient: float
    user_buffers: float
    exchange_buffers: float
    attention_transient: float = 0.0

    @property
    def backward_transient(self) -> float:
        """At the worst moment of a layer's backward, the gradients of its weights included that are made by then."""
        return max(self.layer_anew, self.attention_transient)


@lru_cache(maxsize=4096)
def micro_batch_bytes(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int
) -> MicroBatchBytes:
    """What a micro-batch of so many sequences takes; plans that differ in how they are staged share it."""
    s = shard(config, implementation, batch, sequence)
    each = [micro_batch_bytes(kind, implementation, batch, sequence) for kind in config.kinds] if _mixes(config) else []
    return MicroBatchBytes(
        shard=s,
        layer=max((one.layer for one in each), default=0.0) or layer_bytes(s),
        ends=_ends_bytes(s, shard(config.prediction_layer, implementation, batch, sequence)),
        boundary=boundary_bytes(s),
        logits=logits_bytes(s),
        layer_transient=max((one.layer_transient for one in each), default=0.0) or layer_transient_bytes(s),
        layer_anew=max((one.layer_anew for one in each), default=0.0) or layer_transient_bytes(s, anew=True),
        loss_transient=loss_transient_bytes(s),
        user_buffers=max((one.user_buffers for one in each), default=0.0) or _user_buffer_bytes(s),
        exchange_buffers=_exchange_buffer_bytes(s),
        attention_transient=max((one.attention_transient for one in each), default=0.0) or attention_transient_bytes(s),
    )


def _mixes(config: ModelConfig) -> bool:
    """Whether the layers are a hybrid's, of which the largest stands for all where one is asked for."""
    return len(config.kinds) > 1 and config.mixers != ()


def not_kept_first_bytes(s: Shard) -> float:
    """What the first layer keeps less than others beside adapters, where its input takes no gradient."""
    if s.implementation.lora is None or s.implementation.recompute != "none":
        return 0.0
    return modules_kept.first_norm_bytes(s)


def _ends_bytes(s: Shard, layer: Shard) -> float:
    """What one micro-batch keeps behind the last layer: the head's, and that of modules that predict further tokens.

    ``layer`` is that of such a module.
    """
    further = s.config.mtp_layers
    more = multi_token.kept_bytes(s) + layer_bytes(layer) + head_bytes(s) if further else 0.0
    return head_bytes(s) + further * more


def _user_buffer_bytes(s: Shard) -> float:
    """ALiBi's tensor and the mask, of all layers, and buffers of stepwise communication.

    Of the latter six gather (in FP8 where the products are) and four scatter. PyTorch's symmetric memory has one, as
    large as the largest sum that is scattered.
    """
    written = s.implementation.attention_backend == "unfused" or attention_kernel.alibi(s) == "mask"
    bias = s.config.alibi and written and s.implementation.modules == "joint"
    tensor = bias * s.value_bytes * s.heads * s.sequence**2 + _mask_bytes(s)
    if not s.implementation.tp_comm_overlap:
        return tensor
    if not s.implementation.megatron:
        return tensor + s.activation_bytes
    return tensor + 6.0 * gathered_bytes(s) + 4.0 * s.activation_bytes


def _mask_bytes(s: Shard) -> float:
    """What tells transformers' layers which scores count: one value of the residual stream's type each, or a flag.

    It is gone when the forward ends, but where checkpoints keep it for layers that are computed again.
    """
    if s.implementation.recompute != "full":
        return 0.0
    if transformers_attention.applies(s):
        return s.batch * s.sequence**2 * s.stream.value_bytes
    return float(s.batch * s.sequence**2 * masked_attention.masked(s))


def _exchange_buffer_bytes(s: Shard) -> float:
    """Buffers in which HybridEP's kernels put experts' tokens."""
    experts = s.config.experts
    return (
        0.0 if experts is None else hybrid_exchange.buffer_bytes(s.implementation, experts, s.norm_tokens, row_width(s))
    )


def boundary_bytes(s: Shard) -> float:
    """A residual-stream tensor as a rank holds and sends it; ``torch.autocast`` leaves it in the parameters' type."""
    return s.stream_values * s.stream.value_bytes


def layer_bytes(s: Shard) -> float:
    """Bytes that one layer keeps for one micro-batch, on average where only one in so many is computed again.

    Full recomputation keeps the layer's input, and what products give where they are not computed again. Selective
    recomputation leaves out what its parts make, that by operator all that it does not keep.
    """
    if s.implementation.recompute == "operators":
        return operator_checkpoints.kept_bytes(s)
    if s.implementation.recompute != "full":
        return whole_layer_bytes(s) - saved_bytes(s)
    again = boundary_bytes(s)
    if s.implementation.keeps_products:
        widths = s.qkv_width + s.hidden + s.up_width
        again += s.tokens * widths * s.value_bytes
    share = 1.0 / s.implementation.recompute_interval
    return again if share == 1.0 else share * again + (1.0 - share) * whole_layer_bytes(s)


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
        kept += _eager_activation_extra(s)
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


def _eager_activation_extra(s: Shard) -> int:
    """Width of the intermediate results that unfused activations keep besides their input and output."""
    return s.ffn if s.config.gated_mlp and not s.implementation.compiled else 0


def head_bytes(s: Shard) -> float:
    """Final norm's input and output, and what the loss keeps, for one micro-batch."""
    vocab = head_words(s.config, s.implementation)
    if value_head.applies(s):
        return modules_kept.final_norm_bytes(s)
    if log_probabilities.in_tiles(s):
        return loss_kept.head_bytes(s)
    if s.implementation.modules != "joint":
        if liger_loss.fused(s):
            ready = liger_kept.input_gradient_bytes(s) + liger_kept.weight_gradient_bytes(s, vocab)
            return modules_kept.final_norm_bytes(s) + ready
        ends = modules_kept.final_norm_bytes(s) + modules_kept.head_weight_bytes(s, vocab)
        return ends + s.tokens * vocab * _kept_logit_bytes(s)
    whole = s.activation_bytes if s.implementation.sequence_parallel else boundary_bytes(s)
    return boundary_bytes(s) + whole + s.tokens * vocab * _kept_logit_bytes(s)


def _in_fp32(s: Shard) -> bool:
    return s.implementation.splits_head or s.implementation.megatron


def _kept_logit_bytes(s: Shard) -> float:
    """The log-softmax in the logits' dtype (fused: their gradient), or the softmax in fp32, and what capped them."""
    return _softmax_logit_bytes(s) + s.config.logit_softcap * s.value_bytes


def _softmax_logit_bytes(s: Shard) -> float:
    if s.implementation.modules != "joint" and not s.implementation.splits_head:
        return modules_kept.kept_logit_bytes(s)
    if s.implementation.native_loss:
        return 8.0  # logits and their exponentials
    return 4.0 if _in_fp32(s) and not s.implementation.fused_loss else s.value_bytes


def logits_bytes(s: Shard) -> float:
    """The logits of one micro-batch on one rank."""
    vocab = head_words(s.config, s.implementation)
    return s.tokens * vocab * s.value_bytes


def loss_transient_bytes(s: Shard) -> float:
    """Highest of what the backward of loss and head holds beside what was kept.

    Eager: the dense gradient of the log-softmax and that of the logits; then, log-softmax and the first of them freed,
    the weight's gradient. In fp32 the gradient takes the kept softmax's place and only its narrow copy is new.
    PyTorch's loss of split logits (``loss_parallel``) makes a dense gradient, exponentials, their sum and its product
    in fp32, of which three are there at once (``_nll_loss_and_log_softmax_backward`` in
    ``torch/distributed/tensor/parallel/loss.py``).
    """
    if value_head.applies(s):
        return boundary_bytes(s)
    logits, size = logits_bytes(s), s.value_bytes
    vocab = head_words(s.config, s.implementation)
    weight = float(vocab * s.hidden * size) if s.implementation.lora is None else 0.0
    if s.implementation.log_probabilities:
        return loss_kept.loss_transient_bytes(s, vocab, weight)
    if liger_loss.fused(s):
        return liger_kept.transient_bytes(s, vocab)
    if liger_loss.alone(s):
        return max(logits, weight + boundary_bytes(s))
    if s.implementation.fused_loss:
        return s.activation_bytes if s.implementation.megatron else max(logits, weight + boundary_bytes(s))
    if s.implementation.splits_head and s.implementation.modules == "torchtitan":
        return LOSS_PARALLEL_TENSORS * _STATISTIC_BYTES * s.tokens * vocab
    if _in_fp32(s):
        return logits + (0.0 if s.implementation.megatron else max(0.0, weight - 2 * logits))
    return max(2 * s.tokens * vocab * _softmax_logit_bytes(s), weight + boundary_bytes(s))


def _restored_bytes(s: Shard) -> float:
    """An activation's input as its gradient reads it, where it is kept in FP8."""
    if not s.implementation.stores_activation_input:
        return 0.0
    values = s.tokens * s.up_width
    if s.config.experts is not None:
        e = expert_shard(s)
        values = max(values, e.all_rows * e.up_width)
    return s.value_bytes * values


def layer_transient_bytes(s: Shard, *, anew: bool = False) -> float:
    """Gradients alive early in a layer's backward, when everything kept is still there.

    They are the last product's weight and input gradients (Megatron's weight gradient goes into its buffer), or those
    around a gate, and, with full recomputation, the layer's activations computed again. A weight's gradient that comes
    ``anew`` is still there at the gate, in the type that it stays in.
    """
    size, implementation = s.value_bytes, s.implementation
    trained = not implementation.megatron and implementation.lora is None
    weight = s.hidden * s.ffn * trained
    gradients = float(size * (weight + s.tokens * s.ffn))
    if implementation.lora is not None:
        gradients = lora_kept.gradient_bytes(s, implementation.lora)
    kept = implementation.dtype if implementation.gathered else implementation.kept_gradient_dtype
    around_gate = max(modules_kept.gate_gradient_bytes(s), _cast_bytes(s))
    gradients = max(gradients, weight * DTYPE_BYTES[kept] * anew + around_gate)
    gradients = max(gradients, state_space.transient_bytes(scanned(s)), delta_net.transient_bytes(s))
    if s.config.experts is not None:
        e = expert_shard(s)
        inner = e.up_width if implementation.megatron else e.ffn  # behind the activation's gradient its input's
        gradients += float(size * e.all_rows * (row_width(s) + inner))
        if trained:
            gradients = max(gradients, _experts_transient_bytes(s, stays=kept if anew else ""))
    if implementation.splits_sequence:
        gradients += s.activation_bytes
    gradients += saved_bytes(s) + _restored_bytes(s)
    if implementation.recomputes("core_attn") and implementation.attention_backend == "unfused":
        gradients = max(gradients, unfused_attention.kept_bytes(s))  # neither is alive while the other is
    if implementation.recompute == "operators":
        gradients += max(0.0, whole_layer_bytes(s) - operator_checkpoints.kept_bytes(s))
    if implementation.recompute == "full" and not implementation.keeps_products:
        gradients += _made_again_bytes(s)
    return gradients


def _made_again_bytes(s: Shard) -> float:
    """What a layer that is computed again keeps beside the input that its checkpoint holds."""
    return whole_layer_bytes(s) - (0.0 if modules_kept.copies_input(s) else boundary_bytes(s))


def _cast_bytes(s: Shard) -> float:
    """When eager casts to FP8 are at the MLP's first products, less what all behind their input kept.

    Their results' gradient is there with two copies of it in fp32, scaled and clamped; or with its own in FP8 and two
    such copies of the weight (``hp_tensor_to_float8_dynamic`` and ``to_fp8_saturated`` in torchao). Peaks of three
    iterations on an H200 are met so.
    """
    run = s.implementation
    if run.narrow is None or run.megatron or run.compiled or run.modules != "joint" or s.config.experts is not None:
        return 0.0
    gradient, weight, copies = s.tokens * s.up_width, s.hidden * s.up_width, 2 * DTYPE_BYTES["fp32"]
    cast = max(copies * gradient, run.narrow.value_bytes * gradient + copies * weight)
    kept = s.tokens * (s.up_width + s.ffn + _eager_activation_extra(s))
    return s.value_bytes * (gradient - kept) + cast


def _experts_transient_bytes(s: Shard, stays: str) -> float:
    """When PyTorch's first product of experts gives its gradients, less what all behind its input kept.

    Its result's gradient, its input and that one's gradient are there, and gradients of the weights: of all products
    where they come anew, in the type ``stays``, of this one alone where they are added to others.
    """
    e, width = expert_shard(s), row_width(s)
    rows = s.value_bytes * e.all_rows * (e.up_width + 2 * width)
    weights = DTYPE_BYTES[stays or s.dtype] * e.experts * width * (e.up_width + e.ffn * bool(stays))
    joint = s.implementation.modules == "joint"
    return rows + weights - (expert_bytes(s) if joint else modules_experts.kept_bytes(s))


def attention_transient_bytes(s: Shard) -> float:
    """The same when attention of separate kernels makes its softmax's gradient, and the MLP's part is gone.

    Gradients of the weights behind it are there by then.
    """
    if not transformers_attention.applies(s) and not math_attention.applies(s):
        return 0.0
    run, behind = s.implementation, s.up_width + s.ffn + s.attention_width
    weights = 0.0 if run.lora is not None else float(DTYPE_BYTES[run.dtype] * s.hidden * behind)
    again = _made_again_bytes(s) if run.recompute == "full" else saved_bytes(s)
    kernels = math_attention if math_attention.applies(s) else transformers_attention
    return kernels.gradient_bytes(s) + weights + again - modules_kept.mlp_bytes(s) - modules_kept.second_norm_bytes(s)
