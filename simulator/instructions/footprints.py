"""Peak memory of the GPUs of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from json import dumps

from joulecast.model.framework.implementation import Recompute, RecomputeModule
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.memory.footprint import MemoryFootprint, check_fits, memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.simulator.instructions.replicas import state_shards
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.recomputation import idle_modules
from joulecast.simulator.plan_file.rollout import engine_bytes
from joulecast.simulator.plan_file.ways_out import finetunes, smaller_trainings, splitting_sizes, splitting_states
from joulecast.simulator.schedules import BOTH_ENDS, SHIPPED, build_schedule, most_in_flight, peak_in_flight

#: Micro-batches for each rank after which a pipeline of two chunks on each holds no more than before.
SETTLED_ROUNDS = 3
#: Parts of a layer that Megatron can compute again, by what that costs.
CHEAPEST_FIRST: tuple[RecomputeModule, ...] = (
    *("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "shared_experts", "moe"),
)


def footprints(plan: Plan, gpu: GpuDescription, *, must_fit: bool = True) -> list[MemoryFootprint]:
    """Peak memory of a GPU of each pipeline rank.

    Raises
    ------
    DoesNotFitError
        A plan that ``must_fit`` needs more than a GPU has; the remedy says what it can still change.
    """
    found = list(footprints_of(plan, range(plan.pp)))
    most = gpu.number("memory_bytes")
    if must_fit and any(footprint.total_bytes > most for footprint in found):
        remedy = memory_remedy(plan, most)
        for footprint in found:
            check_fits(footprint, most, file=plan.file, remedy=remedy)
    return found


def memory_remedy(plan: Plan, most_bytes: float) -> str:
    """What this plan can still change to take less memory; recomputation where that suffices."""
    w, split = plan.workload, plan.parallelism
    again = enough_recomputation(plan, most_bytes)
    sizes, several = splitting_sizes(plan), plan.cluster.gpus > 1
    ways = [f"raise {_either(sizes)}"] if sizes else []
    if not several:
        alone = finetunes(plan) and not sizes and "fsdp" in splitting_states(plan)
        ways = ["raise cluster.gpus with parallelism.fsdp = true" if alone else "raise cluster.gpus"]
    if w.micro_batch_size > 1:
        ways.append("lower micro_batch_size")
    elif plan.implementation.framework == "pytorch-eager" and plan.pp > 1:
        ways.append("lower global_batch_size, as PyTorch keeps every micro-batch's outputs")
    if plan.schedule.recompute != "full" and not again:
        ways.append('set schedule.recompute = "full"')
    elif plan.implementation.recompute_interval > 1:
        ways.append("lower schedule.recompute_interval")
    if several and (states := splitting_states(plan)):
        ways.append(f"split states with {_either(states)}")
    elif plan.replicas > 1 and (split.fsdp or split.distributed_optimizer):
        ways.append("split states over more GPUs")
    ways += smaller_trainings(plan)
    words = _either(ways or ["take GPUs with more memory"])
    if again:
        words = f"set {again}, which suffices, or {words}"
    return f"{words[0].upper()}{words[1:]}."


def _either(words: Sequence[str]) -> str:
    """Words with commas between them, and "or" before the last."""
    return ", ".join(words[:-1]) + (" or " if words[1:] else "") + words[-1]


def enough_recomputation(plan: Plan, most_bytes: float) -> str | None:
    """Keys of the least recomputation with which the plan fits; ``None`` where none suffices."""
    for modules in _selective(plan):
        if _fits(plan, "selective", modules, most_bytes):
            return f'schedule.recompute = "selective" with recompute_modules = {dumps(modules)}'
    if plan.schedule.recompute != "full" and _fits(plan, "full", ("core_attn",), most_bytes):
        listed = plan.schedule.recompute == "selective" and plan.implementation.recompute_modules != ("core_attn",)
        return 'schedule.recompute = "full"' + (" without recompute_modules" if listed else "")
    return None


def _selective(plan: Plan) -> Iterator[tuple[RecomputeModule, ...]]:
    """Parts of a layer that Megatron can compute again, more and more of them."""
    model, run = plan.workload.model, plan.implementation
    if run.framework != "megatron" or plan.schedule.recompute == "full":
        return
    if model.norm_place != "before" or model.shared_norm:
        return
    idle = idle_modules(plan)
    chosen: set[RecomputeModule] = set()
    if plan.schedule.recompute == "selective":
        chosen = set(run.recompute_modules)
    for module in CHEAPEST_FIRST:
        if module not in {*chosen, *idle}:
            chosen = {*chosen, module} - ({"moe_act", "shared_experts"} if module == "moe" else set())
            yield tuple(sorted(chosen))


def _fits(plan: Plan, recompute: Recompute, modules: tuple[RecomputeModule, ...], most_bytes: float) -> bool:
    """Whether the plan fits with such recomputation."""
    schedule = replace(plan.schedule, recompute=recompute)
    changed = replace(plan, schedule=schedule, implementation=replace(plan.implementation, recompute_modules=modules))
    return all(footprint.total_bytes <= most_bytes for footprint in footprints_of(changed, range(plan.pp)))


def footprint_of(plan: Plan, rank: int) -> MemoryFootprint:
    """Memory of a GPU of one pipeline rank."""
    return next(footprints_of(plan, (rank,)))


def footprints_of(plan: Plan, ranks: Iterable[int]) -> Iterator[MemoryFootprint]:
    """Memory of a GPU of each of some pipeline ranks."""
    w, layers = plan.workload, plan.parallelism.stage_layers
    implementation, shards, communicators = implementation_of(plan), state_shards(plan), _communicators(plan)
    for rank in ranks:
        stages = sorted(plan.stages_of_rank(rank))
        folded = plan.schedule.name in BOTH_ENDS
        held = PipelineRank(
            [layers[stage] for stage in stages],
            None if w.model.alike else [plan.other_layers(stage) for stage in stages],
            stage=rank,
            stages=plan.pp,
            micro_batches=plan.microbatches,
            schedule=plan.schedule.name,
            forwards=_forwards_of_added_schedule(plan, rank),
            of_chunks=_forwards_of_chunks(plan, rank) if folded else None,
            ends=(0 in stages, len(layers) - 1 in stages) if folded else None,
        )
        yield memory_footprint(
            w.model,
            implementation,
            w.micro_batch_sequences,
            w.sequence_length,
            held,
            shards=shards,
            communicators=communicators,
            engine_bytes=engine_bytes(plan, implementation),
            engine_sleeps=w.rollout is not None and w.rollout.enable_sleep_mode,
        )


def _forwards_of_added_schedule(plan: Plan, rank: int) -> int | None:
    """Most forwards that a rank holds in a schedule that was added from outside; of the others a formula is known."""
    if plan.schedule.name in SHIPPED:
        return None
    order = build_schedule(plan.schedule.name, plan.pp, plan.microbatches, virtual_stages_per_rank=plan.chunks)
    return peak_in_flight(order, rank)


def _forwards_of_chunks(plan: Plan, rank: int) -> tuple[int, ...]:
    """Forwards that a rank with two chunks holds when it holds the most layers' activations, by stage."""
    stages = plan.stages_of_rank(rank)
    layers = tuple(plan.parallelism.stage_layers[stage] for stage in stages)
    few = min(plan.microbatches, SETTLED_ROUNDS * plan.pp)
    most = _most_of_chunks(plan.schedule.name, plan.pp, few, rank, layers)
    return tuple(count for _, count in sorted(zip(stages, most, strict=True)))


@lru_cache(maxsize=1024)
def _most_of_chunks(name: str, ranks: int, microbatches: int, rank: int, layers: tuple[int, ...]) -> tuple[int, ...]:
    return most_in_flight(build_schedule(name, ranks, microbatches, virtual_stages_per_rank=2), rank, layers)


def _communicators(plan: Plan) -> int:
    """Groups that a GPU communicates in."""
    sizes = [plan.tp, plan.cp, plan.pp, plan.replicas]
    if plan.workload.model.experts is not None:
        split = plan.parallelism
        sizes += [split.expert_model_parallel_size, split.expert_tensor_parallel_size, plan.expert_replicas]
    return sum(size > 1 for size in sizes)
