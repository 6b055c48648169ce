"""What data parallelism adds to a rank's work: reduction of gradients, gathering of parameters, shards of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model import data_parallel
from joulecast.model import transformer as t
from joulecast.model.fp8_kernels import quantised_weights
from joulecast.model.launches import Implementation, Launch
from joulecast.model.memory_footprint import StateShards
from joulecast.model.operators import DTYPE_BYTES, Collective
from joulecast.model.parameters import layer_parameters
from joulecast.model.placed import placed, placed_launches
from joulecast.model.sharded_units import Sharding, Unit
from joulecast.simulator.behind import Behind
from joulecast.simulator.placement import data_fabric, group_fabric
from joulecast.simulator.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, Instruction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulecast.simulator.plan import Plan

#: Megatron's own stream carries what it overlaps; PyTorch's buckets share one with the layers' communication.
OWN_STREAM = "megatron"


def sharding_of(plan: Plan) -> Sharding | None:
    """How FSDP shards the parameters; ``None`` where it does not."""
    if not plan.parallelism.fsdp or plan.replicas == 1:
        return None
    members = plan.parallelism.fsdp_shard_size
    copies = plan.replicas // members
    return Sharding(
        members=members,
        fabric=group_fabric(plan, members, plan.tp),
        replicas=copies,
        replica_fabric=group_fabric(plan, copies, plan.tp * members),
        prefetch=plan.overlap.fsdp_prefetch,
    )


def state_shards(plan: Plan) -> StateShards:
    """How a plan splits the model states over its replicas."""
    split = plan.parallelism
    if split.fsdp:
        return StateShards(split.fsdp_shard_size, split.fsdp_shard_size, split.fsdp_shard_size)
    return StateShards(optimizer=plan.replicas if split.distributed_optimizer else 1)


def stage_tensors(plan: Plan, impl: Implementation, stage: int) -> tuple[t.ParameterTensor, ...]:
    """Parameter tensors of a virtual stage on one GPU."""
    layers = plan.parallelism.stage_layers
    return t.parameters_of_stage(
        plan.workload.model, impl, layers[stage], first=stage == 0, last=stage == len(layers) - 1
    )


def sharded_stage(
    plan: Plan,
    impl: Implementation,
    stage: int,
    before: tuple[Launch, ...],
    layer: tuple[Launch, ...],
    after: tuple[Launch, ...],
) -> tuple[list[Unit], int]:
    """One pass through a virtual stage as units, and the elements of the parameters outside its layers."""
    layers = plan.parallelism.stage_layers[stage]
    elements = sum(p.elements for p in layer_parameters(plan.workload.model, impl))
    root = sum(p.elements for p in stage_tensors(plan, impl, stage)) - layers * elements
    units = [Unit(before, 0, layer=False), *[Unit(layer, elements)] * layers, Unit(after, 0, layer=False)]
    return units, root


def reduced_beside(plan: Plan, impl: Implementation, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """A last backward with the reduction of full buckets among its launches."""
    sizes = data_parallel.gradient_sizes(plan.workload.model, impl)
    scatter = plan.parallelism.distributed_optimizer
    bucket = plan.overlap.grad_bucket_bytes
    whole = data_parallel.overlapped_gradient_reduction(launches, sizes, impl, plan.replicas, bucket, scatter=scatter)
    buckets = placed_launches([x for x in whole if data_parallel.is_bucket(x)], data_fabric(plan))
    following = iter(buckets)
    return tuple(next(following) if data_parallel.is_bucket(x) else x for x in whole)


def optimizer_launches(plan: Plan, impl: Implementation, parameters: Sequence[t.ParameterTensor]) -> tuple[Launch, ...]:
    """Reduction of gradients that is not overlapped, the optimizer, and the gathering of parameters where it waits."""
    out: tuple[Launch, ...] = ()
    replicas, split = plan.replicas, plan.parallelism
    reduces = replicas > 1 and not split.fsdp
    scatter = split.distributed_optimizer
    if reduces and plan.overlap.grad_reduce != "overlapped":
        reduction = data_parallel.gradient_reduction(
            parameters, impl, replicas, plan.overlap.grad_bucket_bytes, scatter=scatter
        )
        out += placed_launches(reduction, data_fabric(plan))
    w = plan.workload
    tokens = w.micro_batch_size * w.sequence_length * plan.microbatches
    shards = state_shards(plan)
    out += t.optimizer_step(
        parameters,
        impl,
        tokens_per_step=tokens * plan.dp,
        state_shards=shards.optimizer,
        gradient_shards=shards.gradients,
    )
    out += quantised_weights(parameters, impl.fp8, impl.dtype)
    if reduces and scatter and plan.overlap.param_gather != "overlapped":
        gather = data_parallel.distributed_optimizer_gather(parameters, impl, replicas)
        out += placed_launches(gather, data_fabric(plan))
    return out


def behind(
    plan: Plan,
    impl: Implementation,
    rank: int,
    order: Sequence[Instruction],
    parameters: Sequence[Sequence[t.ParameterTensor]],
) -> tuple[Behind, ...]:
    """Communication of Megatron that runs beside a rank's instructions on a stream of its own.

    Parameters
    ----------
    order
        The rank's instructions.
    parameters
        Of each of its chunks.
    """
    overlap = plan.overlap
    if plan.replicas == 1 or plan.parallelism.fsdp or impl.framework != OWN_STREAM:
        return ()
    scatter = plan.parallelism.distributed_optimizer
    found: list[Behind] = []
    last = max(i.microbatch for i in order)
    for place, one in enumerate(order):
        ends = one.microbatch == last and one.kind in (BACKWARD, BACKWARD_WEIGHT)
        begins = one.microbatch == 0 and one.kind == FORWARD
        if ends and overlap.grad_reduce == "overlapped":
            kind = "reduce_scatter" if scatter else "all_reduce"
        elif begins and overlap.param_gather == "overlapped":
            kind = "all_gather"
        else:
            continue
        if held := parameters[one.chunk]:
            count = _bucket_count(held, impl, overlap.grad_bucket_bytes) if rank == one.chunk == 0 else 1
            found.append(Behind(_bucket(plan, impl, kind, held, count), count, place, ahead=kind == "all_gather"))
    return tuple(found)


def _bucket_count(parameters: Sequence[t.ParameterTensor], impl: Implementation, limit_bytes: float) -> int:
    """Buckets of the first rank's first chunk; Megatron leaves all other chunks in one piece."""
    if not limit_bytes:
        return len(parameters)
    width = DTYPE_BYTES[data_parallel.gradient_dtype(impl)]
    return max(1, round(sum(p.elements for p in parameters) * width / limit_bytes))


def _bucket(
    plan: Plan, impl: Implementation, kind: str, parameters: Sequence[t.ParameterTensor], count: int
) -> Collective:
    """One of ``count`` equal buckets of a chunk."""
    dtype = impl.dtype if kind == "all_gather" else data_parallel.gradient_dtype(impl)
    if kind == "all_gather":
        size = data_parallel.gathered_bytes(parameters, impl)
    else:
        size = float(sum(p.elements for p in parameters) * DTYPE_BYTES[dtype])
    one = Collective(
        kind, size / count, plan.replicas, ctas=impl.ctas, dtype=dtype, name=f"chunk.{kind}", threads=impl.threads
    )
    return placed(one, data_fabric(plan))
