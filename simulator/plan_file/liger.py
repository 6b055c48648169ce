"""Liger's kernels in a plan: which ones stand in for those of a model's own code, and what they are not known with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulecast.model.framework.implementation import LigerKernel
from joulecast.simulator.plan_file.parts import NEXT_TOKEN

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

KEY = "implementation.liger_kernel"
#: Both of the gate of an MLP, by its activation.
GATES: dict[str, LigerKernel] = {"silu": "swiglu", "gelu": "geglu"}
#: The two of the loss, of which a model has one.
LOSSES: tuple[LigerKernel, LigerKernel] = ("fused_linear_cross_entropy", "cross_entropy")


def swapped_kernels(written: bool | Sequence[LigerKernel], model: ModelConfig) -> tuple[LigerKernel, ...]:
    """Kernels of Liger that run: those that are written, or what ``apply_liger_kernel_to_*`` swaps by default."""
    if not isinstance(written, bool):
        return tuple(sorted(set(written)))
    if not written:
        return ()
    chosen: list[LigerKernel] = ["rms_norm", LOSSES[model.scaled_logits]]
    if _rotates(model):
        chosen.append("rope")
    if model.activation in GATES:
        chosen.append(GATES[model.activation])
    return tuple(sorted(chosen))


def check_liger(plan: Plan, source: Source) -> None:
    """Liger's kernels are known in whole dense models of transformers, whose modules it has kernels for."""
    run = plan.implementation
    if not run.liger_kernel:
        return
    losses = bool(run.log_probabilities and set(LOSSES) & set(run.liger_kernel))
    tiled = "in the loss of logits in tiles" if plan.workload.objective == NEXT_TOKEN else "in losses on pairs"
    in_part = plan.schedule.recompute not in ("none", "full")
    users = 'Set implementation.modules = "transformers"'
    problems = (
        (run.modules != "transformers", f"in modules that are {run.modules}", users),
        (run.compile, "in a compiled model", "Set implementation.compile = false"),
        (plan.tp > 1, "in products split over GPUs", "Set parallelism.tensor_model_parallel_size = 1"),
        (plan.pp > 1, "in pipelines", "Set parallelism.pipeline_model_parallel_size = 1"),
        (in_part, "beside parts that are computed again", 'Set schedule.recompute = "full"'),
        (losses, tiled, "List those of layers alone (rms_norm, rope, swiglu or geglu)"),
        (run.loss_metrics > 0, "beside metrics that take logits", "Leave implementation.loss_metrics out"),
    )
    source.refuse(problems, KEY, what="Liger's kernels are not known {}", remedy="{}, or leave the key out.")
    if what := unknown_in(run.liger_kernel, plan.workload.model):
        raise source.error(f"Liger's kernels are not known {what}", KEY, remedy="Leave the key, or that kernel, out.")


def unknown_in(chosen: tuple[LigerKernel, ...], model: ModelConfig) -> str:
    """In what of a model these kernels are not known; empty where they are."""
    name, gate = model.name, GATES.get(model.activation)
    for wrong, what in (
        (model.experts is not None, "in layers of experts"),
        (len(model.mixers) > 0, "in hybrids"),
        (gate is None or not _swappable(model), f"for the layers of {name}"),
        (set(LOSSES) <= set(chosen), "with two losses, of which a model has one"),
        (bool(set(chosen) & (set(GATES.values()) - {gate})), f"with a gate that {name} has not: its own is {gate}"),
        ("rope" in chosen and not _rotates(model), f"for the rotary embedding of {name}"),
        (LOSSES[0] in chosen and model.scaled_logits, f"for {name}'s logits, which it scales: cross_entropy is"),
    ):
        if wrong:
            return what
    return ""


def _rotates(model: ModelConfig) -> bool:
    """Whether it has a rotary embedding as Liger's; GLM-4 rotates values that stand next to each other."""
    return model.rotary and not (model.joint_up and model.norm_place == "around")


def _swappable(model: ModelConfig) -> bool:
    """Whether Liger has kernels for a dense model's norms and gate, in forms that are known here.

    It has none for GLM before version 4, nor for models that scale queries; OLMo's norms over all heads stay
    transformers' where the model is there before Liger, and go where it is not.
    """
    norms = model.norm == "rmsnorm" and model.norm_formula in ("rounded", "shifted")
    other = (
        model.scaled_queries or model.parallel_residual or model.own_code or model.half_rotary or model.paired_rotary
    )
    older = model.joint_up and model.norm_place == "before"
    return norms and model.gated_mlp and not (model.head_bias or other or older or model.latent is not None)
