"""What must hold of a plan whose layers PyTorch compiles, or whose linear layers PyTorch runs in FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

COMPILE, PRECISION = "implementation.compile", "workload.precision"


def check_no_compile(plan: Plan, source: Source) -> None:
    """Megatron's kernels are fused by hand."""
    if plan.implementation.compile:
        remedy = 'Leave the key out, or set implementation.framework = "pytorch-eager".'
        raise source.error("torch.compile of layers is known in pytorch-eager", COMPILE, remedy=remedy)


def check_compiled(plan: Plan, source: Source) -> None:
    """Layers of experts were not measured compiled, nor were layers cut into nano-batches."""
    if not plan.implementation.compile:
        return
    if plan.workload.model.experts is not None:
        raise source.error("compiled experts are not known", COMPILE, remedy="Leave the key out.")
    if plan.overlap.nanobatches > 1:
        raise source.error("compiled layers are not cut into nano-batches", COMPILE, remedy="Leave the key out.")


def check_eager_fp8(plan: Plan, source: Source) -> None:
    """PyTorch's float8 linear layers were measured whole, without experts; torchtitan splits them by its code."""
    narrow = plan.workload.narrow
    if narrow is None:
        return
    _check_split(plan, narrow.recipe, source)
    split = plan.tp > 1 and plan.implementation.modules != "torchtitan"
    remedy = 'Set implementation.framework = "megatron", or another precision'
    problems = (
        (plan.implementation.attention_precision != "", "attention in FP8", remedy),
        (plan.workload.model.experts is not None, "experts in FP8", remedy),
        (split, "linear layers in FP8 that are split over ranks", remedy),
    )
    source.refuse(problems, PRECISION, what="{} are known as Transformer Engine runs them")


def _check_split(plan: Plan, recipe: str, source: Source) -> None:
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
