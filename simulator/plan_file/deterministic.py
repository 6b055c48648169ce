"""Where PyTorch's deterministic algorithms are known, and what a forecast says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

KEY = "implementation.deterministic"
#: Whose deterministic backward is known: the one that Transformer Engine runs before Hopper.
BACKEND = "flash-attn-2"


def check_deterministic(plan: Plan, source: Source) -> None:
    """Refuse deterministic algorithms where nobody counted what they add."""
    run, model = plan.implementation, plan.workload.model
    if not run.deterministic:
        return
    problems = (
        (
            run.framework != "megatron",
            "deterministic algorithms are known in megatron",
            'Set implementation.framework = "megatron", or leave the key out',
        ),
        (
            run.attention_backend != BACKEND,
            f"deterministic attention is known of {BACKEND}, not of {run.attention_backend}",
            f'Set implementation.attention_backend = "{BACKEND}", or leave the key out',
        ),
        (
            plan.workload.narrow is not None or model.experts is not None or model.latent is not None,
            "deterministic algorithms are known of plain layers in bf16 or fp16",
            "Leave the key out",
        ),
    )
    source.refuse(problems, KEY)


def deterministic_assumptions(plan: Plan) -> tuple[str, ...]:
    """What deterministic algorithms are taken to do."""
    if not plan.implementation.deterministic:
        return ()
    return (
        "deterministic algorithms fill new tensors and run attention's backward in rounds, as the code of PyTorch, "
        "Transformer Engine and FlashAttention has it; no such kernel was measured",
    )
