"""What a picture of the energy ledger shows: where the joules of every stage go, split in two ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulecast.simulator.iteration import Iteration


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


def by_component(iteration: Iteration) -> Ledger:
    """Energy by part of the GPU."""
    return _ledger(iteration, "energy_by_component_j")


def by_instruction(iteration: Iteration) -> Ledger:
    """Energy by kind of instruction, and of waiting."""
    return _ledger(iteration, "energy_by_instruction_j")


def _ledger(iteration: Iteration, split: str) -> Ledger:
    stages = iteration.ranks if len(iteration.ranks) > 1 else ()
    rows = ("all GPUs", *(f"stage {r.stage}, {r.gpus} GPU{'s' if r.gpus > 1 else ''}" for r in stages))
    whole: dict[str, float] = getattr(iteration, split)
    parts = {
        name: (energy, *(getattr(r, split).get(name, 0.0) * r.gpus for r in stages)) for name, energy in whole.items()
    }
    used = {name: values for name, values in parts.items() if any(values)}
    return Ledger(rows, used, iteration.energy_j_p05, iteration.energy_j_p95)
