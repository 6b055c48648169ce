"""SPACE.toml: a PLAN.toml whose values may be lists or ranges, with constraints and an objective."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from joulecast.plan.sweep.values import CLUSTER, Together, clusters, table_values
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.schedule_names import schedule_alias, unknown_schedule
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.source import Source, apply_overrides, explain, read_toml
from joulecast.simulator.schedules import schedule_names

SCHEDULE, RECOMPUTE = "schedule.name", "schedule.recompute"
#: What can be minimised, and its column: energy is the GPUs', money and carbon are those of everything.
OBJECTIVES = {"time": "time_s", "energy": "energy_j", "money": "money", "carbon": "carbon_kg"}


#: Constraints that the power limits of a plan's ``[site]`` set as well.
SITE_LIMITS = {
    "max_node_power_w": "node_power_limit_w",
    "max_rack_power_w": "rack_power_limit_w",
    "max_site_power_w": "power_limit_w",
}


class ConstraintsTable(BaseModel):
    """``[constraints]``: what a plan must keep to."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_time_s: float | None = Field(None, gt=0, description="Longest iteration [s].")
    max_run_time_s: float | None = Field(None, gt=0, description="Longest run over workload.training_tokens [s].")
    max_energy_j: float | None = Field(None, gt=0, description="Most energy of an iteration, all GPUs [J].")
    max_run_energy_j: float | None = Field(None, gt=0, description="Most energy of the run, at the meter [J].")
    max_power_w: float | None = Field(None, gt=0, description="Highest mean power of all GPUs [W].")
    max_node_power_w: float | None = Field(None, gt=0, description="Highest power of a node at its outlet [W].")
    max_rack_power_w: float | None = Field(
        None, gt=0, description="Highest power of a rack of site.nodes_per_rack [W]."
    )
    max_site_power_w: float | None = Field(None, gt=0, description="Highest power at the facility's meter [W].")
    min_memory_margin: float | None = Field(None, ge=0, lt=1, description="Share of a GPU's memory left free.")
    max_gpus: int | None = Field(None, gt=0, description="Most GPUs.")
    max_money: float | None = Field(None, gt=0, description="Most money for an iteration [currency].")
    max_run_money: float | None = Field(None, gt=0, description="Most money for the run [currency].")
    max_carbon_kg: float | None = Field(None, gt=0, description="Most carbon of an iteration [kgCO2e].")
    max_run_carbon_kg: float | None = Field(None, gt=0, description="Most carbon of the run [kgCO2e].")


class ObjectiveTable(BaseModel):
    """``[objective]``: what the best plan is."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    minimise: str | list[str] = Field("time", description="time, energy, money or carbon; two or three give a front.")
    top: int = Field(5, ge=0, description="Plans whose forecast is simulated in full, the best first; 0: none.")


class _Goals(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    constraints: ConstraintsTable = ConstraintsTable()
    objective: ObjectiveTable = ObjectiveTable()


@dataclass(frozen=True, eq=False)
class Space:
    """What a sweep goes through.

    Attributes
    ----------
    tables
        Keys of a PLAN.toml with one value.
    axes
        Pairs (dotted key, values) of those with several; ``None`` in place of the values is all that are legal.
    constraints, objective
        As in the file.
    minimise
        Names of what is minimised.
    source
        Named in errors.
    files
        Pairs (path, digest) of what it names; two sweeps of one space may find them changed.
    together
        Axes whose values go together.
    """

    tables: Mapping[str, Any]
    axes: tuple[tuple[str, tuple[Any, ...] | None], ...]
    constraints: ConstraintsTable
    objective: ObjectiveTable
    minimise: tuple[str, ...]
    source: Source = field(default_factory=Source, repr=False)
    files: tuple[tuple[str, str], ...] = ()
    together: Together = field(default_factory=Together)

    @property
    def keys(self) -> tuple[str, ...]:
        """Dotted keys of the axes."""
        return tuple(key for key, _ in self.axes)

    def value(self, key: str) -> Any:
        """Value of a key with one value, its default where the file does not set it."""
        table, _, name = key.partition(".")
        return self.tables.get(table, {}).get(name, TABLES[table].model_fields[name].default)

    def values(self, key: str) -> tuple[Any, ...]:
        """Values that a key offers, one or several; those of ``"all"`` are not known here."""
        return dict(self.axes).get(key) or (self.value(key),)

    def key_of(self, constraint: str) -> str:
        """Dotted key that states a constraint: its own, or that of the site's limit."""
        limit = SITE_LIMITS.get(constraint, "")
        site_w = self.tables.get("site", {}).get(limit)
        return f"site.{limit}" if site_w == getattr(self.constraints, constraint) else f"constraints.{constraint}"

    def with_values(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Tables of one plan."""
        tables = {name: dict(table) for name, table in self.tables.items()}
        for key, value in values.items():
            table, _, name = key.partition(".")
            if value is not None:
                tables.setdefault(table, {})[name] = value
        return tables

    def fingerprint(self) -> str:
        """What tells this space from others, apart from constraints and objective."""
        folder = str(self.source.folder.resolve())  # paths in the file are meant against it
        own = [folder, self.tables, self.axes, *([self.together.settings] if self.together.keys else [])]
        whole = json.dumps(own, sort_keys=True, default=str)
        return digest(whole.encode())


def digest(content: bytes) -> str:
    """What tells a content from others, in a few letters."""
    return hashlib.sha256(content).hexdigest()[:16]


def load_space(path: str | Path, overrides: Sequence[str] = ()) -> Space:
    """Read and check a SPACE.toml.

    Raises
    ------
    InputError
        One readable message with file, line, key and remedy.
    """
    return _space(*read_toml(path, overrides))


def space_from_dict(tables: Mapping[str, Any], overrides: Sequence[str] = ()) -> Space:
    """A space from tables as they would stand in a SPACE.toml."""
    copied, keys = apply_overrides(tables, overrides)
    return _space(copied, Source(None, "", keys))


def _space(tables: dict[str, Any], source: Source) -> Space:
    goals = _goals({name: tables.pop(name) for name in ("constraints", "objective") if name in tables}, source)
    single: dict[str, dict[str, Any]] = {}
    axes: list[tuple[str, tuple[Any, ...] | None]] = []
    together = Together()
    for table, keys in tables.items():
        if table == CLUSTER and isinstance(keys, list) and keys:
            offered, together = clusters(keys, source)
        else:
            offered = table_values(table, keys, source)
        for key, values in offered.items():
            if values is None or len(values) > 1:
                axes.append((key, values))
            else:
                single.setdefault(table, {})[key.partition(".")[2]] = values[0]
    _check_types(single, axes, source)
    _check_site_limits(dict(axes), source)
    minimise = goals.objective.minimise
    names = (minimise,) if isinstance(minimise, str) else tuple(minimise)
    _check_objectives(names, source)
    constraints = _with_site_limits(goals.constraints, single.get("site", {}))
    return Space(single, tuple(axes), constraints, goals.objective, names, source, together=together)


def _with_site_limits(constraints: ConstraintsTable, site: Mapping[str, Any]) -> ConstraintsTable:
    """Constraints with the site's power limits, of which each plan keeps the lower."""
    stated = {key: float(site[limit]) for key, limit in SITE_LIMITS.items() if site.get(limit) is not None}
    own = {key: getattr(constraints, key) for key in stated}
    return constraints.model_copy(update={key: min(w, own[key] or w) for key, w in stated.items()})


def _check_site_limits(axes: Mapping[str, tuple[Any, ...] | None], source: Source) -> None:
    """Refuse several values of what all plans of a sweep are held to."""
    for constraint, limit in SITE_LIMITS.items():
        key = f"site.{limit}"
        if key in axes:
            remedy = f"Give one, or leave it out and say constraints.{constraint}; sweep once for each limit."
            raise source.error("all plans of a sweep keep to the same limit", key, remedy=remedy)


def _check_types(
    single: Mapping[str, Mapping[str, Any]], axes: Sequence[tuple[str, tuple[Any, ...] | None]], source: Source
) -> None:
    """Refuse values of a wrong type, and required keys that are missing."""
    first = {name: dict(table) for name, table in single.items()}
    for key, values in axes:
        table, _, name = key.partition(".")
        first.setdefault(table, {})[name] = 1 if values is None else values[0]
    for name in dict(axes).get(SCHEDULE) or (first.get("schedule", {}).get("name", "1f1b"),):
        if isinstance(name, str) and schedule_alias(name) not in schedule_names():
            raise place(unknown_schedule(name), source, SCHEDULE)
    try:
        PlanFile.model_validate(first)
        for key, values in axes:
            table, _, name = key.partition(".")
            for value in () if values is None else values[1:]:
                PlanFile.model_validate(first | {table: first[table] | {name: value}})
    except ValidationError as error:
        raise explain(error, source, TABLES) from None


def _goals(tables: dict[str, Any], source: Source) -> _Goals:
    try:
        return _Goals.model_validate(tables)
    except ValidationError as error:
        known: dict[str, type[BaseModel]] = {"constraints": ConstraintsTable, "objective": ObjectiveTable}
        raise explain(error, source, known) from None


def _check_objectives(names: tuple[str, ...], source: Source) -> None:
    known = ", ".join(OBJECTIVES)
    for name in names:
        if name not in OBJECTIVES:
            raise source.error(f"{name!r} cannot be minimised", "objective.minimise", remedy=f"Known: {known}.")
    if len(set(names)) < len(names):
        raise source.error(f"{list(names)} names one twice", "objective.minimise", remedy="Name each once.")
    if not 1 <= len(names) <= 3:
        raise source.error(
            f"{list(names)} are {len(names)} objectives", "objective.minimise", remedy="Name one, two or three."
        )
