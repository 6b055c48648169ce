"""Gradients, and parameters that FSDP holds whole, at the moment of an iteration when memory is fullest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.head import head_is_split, local_vocabulary

if TYPE_CHECKING:
    from joulecast.model.memory.activations import MicroBatchBytes
    from joulecast.model.memory.pipeline_rank import PipelineRank
    from joulecast.model.memory.states import StateShards


def gradients_at_peak(
    gradients: float,
    kept: float,
    in_backward: tuple[float, float],
    one: MicroBatchBytes,
    rank: PipelineRank,
    split: StateShards,
) -> float:
    """PyTorch's gradients that are there when memory is fullest.

    Where gradients are dropped after each step, an iteration of one micro-batch makes them layer by layer while it
    frees what the layers kept. Memory is then fullest before anything is freed, when the head's gradient has taken the
    place of what the head kept, or at the end. ``in_backward`` is what the last layer's backward holds for the moment
    beyond what is counted as such, and further ones beyond that.
    """
    run = one.shard.implementation
    if split.gradient_copies or rank.pipelined or rank.micro_batches > 1 or not run.drops_gradients:
        return max(1, split.gradient_copies) * gradients
    head = local_vocabulary(one.shard.config.vocab, head_is_split(run), run) * one.shard.config.hidden
    head_bytes = (run.lora is None) * head * DTYPE_BYTES[run.kept_gradient_dtype] / split.gradients
    at_once, further = in_backward
    begun = head_bytes - one.ends + max(0.0, further - one.layer)
    return max(0.0, max(begun, gradients + one.layer - kept + further) + at_once)


def gathered_at_peak(
    whole: tuple[float, float, float], transient: float, one: MicroBatchBytes, rank: PipelineRank
) -> float:
    """What FSDP holds whole beyond the rest, ``transient`` included, when memory is fullest.

    That is between forward and backward, unless a layer's backward holds more than that of the loss has freed by then,
    as measured on two and four H200s (`validate/recorded/h200_sxm/train_sharded.jsonl`, `train_second.jsonl`), or at
    the end. In PyTorch a second layer's gradients come when what the first one kept is gone.
    """
    between, during, further = whole
    if one.shard.implementation.framework == "megatron":
        return during + further
    during += max(0.0, further - one.layer)
    if not rank.last:
        return during
    moments = [between + one.loss_transient, during + one.layer_transient - one.ends, transient]
    if transient > max(one.layer_transient, one.loss_transient):  # what is outside of the layers comes last
        moments.append(between + transient)
    return max(moments) - transient
