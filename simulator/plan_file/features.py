"""Keys that say how a feature works: given where the feature is off they would be ignored in silence, and are refused.

What a space states for a feature that only some of its plans have is left out of the others.

Keys about sizes are others: a plan of one replica, node or rank has nothing that its keys for several could change, and
spaces that vary the number hold such plans.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulecast.model.framework.narrow import NARROW
from joulecast.model.training.other_optimizers import RULES
from joulecast.simulator.plan_file.pairs import (
    COMPARED,
    DISTILLATION,
    GENERATES,
    GRPO,
    LOGARITHMIC,
    SCORED,
    has_all_logits,
)
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig


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
    later
        Whether a plan that is given alone is left to checks that know its values better.
    """

    table: str
    name: str
    switch: str
    is_off: Callable[[PlanFile, ModelConfig], bool]
    problem: str
    remedy: str
    later: bool = False

    @property
    def key(self) -> str:
        """The key with its table."""
        return f"{self.table}.{self.name}"


def _no_fp8(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.workload.precision != "fp8"


def _no_fp4(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.workload.precision != "fp4"


def _nothing_narrow(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.workload.precision not in NARROW


def _no_fsdp(parsed: PlanFile, model: ModelConfig) -> bool:
    return not parsed.parallelism.fsdp


def _fsdp(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.parallelism.fsdp


def _one_piece(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.overlap.nanobatches == 1 and parsed.overlap.window != "all"


def _no_experts(parsed: PlanFile, model: ModelConfig) -> bool:
    return model.experts is None


def _no_muon(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.implementation.optimizer != "muon"


def _no_run(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.workload.training_tokens is None


def _no_failures(parsed: PlanFile, model: ModelConfig) -> bool:
    return parsed.site.node_mtbf_hours is None


_FP8 = ("workload.precision", _no_fp8, "nothing is computed in FP8", 'Set workload.precision = "fp8"')
_FP4 = ("workload.precision", _no_fp4, "nothing is computed in FP4", 'Set workload.precision = "fp4"')
_NARROW = (
    "workload.precision",
    _nothing_narrow,
    "no layer runs in FP8 or FP4",
    'Set workload.precision = "fp8" or "fp4"',
)
_FSDP = ("parallelism.fsdp", _no_fsdp, "there is nothing to shard: FSDP is off", "Set parallelism.fsdp = true")
_WITH_FSDP = ("parallelism.fsdp", _fsdp)
_OF_EXPERTS, _CHOOSE_EXPERTS = ("workload.model", _no_experts), "Choose a model with experts"
_RUN = (
    "workload.training_tokens",
    _no_run,
    "it is about the whole run's time, and no run is asked for",
    "Set workload.training_tokens",
)
_FAILURES = ("site.node_mtbf_hours", _no_failures, "no node fails", "Set site.node_mtbf_hours")
_MUON = (
    "implementation.optimizer",
    _no_muon,
    "nothing is stepped by Muon",
    'Set implementation.optimizer = "muon"',
)
MUON_KEYS = ("muon_num_ns_steps", "muon_nesterov", "muon_tp_mode", "muon_split_qkv", "muon_fp32_matmul_prec")
_NO = "Set parallelism.fsdp = false"
#: Keys of objectives: their tables and names, the objectives that have them, what else is wrong, and one that has.
_OF_OBJECTIVES = (
    ("workload", "reference", (*COMPARED, GRPO), "the objective compares with no reference model", "dpo"),
    ("workload", "num_iterations", (GRPO,), "the objective scores no completions before", GRPO),
    ("workload", "old_log_probabilities", (GRPO,), "the objective scores no completions before", GRPO),
    ("workload", "rollout", GENERATES, "the objective generates no completions", GRPO),
    ("workload", "teacher", (DISTILLATION,), "the objective has no teacher", DISTILLATION),
    ("workload", "completion_tokens", SCORED, "a head of one value scores no tokens", "dpo"),
    ("implementation", "log_probabilities", LOGARITHMIC, "the objective takes no log-probabilities", "dpo"),
)


def _of_objective(table: str, name: str, having: tuple[str, ...], problem: str, one: str) -> Feature:
    def is_off(parsed: PlanFile, model: ModelConfig) -> bool:
        return parsed.workload.objective not in having

    return Feature(table, name, "workload.objective", is_off, problem, f'Set workload.objective = "{one}"')


FEATURES = (
    *(_of_objective(*of) for of in _OF_OBJECTIVES),
    Feature(
        "workload",
        "completion_tokens",
        "implementation.log_probabilities",
        lambda parsed, model: has_all_logits(parsed),
        "all positions have logits",
        'Set implementation.log_probabilities = "chunked"',
    ),
    Feature(
        "implementation",
        "optimizer_precision",
        "implementation.optimizer",
        lambda parsed, model: parsed.implementation.optimizer in RULES,
        "this optimizer's moments have types of their own",
        'Set implementation.optimizer = "adamw"',
    ),
    Feature(
        "workload",
        "mtp_use_repeated_layer",
        "workload.mtp_num_layers",
        lambda parsed, model: parsed.workload.mtp_num_layers == 0,
        "no further token is predicted",
        "Set workload.mtp_num_layers to 1 or more",
    ),
    Feature("workload", "fp8_recipe", *_FP8),
    Feature("workload", "fp8_param_gather", *_FP8),
    Feature("workload", "fp4_param_gather", *_FP4),
    Feature("workload", "num_layers_at_start_in_bf16", *_NARROW),
    Feature("workload", "num_layers_at_end_in_bf16", *_NARROW),
    Feature("parallelism", "fsdp_shard_size", *_FSDP),
    Feature("parallelism", "fsdp_reshard_after_forward", *_FSDP),
    Feature("overlap", "fsdp_prefetch", *_FSDP),
    Feature("parallelism", "distributed_optimizer", *_WITH_FSDP, "FSDP splits the optimizer's states already", _NO),
    Feature(
        "overlap",
        "grad_reduce",
        *_WITH_FSDP,
        "FSDP reduces gradients layer by layer, and overlap.fsdp_prefetch says whether beside computation",
        _NO,
    ),
    Feature("overlap", "param_gather", *_WITH_FSDP, "FSDP gathers parameters layer by layer", _NO),
    Feature("overlap", "grad_bucket_mb", *_WITH_FSDP, "FSDP reduces gradients layer by layer, not in buckets", _NO),
    Feature(
        "overlap",
        "window",
        "overlap.nanobatches",
        _one_piece,
        "a micro-batch in one piece has nothing independent to run beside its communication",
        "Set overlap.nanobatches to 2 or more",
        later=True,
    ),
    Feature(
        "implementation",
        "moe_token_dispatcher_type",
        *_OF_EXPERTS,
        "the model has no experts to send tokens to",
        _CHOOSE_EXPERTS,
    ),
    Feature(
        "implementation",
        "moe_flex_dispatcher_backend",
        "implementation.moe_token_dispatcher_type",
        lambda parsed, model: parsed.implementation.moe_token_dispatcher_type != "flex",
        "NCCL exchanges tokens",
        'Set implementation.moe_token_dispatcher_type = "flex"',
    ),
    Feature(
        "implementation",
        "moe_flex_dispatcher_num_sms",
        "implementation.moe_flex_dispatcher_backend",
        lambda parsed, model: parsed.implementation.moe_flex_dispatcher_backend is None,
        "an SM copies three times as much with HybridEP's kernels as with DeepEP's",
        'Set implementation.moe_flex_dispatcher_backend = "hybridep" or "deepep"',
    ),
    Feature(
        "implementation",
        "moe_permute_fusion",
        *_OF_EXPERTS,
        "the model has no experts whose rows are sorted",
        _CHOOSE_EXPERTS,
    ),
    Feature(
        "implementation",
        "moe_row_operator",
        "implementation.moe_permute_fusion",
        lambda parsed, model: parsed.implementation.moe_permute_fusion,
        "kernels made for it sort and sum the experts' rows",
        "Set implementation.moe_permute_fusion = false",
    ),
    Feature(
        "implementation",
        "moe_fused_mlp",
        *_OF_EXPERTS,
        "the model has no experts whose products could do more",
        _CHOOSE_EXPERTS,
    ),
    Feature("implementation", "moe_router_fusion", *_OF_EXPERTS, "the model has no experts to choose", _CHOOSE_EXPERTS),
    Feature("implementation", "moe_router_dtype", *_OF_EXPERTS, "the model has no experts to choose", _CHOOSE_EXPERTS),
    Feature(
        "implementation",
        "moe_dispatch_precision",
        *_OF_EXPERTS,
        "the model has no experts to send tokens to",
        _CHOOSE_EXPERTS,
    ),
    *(Feature("implementation", name, *_MUON) for name in MUON_KEYS),
    Feature("site", "goodput", *_RUN),
    Feature("site", "node_mtbf_hours", *_RUN),
    Feature("site", "checkpoint_s", *_FAILURES),
    Feature("site", "restart_s", *_FAILURES),
)
_DEFAULTS = {f.key: TABLES[f.table].model_fields[f.name].default for f in FEATURES}


def given(parsed: PlanFile, free: Container[str] = ()) -> tuple[Feature, ...]:
    """Features whose key is given, other than its default, or may be in plans that differ in the tables ``free``."""
    return tuple(f for f in FEATURES if f.table in free or _is_given(f, parsed))


def with_features(
    parsed: PlanFile, model: ModelConfig, source: Source, features: Sequence[Feature], varied: Container[str] = ()
) -> PlanFile:
    """The plan's tables without keys that a space states for other plans.

    Parameters
    ----------
    features
        Those to look at, from :func:`given`.
    varied
        Keys in which a space's plans differ.

    Raises
    ------
    InputError
        A key is given while its feature is off.
    """
    for feature in features:
        if not (_is_given(feature, parsed) and feature.is_off(parsed, model)):
            continue
        if not is_switched(feature, varied):
            if feature.later:
                continue
            raise source.error(feature.problem, feature.key, remedy=f"{feature.remedy}, or leave this key out.")
        table = getattr(parsed, feature.table).model_copy(update={feature.name: _DEFAULTS[feature.key]})
        parsed = parsed.model_copy(update={feature.table: table})
    return parsed


def is_switched(feature: Feature, varied: Container[str]) -> bool:
    """Whether a space varies the feature: then plans without it do without its key."""
    return feature.switch in varied


def default_of(feature: Feature) -> Any:
    """Value of the key where it is left out."""
    return _DEFAULTS[feature.key]


def _is_given(feature: Feature, parsed: PlanFile) -> bool:
    return bool(getattr(getattr(parsed, feature.table), feature.name) != _DEFAULTS[feature.key])
