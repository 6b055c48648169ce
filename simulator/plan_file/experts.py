"""What must hold of a plan's Mixture of Experts and of latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.architecture.experts import Experts
from joulecast.simulator.plan_file.placement import expert_ranks
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.schedules import PAIRS

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile

EP, ETP = "parallelism.expert_model_parallel_size", "parallelism.expert_tensor_parallel_size"
CAPACITY, IMBALANCE = "workload.moe_expert_capacity_factor", "workload.moe_load_imbalance"
EP_COMM = "overlap.ep_comm"
#: Recipes of which products with the experts' activation in them exist.
FUSED_RECIPES = ("mxfp8", "nvfp4")
#: Rows of the busiest rank's experts over the mean, with routers that a loss balances [estimate, +-0.1]. In the
#: code of transformers, whose experts are never split, one rank has all rows.
USUAL_IMBALANCE = 1.1


def read_load(parsed: PlanFile, experts: Experts | None, source: Source) -> float:
    """Rows of the busiest rank's experts over the mean, from a plan's capacity factor or imbalance."""
    table = parsed.workload
    capacity, imbalance = table.moe_expert_capacity_factor, table.moe_load_imbalance
    if experts is None:
        for key, value in ((CAPACITY, capacity), (IMBALANCE, imbalance)):
            if value is not None:
                raise source.error("the model has no experts", key, remedy="Leave the key out.")
        return 1.0
    if capacity is not None and imbalance is not None:
        raise source.error(
            "a capacity to which all experts are filled leaves no imbalance",
            IMBALANCE,
            remedy="Give one of moe_expert_capacity_factor and moe_load_imbalance.",
        )
    alone = parsed.implementation.modules == "transformers"
    return capacity or imbalance or (1.0 if alone else USUAL_IMBALANCE)


def check_experts(plan: Plan, source: Source) -> None:
    """Refuse a split of experts that the plan cannot have."""
    model, split = plan.workload.model, plan.parallelism
    if plan.implementation.framework != "megatron":
        _check_eager(plan, source)
    elif not plan.implementation.moe_permute_fusion:
        raise source.error(
            "sorting and summing of rows by PyTorch's own operators are known in pytorch-eager",
            "implementation.moe_permute_fusion",
            remedy='Leave the key out, or set implementation.framework = "pytorch-eager".',
        )
    _check_overlap(plan, source)
    _check_fused(plan, source)
    if model.experts is None:
        for key, size in ((EP, split.expert_model_parallel_size), (ETP, split.expert_tensor_parallel_size)):
            if size > 1:
                raise source.error("the model has no experts to split", key, remedy="Set it to 1.")
        return
    _check_sizes(plan, model.experts, source)
    if plan.tp > 1 and not plan.sequence_parallel:
        raise source.error(
            "with experts, tensor-parallel ranks must have tokens of their own",
            "parallelism.sequence_parallel",
            remedy="Set it to true.",
        )
    _check_shards(plan, source)


def _check_eager(plan: Plan, source: Source) -> None:
    """PyTorch's eager mode has no latent attention, and reduces their gradients behind the backward."""
    model, overlap, ranks = plan.workload.model, plan.overlap, plan.parallelism.expert_model_parallel_size
    overlapped = model.experts is not None and overlap.grad_reduce == "overlapped" and not plan.parallelism.fsdp
    reduction = "reduction of gradients beside the backward of experts on several ranks is"
    problems = (
        (model.latent is not None, "latent attention is", "", "implementation.framework"),
        (overlap.ep_comm, "communication of experts beside another micro-batch is", ", or this to false", EP_COMM),
        (overlapped and ranks > 1, reduction, ', or this to "after"', "overlap.grad_reduce"),
    )
    remedy = 'Set implementation.framework = "megatron"{}.'
    source.refuse(problems, what="{} known as Megatron does it", remedy=remedy)


def _check_shards(plan: Plan, source: Source) -> None:
    """FSDP's shards of the experts and of the rest lie within each other's GPUs."""
    split = plan.parallelism
    shared, sharing = plan.tp * split.fsdp_shard_size, expert_ranks(plan)
    if split.fsdp and shared % sharing and sharing % shared:
        raise source.error(
            f"{shared} GPUs that share one copy of the parameters and {sharing} that share the experts do not divide "
            "each other",
            "parallelism.fsdp_shard_size" if split.fsdp_shard_size < plan.replicas else EP,
            remedy="Make one of them a multiple of the other.",
        )


def _check_fused(plan: Plan, source: Source) -> None:
    """Products with the activation in them are Transformer Engine's, of blocks of 32 or 16 values with one scale."""
    narrow, megatron = plan.workload.narrow, plan.implementation.framework == "megatron"
    known = megatron and plan.workload.model.experts is not None and narrow is not None
    if plan.implementation.moe_fused_mlp and not (known and narrow is not None and narrow.recipe in FUSED_RECIPES):
        raise source.error(
            "experts' products with the activation in them are known in megatron, in MXFP8 and NVFP4",
            "implementation.moe_fused_mlp",
            remedy='Leave the key out, or set workload.fp8_recipe = "mxfp8".',
        )


def _check_overlap(plan: Plan, source: Source) -> None:
    """Communication of experts beside another micro-batch takes experts on several ranks, and another micro-batch."""
    if not plan.overlap.ep_comm:
        return
    problems = (
        (
            plan.workload.model.experts is None or plan.parallelism.expert_model_parallel_size == 1,
            "there is no communication of experts",
            f"Set it to false, or {EP} to 2 or more",
        ),
        (
            plan.microbatches == 1,
            "one micro-batch has no other beside it",
            "Set it to false, or raise workload.global_batch_size",
        ),
        (
            plan.overlap.nanobatches > 1,
            "communication runs beside the micro-batch's own nano-batches already",
            "Set overlap.nanobatches to 1, or this to false",
        ),
        (
            plan.overlap.tp_comm,
            "stepwise communication of tensor parallelism is not offered beside it",
            "Set overlap.tp_comm to false, or this",
        ),
    )
    source.refuse(problems, EP_COMM)


def _check_sizes(plan: Plan, experts: Experts, source: Source) -> None:
    parts, shares = plan.parallelism.expert_model_parallel_size, plan.parallelism.expert_tensor_parallel_size
    for key, what, size, ranks in (
        (EP, "experts", experts.count, parts),
        (ETP, "columns of an expert", experts.ffn, shares),
    ):
        if size % ranks:
            fitting = [str(d) for d in range(1, min(size, 512) + 1) if size % d == 0]
            raise source.error(
                f"{size} {what} cannot be split over {ranks} ranks", key, remedy=f"Use one of {', '.join(fitting)}."
            )
    inside = plan.tp * plan.replicas
    if inside % (parts * shares):
        sizes = [d for d in range(1, inside + 1) if experts.count % d == 0 and inside % (d * shares) == 0]
        raise source.error(
            f"{parts} x {shares} ranks that share experts do not divide the {inside} GPUs of a pipeline stage",
            EP,
            remedy=f"Use one of {', '.join(map(str, sizes))}." if sizes else f"Set {ETP} to a divisor of {inside}.",
        )


def expert_assumptions(plan: Plan) -> tuple[str, ...]:
    """What a forecast takes for granted of experts."""
    if plan.workload.model.experts is None:
        return ()
    load = plan.workload.expert_load
    words = f"the busiest rank's experts get {load:g} times the mean of the rows, and all others wait for it"
    if plan.overlap.ep_comm:
        words += "; communication of experts runs beside another micro-batch "
        paired = plan.schedule.name in PAIRS
        words += "where the schedule pairs them" if paired else "from the first micro-batch to the last"
    elif plan.overlap.nanobatches == 1 and plan.parallelism.expert_model_parallel_size > 1:
        words += "; communication of experts is not overlapped"
    return (words,)
