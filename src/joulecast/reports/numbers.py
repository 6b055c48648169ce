"""Numbers as people read them: a fitting unit, a few digits, thin spaces between thousands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from joulecast.command_line.output import number

#: A space at which no line breaks.
NARROW = "\u00a0"
_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "W": ((1e6, "MW"), (1e3, "kW"), (1.0, "W")),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit for display: ``value / factor`` is shown with ``name``."""

    factor: float
    name: str

    def of(self, values: Iterable[float]) -> list[float]:
        """Values in this unit, with six digits."""
        return [short(v / self.factor) for v in values]

    def text(self, value: float, digits: int = 4) -> str:
        """Value with the unit."""
        return f"{spaced(value / self.factor, digits)}{NARROW}{self.name}"


def unit_for(base: str, largest: float) -> Unit:
    """The unit in which the largest value of several is at least one.

    >>> unit_for("s", 0.0123).name, unit_for("J", 4.2e5).name, unit_for("MHz", 1980.0).name
    ('ms', 'kJ', 'MHz')
    """
    scales = _SCALES.get(base, ((1.0, base),))
    for factor, name in scales:
        if abs(largest) >= factor:
            return Unit(factor, name)
    return Unit(*scales[-1] if largest else scales[0])


def short(value: float, digits: int = 6) -> float:
    """A number with few digits, so that files stay small."""
    return float(f"{value:.{digits}g}")


def spaced(value: float | None, digits: int = 4) -> str:
    """A number with thin spaces between thousands.

    >>> spaced(32312.4, 5).replace(chr(0x202F), "_"), spaced(0.0803), spaced(None)
    ('32_312', '0.0803', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = number(float(value), digits)
    whole, dot, rest = text.partition(".")
    if "e" not in text and len(whole.lstrip("-")) > 4:
        whole = f"{int(whole):,}".replace(",", "\u202f")
    return (whole + dot + rest).replace("-", "−", 1) if value < 0 else whole + dot + rest


def percent(share: float, digits: int = 3) -> str:
    """A share in per cent.

    >>> percent(0.0597).replace(NARROW, "_")
    '5.97_%'
    """
    return f"{spaced(100.0 * share, digits)}{NARROW}%"


def between(low: float, high: float) -> str:
    """Two shares in per cent.

    >>> between(0.1234, 0.15).replace(NARROW, "_")
    '12.3 to 15_%'
    """
    return f"{spaced(100.0 * low, 3)} to {percent(high, 3)}"


def interval(low: float | None, high: float | None, unit: Unit) -> str:
    """Both ends of an interval, e.g. ``0.98 to 1.05 s``; empty where there is none."""
    if low is None or high is None:
        return ""
    return f"{spaced(low / unit.factor, 3)} to {spaced(high / unit.factor, 3)}{NARROW}{unit.name}"
