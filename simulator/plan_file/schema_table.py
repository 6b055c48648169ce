"""What all tables of a PLAN.toml have in common."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """One table of a file: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    def said_of(self, part: type) -> dict[str, Any]:
        """Fields of a part of the plan by keys of the same names; a key that is left open has the part's default."""
        said = ((of, getattr(self, of.name)) for of in _shared(part, type(self)))
        return {of.name: value for of, value in said if value is not None or of.default is MISSING}


@lru_cache(maxsize=64)
def _shared(part: type, table: type[Table]) -> tuple[Field[Any], ...]:
    """Fields of a dataclass that a table has keys for."""
    return tuple(of for of in fields(part) if of.name in table.model_fields)
