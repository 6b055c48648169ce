"""Keys that do nothing in some plans of a space: there one of their values stands for all, so that none repeats a plan.

A key that does nothing in any of them is refused, as it is in a plan that is given alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.plan.sweep.space import RECOMPUTE, Space
from joulecast.simulator.plan_file.features import FEATURES, Feature, is_switched, switched_off
from joulecast.simulator.plan_file.recomputation import ABOUT, unused_keys
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.stages import PP, TP

CP, PER_NODE = "parallelism.context_parallel_size", "cluster.gpus_per_node"
#: What counts as a block where blocks are split evenly.
COUNTED = (
    "parallelism.account_for_embedding_in_pipeline_split",
    "parallelism.account_for_loss_in_pipeline_split",
)
#: Keys about what several GPUs share or exchange, and the number of these GPUs: with one they do nothing.
OF_SEVERAL = {
    **dict.fromkeys(COUNTED, PP),
    "parallelism.sequence_parallel": TP,
    "implementation.shard_head": TP,
    "implementation.muon_tp_mode": TP,
    "parallelism.cp_comm_type": CP,
}


def repeats(fixed: Mapping[str, Any], space: Space, model: ModelConfig) -> bool:
    """Whether another setting differs in nothing but values of keys that plans of both do without."""
    spare = spare_keys(fixed, space)
    if any(key in spare for key in unused_keys(fixed.get(RECOMPUTE, ""), space.keys)) or _fills_the_same(fixed, space):
        return True
    if not any(f.key in spare and is_switched(f, space.keys) for f in FEATURES):
        return False
    parsed = PlanFile.model_validate(space.with_values(fixed))
    return any(feature.key in spare for feature in switched_off(parsed, model, space.keys))


def spare_keys(fixed: Mapping[str, Any], space: Space) -> list[str]:
    """Keys with another value than stands for all of them where plans do without: their default, else the first."""
    offered = {key: values for key, values in space.axes if values is not None}
    kept = {key: _default(key) if _default(key) in offered[key] else offered[key][0] for key in fixed if key in offered}
    return [key for key, value in kept.items() if fixed[key] != value]


def _default(key: str) -> Any:
    table, _, name = key.partition(".")
    return TABLES[table].model_fields[name].default


def _fills_the_same(fixed: Mapping[str, Any], space: Space) -> bool:
    """Whether nodes of more GPUs than there are have been offered smaller: all GPUs are in one node of either."""
    gpus = fixed.get("cluster.gpus", space.value("cluster.gpus"))
    larger = [n for n in space.values(PER_NODE) if n and n >= gpus and space.together.allows({**fixed, PER_NODE: n})]
    return fixed.get(PER_NODE) in larger[1:]


class Unused:
    """Keys that a space states for some of its plans, until one is seen that has what they are about."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._left = {f.key for f in FEATURES if is_switched(f, space.keys)}
        self._off: dict[str, Feature] = {}

    def look(self, fixed: Mapping[str, Any], model: ModelConfig) -> None:
        """See the plans of a setting."""
        said = {key for key in self._left if fixed.get(key, self._space.value(key)) != _default(key)}
        if said:
            parsed = PlanFile.model_validate(self._space.with_values(fixed))
            off = {f.key: f for f in switched_off(parsed, model, self._space.keys) if f.key in said}
            self._off |= off
            self._left -= said - set(off)

    def refuse(self) -> None:
        """Refuse what is left.

        Raises
        ------
        InputError
            A key does nothing in any plan.
        """
        space, source = self._space, self._space.source
        for key, feature in self._off.items():
            if key in self._left:
                remedy = f"{feature.remedy} in some, or leave this key out."
                raise source.error(f"in all plans of the space {feature.problem}", key, remedy=remedy)
        for key, way in ABOUT.items() if RECOMPUTE in space.keys else ():
            if way not in space.values(RECOMPUTE) and any(value != _default(key) for value in space.values(key)):
                remedy = f'Offer {RECOMPUTE} = "{way}" too, or leave this key out.'
                raise source.error(f"no plan of the space has recompute = {way!r}", key, remedy=remedy)
