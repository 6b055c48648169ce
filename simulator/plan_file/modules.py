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
    for what, wrong in (
        ("experts split over GPUs", model.experts is not None and _split(plan)),
        ("other operators on rows", model.experts is not None and run.moe_row_operator != ""),
        ("a Mixture of Experts", model.experts is not None and (run.modules != "transformers" or _mixed(plan))),
        ("latent attention", model.latent is not None),
        ("linear layers in FP8", narrow and run.modules == "transformers"),
        ("linear layers in FP8 under torch.autocast", narrow and _mixed(plan)),
        ("layers cut into nano-batches", plan.overlap.nanobatches > 1),
        ("sequences split over GPUs", plan.cp > 1 and run.modules == "transformers"),
        ("compiled attention of other kernels than cuDNN's", _masked(plan) and run.attention_backend != "cudnn"),
    ):
        if wrong:
            raise source.error(f"{what} in the modules of {run.modules} are not known", MODULES, remedy='Use "joint".')


def _split(plan: Plan) -> bool:
    split = plan.parallelism
    return max(plan.tp, split.expert_model_parallel_size, split.expert_tensor_parallel_size) > 1


def _mixed(plan: Plan) -> bool:
    """Whether parameters are wider than what products multiply, without FSDP."""
    return plan.implementation.parameter_precision == "fp32" and not plan.parallelism.fsdp


def _masked(plan: Plan) -> bool:
    """Whether attention takes a mask, as in a graph of a whole model."""
    return plan.implementation.compile and plan.implementation.modules == "transformers"


def _check_dropout(plan: Plan, source: Source) -> None:
    """Of the models known here GPT-2 and its like have dropout, in transformers' code."""
    run, model = plan.implementation, plan.workload.model
    if not run.dropout:
        return
    if run.modules != "transformers":
        remedy = 'Set implementation.modules = "transformers", or leave the key out.'
        raise source.error(f"the modules {run.modules!r} have no dropout", DROPOUT, remedy=remedy)
    if not model.learned_positions:
        remedy = "Leave the key out."
        raise source.error(
            f"{model.name} has no dropout: models with learned positions have it", DROPOUT, remedy=remedy
        )
    if run.attention_backend != "cudnn":
        remedy = 'Set implementation.attention_backend = "cudnn".'
        raise source.error("attention with dropout was measured in cuDNN alone", DROPOUT, remedy=remedy)
    if run.compile:
        raise source.error("compiled dropout is not known", DROPOUT, remedy="Leave the key out.")
