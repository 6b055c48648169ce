"""Fields of training rows, checked as plans are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulecast.calibrate.rows.fields import MOST, is_size
from joulecast.errors import DataError

Configuration = Mapping[str, Any]


def flag(row: Configuration, key: str, default: bool = False) -> bool:
    """A field of true or false; ``default`` where the row has none.

    Raises
    ------
    DataError
        The field is something else.
    """
    value = row.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise DataError(f"field {key!r} is neither true nor false", key=key)
    return value


def whole_number(row: Configuration, key: str, default: int | None = None) -> int:
    """A positive whole number; ``default`` where the row has none.

    Raises
    ------
    DataError
        The field is something else, or is missing and has no default.
    """
    value = row.get(key, default)
    if value is None and default is not None:
        value = default
    if not is_size(value):
        raise DataError(f"field {key!r} is missing or not a positive whole number of at most {MOST:.0e}", key=key)
    return int(value)
