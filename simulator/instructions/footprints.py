"""Peak memory of the GPUs of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.memory.footprint import MemoryFootprint, PipelineRank, check_fits, memory_footprint
from joulecast.simulator.instructions.replicas import state_shards
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import SHIPPED, build_schedule, peak_in_flight


def footprints(plan: Plan, gpu: GpuDescription, *, must_fit: bool = True) -> list[MemoryFootprint]:
    """Peak memory of a GPU of each pipeline rank.

    Raises
    ------
    DoesNotFitError
        A plan that ``must_fit`` needs more than a GPU has; the remedy says what it can still change.
    """
    found = list(footprints_of(plan, range(plan.pp)))
    if must_fit:
        for footprint in found:
            check_fits(footprint, gpu.number("memory_bytes"), file=plan.file, remedy=_remedy(plan))
    return found


def _remedy(plan: Plan) -> str:
    """What this plan can still change to take less memory."""
    w, split = plan.workload, plan.parallelism
    sizes = ["tensor_", "pipeline_", "expert_"] if w.model.experts is not None else ["tensor_", "pipeline_"]
    ways = [f"raise {', '.join(f'{size}model_parallel_size' for size in sizes)} or context_parallel_size"]
    if w.micro_batch_size > 1:
        ways.append("lower micro_batch_size")
    elif plan.implementation.framework == "pytorch-eager" and plan.pp > 1:
        ways.append("lower global_batch_size, as PyTorch keeps every micro-batch's outputs")
    if plan.schedule.recompute != "full":
        ways.append('set schedule.recompute = "full"')
    elif plan.implementation.recompute_interval > 1:
        ways.append("lower schedule.recompute_interval")
    if not split.fsdp:
        ways.append(
            "split states with fsdp"
            if split.distributed_optimizer
            else "split states with distributed_optimizer or fsdp"
        )
    elif plan.replicas > 1:
        ways.append("split states over more GPUs")
    words = ", ".join(ways[:-1]) + (" or " if ways[1:] else "") + ways[-1]
    return f"{words[0].upper()}{words[1:]}."


def footprint_of(plan: Plan, rank: int) -> MemoryFootprint:
    """Memory of a GPU of one pipeline rank."""
    return next(footprints_of(plan, (rank,)))


def footprints_of(plan: Plan, ranks: Iterable[int]) -> Iterator[MemoryFootprint]:
    """Memory of a GPU of each of some pipeline ranks."""
    w, layers = plan.workload, plan.parallelism.stage_layers
    implementation, shards, communicators = implementation_of(plan), state_shards(plan), _communicators(plan)
    others = [plan.other_layers(stage) for stage in range(len(layers))]
    for rank in ranks:
        held = PipelineRank(
            layers[rank :: plan.pp],
            others[rank :: plan.pp],
            stage=rank,
            stages=plan.pp,
            micro_batches=plan.microbatches,
            schedule=plan.schedule.name,
            forwards=_forwards_of_added_schedule(plan, rank),
        )
        yield memory_footprint(
            w.model,
            implementation,
            w.micro_batch_size,
            w.sequence_length,
            held,
            shards=shards,
            communicators=communicators,
        )


def _forwards_of_added_schedule(plan: Plan, rank: int) -> int | None:
    """Most forwards that a rank holds in a schedule that was added from outside; of the others a formula is known."""
    if plan.schedule.name in SHIPPED:
        return None
    order = build_schedule(plan.schedule.name, plan.pp, plan.microbatches, virtual_stages_per_rank=plan.vp)
    return peak_in_flight(order, rank)


def _communicators(plan: Plan) -> int:
    """Groups that a GPU communicates in."""
    sizes = [plan.tp, plan.cp, plan.pp, plan.replicas]
    if plan.workload.model.experts is not None:
        split = plan.parallelism
        sizes += [split.expert_model_parallel_size, split.expert_tensor_parallel_size, plan.expert_replicas]
    return sum(size > 1 for size in sizes)
