"""Durations as people write them."""

from __future__ import annotations

import re

from joulecast.errors import InputError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PATTERN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def seconds(text: str) -> float:
    """A budget such as ``5m``, ``90s`` or ``1h30m`` in seconds.

    Raises
    ------
    InputError
        It is none, has no unit, or is not above zero.

    >>> seconds("5m"), seconds("1h30m"), seconds("90s"), seconds("1.5m")
    (300.0, 5400.0, 90.0, 90.0)
    """
    words = text.strip().lower()
    # Of seconds or minutes? The one is a failed run, the other hours of a card.
    if _NUMBER.fullmatch(words) and float(words) > 0.0:
        raise InputError(
            f"{text!r} has no unit", key="--budget", remedy=f"Write {words}m for minutes, {words}s for seconds."
        )
    found = _PATTERN.fullmatch(words)
    total = (
        sum(float(part) * unit for part, unit in zip(found.groups("0"), _UNITS.values(), strict=True)) if found else 0
    )
    if total <= 0.0:
        raise InputError(f"{text!r} is no duration", key="--budget", remedy="Write 90s, 5m or 1h30m.")
    return total


def clock(duration_s: float) -> str:
    """A duration for people.

    >>> clock(75.2), clock(3700.0), clock(-3.0)
    ('1:15', '1:01:40', '0:00')
    """
    whole = max(round(duration_s), 0)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
