"""Durations as people write them."""

from __future__ import annotations

import re

from joulecast.errors import InputError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PATTERN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds(text: str, key: str = "--budget") -> float:
    """A duration such as ``5m``, ``90s``, ``1h30m`` or ``300`` in seconds.

    Raises
    ------
    InputError
        It is none, or not above zero.

    >>> seconds("5m"), seconds("1h30m"), seconds("90"), seconds("1.5m")
    (300.0, 5400.0, 90.0, 90.0)
    """
    found = _PATTERN.fullmatch(text.strip().lower())
    total = (
        sum(float(part) * unit for part, unit in zip(found.groups("0"), _UNITS.values(), strict=True)) if found else 0
    )
    if total <= 0.0:
        raise InputError(f"{text!r} is no duration", key=key, remedy="Write 90s, 5m or 1h30m.")
    return total


def clock(duration_s: float) -> str:
    """A duration for people.

    >>> clock(75.2), clock(3700.0), clock(-3.0)
    ('1:15', '1:01:40', '0:00')
    """
    whole = max(round(duration_s), 0)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
