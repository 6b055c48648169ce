"""Tables of plans that differ from a usual one in some keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def changed(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with other values of some keys: ``{"power__clock_mhz": 1200}``; ``None`` leaves a key out.

    A name without a key, ``{"power": {…}}``, replaces the table.
    """
    whole = {name: dict(table) for name, table in tables.items()}
    for place, value in changes.items():
        table, _, key = place.partition("__")
        if not key:
            whole[table] = value
        elif value is None:
            whole.get(table, {}).pop(key, None)
        else:
            whole.setdefault(table, {})[key] = value
    return whole


def merged(tables: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables with keys of others over theirs: ``{"power": {"clock_mhz": 1200}}`` keeps the other keys of ``power``."""
    return {name: {**tables.get(name, {}), **others.get(name, {})} for name in {**tables, **others}}
