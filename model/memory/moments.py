"""Gradients, and parameters that FSDP holds whole, at the moment of an iteration when memory is fullest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory.loss_kept import forward_bytes, reference_transient_bytes
from joulecast.model.memory.states import head_elements, parameter_bytes
from joulecast.model.transformer import liger_loss
from joulecast.model.transformer.head import embedding_rows

if TYPE_CHECKING:
    from joulecast.model.memory.activations import MicroBatchBytes
    from joulecast.model.memory.pipeline_rank import PipelineRank
    from joulecast.model.memory.states import Stage, StateShards, Whole


def gradients_at_peak(
    gradients: float,
    kept: float,
    in_backward: tuple[float, float],
    one: MicroBatchBytes,
    rank: PipelineRank,
    split: StateShards,
    of_table: float = 0.0,
    waiting: float = 0.0,
) -> float:
    """PyTorch's gradients that are there when memory is fullest.

    Where gradients are dropped after each step, an iteration of one micro-batch makes them layer by layer while it
    frees what the layers kept. Memory is then fullest before anything is freed, when the head's gradient has taken the
    place of what the head kept, or at the end: in the first layer's backward, when an embedding of its own has no
    gradient yet, nor has the layer but of what its moment counts, or in the embedding's.

    Parameters
    ----------
    in_backward
        What the last layer's backward holds for the moment beyond what is counted as such, and further ones beyond.
    of_table
        What the embedding's backward (:func:`beside_table_bytes`) or the optimizer's step holds beside all gradients
        beyond what is counted as such.
    waiting
        Layers that wait gathered for their backward when the last one's begins, beyond what it holds.
    """
    run, config = one.shard.implementation, one.shard.config
    if split.gradient_copies or rank.pipelined or rank.micro_batches > 1 or not run.drops_gradients:
        anew = 0.0
        if rank.micro_batches > 1 and run.whole_graph:  # gives all of its gradients at its end
            anew = max(0.0, gradients - _table(one) * DTYPE_BYTES[run.kept_gradient_dtype])
        return gradient_copies(one, rank, split) * gradients + max(0.0, of_table + anew - kept)
    at_once, further = in_backward
    kept_type = 0 if run.lora is not None else DTYPE_BYTES[run.kept_gradient_dtype]
    head = head_elements(config, run) * kept_type / split.gradients
    later = 0.0 if run.tied(config) else _table(one) * kept_type / split.gradients
    within = (gradients - later - head) / sum(rank.layers)
    if split.splits_parameters:  # the head's is whole, and counted so; a layer's own are, and its predecessor's
        begun = max(0.0, further + within - one.layer) - one.ends + waiting
        end = gradients - later - head - 2 * within + 2 * one.layer - kept + further
    else:
        begun, end = head - one.ends, gradients - later - within + one.layer - kept
    return max(0.0, max(begun, end) + at_once, gradients - kept + of_table)


def gradient_copies(one: MicroBatchBytes, rank: PipelineRank, split: StateShards) -> int:
    """Copies of all gradients that lie in PyTorch's memory.

    Gradients that DDP's buckets hold are new tensors once they have been dropped: those of accumulated micro-batches
    add up beside the buckets, views of them or not, and move into them in the last backward at the earliest. In the
    second iteration DDP makes its buckets anew, and holds the old ones until NCCL has let go of them: the highest peak
    has both (`validate/recorded/h200_sxm/ddp_memory.jsonl`).
    """
    beside = split.gradient_copies > 1 and rank.micro_batches > 1 and one.shard.implementation.drops_gradients
    return max(1, split.gradient_copies) + beside


def beside_table_bytes(one: MicroBatchBytes, split: StateShards, outside: float) -> float:
    """What the embedding's backward holds beside all gradients, in the end of PyTorch's.

    A tied table's gradient is dense before it is added to the head's; where that is a view that its product gives, not
    a copy (under ``torch.autocast``, or by Liger's loss), their sum is a third one. FSDP has the table's gradient
    whole, and a copy in the type that it is reduced in, while what is ``outside`` the layers is gathered. Where it is
    the peak, of iterations on H200s with full recomputation or few layers, it is met within 0.1 %
    (`train_host.jsonl`, `train_modules_second.jsonl`, `train_muon.jsonl`, `train_random_second.jsonl`).
    """
    run = one.shard.implementation
    if run.lora is not None:
        return 0.0
    if run.whole_graph:  # adds up rows in fp32, then narrows them, as two iterations show
        return _table(one) * (DTYPE_BYTES["fp32"] + DTYPE_BYTES[run.dtype]) + one.boundary
    if split.parameters > 1:
        return outside + _table(one) * (DTYPE_BYTES[run.dtype] + DTYPE_BYTES[run.gradient_dtype])
    tables = 0 if not run.tied(one.shard.config) else 1 if run.autocast or liger_loss.fused(one.shard) else 2
    return tables * _table(one) * DTYPE_BYTES[run.kept_gradient_dtype] + one.boundary


def _table(one: MicroBatchBytes) -> float:
    """Parameters of the embedding on one rank."""
    run, config = one.shard.implementation, one.shard.config
    return float(embedding_rows(config, run) * config.hidden)


def gathered_at_peak(whole: Whole, transient: float, one: MicroBatchBytes, rank: PipelineRank) -> float:
    """What FSDP holds whole beyond the rest, ``transient`` included, when memory is fullest.

    That is between forward and backward, unless a layer's backward holds more than that of the loss has freed by then,
    as measured on two and four H200s (`validate/recorded/h200_sxm/train_sharded.jsonl`, `train_second.jsonl`), or at
    the end, when no layer waits gathered for its backward. In PyTorch a second layer's gradients come when what the
    first one kept is gone.
    """
    if one.shard.implementation.megatron:
        return whole.during + whole.further
    during = whole.during + max(0.0, whole.further - one.layer)
    if not rank.last:
        return during
    read = reference_transient_bytes(one.shard)
    compared = whole.between + whole.wait + read if read else 0.0
    scored = whole.between + whole.wait + one.loss_transient
    computed = during + whole.wait_within + one.backward_transient + one.boundary - one.ends
    moments = [scored, compared, computed, transient]
    if transient > max(one.backward_transient, one.loss_transient):  # what is outside of the layers comes last
        moments.append(whole.between + transient)
    return max(moments) - transient


def rounded_forward_bytes(one: MicroBatchBytes, stage: Stage) -> float:
    """What a forward under ``torch.autocast`` holds beside what is kept, where its layers are computed again.

    Autocast caches the weights that it rounds until the forward ends, which nothing else keeps then; but not frozen
    ones. With a second micro-batch, when all gradients are there, that is the peak: of an iteration on an H100 it is
    met within 0.2 % (`validate/recorded/h100_sxm/train_chunked.jsonl`).
    """
    run = one.shard.implementation
    if not run.autocast or run.compiled or run.recompute != "full":
        return 0.0
    weights, _ = parameter_bytes(replace(stage, first=False, last=False))
    kept = weights.elements * DTYPE_BYTES[run.dtype] / run.recompute_interval
    return kept + forward_bytes(one.shard, last=stage.last)
