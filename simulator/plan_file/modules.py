"""What must hold of a plan that runs the modules of transformers or of torchtitan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

MODULES, DROPOUT = "implementation.modules", "implementation.dropout"


def check_no_modules(plan: Plan, source: Source) -> None:
    """Megatron has modules of its own."""
    run, remedy = plan.implementation, 'Leave the key out, or set implementation.framework = "pytorch-eager".'
    if run.modules != "joint":
        raise source.error(f"the modules of {run.modules} run in pytorch-eager", MODULES, remedy=remedy)
    if run.dropout and run.attention_backend != "unfused":
        remedy = 'Leave the key out, or set implementation.attention_backend = "unfused".'
        raise source.error("Megatron's dropout is known of attention in separate kernels alone", DROPOUT, remedy=remedy)


def check_modules(plan: Plan, source: Source) -> None:
    """Latent attention, split experts and nano-batches are not known of them, FP8 in torchtitan's alone."""
    run, model = plan.implementation, plan.workload.model
    _check_dropout(plan, source)
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


def _check_dropout(plan: Plan, source: Source) -> None:
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
