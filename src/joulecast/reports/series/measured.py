"""What a picture of forecasts against measurements shows, from the plain data that ``validate --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Quantity to its word, its unit and the column of its interval's name.
QUANTITIES = {
    "time_s": ("time", "s"),
    "energy_j": ("energy", "J"),
    "power_w": ("power", "W"),
    "sm_clock_mhz": ("clock", "MHz"),
    "peak_mem_bytes": ("memory", "B"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured value and its forecast, with the forecast's 90 % interval where there is one."""

    name: str
    measured: float
    predicted: float
    low: float | None
    high: float | None

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted / self.measured - 1.0

    @property
    def below(self) -> float:
        """How far the interval goes down from the forecast; 0 without one."""
        return 0.0 if self.low is None else self.predicted - self.low

    @property
    def above(self) -> float:
        """How far the interval goes up from the forecast; 0 without one."""
        return 0.0 if self.high is None else self.high - self.predicted


def measured_pairs(report: Mapping[str, Any], quantity: str) -> dict[str, list[Pair]]:
    """Rows with a forecast and a measurement of a quantity, by family."""
    found: dict[str, list[Pair]] = {}
    for row in report["rows"]:
        measured, predicted = row["measured"].get(quantity), row["predicted"].get(quantity)
        if not measured or predicted is None:
            continue
        low, high = (row["predicted"].get(f"{quantity}_{end}") for end in ("p05", "p95"))
        family = str(row.get("family") or report.get("suite", "rows"))
        found.setdefault(family, []).append(Pair(str(row["name"]), measured, predicted, low, high))
    return found


def measured_by_quantity(report: Mapping[str, Any]) -> dict[str, dict[str, list[Pair]]]:
    """Pairs by quantity and family; quantities that nobody measured are left out."""
    found = {quantity: measured_pairs(report, quantity) for quantity in QUANTITIES}
    return {quantity: families for quantity, families in found.items() if families}
