"""90 % intervals of the plans of a forecast front, and of their ratios to the fastest of them.

A plan's instructions run known kernels at known clocks, so that its interval is made as that of a simulated iteration,
see :mod:`joulecast.simulator.iteration.uncertainty`. Plans of one front run the same kernels on the same cards: most of
what their levels may be off by is common to all. How much slower or more economical one is than another is therefore
known far better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.kernels.costs import Costs, concatenate
from joulecast.model.kernels.operators import Operator
from joulecast.model.power.kernel_power import idle_power_w
from joulecast.model.uncertainty import FEW_DIRECTIONS, deviations
from joulecast.plan.exact.plan_ends import PlanInterval, plan_ends
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.simulator.fluid.prepared import Prepared
from joulecast.simulator.instructions.host import launches_of
from joulecast.simulator.iteration.host_pace import HostChanges, changes, more_waits_s, open_paces_s
from joulecast.simulator.iteration.plan_interval import conditions_of
from joulecast.simulator.iteration.stretch import stretches
from joulecast.simulator.iteration.uncertainty import KernelAmounts, intervals, with_host
from joulecast.simulator.plan_file.gpu import launch_s

if TYPE_CHECKING:
    from joulecast.plan.exact.problem import Choice, FrontProblem
    from joulecast.plan.knobs.options import Option


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
    problem: FrontProblem, kernels: OptionKernels, choices: Sequence[Choice], time_s: Array, energy_j: Array
) -> tuple[PlanInterval, ...]:
    """Intervals of plans, and of their ratios to the first of them.

    Parameters
    ----------
    choices
        Index of an option of every instruction, of each of ``n`` plans.
    time_s, energy_j
        What the plans take, shape ``(n,)`` [s], [J].
    """
    chosen = _chosen(problem, np.asarray(choices, dtype=np.int64))
    base, against = next(iter(kernels.ways.values())), np.zeros(len(choices), dtype=np.int64)
    power_w = energy_j / time_s / base.program.plan.cluster.gpus
    amounts = replace(_amounts(chosen, kernels), power_w=power_w)
    found = intervals(amounts, conditions_of(base, kernels.description))
    found = with_host(found, _host_changes(chosen, kernels, problem.gpus_per_rank, time_s, energy_j), against)
    return plan_ends(found, time_s, energy_j, against)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Options that ``n`` plans use, the kind of instruction of each, and their executions (shape ``(n, options)``)."""

    options: Sequence[Option]
    kind: Int
    executed: Array


def _chosen(problem: FrontProblem, choices: Int) -> _Chosen:
    first = np.cumsum([0, *(len(options.options) for options in problem.sets)])
    used, place = np.unique(choices + first[problem.kind], return_inverse=True)
    kind = np.searchsorted(first, used, side="right") - 1
    options = [problem.sets[of].options[i] for of, i in zip(kind.tolist(), (used - first[kind]).tolist(), strict=True)]
    row = np.arange(len(choices))[:, None] * len(used)
    count = np.bincount((place.reshape(choices.shape) + row).ravel(), minlength=len(choices) * len(used))
    return _Chosen(options, kind, count.reshape(-1, len(used)).astype(np.float64))


def _host_changes(
    chosen: _Chosen, kernels: OptionKernels, gpus: int, time_s: Array, energy_j: Array
) -> HostChanges | None:
    """What the pace of PyTorch's host leaves open of the plans."""
    base = next(iter(kernels.ways.values()))
    plan, gpu = base.program.plan, base.gpu
    paces = open_paces_s(plan, gpu)
    if paces is None:
        return None
    length, clock = (np.array([getattr(option, name) for option in chosen.options]) for name in ("time_s", "clock_mhz"))
    ranks = np.array([kernels.types[kind][0] for kind in chosen.kind.tolist()])
    launches = np.zeros(len(length))
    for (of, knobs), rows in _grouped(chosen.kind.tolist(), chosen.options).items():
        rank, type_ = kernels.types[of]
        launches[rows] = launches_of(plan, [kernels.ways[knobs].program.ranks[rank].types[type_]])[0]
    own = launch_s(plan, gpu) * launches
    waits = np.stack([more_waits_s(length, own, one * launches) for one in paces])
    of_rank = ranks[:, None] == np.arange(len(base.program.ranks))
    longer = np.einsum("nu,su,ur->snr", chosen.executed, waits, of_rank)
    more = gpus * np.einsum("nu,su->sn", chosen.executed, waits * idle_power_w(clock, gpu))
    return changes(plan, longer, time_s, more, energy_j)


def _amounts(chosen: _Chosen, kernels: OptionKernels) -> KernelAmounts:
    """What plans spend in each distinct kernel of all ways."""
    options, kind = chosen.options, chosen.kind
    operators, costs, columns = _distinct(kernels.ways)
    spent = np.zeros((3, len(options), len(operators)))  # runs, time and energy of one execution of each option
    clock, length = (np.array([getattr(option, name) for option in options]) for name in ("clock_mhz", "time_s"))
    varied = deviations(kernels.description, FEW_DIRECTIONS)
    stretch = np.zeros((len(varied), len(options)))  # of each option's time
    for (of, knobs), rows in _grouped(kind.tolist(), options).items():
        prepared, (rank, type_) = kernels.ways[knobs], kernels.types[of]
        at = prepared.columns[rank][type_][np.searchsorted(prepared.clocks_mhz, clock[rows] - 1e-6)]
        clock[rows] = prepared.clocks_mhz[at]  # the board may hold it below what is set
        counts, times = prepared.tables[rank].counts[type_], prepared.kernels[rank].times
        where = np.ix_(np.array(rows), columns[knobs])
        spent[0][where] = counts
        spent[1][where] = counts * times.time_s[at]
        spent[2][where] = counts * times.energy_j[at]
        at, back = np.unique(at, return_inverse=True)
        stretch[:, rows] = stretches(prepared, rank, at, varied)[:, type_, back.ravel()]
    executed = chosen.executed
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
