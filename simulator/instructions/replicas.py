"""What data parallelism adds to a rank's work: reduction of gradients, gathering of parameters, shards of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.placed import placed, placed_launches
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective
from joulecast.model.memory.states import StateShards
from joulecast.model.training import data_parallel
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import (
    ParameterTensor,
    layer_parameters,
    outside_layers,
    parameters_of_stage,
    tower_layer_parameters,
)
from joulecast.model.training.sharded_units import Sharding, Unit, once_a_step
from joulecast.model.training.vision_stack import TowerPass
from joulecast.model.transformer.narrow_kernels import quantised_weights
from joulecast.simulator.instructions.overlapped_buckets import OverlappedBuckets
from joulecast.simulator.plan_file.placement import (
    data_fabric,
    ends_fabric,
    expert_data_fabric,
    expert_ranks,
    group_fabric,
    tensor_fabric,
)
from joulecast.simulator.schedules import BOTH_ENDS, Instruction, first_forwards, last_backwards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.simulator.plan_file.plan import Plan

#: Megatron's own stream carries what it overlaps; PyTorch's buckets share one with the layers' communication.
OWN_STREAM = "megatron"


def sharding_of(plan: Plan) -> Sharding | None:
    """How FSDP shards the parameters; ``None`` where it does not."""
    if not plan.parallelism.fsdp or max(plan.replicas, plan.expert_replicas) == 1:
        return None
    rest = _sharding(plan, plan.replicas, plan.parallelism.fsdp_shard_size, plan.tp)
    if not experts_apart(plan):
        return rest
    return replace(rest, experts=_sharding(plan, plan.expert_replicas, expert_shard_size(plan), expert_ranks(plan)))


def _sharding(plan: Plan, replicas: int, members: int, stride: int) -> Sharding:
    """Shards over ``members`` of ``replicas`` ranks that are ``stride`` ranks apart."""
    copies = replicas // members
    return Sharding(
        members=members,
        fabric=group_fabric(plan, members, stride),
        replicas=copies,
        replica_fabric=group_fabric(plan, copies, stride * members),
        prefetch=plan.overlap.fsdp_prefetch,
        added_share=1.0 - plan.implementation.zero_grad_set_to_none / plan.microbatches,
        reshards=plan.parallelism.fsdp_reshard_after_forward,
        keeps=stays_gathered(plan),
        sums_whole=not plan.parallelism.fsdp_sync_each_batch,
    )


def stays_gathered(plan: Plan) -> bool:
    """Whether FSDP's parameters stay gathered throughout a step, and gradients are summed at its end.

    So PyTorch's pipelines run modules that are not sharded again after the forward
    (``backward_maybe_with_nosync`` in ``torch/distributed/pipelining/stage.py``).
    """
    return plan.parallelism.fsdp and not plan.parallelism.fsdp_reshard_after_forward and plan.pp > 1


def experts_apart(plan: Plan) -> bool:
    """Whether FSDP shards experts over other ranks than the rest: those that hold the same ones."""
    return plan.workload.model.experts is not None and expert_ranks(plan) != plan.tp


def expert_shard_size(plan: Plan) -> int:
    """Ranks over which FSDP splits an expert-parallel rank's experts: within the GPUs that share the rest, or 1."""
    return max(1, plan.parallelism.fsdp_shard_size * plan.tp // expert_ranks(plan))


def state_shards(plan: Plan) -> StateShards:
    """How a plan splits the model states over its replicas."""
    split = plan.parallelism
    if split.fsdp:
        rest, experts = split.fsdp_shard_size, expert_shard_size(plan)
        return StateShards(
            *(rest, rest, rest, experts, experts, experts),
            stay_gathered=stays_gathered(plan),
            wait_gathered=not split.fsdp_reshard_after_forward,
            add_up_whole=not split.fsdp_sync_each_batch and plan.microbatches > 1,
        )
    buckets = plan.overlap.grad_reduce == "overlapped" and not _steps_main_parameters(plan)
    copies = 0 if plan.summing == 1 else 2 if buckets else 1
    if not split.distributed_optimizer:
        return StateShards(gradient_copies=copies)
    return StateShards(optimizer=plan.summing, expert_optimizer=plan.experts_summing, gradient_copies=copies)


def _steps_main_parameters(plan: Plan) -> bool:
    """Whether PyTorch's gradients are DeepSpeed's to reduce, which keeps no buckets of all of them as DDP does."""
    return plan.implementation.main_parameters and plan.implementation.framework != OWN_STREAM


@dataclass(frozen=True, slots=True)
class Summed:
    """Parameters whose gradients the same ranks sum, how many these are, and their links."""

    parameters: tuple[ParameterTensor, ...]
    replicas: int
    fabric: Fabric

    @property
    def experts(self) -> bool:
        """Whether they are experts'."""
        return any(p.expert for p in self.parameters)


def summed_together(plan: Plan, parameters: Sequence[ParameterTensor]) -> tuple[Summed, ...]:
    """Experts apart from the rest, where there are any."""
    experts = tuple(p for p in parameters if p.expert)
    others = tuple(p for p in parameters if not p.expert)
    found = [] if experts and not others else [Summed(others, plan.summing, data_fabric(plan))]
    if experts:
        found.append(Summed(experts, plan.experts_summing, expert_data_fabric(plan)))
    return tuple(found)


def stage_tensors(plan: Plan, impl: Implementation, stage: int) -> tuple[ParameterTensor, ...]:
    """Parameter tensors of a virtual stage on one GPU that have gradients."""
    layers, others = plan.parallelism.stage_layers, plan.other_layers(stage)
    ends = {"first": stage == 0, "last": stage == len(layers) - 1}
    tensors = parameters_of_stage(plan.workload.model, impl, layers[stage], **ends, others=others, with_frozen=False)
    if plan.schedule.name in BOTH_ENDS and stage > 0:  # the first stage's tables lie on the same rank
        return tuple(p for p in tensors if p.name not in _copied_tables(plan, impl))
    return tensors


def _copied_tables(plan: Plan, impl: Implementation) -> tuple[str, ...]:
    """Tables of the last stage that are copies of the first one's."""
    tied = impl.tied(plan.workload.model)
    return (*(("head.weight",) if tied else ()), "mtp.embedding.weight")


def sharded_stage(
    plan: Plan,
    impl: Implementation,
    stage: int,
    before: tuple[Launch, ...],
    layers: Sequence[tuple[tuple[Launch, ...], ModelConfig, int]],
    after: tuple[Launch, ...],
    seen: TowerPass | None = None,
    *,
    forward: bool = True,
) -> tuple[list[Unit], Unit]:
    """One pass through a virtual stage as units, and the parameters outside its layers.

    ``layers``: launches, model and number of each kind of layer, in the order of the pass. ``seen``: a vision tower's,
    which runs behind what is before a ``forward``'s layers, and behind what is after a backward's.
    """
    tower = [] if seen is None or impl.images is None else _tower_units(plan, impl, seen)
    units = [Unit(before), *(tower if forward else ())]
    for launches, model, count in layers:
        units += [_unit(plan, impl, launches, layer_parameters(model, impl))] * count
    last = len(plan.parallelism.stage_layers) - 1
    outside = parameters_of_stage(plan.workload.model, impl, 0, first=stage == 0, last=stage == last)
    return [*units, Unit(after), *(() if forward else tower)], _unit(plan, impl, (), outside_layers(outside))


def _tower_units(plan: Plan, impl: Implementation, seen: TowerPass) -> list[Unit]:
    """A vision tower's layers as units, between what has no parameters but the root's."""
    parameters = tower_layer_parameters(plan.workload.model, impl)
    layers = [unit for one, count in seen.layers for unit in [_unit(plan, impl, one, parameters)] * count]
    return [Unit(seen.before), *layers, Unit(seen.after)]


def step_end(plan: Plan, impl: Implementation, rank: int, *, gathers: bool) -> tuple[Launch, ...]:
    """Communication of a rank whose parameters stay gathered: its gradients' sums, or all it ``gathers`` again."""
    sharding = sharding_of(plan)
    if sharding is None or not sharding.keeps:
        return ()
    out: tuple[Launch, ...] = ()
    for stage in plan.stages_of_rank(rank):
        models = [((), model, count) for model, count in plan.stage_models(stage)]
        units, root = sharded_stage(plan, impl, stage, (), models, ())
        out += once_a_step([root, *units], sharding, impl, gathers=gathers)
    return out


def _unit(
    plan: Plan, impl: Implementation, launches: tuple[Launch, ...], parameters: Sequence[ParameterTensor]
) -> Unit:
    """Parameters that are gathered together, experts apart where other ranks share them."""
    apart = [p for p in parameters if p.expert and experts_apart(plan)]
    rest = [p for p in parameters if not (p.expert and experts_apart(plan))]
    return Unit(
        launches,
        sum(p.elements for p in rest),
        data_parallel.gathered_bytes(rest, impl),
        sum(p.elements for p in apart),
        data_parallel.gathered_bytes(apart, impl),
        frozen=sum(p.elements for p in rest if p.frozen),
    )


def reduces_among_launches(plan: Plan) -> bool:
    """Whether the last backward alone reduces gradients among its launches: PyTorch's buckets, or its FSDP."""
    if plan.parallelism.fsdp:
        return not plan.parallelism.fsdp_sync_each_batch and sharding_of(plan) is not None
    overlapped = plan.summing > 1 and plan.overlap.grad_reduce == "overlapped"
    return overlapped and plan.implementation.framework != OWN_STREAM


def reduced_beside(plan: Plan, impl: Implementation, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """A last backward with the reduction of full buckets among its launches."""
    sizes = data_parallel.gradient_sizes(plan.workload.model, impl)
    scatter = plan.parallelism.distributed_optimizer
    bucket = plan.overlap.grad_bucket_bytes
    whole = data_parallel.overlapped_gradient_reduction(launches, sizes, impl, plan.summing, bucket, scatter=scatter)
    buckets = placed_launches([x for x in whole if data_parallel.is_bucket(x)], data_fabric(plan))
    following = iter(buckets)
    return tuple(next(following) if data_parallel.is_bucket(x) else x for x in whole)


def optimizer_launches(plan: Plan, impl: Implementation, parameters: Sequence[ParameterTensor]) -> tuple[Launch, ...]:
    """Reduction of gradients that is not overlapped, the optimizer, and the gathering of parameters where it waits."""
    out: tuple[Launch, ...] = ()
    groups, split = summed_together(plan, parameters), plan.parallelism
    if not split.fsdp and plan.overlap.grad_reduce != "overlapped":
        for group in groups:
            reduction = data_parallel.gradient_reduction(
                group.parameters,
                impl,
                group.replicas,
                plan.overlap.grad_bucket_bytes,
                scatter=split.distributed_optimizer,
            )
            out += placed_launches(reduction, group.fabric)
    out += _tied_embedding(plan, impl, parameters)
    shards, zeroed = state_shards(plan), not impl.drops_gradients
    for group in groups:
        step = optimizer_step(
            group.parameters,
            impl,
            tokens_per_step=plan.tokens,
            state_shards=shards.expert_optimizer if group.experts else shards.optimizer,
            gradient_shards=shards.expert_gradients if group.experts else shards.gradients,
            zeroed=zeroed,
        )
        out += placed_launches(step, tensor_fabric(plan))
    out += quantised_weights(parameters, impl.kept_narrow, impl.dtype)
    if impl.gathers_narrow:
        out += _scales_of_shards(plan, impl, parameters, shards.parameters)
    if split.distributed_optimizer and not split.fsdp and plan.overlap.param_gather != "overlapped":
        for group in (g for g in groups if g.parameters):
            gather = data_parallel.distributed_optimizer_gather(group.parameters, impl, group.replicas)
            out += placed_launches(gather, group.fabric)
    return out


def _scales_of_shards(
    plan: Plan, impl: Implementation, parameters: Sequence[ParameterTensor], shards: int
) -> tuple[Launch, ...]:
    """Greatest values of all weights that FSDP gathers in FP8, each rank's of its shards, with one all-reduce."""
    linear = [p for p in parameters if p.linear]
    if not linear or shards == 1:
        return ()
    elements = sum(p.elements for p in linear) / shards
    found = streaming("reduce", "weights.greatest", elements, writes=0, dtype=impl.parameter_dtype)
    size = float(DTYPE_BYTES["fp32"] * sum(p.tensors for p in linear))
    operator = Collective("all_reduce", size, shards, ctas=impl.ctas, dtype="fp32", name="weights.greatest.all_reduce")
    reduced = Launch(operator, stream="communication", waits=True)
    return (found, *placed_launches([reduced], group_fabric(plan, shards, plan.tp)))


def _tied_embedding(plan: Plan, impl: Implementation, parameters: Sequence[ParameterTensor]) -> tuple[Launch, ...]:
    """Sum of a table's gradients over the first and the last stage, which hold a copy each in Megatron.

    Such are a tied matrix and the embedding of modules that predict further tokens.
    """
    tied = impl.tied(plan.workload.model)
    if plan.pp == 1 or impl.framework != OWN_STREAM or not (tied or plan.workload.model.mtp_layers):
        return ()
    if plan.schedule.name in BOTH_ENDS:
        return ()
    fabric = ends_fabric(plan)
    copies = ("embedding.weight", *_copied_tables(plan, impl)[:1])
    tables = [p for p in parameters if p.name in copies]
    return placed_launches((x for p in tables for x in data_parallel.gradient_reduction([p], impl, 2)), fabric)


def overlapped_buckets(
    plan: Plan,
    impl: Implementation,
    rank: int,
    order: Sequence[Instruction],
    parameters: Sequence[Sequence[ParameterTensor]],
) -> tuple[OverlappedBuckets, ...]:
    """Communication of Megatron that runs beside a rank's instructions on a stream of its own.

    Parameters
    ----------
    order
        The rank's instructions.
    parameters
        Of each of its chunks.
    """
    overlap = plan.overlap
    if plan.parallelism.fsdp or impl.framework != OWN_STREAM:
        return ()
    found: list[OverlappedBuckets] = []
    made: dict[tuple[int, str, bool], list[tuple[Collective, int]]] = {}  # equal chunks share their tensors
    reduction = "reduce_scatter" if plan.parallelism.distributed_optimizer else "all_reduce"
    travels = dict.fromkeys(last_backwards(order), reduction) if overlap.grad_reduce == "overlapped" else {}
    travels |= dict.fromkeys(first_forwards(order), "all_gather") if overlap.param_gather == "overlapped" else {}
    for position, kind in sorted(travels.items()):
        one = order[position]
        cut = rank == one.chunk == 0
        key = (id(parameters[one.chunk]), kind, cut)
        if key not in made:
            made[key] = _buckets(plan, impl, parameters[one.chunk], kind, cut=cut)
        found += [OverlappedBuckets(each, count, position, kind == "all_gather") for each, count in made[key]]
    return tuple(found)


def _buckets(
    plan: Plan, impl: Implementation, parameters: Sequence[ParameterTensor], kind: str, *, cut: bool
) -> list[tuple[Collective, int]]:
    """Buckets of a chunk, and how many of each: several only where the chunk is ``cut``."""
    found = []
    for group in summed_together(plan, parameters):
        if group.replicas == 1 or not group.parameters:
            continue
        count = _bucket_count(group.parameters, impl, plan.overlap.grad_bucket_bytes) if cut else 1
        found.append((_bucket(group, impl, kind, count), count))
    return found


def _bucket_count(parameters: Sequence[ParameterTensor], impl: Implementation, limit_bytes: float) -> int:
    """Buckets of the first rank's first chunk; Megatron leaves all other chunks in one piece."""
    if not limit_bytes:
        return len(parameters)
    width = DTYPE_BYTES[impl.gradient_dtype]
    return max(1, round(sum(p.elements for p in parameters) * width / limit_bytes))


def _bucket(group: Summed, impl: Implementation, kind: str, count: int) -> Collective:
    """One of ``count`` equal buckets of a chunk."""
    dtype = impl.dtype if kind == "all_gather" else impl.gradient_dtype
    if kind == "all_gather":
        size = data_parallel.gathered_bytes(group.parameters, impl)
    else:
        size = float(sum(p.elements for p in group.parameters) * DTYPE_BYTES[dtype])
    one = Collective(
        kind, size / count, group.replicas, ctas=impl.ctas, dtype=dtype, name=f"chunk.{kind}", threads=impl.threads
    )
    return placed(one, group.fabric)
