"""One row of a sweep: a workload on a card at one locked clock or under one power limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from joulecast.calibrate.clock_sweeps.parameters import Kind
from joulecast.calibrate.rows.measured import Measured
from joulecast.tables import Line

#: Identity of a workload on its card.
WorkloadKey = tuple[tuple[str, str | float], ...]
#: Settings and powers of one GPU beyond which a file's units are not those of its form.
PLAUSIBLE_CLOCK_MHZ = (50.0, 5000.0)
PLAUSIBLE_LIMIT_W = (5.0, 5000.0)
PLAUSIBLE_POWER_W = (0.5, 5000.0)


@dataclass(frozen=True)
class SweepRow:
    """One measured row.

    Attributes
    ----------
    kind
        Whether ``setting`` is a locked clock [MHz] or a power limit [W] of one GPU.
    card
        Which GPU; rows of one card share what is known of it.
    workload
        Configuration: words and positive sizes.
    copies
        Keys of ``workload`` by which mere copies differ (stages of a pipeline with the same layers).
    measured
        What was observed, of all GPUs together.
    gpus
        GPUs that the row measures together.
    at_limit
        Whether the row is known to have reached the board's limit; ``None`` where the form does not say.
    unusable
        Why it can neither be fitted nor scored; empty for most rows.
    """

    kind: Kind
    card: str
    workload: Mapping[str, str | float]
    setting: float
    measured: Measured
    copies: tuple[str, ...] = ()
    gpus: int = 1
    at_limit: bool | None = None
    unusable: str = ""
    file: str = ""
    line: int = 0

    @cached_property
    def key(self) -> WorkloadKey:
        """Identity of the workload."""
        return tuple(sorted(self.workload.items()))

    @property
    def family(self) -> WorkloadKey:
        """Identity of the workload and all its copies."""
        return tuple(pair for pair in self.key if pair[0] not in self.copies)

    @property
    def name(self) -> str:
        """Card, workload and setting."""
        values = (f"{v:g}" if isinstance(v, float) else v for v in self.workload.values())
        return " ".join([self.card, *values, f"{self.setting:g} {'MHz' if self.kind == 'clock' else 'W'}"])


@dataclass(frozen=True, slots=True)
class Cells(Line):
    """One line of a CSV file, and the columns of measured values that are ``missing`` from it."""

    missing: list[str] = field(default_factory=list)

    def word(self, column: str) -> str:
        """Text of a cell."""
        text = (self.cells.get(column) or "").strip()
        if not text:
            raise self.error("the cell is empty", column, "Name the workload in full.")
        return text

    def measured(self, column: str) -> float | None:
        """A measured value; an empty cell or a zero means that there is none, which is remembered."""
        value = self.number_if_any(column)
        if not value:
            self.missing.append(column)
            return None
        return value

    def number_if_any(self, column: str) -> float | None:
        """A number that is not negative, ``None`` for an empty or absent cell."""
        text = (self.cells.get(column) or "").strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{text!r} is not a number", column, "Write a number, or nothing.") from None
        if not math.isfinite(value) or value < 0:
            raise self.error(f"{text} is not a positive number", column, "Write what was measured, or nothing.")
        return value
