"""Plans of a space from their values, with what they share read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from joulecast.plan.sweep.space import RECOMPUTE, Space
from joulecast.plan.sweep.values import MICRO_BATCH
from joulecast.simulator.plan_file.plan import SPLIT_FREE, Plan, PlanFrame, PlanSplit, is_free
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.source import explain

#: Most splits that are kept, some ten megabytes.
MOST_SPLITS = 4096


class Plans:
    """Builds plans of a space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._source = space.source
        self._frames: dict[object, tuple[PlanFile, PlanFrame]] = {}
        self._splits: dict[str, PlanSplit] = {}
        self._fixed = [key for key in space.keys if not is_free(key)]
        self._free = [(key, *key.split(".", 1)) for key in space.keys if is_free(key)]
        self._of_split = [key for key in space.keys if key not in SPLIT_FREE]
        self._single = {key: space.value(key) for key in SPLIT_FREE if key not in space.keys}

    def frame(self, values: Mapping[str, Any]) -> PlanFrame:
        """What plans with these values share."""
        return self._frame(values)[1]

    def plan(self, values: Mapping[str, Any]) -> Plan:
        """The plan with these values of the space's axes.

        Raises
        ------
        InputError
            No plan can have them together.
        """
        own = {**self._single, **values}
        return self._split(values).plan(own[MICRO_BATCH], own[RECOMPUTE])

    def _split(self, values: Mapping[str, Any]) -> PlanSplit:
        name = repr([values[key] for key in self._of_split])
        if name not in self._splits:
            if len(self._splits) == MOST_SPLITS:
                self._splits.clear()
            self._splits[name] = self._new_split(values)
        return self._splits[name]

    def _new_split(self, values: Mapping[str, Any]) -> PlanSplit:
        parsed, frame = self._frame(values)
        changed: dict[str, dict[str, Any]] = {}
        for key, table, name in self._free:
            changed.setdefault(table, {})[name] = values[key]
        # The values' types were checked when the space was read.
        tables = {name: getattr(parsed, name).model_copy(update=fields) for name, fields in changed.items()}
        return frame.split(parsed.model_copy(update=tables))

    def _frame(self, values: Mapping[str, Any]) -> tuple[PlanFile, PlanFrame]:
        own = {key: values[key] for key in self._fixed}
        name = repr(own)
        if name not in self._frames:
            try:
                parsed = PlanFile.model_validate(self._space.with_values(own))
            except ValidationError as error:
                raise explain(error, self._source, TABLES) from None
            self._frames[name] = parsed, PlanFrame(parsed, self._source, varied=self._space.keys)
        return self._frames[name]
