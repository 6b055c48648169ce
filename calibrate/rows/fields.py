"""Checked fields of a measured row's configuration; a missing or wrong one raises a :class:`DataError` with its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from joulecast.errors import DataError
from joulecast.model.kernels.operators import DTYPE_BYTES

Configuration = Mapping[str, Any]

#: Largest number that a field may have: no product of a few of them leaves the range of what is computed.
MOST = 10**12


def whole_number(configuration: Configuration, key: str, default: int | None = None) -> int:
    """A positive whole number; ``default`` where the row has none."""
    value = configuration.get(key)
    if value is None and default is not None:
        value = default
    if not is_size(value):
        raise _wrong(key, f"missing or not a positive whole number of at most {MOST:.0e}")
    return int(value)


def ctas_of(configuration: Configuration) -> int | None:
    """Thread blocks that a collective is held to; ``None`` leaves them to the library."""
    return None if configuration.get("ctas") is None else whole_number(configuration, "ctas")


def flag(configuration: Configuration, key: str, default: bool = False) -> bool:
    """A field of true or false; ``default`` where the row has none."""
    value = configuration.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(key, "neither true nor false")
    return value


def is_size(value: object) -> TypeGuard[int | float]:
    """Whether a value is a positive whole number that measured work can have."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= MOST and value == int(value)


def optional_count(configuration: Configuration, key: str, default: int = 0) -> int:
    """A whole number that a row may leave out."""
    value = configuration.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise _wrong(key, "not a whole number")
    return int(value)


def positive(configuration: Configuration, key: str) -> float:
    """A positive number."""
    value = configuration.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _wrong(key, "missing or not a positive number")
    return float(value)


def dtype_of(configuration: Configuration, key: str = "dtype", default: str = "bf16") -> str:
    """A data type that the model knows, or the default."""
    dtype = str(configuration.get(key) or default)
    if dtype and dtype not in DTYPE_BYTES:
        raise DataError(f"unknown data type {dtype!r}", key=key)
    return dtype


def name_of_part(configuration: Configuration) -> str:
    """How the names in a plan of the kernels begin that a row's own one stands for; empty for all of its kind."""
    name = configuration.get("of") or ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]*(\.[\w-]+)*", name, re.ASCII):
        raise _wrong("of", "not how names of kernels begin, such as loss or head.wgrad")
    return name


def rows_and_columns(row: Configuration) -> tuple[int, int]:
    """Rows and columns of a row-wise kernel, 0 where the row has no shape."""
    if row.get("shape") is not None:
        sides = sides_of(row)
        return sides[0], sides[-1]
    if row["op"] == "gemv":
        return whole_number(row, "M"), whole_number(row, "K")
    return optional_count(row, "rows"), optional_count(row, "cols") or optional_count(row, "hidden")


def sides_of(row: Configuration) -> list[int]:
    """Sides of a row's tensor."""
    shape = row["shape"]
    if not isinstance(shape, list) or not shape:
        raise _wrong("shape", "not a list of whole numbers")
    return [whole_number({"shape": side}, "shape") for side in shape]


def _wrong(key: str, what: str) -> DataError:
    return DataError(f"field {key!r} is {what}", key=key)
