"""What is chosen of overlap and tiles at every clock, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.arrays import Array
from joulecast.extras import data_frame
from joulecast.plan.exact.plan_ends import PlanInterval, plan_ends
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.simulator.instructions.tables import Kernels
from joulecast.simulator.iteration.uncertainty import Conditions, KernelAmounts, intervals

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a part at a clock.

    ``energy_j`` is that of all GPUs of a tensor-parallel group; ``held`` says whether the board would hold this clock
    at the mean power of it; ``runs`` how often it runs each of the answer's kernels, shape ``(kernels,)``; ``stretch``
    how the logarithm of its time changes with how kernels slow each other, shape ``(directions,)``.
    """

    clock_mhz: float
    time_s: float
    energy_j: float
    held: bool
    knobs: Knobs
    runs: Array = field(repr=False, compare=False)
    stretch: Array = field(repr=False, compare=False)

    @property
    def power_w(self) -> float:
        """Mean power of the group's GPUs at this clock, whether the board would hold it or not [W]."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, slots=True)
class ClockChoices:
    """The ways at one clock that no other beats, fastest first; there is at least one."""

    clock_mhz: float
    points: tuple[Choice, ...]

    @property
    def time_best(self) -> Choice:
        """The fastest."""
        return self.points[0]

    @property
    def energy_best(self) -> Choice:
        """The most economical."""
        return self.points[-1]


@dataclass(frozen=True, eq=False)
class JointChoice:
    """Choices at every clock, by part: ``attention``, ``mlp`` and ``stage``.

    Attributes
    ----------
    direction, layers
        Of the instruction, and how many layers the stage has.
    gpus
        GPUs of the tensor-parallel group, whose energy and power all choices have.
    scored
        Configurations of overlap, tiles and clock that were compared.
    notes
        What was taken for granted.
    kernels, conditions
        What the choices run, and under what.
    """

    parts: dict[str, tuple[ClockChoices, ...]] = field(repr=False)
    direction: str
    layers: int
    gpus: int
    scored: int
    notes: tuple[str, ...]
    kernels: Kernels = field(repr=False)
    conditions: Conditions = field(repr=False)

    @cached_property
    def intervals(self) -> dict[str, tuple[tuple[PlanInterval, ...], ...]]:
        """How sure each choice is, by part and clock: its level, and its ratio to the fastest at the same clock."""
        return {
            part: _intervals([at.points for at in clocks], self.kernels, self.conditions)
            for part, clocks in self.parts.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data: by part a list of clocks with their points, each with its knobs as a table."""
        parts = {
            part: [
                {
                    "clock_mhz": at.clock_mhz,
                    "points": [
                        {**_figures(point, ends), "knobs": dict(point.knobs)}
                        for point, ends in zip(at.points, every, strict=True)
                    ],
                }
                for at, every in zip(clocks, self.intervals[part], strict=True)
            ]
            for part, clocks in self.parts.items()
        }
        head = {"direction": self.direction, "layers": self.layers, "gpus": self.gpus}
        return {**head, "configurations_scored": self.scored, "parts": parts, "notes": list(self.notes)}

    def lines(self) -> list[dict[str, Any]]:
        """One line for every point, with a column for each knob."""
        return [
            {"part": part, "clock_mhz": at.clock_mhz, **_figures(point, ends), **dict(point.knobs)}
            for part, clocks in self.parts.items()
            for at, every in zip(clocks, self.intervals[part], strict=True)
            for point, ends in zip(at.points, every, strict=True)
        ]

    def to_frame(self) -> pd.DataFrame:
        """The same as a table; needs pandas."""
        return data_frame(self.lines())


def _figures(point: Choice, ends: PlanInterval) -> dict[str, Any]:
    return {
        "time_s": point.time_s,
        "energy_j": point.energy_j,
        "power_w": point.power_w,
        **asdict(ends),
        "held": point.held,
    }


def _intervals(
    clocks: Sequence[Sequence[Choice]], kernels: Kernels, conditions: Conditions
) -> tuple[tuple[PlanInterval, ...], ...]:
    """Intervals of the choices at each clock; of ratios to the first at the same clock."""
    points = [point for every in clocks for point in every]
    first = [0, *accumulate(len(every) for every in clocks)]
    against = np.repeat(first[:-1], [len(every) for every in clocks])
    clock = np.array([point.clock_mhz for point in points])
    at = np.searchsorted(kernels.clocks_mhz, clock - 1e-6)
    runs = np.stack([point.runs for point in points])
    spent = runs * kernels.times.time_s[at], runs * kernels.times.energy_j[at]
    stretch = np.stack([point.stretch for point in points], axis=1)
    amounts = KernelAmounts(kernels.operators, kernels.costs, runs, *spent, clock, stretch)
    time, energy = (np.array([getattr(point, name) for point in points]) for name in ("time_s", "energy_j"))
    ends = plan_ends(intervals(amounts, conditions, against), time, energy, against)
    return tuple(ends[a:b] for a, b in pairwise(first))
