"""Keys that say how a feature works: given where the feature is off they would be ignored in silence, and are refused.

What a space states for a feature that only some of its plans have is left out of the others.

Keys about sizes are others: a plan of one replica, node or rank has nothing that its keys for several could change, and
spaces that vary the number hold such plans.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from json import dumps
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

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
    has_second_model,
)
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.schema_implementation import ImplementationTable
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig


IsOff: TypeAlias = "Callable[[PlanFile, ModelConfig], bool]"


@dataclass(frozen=True, slots=True)
class Feature:
    """A key that means nothing while a feature is off.

    Attributes
    ----------
    key
        The key, with its table.
    switch
        The key that turns the feature on and off.
    is_off
        Whether a plan and its model have the feature off.
    problem, remedy
        What the error says.
    later
        Whether a plan that is given alone is left to checks that know its values better.
    """

    key: str
    switch: str
    is_off: IsOff
    problem: str
    remedy: str
    later: bool = False


_OBJECTIVE, _PRECISION, _OPTIMIZER = "workload.objective", "workload.precision", "implementation.optimizer"
_MODULES, _DISPATCHER = "implementation.modules", "implementation.moe_token_dispatcher_type"
_FSDP, _FRAMEWORK = "parallelism.fsdp", "implementation.framework"
_SORTING, _RUN, _FAILURES = "implementation.moe_permute_fusion", "workload.training_tokens", "site.node_mtbf_hours"


def _needs(
    key: str, switch: str, on: Sequence[object], problem: str, *, best: Sequence[object] = (), later: bool = False
) -> Feature:
    """A key that means something where the switch has one of some values, the ``best`` of which the remedy names."""
    read = attrgetter(switch)
    remedy = f"Set {switch} = {' or '.join(map(dumps, best or on))}"
    return Feature(key, switch, lambda parsed, _: read(parsed) not in on, problem, remedy, later)


def _needs_any(key: str, switch: str, problem: str) -> Feature:
    """A key that means something where the switch is given."""
    read = attrgetter(switch)
    return Feature(key, switch, lambda parsed, _: read(parsed) is None, problem, f"Set {switch}")


def _of_experts(key: str, problem: str, *, later: bool = False) -> Feature:
    problem = f"the model has no experts {problem}"
    return Feature(key, "workload.model", lambda _, m: m.experts is None, problem, "Choose a model with experts", later)


_UNSHARDED, _BY_LAYER = "there is nothing to shard: FSDP is off", "FSDP reduces gradients layer by layer"
_PREFETCH, _ABOUT_RUN = "overlap.fsdp_prefetch", "it is about the whole run's time, and no run is asked for"
_UNSCORED, _IN_BF16 = "the objective scores no completions before", "no layer runs in FP8 or FP4"
FEATURES = (
    _needs("implementation.generation", _FRAMEWORK, ["megatron"], "these are generations of Megatron", later=True),
    _needs(_MODULES, _FRAMEWORK, ["pytorch-eager"], "these modules run in pytorch-eager", later=True),
    _needs(
        "workload.reference",
        _OBJECTIVE,
        (*COMPARED, GRPO),
        "the objective compares with no reference model",
        best=["dpo"],
    ),
    _needs("workload.num_iterations", _OBJECTIVE, [GRPO], _UNSCORED),
    _needs("workload.old_log_probabilities", _OBJECTIVE, [GRPO], _UNSCORED),
    _needs("workload.rollout", _OBJECTIVE, GENERATES, "the objective generates no completions", best=[GRPO]),
    _needs("workload.teacher", _OBJECTIVE, [DISTILLATION], "the objective has no teacher"),
    _needs("workload.completion_tokens", _OBJECTIVE, SCORED, "a head of one value scores no tokens", best=["dpo"]),
    _needs(
        "implementation.log_probabilities",
        _OBJECTIVE,
        LOGARITHMIC,
        "the objective takes no log-probabilities",
        best=["dpo"],
    ),
    Feature(
        "workload.completion_tokens",
        "implementation.log_probabilities",
        lambda parsed, _: has_all_logits(parsed) and parsed.workload.rollout is None,
        "all positions have logits",
        'Set implementation.log_probabilities = "chunked"',
    ),
    Feature(
        "implementation.reference_precision",
        "workload.reference",
        lambda parsed, _: not has_second_model(parsed),
        "the loss compares with no second model",
        'Set workload.reference = "copy"',
    ),
    Feature(
        "implementation.optimizer_precision",
        "implementation.optimizer",
        lambda parsed, _: parsed.implementation.optimizer in RULES,
        "this optimizer's moments have types of their own",
        'Set implementation.optimizer = "adamw"',
    ),
    Feature(
        "workload.mtp_use_repeated_layer",
        "workload.mtp_num_layers",
        lambda parsed, _: parsed.workload.mtp_num_layers == 0,
        "no further token is predicted",
        "Set workload.mtp_num_layers to 1 or more",
    ),
    _needs("workload.fp8_recipe", _PRECISION, ["fp8"], "nothing is computed in FP8"),
    _needs("workload.fp8_param_gather", _PRECISION, ["fp8"], "nothing is computed in FP8"),
    _needs("workload.fp4_param_gather", _PRECISION, ["fp4"], "nothing is computed in FP4"),
    _needs("workload.num_layers_at_start_in_bf16", _PRECISION, NARROW, _IN_BF16),
    _needs("workload.num_layers_at_end_in_bf16", _PRECISION, NARROW, _IN_BF16),
    _needs("parallelism.fsdp_shard_size", _FSDP, [True], _UNSHARDED),
    _needs("parallelism.fsdp_reshard_after_forward", _FSDP, [True], _UNSHARDED),
    _needs("parallelism.fsdp_sync_each_batch", _FSDP, [True], _UNSHARDED),
    _needs(_PREFETCH, _FSDP, [True], _UNSHARDED),
    _needs("parallelism.distributed_optimizer", _FSDP, [False], "FSDP splits the optimizer's states already"),
    _needs("overlap.grad_reduce", _FSDP, [False], f"{_BY_LAYER}, and {_PREFETCH} says whether beside computation"),
    _needs("overlap.param_gather", _FSDP, [False], "FSDP gathers parameters layer by layer"),
    _needs("overlap.grad_bucket_mb", _FSDP, [False], f"{_BY_LAYER}, not in buckets"),
    Feature(
        "overlap.window",
        "overlap.nanobatches",
        lambda parsed, _: parsed.overlap.nanobatches == 1 and parsed.overlap.window != "all",
        "a micro-batch in one piece has nothing independent to run beside its communication",
        "Set overlap.nanobatches to 2 or more",
        later=True,
    ),
    _of_experts("workload.moe_load_imbalance", "to be loaded", later=True),
    _of_experts("workload.moe_expert_capacity_factor", "to be filled", later=True),
    _of_experts("parallelism.expert_model_parallel_size", "to split", later=True),
    _of_experts("parallelism.expert_tensor_parallel_size", "to split", later=True),
    _of_experts("implementation.moe_token_dispatcher_type", "to send tokens to"),
    _needs("implementation.moe_flex_dispatcher_backend", _DISPATCHER, ["flex"], "NCCL exchanges tokens"),
    Feature(
        "implementation.moe_flex_dispatcher_num_sms",
        "implementation.moe_flex_dispatcher_backend",
        lambda parsed, _: parsed.implementation.moe_flex_dispatcher_backend is None,
        "an SM copies three times as much with HybridEP's kernels as with DeepEP's",
        'Set implementation.moe_flex_dispatcher_backend = "hybridep" or "deepep"',
    ),
    _of_experts("implementation.moe_permute_fusion", "whose rows are sorted"),
    _needs("implementation.moe_row_operator", _SORTING, [False], "kernels made for it sort and sum the experts' rows"),
    _of_experts("implementation.moe_fused_mlp", "whose products could do more"),
    _of_experts("implementation.moe_router_fusion", "to choose"),
    _of_experts("implementation.moe_router_dtype", "to choose"),
    _of_experts("implementation.moe_dispatch_precision", "to send tokens to"),
    *(
        _needs(f"implementation.{name}", _OPTIMIZER, ["muon"], "nothing is stepped by Muon")
        for name in ImplementationTable.model_fields
        if name.startswith("muon_")
    ),
    _needs_any("site.goodput", _RUN, _ABOUT_RUN),
    _needs_any("site.node_mtbf_hours", _RUN, _ABOUT_RUN),
    _needs_any("site.checkpoint_s", _FAILURES, "no node fails"),
    _needs_any("site.restart_s", _FAILURES, "no node fails"),
)
#: Features by their key, those that decide about others before these.
_BY_KEY = {f.key: [of for of in FEATURES if of.key == f.key] for f in FEATURES}
_READ = {f.key: attrgetter(f.key) for f in FEATURES}
_DEFAULTS = {f.key: TABLES[table].model_fields[name].default for f in FEATURES for table, name in [f.key.split(".")]}


def given(parsed: PlanFile, free: Container[str]) -> tuple[Feature, ...]:
    """Features whose key is given, other than its default, or may be in plans that differ in the tables ``free``."""
    return tuple(f for f in FEATURES if f.key.partition(".")[0] in free or _is_given(f, parsed))


def with_features(
    parsed: PlanFile, model: ModelConfig, source: Source, features: Sequence[Feature], varied: Container[str]
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
        parsed = _without(feature, parsed)
    return parsed


def switched_off(parsed: PlanFile, model: ModelConfig, varied: Container[str]) -> Iterator[Feature]:
    """Features whose keys a space states for others of its plans than this one."""
    for feature in FEATURES:
        if is_switched(feature, varied) and _is_given(feature, parsed) and feature.is_off(parsed, model):
            parsed = _without(feature, parsed)
            yield feature


def is_switched(feature: Feature, varied: Container[str]) -> bool:
    """Whether a space varies the feature: then plans without it do without its key, and without keys about that."""
    return feature.switch in varied or any(is_switched(of, varied) for of in _BY_KEY.get(feature.switch, ()))


def _without(feature: Feature, parsed: PlanFile) -> PlanFile:
    table, name = feature.key.split(".")
    without = getattr(parsed, table).model_copy(update={name: _DEFAULTS[feature.key]})
    return parsed.model_copy(update={table: without})


def _is_given(feature: Feature, parsed: PlanFile) -> bool:
    return bool(_READ[feature.key](parsed) != _DEFAULTS[feature.key])
