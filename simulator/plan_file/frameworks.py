"""What only one framework's code runs, and what is known of the modules, compiled layers and FP8 of PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

MODULES, DROPOUT = "implementation.modules", "implementation.dropout"
COMPILE, PRECISION = "implementation.compile", "workload.precision"


def check_framework(plan: Plan, source: Source) -> None:
    """Refuse what a plan's framework does not run."""
    if plan.implementation.framework == "megatron":
        _megatron(plan, source)
        return
    _eager_fp8(plan, source)
    _compiled(plan, source)
    _modules(plan, source)
    _pytorch(plan, source)


def _megatron(plan: Plan, source: Source) -> None:
    """Megatron has modules of its own, fused by hand, and keeps narrow states in its distributed optimizer."""
    run, split = plan.implementation, plan.parallelism
    whole = run.optimizer_precision != "fp32" and not (split.distributed_optimizer or split.fsdp)
    leave = "Leave the key out, or set implementation"
    pytorch, unfused = f'{leave}.framework = "pytorch-eager"', f'{leave}.attention_backend = "unfused"'
    problems = (
        (
            whole,
            "Megatron keeps moments in bf16 in its distributed optimizer alone",
            "Set parallelism.distributed_optimizer = true, or leave the key out",
            "implementation.optimizer_precision",
        ),
        (run.compile, "torch.compile of layers is known in pytorch-eager", pytorch, COMPILE),
        (run.modules != "joint", f"the modules of {run.modules} run in pytorch-eager", pytorch, MODULES),
        (
            run.dropout > 0 and run.attention_backend != "unfused",
            "Megatron's dropout is known of attention in separate kernels alone",
            unfused,
            DROPOUT,
        ),
    )
    source.refuse(problems)


def _pytorch(plan: Plan, source: Source) -> None:
    """Kernels that only Megatron has."""
    run = plan.implementation
    apart = run.attention_backend == "unfused" and run.modules != "transformers"
    kernels = "attention in separate kernels is known as Megatron-LM ran it and as transformers writes it"
    problems = (
        (apart, "attention_backend", kernels),
        (run.moe_router_dtype != "", "moe_router_dtype", "a router of another type is known in megatron"),
        (not run.moe_router_fusion, "moe_router_fusion", "routers are Megatron's with or without fusion"),
        (
            run.moe_flex_dispatcher_backend == "hybridep",
            "moe_flex_dispatcher_backend",
            "HybridEP's exchange is known in megatron",
        ),
        (
            run.average_in_collective,
            "average_in_collective",
            "collectives that average gradients are known in megatron",
        ),
        (run.graph_scopes != (), "cuda_graphs", "graphs of parts of a layer are Megatron's"),
        (run.generation != "", "generation", "these are generations of Megatron"),
    )
    way = 'Set implementation.framework = "megatron", or leave the key out'
    source.refuse((wrong, what, way, f"implementation.{key}") for wrong, key, what in problems)


def _compiled(plan: Plan, source: Source) -> None:
    """Layers of experts were not measured compiled, nor were layers cut into nano-batches."""
    if not plan.implementation.compile:
        return
    if plan.workload.model.experts is not None:
        raise source.error("compiled experts are not known", COMPILE, remedy="Leave the key out.")
    if plan.overlap.nanobatches > 1:
        raise source.error("compiled layers are not cut into nano-batches", COMPILE, remedy="Leave the key out.")


def _eager_fp8(plan: Plan, source: Source) -> None:
    """PyTorch's float8 linear layers were measured whole, without experts; torchtitan splits them by its code."""
    narrow = plan.workload.narrow
    if narrow is None:
        return
    _split_fp8(plan, narrow.recipe, source)
    split = plan.tp > 1 and plan.implementation.modules != "torchtitan"
    remedy = 'Set implementation.framework = "megatron", or another precision'
    problems = (
        (plan.implementation.attention_precision != "", "attention in FP8", remedy),
        (plan.workload.model.experts is not None, "experts in FP8", remedy),
        (split, "linear layers in FP8 that are split over ranks", remedy),
    )
    source.refuse(problems, PRECISION, what="{} are known as Transformer Engine runs them")


def _split_fp8(plan: Plan, recipe: str, source: Source) -> None:
    """torchtitan gathers a split sequence in FP8 with one scale for a tensor."""
    if plan.tp == 1 or plan.implementation.modules != "torchtitan":
        return
    split = "linear layers in FP8 that are split over ranks are known in torchtitan"
    if recipe != "tensorwise":
        remedy = 'Set it to "tensorwise", or parallelism.tensor_model_parallel_size = 1.'
        raise source.error(f"{split} with one scale for a tensor", "workload.fp8_recipe", remedy=remedy)
    if not plan.parallelism.sequence_parallel:
        raise source.error(
            f"{split} with its split sequence", "parallelism.sequence_parallel", remedy="Set it to true."
        )


def _modules(plan: Plan, source: Source) -> None:
    """Latent attention, split experts and nano-batches are not known of them, FP8 in torchtitan's alone."""
    run, model = plan.implementation, plan.workload.model
    _dropout(plan, source)
    if run.modules == "joint":
        return
    narrow = plan.workload.narrow is not None
    experts, users, other = model.experts is not None, run.modules == "transformers", 'Use "joint"'
    sharded = "Set parallelism.fsdp = true, or implementation.parameter_precision to what products are in"
    masked = users and run.compile  # attention takes a mask in a graph of a whole model
    problems = (
        (experts and _split(plan), "experts split over GPUs", other),
        (experts and run.moe_row_operator != "", "other operators on rows", other),
        (experts and not users, "a Mixture of Experts", other),
        (experts and _mixed(plan), "a Mixture of Experts under torch.autocast", sharded),
        (model.latent is not None, "latent attention", other),
        (narrow and users, "linear layers in FP8", other),
        (narrow and _mixed(plan), "linear layers in FP8 under torch.autocast", other),
        (plan.overlap.nanobatches > 1, "layers cut into nano-batches", other),
        (plan.cp > 1 and users, "sequences split over GPUs", other),
        (masked and run.attention_backend != "cudnn", "compiled attention of other kernels than cuDNN's", other),
    )
    source.refuse(problems, MODULES, what=f"the modules of {run.modules} do not know {{}}")


def _split(plan: Plan) -> bool:
    split = plan.parallelism
    return max(plan.tp, split.expert_model_parallel_size, split.expert_tensor_parallel_size) > 1


def _mixed(plan: Plan) -> bool:
    """Whether parameters are wider than what products multiply, without FSDP."""
    return plan.implementation.parameter_precision == "fp32" and not plan.parallelism.fsdp


def _dropout(plan: Plan, source: Source) -> None:
    """Of the models known here GPT-2 and its like have dropout, in transformers' code."""
    run, model = plan.implementation, plan.workload.model
    if not run.dropout:
        return
    leave, positions = "Leave the key out", f"{model.name} has no dropout: models with learned positions have it"
    users = 'Set implementation.modules = "transformers", or leave the key out'
    cudnn = 'Set implementation.attention_backend = "cudnn"'
    problems = (
        (run.modules != "transformers", f"the modules {run.modules!r} have no dropout", users),
        (not model.learned_positions, positions, leave),
        (run.attention_backend != "cudnn", "attention with dropout was measured in cuDNN alone", cudnn),
        (run.compile, "compiled dropout is not known", leave),
    )
    source.refuse(problems, DROPOUT)
