"""A deterministic writer of description files: the same description gives the same bytes on every machine.

Leaves become inline tables on one line, matrices one row a line (large ones as text), floats their shortest form that
reads back to the same number. Keys keep their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

#: Matrices with more rows than this are written as text.
LARGEST_ARRAY = 8

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def dump_description(description: Mapping[str, Any]) -> str:
    """Text of a description file from its dictionary form, as :meth:`GpuDescription.to_dict` gives it.

    Raises
    ------
    TypeError
        A value that TOML cannot hold.
    ValueError
        A number that is not finite.
    """
    lines: list[str] = []
    _write_table(description, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not _is_section(value)}
    sections = {key: value for key, value in table.items() if _is_section(value)}
    if path and (plain or not sections):
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    for key, value in plain.items():
        large = key == "matrix" and isinstance(value, Sequence) and len(value) > LARGEST_ARRAY
        lines.append(f"{_key(key)} = {_text_matrix(value) if large else _value(value)}")
    for key, value in sections.items():
        _write_table(value, (*path, key), lines)


def _text_matrix(rows: Sequence[Sequence[float]]) -> str:
    """Rows of numbers as one literal string, which readers need not parse number by number."""
    text = "\n".join(" ".join("0" if item == 0 else format_float(item) for item in row) for row in rows)
    return f"'''\n{text}\n'''"


def _is_section(value: Any) -> bool:
    """A dictionary that is not a leaf and not a flat record of numbers stands under its own header."""
    if not isinstance(value, Mapping) or "value" in value:
        return False
    return not value or not all(isinstance(item, int | float) for item in value.values())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return _array(value)
    raise TypeError(f"cannot write {type(value).__name__} to TOML")


def _array(values: Sequence[Any]) -> str:
    if values and all(isinstance(row, Sequence) and not isinstance(row, str) for row in values):
        return "[\n" + "".join(f"    {_array(row)},\n" for row in values) + "]"
    return "[" + ", ".join(_value(item) for item in values) + "]"


def format_float(value: float) -> str:
    """Shortest TOML spelling that reads back to the same float.

    >>> format_float(0.1), format_float(4.8e12), format_float(1e-06), format_float(132.0)
    ('0.1', '4.8e12', '1e-6', '132.0')
    """
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{number} cannot stand in a description")
    if number == 0:
        return "0.0"
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text = "".join(str(digit) for digit in digits)
    power = int(exponent) + len(text) - 1
    if -4 <= power < 6:
        return repr(number)
    mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{power}"


def _string(text: str) -> str:
    escaped = "".join(
        _ESCAPES.get(char, char if ord(char) >= 32 and ord(char) != 127 else f"\\u{ord(char):04x}") for char in text
    )
    return f'"{escaped}"'


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)
