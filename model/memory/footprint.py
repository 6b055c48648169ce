"""Memory of one GPU during training: what is held, when it is highest, and whether it fits.

The parts are those that ``torch.cuda.max_memory_allocated`` counts, plus what lies outside PyTorch's allocator. Of
``torch.distributed.pipelining`` the model knows that it holds receive buffers of every micro-batch, the stages' outputs
until their backward, and the last stage's logits of all micro-batches until the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from joulecast.errors import DoesNotFitError, UnknownNameError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory.activations import MicroBatchBytes, micro_batch_bytes, not_kept_first_bytes
from joulecast.model.memory.allocator import cached_bytes
from joulecast.model.memory.moments import gathered_at_peak, gradients_at_peak
from joulecast.model.memory.states import (
    StateShards,
    gathered_by_fsdp_bytes,
    parameter_bytes,
    whole_throughout_bytes,
)
from joulecast.model.training.optimizer import optimizer_state_bytes, widened_gradient_bytes
from joulecast.model.training.parameters import layer_parameters
from joulecast.model.transformer.head import embedding_is_split, head_is_split, local_vocabulary

#: Workspaces of cuBLAS and cuBLASLt on Hopper, 32 MiB each.
WORKSPACE_BYTES = 2 * 32 * 1024.0**2
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
        Model states, gradients as far as they are there at the peak.
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
        What lies outside the framework's allocator: the driver's context and the communicators' channels.
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
    workspace: float = WORKSPACE_BYTES
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


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, virtual_stages: int = 1) -> int:
    """Most forwards of a rank (micro-batches, times chunks if interleaved) whose backward is still to come.

    Parameters
    ----------
    schedule
        ``none gpipe 1f1b interleaved-1f1b zb-h1``.
    stage, stages
        Pipeline rank and their number.
    """
    if stages == 1 and virtual_stages == 1:
        return 1
    total = micro_batches * virtual_stages
    if schedule == "none":
        return 1
    if schedule == "gpipe":
        return total
    if schedule == "1f1b":
        return min(total, stages - stage)
    if schedule == "zb-h1":
        return min(total, stages)
    if schedule == "interleaved-1f1b":
        group = micro_batches // max(1, micro_batches // stages)
        return min(total, 2 * (stages - stage - 1) + (virtual_stages - 1) * group + 1)
    raise UnknownNameError(
        "schedule", schedule, ("none", "gpipe", "1f1b", "interleaved-1f1b", "zb-h1"), key="schedule.name"
    )


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """What one rank of a pipeline holds, and what is under way in it.

    Attributes
    ----------
    layers
        Number of layers of each chunk (virtual stage) that the rank holds: one entry unless interleaved.
    others
        How many layers of each chunk are of each of the model's kinds but the last; ``None``: none.
    stage, stages
        Pipeline rank and their number; the first holds the embedding, the last norm and head.
    micro_batches
        Of an iteration.
    schedule
        As :func:`in_flight` knows it.
    forwards
        Most forwards whose backward is still to come; by default what ``schedule`` gives.
    of_chunks
        How many of these are of each chunk, where they are known apart: at the moment when the rank holds the most.
        The last chunk is the one with the final norm and the head, if any is.
    ends
        Whether the rank holds the embedding, and the final norm with the head, where its place does not say so.
    """

    layers: Sequence[int]
    others: Sequence[tuple[int, ...]] | None = None
    stage: int = 0
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    forwards: int | None = None
    of_chunks: tuple[int, ...] | None = None
    ends: tuple[bool, bool] | None = None

    @property
    def chunks(self) -> int:
        """Virtual stages."""
        return len(self.layers)

    @property
    def first(self) -> bool:
        """Whether the rank holds the embedding."""
        return self.stage == 0 if self.ends is None else self.ends[0]

    @property
    def last(self) -> bool:
        """Whether the rank holds the final norm and the head."""
        return self.stage == self.stages - 1 if self.ends is None else self.ends[1]

    @property
    def pipelined(self) -> bool:
        """Whether the rank sends and receives."""
        return self.stages > 1 or self.chunks > 1

    @property
    def under_way(self) -> int:
        """Most forwards whose backward is still to come."""
        if self.of_chunks is not None:
            return sum(self.of_chunks)
        if self.forwards is not None:
            return self.forwards
        return in_flight(self.schedule, self.stage, self.stages, self.micro_batches, self.chunks)


def memory_footprint(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    rank: PipelineRank,
    *,
    shards: StateShards | None = None,
    communicators: int = 2,
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
    """
    split = shards or StateShards()
    one = micro_batch_bytes(config, implementation, batch, sequence)
    others = tuple(map(sum, zip(*rank.others, strict=True))) if rank.others is not None else ()
    held = config, implementation, sum(rank.layers), rank.first, rank.last, others
    rest, experts = parameter_bytes(*held)
    states = rest.elements / split.optimizer + experts.elements / split.expert_optimizer
    gradients = rest.elements / split.gradients + experts.elements / split.expert_gradients
    own = gradients
    gradients *= DTYPE_BYTES[implementation.kept_gradient_dtype]
    of_chunks = zip(rank.others or [()] * rank.chunks, rank.layers, strict=True)
    stacks = [
        sum(
            micro_batch_bytes(kind, implementation, batch, sequence).layer * count
            for kind, count in config.sorted_kinds(*chunk)
        )
        for chunk in of_chunks
    ]
    stacks[0] -= not_kept_first_bytes(one.shard) if rank.first else 0.0
    kept = _kept_bytes(one, stacks, rank)
    outputs, buffers = _pipeline_bytes(one, rank) if rank.pipelined else (0.0, 0.0)
    transient = _transient_bytes(one, kept, rank)
    in_step = states * widened_gradient_bytes(implementation)  # while no activation is there
    transient = max(transient, in_step - kept - outputs - buffers)
    whole = gathered_by_fsdp_bytes(*held, split) if split.splits_parameters else (0.0, 0.0, 0.0)
    gathered = gathered_at_peak(whole, transient, one, rank) if split.splits_parameters else 0.0
    if implementation.framework != "megatron":
        in_backward = whole[1] + one.layer_transient - transient - gathered
        gradients = gradients_at_peak(gradients, kept, (in_backward, whole[2]), one, rank, split)
    # PyTorch's symmetric memory lies outside its allocator.
    symmetric = implementation.tp_comm_overlap and implementation.framework != "megatron"
    if split.stay_gathered:
        gathered, gradients = whole_throughout_bytes(*held)
    return MemoryFootprint(
        parameters=rest.weights / split.parameters + experts.weights / split.expert_parameters,
        gradients=gradients,
        optimizer=states * optimizer_state_bytes(implementation),
        activations=kept,
        outputs=outputs,
        buffers=buffers,
        transient=transient,
        workspace=WORKSPACE_BYTES
        + (0.0 if symmetric else one.user_buffers)
        + _stand_in_bytes(config, implementation, last=rank.last),
        gathered=gathered,
        context=CONTEXT_BYTES + communicators * COMMUNICATOR_BYTES + (one.user_buffers if symmetric else 0.0),
        cached=cached_bytes(one, rank, gathered=whole[0], elements=own, gradients=gradients),
    )


@lru_cache(maxsize=256)
def _stand_in_bytes(config: ModelConfig, implementation: Implementation, *, last: bool) -> float:
    """Gradients that Megatron's products give autograd in place of those that they add to the buffer: one a shape.

    Transformer Engine keeps them (``get_dummy_wgrad``); what an H200 had allocated between iterations showed them.
    """
    if implementation.framework != "megatron":
        return 0.0
    layers = (layer_parameters(kind, implementation) for kind in config.kinds)
    weights = (p for layer in layers for p in layer if p.name.endswith(".weight") and p.elements > config.hidden)
    sizes = {p.elements // p.tensors for p in weights}
    if last:
        sizes.add(local_vocabulary(config.vocab, head_is_split(implementation), implementation) * config.hidden)
    return float(DTYPE_BYTES[implementation.dtype] * sum(sizes))


def _kept_bytes(one: MicroBatchBytes, stacks: Sequence[float], rank: PipelineRank) -> float:
    """Activations of all micro-batches under way, each of which keeps one of ``stacks`` in the layers of a chunk."""
    under_way, chunks = rank.under_way, rank.chunks
    at_end = -(-under_way // chunks) if rank.of_chunks is None else rank.of_chunks[-1]
    ends = at_end * one.ends if rank.last else 0.0
    if rank.of_chunks is not None:
        return sum(n * stack for n, stack in zip(rank.of_chunks, stacks, strict=True)) + ends
    return under_way * sum(stacks) / chunks + ends


def _transient_bytes(one: MicroBatchBytes, kept: float, rank: PipelineRank) -> float:
    """Temporary memory, as what the worst moment of the iteration needs beyond everything kept."""
    s, moments = one.shard, [one.layer_transient]
    if rank.last:
        moments.append(one.loss_transient)
        if s.implementation.framework == "pytorch-eager":  # the outputs are concatenated when everything kept is gone
            merged = rank.micro_batches if rank.pipelined else 0
            moments.append(merged * one.logits - kept)
    if (
        rank.first and s.implementation.lora is None
    ):  # the embedding's dense gradient, when the activations of its micro-batch are gone
        run = s.implementation
        rows = local_vocabulary(s.config.vocab, embedding_is_split(s.config, run), run)
        table = float(rows * s.config.hidden * DTYPE_BYTES[run.dtype])
        moments.append(table - kept / max(1, rank.under_way))
    return max(moments)


def _pipeline_bytes(one: MicroBatchBytes, rank: PipelineRank) -> tuple[float, float]:
    """Held outputs and receive buffers of a pipeline on one rank: Megatron holds one of each, freeing its outputs."""
    if one.shard.implementation.framework == "megatron":
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
    excess = footprint.total_bytes - capacity_bytes
    if excess <= 0:
        return
    parts = {
        "parameters, gradients and optimizer states": footprint.states_bytes,
        "activations": footprint.activations,
        "temporary results": footprint.transient,
        "pipeline outputs and buffers": footprint.outputs + footprint.buffers,
        "parameters and gradients gathered by FSDP": footprint.gathered,
    }
    largest = max(parts, key=lambda k: parts[k])
    raise DoesNotFitError(
        f"the plan needs {footprint.total_bytes / 1e9:.1f} GB a GPU, {excess / 1e9:.1f} GB more than the "
        f"{capacity_bytes / 1e9:.1f} GB it has (most: {largest}, {parts[largest] / 1e9:.1f} GB)",
        file=file,
        key="parallelism",
        remedy=remedy,
    )
