"""What must hold of attention in FP8, and what a forecast says of attention and of the sequences that it sees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulecast.model.kernels.attention_fp8 import KERNELS
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan

KEY = "implementation.attention_precision"


def check_attention(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    """Refuse attention in FP8 where its kernels are not known."""
    run = plan.implementation
    if not run.attention_precision:
        return
    architecture = gpu.text("architecture")
    problems = (
        (
            plan.workload.narrow is None,
            "attention in FP8 comes with linear layers in FP8 or FP4",
            'Set workload.precision = "fp8", or leave the key out',
        ),
        (
            run.attention_backend != "cudnn",
            f"attention in FP8 is known of cuDNN, not of {run.attention_backend}",
            'Set implementation.attention_backend = "cudnn", or leave the key out',
        ),
        (
            architecture not in KERNELS,
            f"attention in FP8 is not known on {gpu.name} ({architecture})",
            f"Leave the key out, or use a GPU of {', '.join(KERNELS)}",
        ),
        (
            plan.cp > 1 and plan.parallelism.cp_comm_type != "p2p",
            "attention in FP8 splits the sequence around a ring only",
            'Set parallelism.cp_comm_type = "p2p", or leave the key out',
        ),
        (
            any(name.startswith("attention") for name, _ in run.tiles),
            "tiles of attention in FP8 are not known",
            "Leave attention out of implementation.tiles, or this key",
        ),
    )
    source.refuse(problems, KEY)


def attention_assumptions(plan: Plan, gpu: GpuDescription) -> tuple[str, ...]:
    """How far attention sees, and how attention in FP8 is forecast."""
    model, tokens = plan.workload.model, plan.workload.sequence_length
    said = []
    if 0 < model.max_positions < tokens:
        longer = f"sequences of {tokens} tokens are longer than the {model.max_positions} that the model is made for"
        said.append(longer + (": its table of positions has to grow" if model.learned_positions else ""))
    return (*said, *_fp8_assumptions(plan, gpu))


def _fp8_assumptions(plan: Plan, gpu: GpuDescription) -> tuple[str, ...]:
    if not plan.implementation.attention_precision:
        return ()
    kernels = KERNELS[gpu.text("architecture")]
    words = f"attention in FP8 is an estimate: {kernels.forward:g} times as fast as in bf16 forward, "
    words += f"{kernels.backward:g} times backward, with cuDNN"
    if math.isfinite(kernels.most_heads):
        words += f"; of more than {kernels.most_heads:g} heads its backward computes what a causal mask hides, too"
    return (words,)
