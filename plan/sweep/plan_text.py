"""A plan of a sweep as the text of a PLAN.toml."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from typing import Any

from joulecast.files import toml_key, toml_value
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.rows import Row
from joulecast.plan.sweep.space import Space
from joulecast.simulator.plan_file.features import switched_off
from joulecast.simulator.plan_file.names import FILES
from joulecast.simulator.plan_file.recomputation import unused_keys
from joulecast.simulator.plan_file.schema import PlanFile


def plan_text(space: Space, row: Row, folder: Path | None = None) -> str:
    """PLAN.toml of a row of a sweep, to be forecast with ``joulecast predict``.

    Files that the space names are named from the ``folder`` in which the plan will stand, by default the space's.
    """
    tables = space.with_values({key: row[key] for key in space.keys})
    if folder is not None:
        _name_from(folder, space.source.folder, tables)
    for key in done_without(space, row):
        place, _, word = key.partition(".")
        tables[place].pop(word, None)
    lines = [f"# Plan {row['plan']} of a sweep"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _name_from(folder: Path, old: Path, tables: Mapping[str, dict[str, Any]]) -> None:
    """Name files that are named from an ``old`` folder from another."""
    for key in FILES:
        place, _, word = key.partition(".")
        name = tables.get(place, {}).get(word)
        if isinstance(name, str) and not Path(name).is_absolute() and (old / name).exists():
            tables[place][word] = Path(relpath((old / name).resolve(), folder.resolve())).as_posix()


def done_without(space: Space, row: Row) -> list[str]:
    """Keys that the space states for a feature, or a recomputation, that the plan of a row does not have."""
    values = {key: row[key] for key in space.keys}
    parsed, model = PlanFile.model_validate(space.with_values(values)), Plans(space).frame(values).model
    off = [feature.key for feature in switched_off(parsed, model, space.keys)]
    return [*off, *unused_keys(parsed.schedule.recompute, space.keys)]
