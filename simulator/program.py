"""From a plan to what every pipeline rank runs: the launches of each kind of instruction.

Ranks of one tensor-parallel group, and replicas, all do the same; one of each pipeline stage is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from joulecast.model import data_parallel
from joulecast.model import transformer as t
from joulecast.model.fp8_kernels import quantised_weights
from joulecast.model.launches import Implementation, Launch
from joulecast.model.nanobatches import Nanobatches, layers_backward, layers_forward
from joulecast.model.operators import Collective
from joulecast.simulator.placement import (
    context_fabric,
    data_fabric,
    placed,
    placed_launches,
    stage_fabric,
    tensor_fabric,
)
from joulecast.simulator.plan import Plan
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    OPTIMIZER,
    Instruction,
    Schedule,
    build_schedule,
)


@dataclass(frozen=True)
class RankProgram:
    """What one pipeline rank runs in an iteration.

    Attributes
    ----------
    types
        Launches of each type of instruction.
    names
        A name for each type, for ledgers and traces.
    order
        Type of every instruction, in execution order.
    """

    types: tuple[tuple[Launch, ...], ...]
    names: tuple[str, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class PlanProgram:
    """A plan's schedule, what its ranks run, and the transfers from each pipeline rank to the next."""

    plan: Plan
    schedule: Schedule
    ranks: tuple[RankProgram, ...]
    transfers: tuple[Collective, ...]


def implementation_of(plan: Plan) -> Implementation:
    """The plan's framework as the model room knows it."""
    i = plan.implementation
    return Implementation(
        framework=i.framework,
        attention_backend=i.attention_backend,
        rotary=i.rotary,
        tie_embeddings=i.tie_embeddings,
        tensor_parallel=plan.tp,
        sequence_parallel=plan.sequence_parallel,
        shard_head=i.shard_head,
        recompute=plan.schedule.recompute,
        dtype="bf16" if plan.workload.fp8 else plan.workload.precision,
        ctas=plan.overlap.comm_ctas,
        threads=plan.overlap.comm_threads,
        fp8=plan.workload.fp8,
        tp_comm_overlap=plan.overlap.tp_comm,
        context_parallel=plan.cp,
        cp_comm_type=plan.parallelism.cp_comm_type,
        context_fabric=context_fabric(plan),
    )


def nanobatches_of(plan: Plan) -> Nanobatches:
    """How the plan cuts its micro-batches."""
    overlap = plan.overlap
    return Nanobatches(overlap.nanobatches, overlap.windows, overlap.launch)


@lru_cache(maxsize=128)
def plan_program(plan: Plan) -> PlanProgram:
    """Schedule and launches of a plan."""
    schedule = build_schedule(
        plan.schedule.name, plan.pp, plan.microbatches, virtual_stages_per_rank=plan.vp, tail=(OPTIMIZER,)
    )
    implementation = implementation_of(plan)
    ranks = tuple(_rank_program(plan, implementation, schedule.ranks[r], r) for r in range(plan.pp))
    return PlanProgram(plan, schedule, ranks, stage_transfers(plan))


def stage_transfers(plan: Plan) -> tuple[Collective, ...]:
    """What each pipeline rank sends to the next for one micro-batch; nothing where there is one stage."""
    if plan.pp * plan.vp == 1:
        return ()
    w = plan.workload
    transfer = t.stage_transfer(w.model, implementation_of(plan), w.micro_batch_size, w.sequence_length)
    return tuple(placed(transfer, stage_fabric(plan, rank)) for rank in range(plan.pp))


def _rank_program(plan: Plan, impl: Implementation, order: Sequence[Instruction], rank: int) -> RankProgram:
    last = max((i.microbatch for i in order), default=0)
    keys: dict[tuple[str, int, bool], int] = {}
    types: list[tuple[Launch, ...]] = []
    names: list[str] = []
    row: list[int] = []
    overlapped = plan.replicas > 1 and plan.overlap.grad_reduce == "overlapped"
    for instruction in order:
        special = overlapped and instruction.microbatch == last and instruction.kind in (BACKWARD, BACKWARD_WEIGHT)
        key = (instruction.kind, instruction.chunk, special)
        if key not in keys:
            keys[key] = len(types)
            types.append(instruction_launches(plan, impl, instruction, rank, special))
            names.append(_name(plan, instruction, special))
        row.append(keys[key])
    return RankProgram(tuple(types), tuple(names), tuple(row))


def _name(plan: Plan, instruction: Instruction, special: bool) -> str:
    name = instruction.kind
    if plan.vp > 1 and instruction.kind != OPTIMIZER:
        name += f" chunk {instruction.chunk}"
    return name + " with gradient reduction" if special else name


def instruction_launches(
    plan: Plan, impl: Implementation, instruction: Instruction, rank: int, reduces: bool = False
) -> tuple[Launch, ...]:
    """What one instruction of a pipeline rank launches; ``reduces``: with gradients' reduction beside it."""
    if instruction.kind == OPTIMIZER:
        return _tail(plan, impl, rank)
    stage = plan.stages_of_rank(rank)[instruction.chunk]
    if instruction.kind == FORWARD:
        return placed_launches(_forward(plan, impl, stage), tensor_fabric(plan))
    whole = placed_launches(_backward(plan, impl, stage), tensor_fabric(plan))
    if instruction.kind != BACKWARD:
        parts = t.split_backward(whole)
        whole = parts[0] if instruction.kind == BACKWARD_INPUT else parts[1]
    if reduces:
        sizes = data_parallel.gradient_sizes(plan.workload.model, impl)
        bucket = plan.overlap.grad_bucket_bytes
        whole = data_parallel.overlapped_gradient_reduction(whole, sizes, impl, plan.replicas, bucket)
        fabric = data_fabric(plan)
        whole = tuple(
            one for launch in whole for one in (placed_launches([launch], fabric) if _is_bucket(launch) else [launch])
        )
    return whole


def _is_bucket(launch: Launch) -> bool:
    return launch.stream == "communication" and launch.operator.name.startswith("bucket")


def _forward(plan: Plan, impl: Implementation, stage: int) -> tuple[Launch, ...]:
    w, layers = plan.workload, plan.parallelism.stage_layers
    size = (w.model, impl, w.micro_batch_size, w.sequence_length)
    out: tuple[Launch, ...] = t.embedding_forward(*size) if stage == 0 else ()
    out += layers_forward(*size, layers[stage], nanobatches_of(plan))
    if stage == len(layers) - 1:
        out += t.head_forward(*size)
    return out


def _backward(plan: Plan, impl: Implementation, stage: int) -> tuple[Launch, ...]:
    w, layers = plan.workload, plan.parallelism.stage_layers
    size = (w.model, impl, w.micro_batch_size, w.sequence_length)
    one_stage = len(layers) == 1
    out: tuple[Launch, ...] = t.head_backward(*size, embedding_here=one_stage) if stage == len(layers) - 1 else ()
    out += layers_backward(*size, layers[stage], nanobatches_of(plan))
    if stage == 0:
        out += t.embedding_backward(*size, head_here=one_stage)
    return out


def stage_parameters(plan: Plan, rank: int) -> tuple[t.ParameterTensor, ...]:
    """Parameter tensors on one GPU of a pipeline rank."""
    layers = plan.parallelism.stage_layers
    impl = implementation_of(plan)
    out: tuple[t.ParameterTensor, ...] = ()
    for stage in plan.stages_of_rank(rank):
        out += t.parameters_of_stage(
            plan.workload.model, impl, layers[stage], first=stage == 0, last=stage == len(layers) - 1
        )
    return out


def _tail(plan: Plan, impl: Implementation, rank: int) -> tuple[Launch, ...]:
    """What follows the last backward: gradient reduction, the pipeline's epilogue, the optimizer."""
    w = plan.workload
    parameters = stage_parameters(plan, rank)
    out: tuple[Launch, ...] = ()
    if plan.pp > 1:
        out += t.step_epilogue(
            w.model,
            impl,
            w.micro_batch_size,
            w.sequence_length,
            parameters=parameters,
            micro_batches=plan.microbatches,
            last=len(plan.parallelism.stage_layers) - 1 in plan.stages_of_rank(rank),
        )
    if plan.replicas > 1 and plan.overlap.grad_reduce != "overlapped":
        reduction = data_parallel.gradient_reduction(parameters, impl, plan.replicas, plan.overlap.grad_bucket_bytes)
        out += placed_launches(reduction, data_fabric(plan))
    tokens = w.micro_batch_size * w.sequence_length * plan.microbatches
    out += t.optimizer_step(parameters, impl, tokens_per_step=tokens * plan.dp, data_parallel=plan.replicas)
    return out + quantised_weights(parameters, impl.fp8, impl.dtype)
