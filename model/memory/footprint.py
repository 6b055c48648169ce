"""Memory of one GPU during training: what is held, when it is highest, and whether it fits.

The parts are those that ``torch.cuda.max_memory_allocated`` counts, plus what lies outside PyTorch's allocator. Of
``torch.distributed.pipelining`` the model knows that it holds receive buffers of every micro-batch, the stages' outputs
until their backward, and the last stage's logits of all micro-batches until the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.errors import DoesNotFitError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory.activations import MicroBatchBytes, micro_batch_bytes, not_kept_first_bytes
from joulecast.model.memory.allocator import cached_bytes
from joulecast.model.memory.loss_kept import reference_transient_bytes
from joulecast.model.memory.moments import (
    beside_table_bytes,
    gathered_at_peak,
    gradients_at_peak,
    rounded_forward_bytes,
)
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.memory.states import (
    Stage,
    StateShards,
    Whole,
    gathered_by_fsdp_bytes,
    outside_layers_bytes,
    parameter_bytes,
    reference_bytes,
    uneven_bytes,
    weights_bytes,
    whole_throughout_bytes,
)
from joulecast.model.memory.vision_kept import kept_bytes
from joulecast.model.memory.workspaces import LIBRARY_BYTES, PYTORCH, workspace_bytes
from joulecast.model.training.optimizer import widened_gradient_bytes
from joulecast.model.transformer.head import embedding_rows

#: CUDA context and kernels' code, outside the allocator: an estimate.
CONTEXT_BYTES = 1.1e9
#: Channels of one communicator: 24 of two connections with 4 MiB each, outside the allocator as well: an estimate.
COMMUNICATOR_BYTES = 24 * 2 * 4 * 1024.0**2


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Memory of one GPU at its peak, by purpose; all in bytes.

    Attributes
    ----------
    parameters, gradients, optimizer
        Model states, parameters with those of a reference model that is a copy or of a teacher, gradients as far as
        they are there at the peak.
    activations
        Kept for the backward by the micro-batches in flight.
    outputs
        Stage outputs, and on the last stage logits, that the pipeline holds on to.
    buffers
        Receive buffers of the pipeline that hold no activation counted above.
    transient
        Gradients and temporary results at the peak.
    workspace
        Workspaces of the libraries.
    gathered
        Parameters and gradients that FSDP holds whole while they are at work.
    context
        What lies outside the framework's allocator: the driver's context, the communicators' channels, and an engine
        that generates completions.
    cached
        What PyTorch's allocator keeps for other streams and sizes (:mod:`joulecast.model.memory.allocator`); in none of
        the sums but ``reserved_bytes``.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    outputs: float
    buffers: float
    transient: float
    workspace: float = PYTORCH * LIBRARY_BYTES
    gathered: float = 0.0
    context: float = CONTEXT_BYTES
    cached: float = 0.0

    @property
    def states_bytes(self) -> float:
        """Parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def allocated_bytes(self) -> float:
        """Peak of the framework's allocator, comparable to ``torch.cuda.max_memory_allocated``."""
        held = self.activations + self.outputs + self.buffers + self.transient + self.workspace + self.gathered
        return self.states_bytes + held

    @property
    def reserved_bytes(self) -> float:
        """Peak of what PyTorch's allocator holds, comparable to ``torch.cuda.max_memory_reserved``."""
        return self.allocated_bytes + self.cached

    @property
    def total_bytes(self) -> float:
        """Everything on the GPU."""
        return self.allocated_bytes + self.context


def memory_footprint(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    rank: PipelineRank,
    *,
    shards: StateShards | None = None,
    communicators: int = 2,
    engine_bytes: float = 0.0,
    engine_sleeps: bool = False,
) -> MemoryFootprint:
    """Peak memory of a GPU of one pipeline rank.

    Parameters
    ----------
    batch, sequence
        Of one micro-batch.
    shards
        How the model states are split over data-parallel ranks, ``None`` where they are not.
    communicators
        Groups that the GPU communicates in.
    engine_bytes
        What an engine beside the training holds that generates completions.
    engine_sleeps
        Whether it gives that back while the model is trained.
    """
    split = shards or StateShards()
    one = micro_batch_bytes(config, implementation, batch, sequence)
    others = tuple(map(sum, zip(*rank.others, strict=True))) if rank.others is not None else ()
    stage = Stage(config, implementation, sum(rank.layers), rank.first, rank.last, others)
    rest, experts = parameter_bytes(stage)
    states = rest.elements / split.optimizer + experts.elements / split.expert_optimizer
    own = rest.elements / split.gradients + experts.elements / split.expert_gradients
    own_bytes = own * DTYPE_BYTES[implementation.kept_gradient_dtype]
    if split.add_up_whole:
        own_bytes = (rest.elements + experts.elements) * DTYPE_BYTES[implementation.gradient_dtype]
    kept = _kept_bytes(one, _stack_bytes(config, implementation, batch, sequence, one, rank), rank)
    outputs, buffers = _pipeline_bytes(one, rank) if rank.pipelined else (0.0, 0.0)
    transient = _transient_bytes(one, kept, rank)
    temporary = max(rest.temporary, experts.temporary)
    at_step = states * widened_gradient_bytes(implementation)  # while no activation is there
    if implementation.megatron:
        at_step += temporary
    transient = max(transient, at_step - kept - outputs - buffers, rounded_forward_bytes(one, stage))
    whole = gathered_by_fsdp_bytes(stage, split)
    if split.stay_gathered:
        gathered, gradients = whole_throughout_bytes(stage)
    else:
        gathered, gradients = _gathered_and_gradients(own_bytes, whole, kept, transient, one, rank, split, temporary)
    given_back = kept + outputs + buffers + transient + gathered + gradients if engine_sleeps else 0.0
    # PyTorch's symmetric memory lies outside its allocator.
    symmetric = implementation.tp_comm_overlap and not implementation.megatron
    return MemoryFootprint(
        parameters=weights_bytes((rest, experts), split) + reference_bytes(stage, split),
        gradients=gradients,
        optimizer=rest.optimizer / split.optimizer
        + experts.optimizer / split.expert_optimizer
        + uneven_bytes(stage, split),
        activations=kept,
        outputs=outputs,
        buffers=buffers,
        transient=transient,
        workspace=workspace_bytes(one.shard, last=rank.last) + (0.0 if symmetric else one.user_buffers),
        gathered=gathered,
        context=CONTEXT_BYTES
        + max(engine_bytes - given_back, 0.0)
        + communicators * COMMUNICATOR_BYTES
        + one.exchange_buffers
        + (one.user_buffers if symmetric else 0.0),
        cached=cached_bytes(one, rank, gathered=whole.between, elements=own, gradients=gradients),
    )


def _stack_bytes(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    one: MicroBatchBytes,
    rank: PipelineRank,
) -> list[float]:
    """What a micro-batch keeps in the layers of each chunk of a rank."""
    of_chunks = list(zip(rank.others or [()] * rank.chunks, rank.layers, strict=True))
    distinct = {
        chunk: sum(
            micro_batch_bytes(kind, implementation, batch, sequence).layer * count
            for kind, count in config.sorted_kinds(*chunk)
        )
        for chunk in set(of_chunks)
    }
    stacks = [distinct[chunk] for chunk in of_chunks]
    if rank.first:
        stacks[0] += kept_bytes(config, implementation, batch, sequence) - not_kept_first_bytes(one.shard)
    return stacks


def _gathered_and_gradients(
    gradients: float,
    whole: Whole,
    kept: float,
    transient: float,
    one: MicroBatchBytes,
    rank: PipelineRank,
    split: StateShards,
    temporary: float,
) -> tuple[float, float]:
    """What FSDP holds whole when memory is fullest, and the gradients of one GPU that are there then.

    ``gradients`` are all that it has, ``kept`` are activations; ``temporary`` is what the optimizer's step needs beside
    all gradients.
    """
    implementation = one.shard.implementation
    gathered = gathered_at_peak(whole, transient, one, rank) if split.splits_parameters else 0.0
    if not implementation.megatron:
        counted = transient + gathered
        in_backward = whole.during + one.backward_transient + one.boundary - counted, whole.further
        outside = outside_layers_bytes(one.shard.config, implementation, rank.first, rank.last)
        of_table = beside_table_bytes(one, split, outside) if rank.first else 0.0
        gradients = gradients_at_peak(
            gradients, kept, in_backward, one, rank, split, max(of_table, temporary) - counted, whole.wait_within
        )
    return gathered + (_compared_root_bytes(one.shard, rank) if split.splits_parameters else 0.0), gradients


def _compared_root_bytes(s: Shard, rank: PipelineRank) -> float:
    """What is outside the layers of a reference model that is a copy, or of a teacher, whole once it is gathered.

    FSDP lets a root's parameters go in its backward, and these have none. Of Llama-3.2-3B's pairs on two H100s the peak
    is met within 0.1 % (`validate/recorded/h100_sxm/train_two_gpus_second.jsonl`).
    """
    run = s.implementation
    if run.teacher is None and run.reference != "copy":
        return 0.0
    return outside_layers_bytes(run.teacher or s.config, run.of_reference, rank.first, rank.last)


def _kept_bytes(one: MicroBatchBytes, stacks: Sequence[float], rank: PipelineRank) -> float:
    """Activations of all micro-batches under way, each of which keeps one of ``stacks`` in the layers of a chunk."""
    under_way, chunks = rank.under_way, rank.chunks
    ends = _at_end(rank) * one.ends if rank.last else 0.0
    if rank.of_chunks is not None:
        return sum(n * stack for n, stack in zip(rank.of_chunks, stacks, strict=True)) + ends
    return under_way * sum(stacks) / chunks + ends


def _at_end(rank: PipelineRank) -> int:
    """Forwards under way in the last chunk of a rank: interleaved, a loss is followed by its backward at once."""
    if rank.of_chunks is not None:
        return rank.of_chunks[-1]
    return 1 if rank.schedule == "interleaved-1f1b" else -(-rank.under_way // rank.chunks)


def _transient_bytes(one: MicroBatchBytes, kept: float, rank: PipelineRank) -> float:
    """Temporary memory, as what the worst moment of the iteration needs beyond everything kept."""
    freed = one.ends * rank.last
    s, moments = one.shard, [one.layer_transient, one.attention_transient - freed]
    if s.implementation.megatron:
        moments[0] += min(0.0, one.boundary - freed)
    elif not rank.pipelined:  # the residual stream's gradient is there, what head and loss kept is not
        moments = [one.layer_transient + one.boundary - freed, one.attention_transient + one.boundary - freed]
    if rank.last:
        moments += [one.loss_transient, reference_transient_bytes(s)]
        if not s.implementation.megatron:  # the outputs are concatenated when everything kept is gone
            merged = rank.micro_batches if rank.pipelined else 0
            moments.append(merged * one.logits - kept)
    if rank.first and s.implementation.lora is None:
        # The embedding's dense gradient comes when the activations of its micro-batch are gone.
        run = s.implementation
        rows = embedding_rows(s.config, run)
        table = rows * s.hidden * s.stream.value_bytes
        moments.append(table - kept / max(1, rank.under_way))
    return max(moments)


def _pipeline_bytes(one: MicroBatchBytes, rank: PipelineRank) -> tuple[float, float]:
    """Held outputs and receive buffers of a pipeline on one rank: Megatron holds one of each, freeing its outputs."""
    if one.shard.implementation.megatron:
        return 0.0, 2 * one.boundary
    receiving = rank.chunks - rank.first  # chunks that receive activations
    returning = rank.chunks - rank.last  # chunks that receive gradients
    outputs = one.boundary * rank.under_way * returning / rank.chunks
    if rank.last:
        outputs += rank.micro_batches * one.logits
    # Buffers in flight are the chunks' inputs, counted as activations already; one input gradient is being sent.
    spare = max(0.0, receiving * rank.micro_batches - rank.under_way * receiving / rank.chunks)
    sending = 1 if receiving and spare else 0
    return outputs, one.boundary * (spare + sending + returning * rank.micro_batches)


def check_fits(
    footprint: MemoryFootprint, capacity_bytes: float, *, file: str | None = None, remedy: str | None = None
) -> None:
    """Refuse a plan whose peak exceeds the GPU's memory; ``remedy`` says what the plan can still change.

    Raises
    ------
    DoesNotFitError
        Saying by how much and what takes the most.
    """
    if footprint.total_bytes > capacity_bytes:
        raise DoesNotFitError(
            f"the plan {shortfall(footprint, capacity_bytes)}", file=file, key="parallelism", remedy=remedy
        )


def shortfall(footprint: MemoryFootprint, capacity_bytes: float) -> str:
    """By how much a peak exceeds a GPU's memory, and what takes the most, after ``the plan``."""
    parts = {
        "parameters, gradients and optimizer states": footprint.states_bytes,
        "activations": footprint.activations,
        "temporary results": footprint.transient,
        "pipeline outputs and buffers": footprint.outputs + footprint.buffers,
        "parameters and gradients gathered by FSDP": footprint.gathered,
    }
    largest = max(parts, key=lambda k: parts[k])
    excess = footprint.total_bytes - capacity_bytes
    digits = 1 if excess >= 0.05e9 else 3
    return (
        f"needs {footprint.total_bytes / 1e9:.{digits}f} GB a GPU, {excess / 1e9:.{digits}f} GB more than the "
        f"{capacity_bytes / 1e9:.{digits}f} GB it has (most: {largest}, {parts[largest] / 1e9:.1f} GB)"
    )
