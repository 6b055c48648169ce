"""``implementation.optimizer``: which optimizers step what, in which framework, and what is taken for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.training.other_optimizers import RULES
from joulecast.simulator.plan_file.training_loop import is_trainer, step_wait_s

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

OPTIMIZER = "implementation.optimizer"


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


def check_optimizer(plan: Plan, source: Source) -> None:
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
