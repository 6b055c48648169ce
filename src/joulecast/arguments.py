"""What a Python program passes, looked at before it is used: wrong kinds end in one readable error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, short


def number(value: Any, key: str, *, least: float | None = None) -> float:
    """A number, also one of NumPy's.

    Parameters
    ----------
    key
        What the argument is called.
    least
        Refuse what is below, and NaN; by default neither.

    Raises
    ------
    InputError
        It is none, such as a text or a truth value, or is below ``least``.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        remedy = f"Give {value} without quotes." if _reads_as_number(value) else "Give a number."
        raise _refused(value, "is no number", key, remedy)
    if least is not None and not float(value) >= least:
        raise _refused(value, "is out of range", key, f"Give {least:g} or more.")
    return float(value)


def whole(value: Any, key: str, *, least: int) -> int:
    """A whole number, also one that is written as ``8.0``.

    Raises
    ------
    InputError
        It is none, or is below ``least``.
    """
    if not number(value, key, least=least).is_integer():
        raise _refused(value, "is no whole number", key, f"Give {least} or more.")
    return int(value)


def text(value: Any, key: str) -> str:
    """A text.

    Raises
    ------
    InputError
        It is something else.
    """
    if not isinstance(value, str):
        raise _refused(value, "is no text", key, "Give a text.")
    return value


def path(value: Any, key: str) -> Path:
    """A path.

    Raises
    ------
    InputError
        It is something else.
    """
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise _refused(value, "is no path", key, "Give the path of a file.")
    return Path(value)


def name_or_path(value: Any, key: str) -> str | Path:
    """A name of the catalogue, or the path of a file.

    Raises
    ------
    InputError
        It is something else.
    """
    if not isinstance(value, str | Path):
        raise _refused(value, "is no name", key, "Give a name of the catalogue, or the path of a file.")
    return value


def texts(value: Any, key: str) -> tuple[str, ...]:
    """Texts; one alone counts as well, and ``None`` is none.

    Raises
    ------
    InputError
        It is something else, or one of them is.
    """
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise _refused(value, "is no list of texts", key, 'Give it as ["table.key=value"].' * (key == "overrides"))
    return tuple(text(one, key) for one in value)


def named(value: Any, key: str) -> Mapping[str, Any]:
    """Values by name; ``None`` is none.

    Raises
    ------
    InputError
        It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refused(value, "does not say what has which value", key, 'Give it as {"name": value}.')
    return value


def space_or_path(value: Any) -> Mapping[str, Any] | str | Path:
    """Tables of a space, or the path of its file.

    Raises
    ------
    InputError
        It is neither.
    """
    if not isinstance(value, str | Path | Mapping):
        remedy = "Give the path of a SPACE.toml, or its tables."
        raise InputError(f"{type(value).__name__} is no space", remedy=remedy)
    return value


def _reads_as_number(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(float(value) or True)
    except ValueError:
        return False


def _refused(value: object, why: str, key: str, remedy: str) -> InputError:
    return InputError(f"{short(repr(value), 100)} {why}", key=key, remedy=remedy or None)
