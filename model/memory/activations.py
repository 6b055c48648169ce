"""Bytes that one layer, head or boundary keeps between forward and backward, by framework and recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.memory import liger_kept, loss_kept, modules_kept
from joulecast.model.memory.layer_kept import boundary_bytes, whole_layer_bytes
from joulecast.model.memory.layer_transients import attention_transient_bytes, layer_transient_bytes
from joulecast.model.memory.recomputation import saved_bytes
from joulecast.model.transformer import (
    attention_kernel,
    hybrid_exchange,
    liger_loss,
    log_probabilities,
    masked_attention,
    multi_token,
    operator_checkpoints,
    transformers_attention,
    value_head,
)
from joulecast.model.transformer.expert_rows import row_width
from joulecast.model.transformer.head import head_words
from joulecast.model.transformer.megatron_linear import gathered_bytes

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
