"""Checks of what a plan says of the loss, of metrics that take it again, and of the optimizer's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.optimizer import OPTIMIZER, check_optimizer

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

FUSED, METRICS = (f"implementation.{key}" for key in ("fused_loss", "loss_metrics"))
MAIN = "implementation.main_parameters"


def check_loss_and_optimizer(plan: Plan, source: Source) -> None:
    """Metrics are PyTorch's; its fused loss takes logits that a rank holds whole."""
    run = plan.implementation
    check_optimizer(plan, source)
    if run.framework == "megatron":
        if run.loss_metrics > 0:
            remedy = 'Leave the key out, or set implementation.framework = "pytorch-eager".'
            raise source.error("metrics that take the loss again are known in pytorch-eager", METRICS, remedy=remedy)
        return
    _main_parameters(plan, source)
    if run.native_loss:
        remedy = 'Set it to true or false, or implementation.framework = "megatron".'
        raise source.error("the native fusion is Megatron's", FUSED, remedy=remedy)
    if run.fused_loss and run.modules != "joint":
        raise source.error(
            f"the modules of {run.modules} take PyTorch's loss of logits in fp32",
            FUSED,
            remedy='Leave the key out, or set implementation.modules = "joint".',
        )
    for key, given in ((FUSED, run.fused_loss), (METRICS, run.loss_metrics > 0)):
        if given and plan.tp > 1:
            raise source.error(
                "in PyTorch known of logits that a rank holds whole",
                key,
                remedy="Leave the key out, or set parallelism.tensor_model_parallel_size = 1.",
            )


def _main_parameters(plan: Plan, source: Source) -> None:
    """PyTorch's fp32 copy of the weights stands beside narrower ones, whole or split with the optimizer's states."""
    run = plan.implementation
    if not run.main_parameters:
        return
    in_place = 'Set implementation.parameter_precision = "fp32" in place of it'
    problems = (
        (run.parameter_precision == "fp32", "the parameters are in fp32 already", "Leave the key out"),
        (plan.parallelism.fsdp, "FSDP keeps the parameters themselves in fp32", in_place),
        (run.optimizer != "adamw", f"{run.optimizer} steps the model's own parameters", f"Leave {OPTIMIZER} out"),
    )
    source.refuse(problems, MAIN)
