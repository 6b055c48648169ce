"""90 % intervals of the plans of a forecast front, and of their ratios to the fastest of them.

A plan's instructions run known kernels at known clocks, so that its interval is made as that of a simulated iteration,
see :mod:`joulecast.simulator.iteration.uncertainty`. Plans of one front run the same kernels on the same cards: most of
what their levels may be off by is common to all. How much slower or more economical one is than another is therefore
known far better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.kernels.costs import Costs, concatenate
from joulecast.model.kernels.operators import Operator
from joulecast.model.uncertainty import FEW_DIRECTIONS, deviations
from joulecast.plan.exact.plan_ends import PlanInterval, plan_ends
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.simulator.fluid.prepared import Prepared
from joulecast.simulator.iteration.stretch import stretches
from joulecast.simulator.iteration.uncertainty import KernelAmounts, conditions_of, intervals

if TYPE_CHECKING:
    from joulecast.plan.exact.problem import Choice, FrontProblem
    from joulecast.plan.knobs.options import Option

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OptionKernels:
    """The kernels behind the options of forecast instructions.

    Attributes
    ----------
    ways
        Tables of every way of overlap and tiles, by the knobs of its options.
    types
        Pipeline rank, and type of instruction in its tables, of each kind of instruction.
    description
        The GPU.
    """

    ways: Mapping[Knobs, Prepared]
    types: tuple[tuple[int, int], ...]
    description: GpuDescription

    def of_kinds(self, kinds: Iterable[int]) -> OptionKernels:
        """The same for a problem with these of the kinds."""
        return OptionKernels(self.ways, tuple(self.types[kind] for kind in kinds), self.description)


def plan_intervals(
    problem: FrontProblem, kernels: OptionKernels, choices: Sequence[Choice], time_s: Float, energy_j: Float
) -> tuple[PlanInterval, ...]:
    """Intervals of plans, and of their ratios to the first of them.

    Parameters
    ----------
    choices
        Index of an option of every instruction, of each of ``n`` plans.
    time_s, energy_j
        What the plans take, shape ``(n,)`` [s], [J].
    """
    amounts = _amounts(problem, kernels, np.asarray(choices, dtype=np.int64))
    base = next(iter(kernels.ways.values()))
    found = intervals(amounts, conditions_of(base, kernels.description))
    return plan_ends(found, time_s, energy_j, np.zeros(len(choices), dtype=np.int64))


def _amounts(problem: FrontProblem, kernels: OptionKernels, choices: Int) -> KernelAmounts:
    """What plans spend in each distinct kernel of all ways."""
    first = np.cumsum([0, *(len(options.options) for options in problem.sets)])
    used, place = np.unique(choices + first[problem.kind], return_inverse=True)
    kind = np.searchsorted(first, used, side="right") - 1
    options = [problem.sets[of].options[i] for of, i in zip(kind.tolist(), (used - first[kind]).tolist(), strict=True)]
    operators, costs, columns = _distinct(kernels.ways)
    spent = np.zeros((3, len(used), len(operators)))  # runs, time and energy of one execution of each option
    clock, length = (np.array([getattr(option, name) for option in options]) for name in ("clock_mhz", "time_s"))
    varied = deviations(kernels.description, FEW_DIRECTIONS)
    stretch = np.zeros((len(varied), len(used)))  # of each option's time
    for (of, knobs), rows in _grouped(kind.tolist(), options).items():
        prepared, (rank, type_) = kernels.ways[knobs], kernels.types[of]
        at = np.searchsorted(prepared.clocks_mhz, clock[rows] - 1e-6)
        counts, times = prepared.tables[rank].counts[type_], prepared.kernels[rank].times
        where = np.ix_(np.array(rows), columns[knobs])
        spent[0][where] = counts
        spent[1][where] = counts * times.time_s[at]
        spent[2][where] = counts * times.energy_j[at]
        at, back = np.unique(at, return_inverse=True)
        stretch[:, rows] = stretches(prepared, rank, at, varied)[:, type_, back.ravel()]
    row = np.arange(len(choices))[:, None] * len(used)
    count = np.bincount((place.reshape(choices.shape) + row).ravel(), minlength=len(choices) * len(used))
    executed = count.reshape(-1, len(used)).astype(np.float64)
    runs, time, energy = executed @ spent
    mean = executed @ (spent[1].sum(axis=1) * clock) / time.sum(axis=1)
    taken = executed * length
    return KernelAmounts(operators, costs, runs, time, energy, mean, stretch @ (taken.T / taken.sum(axis=1)))


def _distinct(ways: Mapping[Knobs, Prepared]) -> tuple[tuple[Operator, ...], Costs, dict[Knobs, Int]]:
    """Distinct kernels of all ways with their costs, and the place among them of each way's kernels."""
    places: dict[Operator, int] = {}
    costs, columns = [], {}
    for knobs, prepared in ways.items():
        own, known = prepared.kernels[0], len(places)
        columns[knobs] = np.array([places.setdefault(operator, len(places)) for operator in own.operators])
        costs.append(own.costs.take(np.flatnonzero(columns[knobs] >= known)))
    return tuple(places), concatenate(costs), columns


def _grouped(kind: Sequence[int], options: Sequence[Option]) -> dict[tuple[int, Knobs], list[int]]:
    """Places of the options of one kind of instruction and one way."""
    found: dict[tuple[int, Knobs], list[int]] = {}
    for row, (of, option) in enumerate(zip(kind, options, strict=True)):
        found.setdefault((of, option.knobs), []).append(row)
    return found
