"""What a picture of the energy ledger shows: where the joules of every stage go, split in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ledger:
    """Energy of one GPU: on average, and of every stage.

    Attributes
    ----------
    rows
        What each row is called; the first one is the mean of all GPUs.
    gpus
        How many GPUs each row stands for.
    parts
        Name of each part to its energy in every row, in the order in which they are drawn [J].
    low_j, high_j
        90 % interval of the first row's sum; ``None`` where there is none.
    """

    rows: tuple[str, ...]
    gpus: tuple[int, ...]
    parts: dict[str, tuple[float, ...]]
    low_j: float | None
    high_j: float | None

    @property
    def total_j(self) -> tuple[float, ...]:
        """Sum of every row [J]."""
        return tuple(sum(values) for values in zip(*self.parts.values(), strict=True))


def ledger_of(result: Mapping[str, Any], by: str) -> Ledger:
    """Energy of a forecast as plain data, by ``component`` of the GPU, or by kind of ``instruction`` and waiting."""
    split = f"energy_by_{by}_j"
    stages, whole = result["stages"] if len(result["stages"]) > 1 else [], result["gpus"]
    rows = ("mean of all GPUs" if whole > 1 else "the GPU", *(f"stage {s['stage']}" for s in stages))
    parts = {
        name: (energy / whole, *(s[split].get(name, 0.0) for s in stages)) for name, energy in result[split].items()
    }
    used = {name: values for name, values in parts.items() if any(values)}
    low, high = (None if (end := result.get(f"energy_j_{p}")) is None else end / whole for p in ("p05", "p95"))
    return Ledger(rows, (whole, *(s["gpus"] for s in stages)), used, low, high)
