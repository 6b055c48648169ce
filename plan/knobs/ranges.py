"""Ranges ``{min, max, step}`` of a SPACE.toml."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from joulecast.simulator.plan_file.source import Source

#: Most values of one range.
MOST_VALUES = 100_000


def range_values(value: Mapping[str, Any], key: str, source: Source) -> tuple[Any, ...]:
    """Values of a range, both ends included; its step is 1 where none is given.

    Raises
    ------
    InputError
        It is no range, or one of very many values; named by ``key`` and ``source``.
    """
    low, high, step = (value.get(name, default) for name, default in (("min", None), ("max", None), ("step", 1)))
    numbers = [v for v in (low, high, step) if isinstance(v, int | float) and not isinstance(v, bool)]
    unknown = set(value) - {"min", "max", "step"}
    if unknown or len(numbers) < 3 or not all(math.isfinite(v) for v in numbers) or step <= 0 or high < low:
        shown = ", ".join(f"{name} = {json.dumps(v, default=str)}" for name, v in value.items())
        raise source.error(
            f"{{{shown}}} is no range",
            key,
            remedy="Write {min = …, max = …, step = …}: numbers, the step above 0, the minimum not above the maximum.",
        )
    steps = (high - low) / step
    if steps >= MOST_VALUES:
        raise source.error(f"{steps:.6g} values", key, remedy=f"Use a larger step; a range has at most {MOST_VALUES}.")
    return tuple(low + i * step for i in range(math.floor(steps + 1e-9) + 1))
