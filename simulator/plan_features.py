"""Keys that say how a feature works: given where the feature is off they would be ignored in silence, and are refused.

Keys about sizes are others: a plan of one replica, node or rank has nothing that its keys for several could change, and
spaces that vary the number hold such plans.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.simulator.plan_schema import TABLES, PlanFile
from joulecast.simulator.plan_source import Source

if TYPE_CHECKING:
    from joulecast.model.hf import ModelConfig


@dataclass(frozen=True, slots=True)
class Feature:
    """A key that means nothing while a feature is off.

    Attributes
    ----------
    table, name
        The key.
    switch
        The key that turns the feature on and off.
    is_off
        Whether a plan and its model have the feature off.
    problem, remedy
        What the error says.
    """

    table: str
    name: str
    switch: str
    is_off: Callable[[PlanFile, ModelConfig], bool]
    problem: str
    remedy: str


def _no_fp8(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.workload.precision != "fp8"


def _no_fsdp(parsed: PlanFile, model: ModelConfig) -> bool:
    return not parsed.parallelism.fsdp


_FP8 = ("workload.precision", _no_fp8, "nothing is computed in FP8", 'Set workload.precision = "fp8"')
_FSDP = ("parallelism.fsdp", _no_fsdp, "there is nothing to shard: FSDP is off", "Set parallelism.fsdp = true")
FEATURES = (
    Feature("workload", "fp8_recipe", *_FP8),
    Feature("workload", "fp8_param_gather", *_FP8),
    Feature("parallelism", "fsdp_shard_size", *_FSDP),
    Feature("overlap", "fsdp_prefetch", *_FSDP),
    Feature(
        "overlap",
        "grad_bucket_mb",
        "parallelism.fsdp",
        lambda parsed, model: parsed.parallelism.fsdp,
        "FSDP reduces gradients layer by layer, not in buckets",
        "Set parallelism.fsdp = false",
    ),
    Feature(
        "implementation",
        "moe_token_dispatcher_type",
        "workload.model",
        lambda parsed, model: model.experts is None,
        "the model has no experts to send tokens to",
        "Choose a model with experts",
    ),
    Feature(
        "site",
        "goodput",
        "workload.training_tokens",
        lambda parsed, model: parsed.workload.training_tokens is None,
        "it is a share of the whole run's time, and no run is asked for",
        "Set workload.training_tokens",
    ),
)
_DEFAULTS = {f"{f.table}.{f.name}": TABLES[f.table].model_fields[f.name].default for f in FEATURES}


def check_features(parsed: PlanFile, model: ModelConfig, source: Source, varied: Container[str] = ()) -> None:
    """Refuse keys that are given, other than their default, while their feature is off.

    Parameters
    ----------
    varied
        Keys in which plans of a space differ. What the space states once for a feature that only some of its plans
        have is no mistake.

    Raises
    ------
    InputError
        One of them.
    """
    for feature in FEATURES:
        key = f"{feature.table}.{feature.name}"
        if getattr(getattr(parsed, feature.table), feature.name) == _DEFAULTS[key]:
            continue
        if feature.is_off(parsed, model) and (feature.switch not in varied or key in varied):
            raise source.error(feature.problem, key, remedy=f"{feature.remedy}, or leave this key out.")
