"""What a picture of the energy ledger shows: where the joules of every stage go, split in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ledger:
    """Energy of the GPUs of every stage.

    Attributes
    ----------
    rows
        What each row is called; the first one is all GPUs together.
    parts
        Name of each part to its energy in every row, in the order in which they are drawn [J].
    low_j, high_j
        90 % interval of the first row's sum; ``None`` where there is none.
    """

    rows: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]
    low_j: float | None
    high_j: float | None

    @property
    def total_j(self) -> tuple[float, ...]:
        """Sum of every row [J]."""
        return tuple(sum(values) for values in zip(*self.parts.values(), strict=True))


def by_component(result: Mapping[str, Any]) -> Ledger:
    """Energy by part of the GPU, of a forecast as plain data."""
    return _ledger(result, "energy_by_component_j")


def by_instruction(result: Mapping[str, Any]) -> Ledger:
    """Energy by kind of instruction, and of waiting, of a forecast as plain data."""
    return _ledger(result, "energy_by_instruction_j")


def _ledger(result: Mapping[str, Any], split: str) -> Ledger:
    stages = result["stages"] if len(result["stages"]) > 1 else []
    rows = ("all GPUs", *(f"stage {s['stage']}, {s['gpus']} GPU{'s' if s['gpus'] > 1 else ''}" for s in stages))
    parts = {
        name: (energy, *(s[split].get(name, 0.0) * s["gpus"] for s in stages)) for name, energy in result[split].items()
    }
    used = {name: values for name, values in parts.items() if any(values)}
    return Ledger(rows, used, result.get("energy_j_p05"), result.get("energy_j_p95"))
