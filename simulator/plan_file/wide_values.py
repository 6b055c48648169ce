"""What must hold of a plan whose weights and activations are in fp32, with products in fp32 or TF32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.model.framework.wide_values import TF32, WIDE
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

PRECISION, BACKEND = "workload.precision", "implementation.attention_backend"
#: Attention that takes fp32: PyTorch's own, which then runs kernels that no other type does, and separate kernels.
TAKES_WIDE = ("cudnn", "unfused")


def check_wide_values(plan: Plan, source: Source) -> None:
    """Attention in fp32 is known of PyTorch's kernels without a mask; with shared keys, in modules that users run."""
    run, model, work = plan.implementation, plan.workload.model, plan.workload
    if work.precision not in WIDE:
        return
    eager, narrow = run.framework == "pytorch-eager", f'Set {PRECISION} = "bf16"'
    if not eager:
        way = f'Set implementation.framework = "pytorch-eager", or {PRECISION} = "fp32"'
        source.refuse(((work.precision == TF32, "Megatron's products in TF32 are not known", way),), PRECISION)
        return
    fused, masked = run.attention_backend == "cudnn", _masks(plan)
    users, other = f'Set implementation.modules = "transformers", or {PRECISION} = "bf16"', f'Set {BACKEND} = "cudnn"'
    shared = model.latent is not None or model.kv_heads < model.heads
    problems = (
        (run.attention_backend not in TAKES_WIDE, f"in {run.attention_backend}", other, BACKEND),
        (run.compile and fused and shared, "of shared keys in compiled modules", narrow),
        (fused and shared and run.modules == "joint", "of shared keys in joint modules", users),
        (fused and masked != "", f"with {masked}", f'Set {BACKEND} = "unfused", or {PRECISION} = "bf16"'),
        (plan.cp > 1, "of sequences split over GPUs", narrow),
    )
    source.refuse(problems, PRECISION, what="attention in fp32 {} is not known", kind=NotYetError)


def _masks(plan: Plan) -> str:
    """What PyTorch's own attention would be given a mask, or more than one kernel, for."""
    model, work = plan.workload.model, plan.workload
    asked = (
        (model.sliding_window > 0, "windows"),
        (model.alibi, "ALiBi"),
        (work.document_tokens is not None, "documents"),
        (work.images is not None, "images"),
        (bool(plan.implementation.dropout), "dropout"),
        (model.attention_softcap, "capped scores"),
    )
    return next((what for given, what in asked if given), "")
