"""The loss, metrics that take it again, and the optimizer: what a plan may say of them, and what a forecast does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.training.other_optimizers import RULES
from joulecast.simulator.plan_file.training_loop import is_trainer, step_wait_s

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

FUSED, METRICS = (f"implementation.{key}" for key in ("fused_loss", "loss_metrics"))
OPTIMIZER, MAIN = "implementation.optimizer", "implementation.main_parameters"


def optimizer_assumptions(plan: Plan) -> tuple[str, ...]:
    """How long bitsandbytes lets the GPU wait, and what it keeps in fp32."""
    kind = KINDS.get(plan.implementation.optimizer)
    if kind is None:
        return ()
    wait, said = step_wait_s(plan), []
    if wait > 0:
        said.append(f"bitsandbytes lets the GPU wait for its host at each parameter, {1e6 * wait:.0f} us")
    if is_trainer(plan) and kind.narrow and plan.workload.lora is None:
        said.append("moments of embeddings are in fp32, as Hugging Face's Trainer has them")
    return tuple(said)


def check_loss_and_optimizer(plan: Plan, source: Source) -> None:
    """Metrics are PyTorch's; its fused loss takes logits that a rank holds whole."""
    run = plan.implementation
    _optimizer(plan, source)
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


def _optimizer(plan: Plan, source: Source) -> None:
    """Others than AdamW and Muon step whole parameters of PyTorch; SGD steps FSDP's shards too."""
    run, split, rule = plan.implementation, plan.parallelism, RULES.get(plan.implementation.optimizer)
    megatron, whole = run.framework == "megatron", rule is not None and not rule.sharded
    problems = (
        (
            megatron and run.optimizer not in ("adamw", "muon"),
            "is known in pytorch-eager",
            'set implementation.framework = "pytorch-eager"',
        ),
        (split.fsdp and whole, "does not step the shards of FSDP", "set parallelism.fsdp = false"),
        (
            split.distributed_optimizer and rule is not None,
            "steps whole parameters, not a rank's share of them",
            "set parallelism.distributed_optimizer = false",
        ),
        (
            plan.tp > 1 and whole,
            "steps whole parameters, not a tensor-parallel rank's share of them",
            "set parallelism.tensor_model_parallel_size = 1",
        ),
    )
    source.refuse(problems, OPTIMIZER, what=f"{run.optimizer} {{}}", remedy='Set it to "adamw", or {}.')


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
