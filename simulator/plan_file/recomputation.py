"""Checks of what a plan computes again in its backwards."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import Recompute
    from joulecast.simulator.plan_file.parts import Implementation
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

RECOMPUTE = "schedule.recompute"
MODULES, INTERVAL = "schedule.recompute_modules", "schedule.recompute_interval"
EARLY = "schedule.recompute_stops_early"
#: The recomputation that each key is about.
ABOUT = {MODULES: "selective", INTERVAL: "full", EARLY: "full"}


def unused_keys(recompute: Recompute, varied: Container[str]) -> tuple[str, ...]:
    """Keys about another recomputation, which plans of this one do without where a space varies it."""
    return tuple(key for key, way in ABOUT.items() if way != recompute) if RECOMPUTE in varied else ()


def with_defaults(implementation: Implementation, keys: Collection[str]) -> Implementation:
    """How a plan is run with some of the keys at their defaults."""
    if not keys:
        return implementation
    return replace(
        implementation,
        recompute_modules=("core_attn",) if MODULES in keys else implementation.recompute_modules,
        recompute_interval=1 if INTERVAL in keys else implementation.recompute_interval,
        recompute_stops_early=EARLY in keys or implementation.recompute_stops_early,
    )


def idle_modules(plan: Plan) -> dict[str, str]:
    """Parts of a layer that take no less memory computed again, and why."""
    model, kinds = plan.workload.model, plan.workload.model.kinds
    experts = [kind.experts for kind in kinds if kind.experts is not None]
    unfused = plan.implementation.attention_backend == "unfused"
    needed: dict[str, tuple[object, str]] = {
        "core_attn": (unfused, "attention is one kernel, which keeps no scores"),
        "layernorm": (experts or model.latent, "Transformer Engine's norms are part of the products behind them"),
        "mla_up_proj": (model.latent, "the model has no latent attention"),
        "mlp": (len(experts) < len(kinds), "all layers have experts"),
        "moe_act": (experts, "the model has no experts"),
        "shared_experts": (any(one.shared_ffn for one in experts), "the model has no shared experts"),
        "moe": (experts, "the model has no experts"),
    }
    return {module: why for module, (need, why) in needed.items() if not need}


def recomputation_assumptions(plan: Plan) -> tuple[str, ...]:
    """What is computed again without need."""
    if plan.schedule.recompute != "selective":
        return ()
    idle = idle_modules(plan)
    again = [module for module in plan.implementation.recompute_modules if module in idle]
    return tuple(f"computing {module} again takes no less memory here: {idle[module]}" for module in again)


def check_recomputation(plan: Plan, source: Source) -> None:
    """Parts of a layer are computed again selectively and by Megatron, some of the layers in full and by PyTorch."""
    run, way = plan.implementation, plan.schedule.recompute
    if run.recompute_modules != ("core_attn",):
        if way != "selective":
            raise source.error(
                f"these modules are recomputed selectively, and recompute is {way!r}",
                MODULES,
                remedy='Set schedule.recompute = "selective", or leave the key out.',
            )
        if run.framework != "megatron":
            raise source.error(
                "PyTorch's eager mode recomputes the core of attention alone",
                MODULES,
                remedy='Set implementation.framework = "megatron", or leave the key out.',
            )
    if way == "operators" and (run.modules != "torchtitan" or plan.workload.model.experts is not None):
        raise source.error(
            "operators are chosen as torchtitan's checkpoints of dense layers do",
            RECOMPUTE,
            remedy='Set implementation.modules = "torchtitan", or schedule.recompute = "full".',
        )
    for key, given in ((INTERVAL, run.recompute_interval > 1), (EARLY, not run.recompute_stops_early)):
        if given and way != "full":
            raise source.error(
                f"whole layers are computed again, and recompute is {way!r}",
                key,
                remedy='Set schedule.recompute = "full", or leave the key out.',
            )
        if given and run.framework == "megatron":
            raise source.error(
                "so PyTorch's checkpoints do; Megatron computes every layer again, to its end",
                key,
                remedy='Set implementation.framework = "pytorch-eager", or leave the key out.',
            )
