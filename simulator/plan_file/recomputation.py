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
