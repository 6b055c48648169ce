"""Plans with few different choices, for schedulers that cannot switch at every instruction.

Instructions are tied in groups that share one clock (and the other knobs). From the fastest choices on, groups are
slowed down as far as each of many times allows, most profitable first, and a local search speeds some of them up to
slow others down. Instructions outside all groups take up the slack that is left. The lower bounds are those of untied
plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import UnknownNameError
from joulecast.plan.exact.compiled import affordable
from joulecast.plan.exact.parametric_flow import TimeCostCurve
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, evaluated, gains_of, spans_s, target_times, undominated
from joulecast.plan.knobs.options import TIME_QUANTUM_S
from joulecast.simulator.schedules import FORWARD, Instruction

if TYPE_CHECKING:
    from joulecast.plan.exact.tied_kernels import Ties


TIES = ("stage", "steady", "rank")

#: Instructions visited by the local search, roughly, where nothing else is said.
SEARCHED_INSTRUCTIONS = 400_000_000
#: Times for which plans are sought.
TIMES = 160


def check_tie(tie: str) -> None:
    """Refuse a kind of simple plans that does not exist."""
    if tie not in TIES:
        raise UnknownNameError("kind of simple plan", tie, TIES, key="--simple")


def simple_plans(
    problem: FrontProblem,
    curve: TimeCostCurve,
    tie: str,
    times_s: Array | None = None,
    searched: int = SEARCHED_INSTRUCTIONS,
) -> Plans:
    """Plans along the front whose instructions share choices.

    Parameters
    ----------
    tie
        ``"stage"``: one choice for every rank and kind of instruction; ``"rank"``: one clock for every rank;
        ``"steady"``: as ``"stage"``, but forwards before a rank's first backward and backwards after its last forward
        are free.
    times_s
        Times for which plans are wanted, rising, by default along the whole curve [s].
    searched
        Instructions visited by the local search, roughly.

    Raises
    ------
    UnknownNameError
        No such tie.
    """
    check_tie(tie)
    from joulecast.plan.exact.rounding_kernels import length
    from joulecast.plan.exact.tied_kernels import tied_front

    g, n = problem.graph, problem.dag.instructions
    ties, gains = _ties(problem, tie), gains_of(problem)
    free = ties.group < 0
    fastest = np.where(free, g.fastest, ties.position[ties.row, 0])
    slowest = np.where(free, g.slowest, ties.position[ties.row, ties.choices[ties.group] - 1])
    shortest, longest = (length(g, g.time_s, plan, np.zeros(n)) for plan in (fastest, slowest))
    if times_s is None:
        times = target_times(problem, curve, TIMES) * TIME_QUANTUM_S
        beyond = np.linspace(times[-1], longest, TIMES // 10) if longest > times[-1] else np.empty(0)
        limits = np.concatenate([[shortest], times[times > shortest], beyond]) * (1.0 + 1e-12)
    else:
        limits = np.clip(times_s, shortest, longest) * (1.0 + 1e-12)
    plans = np.empty((len(limits), n), dtype=np.int64)
    evaluations = len(ties.choices) * len(gains.least_w)
    trials = int(np.clip(affordable(searched) // (n * evaluations * len(limits)), 4, 200))
    tied_front(g, ties, limits, _starts(problem, curve, ties, limits), gains, trials, plans)
    return undominated(evaluated(problem, Plans(limits, np.zeros(len(limits)), plans)))


def is_steady(order: Sequence[Instruction]) -> list[bool]:
    """Which instructions of a rank run while the pipeline neither fills nor drains.

    It fills before the first backward but for the forward just before it, and drains after the last forward but for the
    backward just behind it. Where all forwards come first (GPipe), there is no such phase, and everything is steady.
    """
    forward = [any(part.kind == FORWARD for part in i.parts) for i in order]
    backward = [any(part.kind.startswith("backward") for part in i.parts) for i in order]
    if not any(forward) or not any(backward):
        return [True] * len(order)
    first, last = backward.index(True) - 1, len(order) - forward[::-1].index(True)
    if last <= first + 1:
        return [True] * len(order)
    return [first <= k <= last or not (forward[k] or backward[k]) for k in range(len(order))]


def _ties(problem: FrontProblem, tie: str) -> Ties:
    """Groups with the choices that all their kinds have in common, fastest first."""
    dag = problem.dag
    names = _groups_of(problem, tie)
    groups: dict[Hashable, int] = {}
    rows: dict[tuple[int, int], int] = {}
    group, row = np.full(dag.instructions, -1), np.zeros(dag.instructions, dtype=np.int64)
    for v, (name, kind) in enumerate(zip(names, problem.kind.tolist(), strict=True)):
        if name is not None:
            group[v] = groups.setdefault(name, len(groups))
            row[v] = rows.setdefault((int(group[v]), kind), len(rows))
    from joulecast.plan.exact.tied_kernels import Ties

    count = np.bincount(row[group >= 0], minlength=len(rows))
    kinds = [[k for i, k in rows if i == j] for j in range(len(groups))]
    tables = [_common_choices(problem, of, [int(count[rows[j, k]]) for k in of]) for j, of in enumerate(kinds)]
    choices = np.array([len(best) for _, best in tables])
    position = np.zeros((len(rows), choices.max()), dtype=np.int64)
    time_s, cost_j = np.zeros((len(groups), choices.max())), np.zeros((len(groups), choices.max()))
    first = np.cumsum([0, *(len(s.options) for s in problem.sets)])
    for j, (table, best) in enumerate(tables):
        time_s[j, : len(best)], cost_j[j, : len(best)] = best.time_s, best.cost_j
        for k, options in zip(kinds[j], table, strict=True):
            position[rows[j, k], : len(options)] = first[k] + options
    return Ties(group[dag.order], row[dag.order], position, choices, time_s, cost_j)


def _groups_of(problem: FrontProblem, tie: str) -> list[Hashable]:
    """The group of every instruction, ``None`` outside all. Those with one clock alone, as a plan sets it, keep it."""
    clocks = [{option.clock_mhz for option in s.options} for s in problem.sets]
    only = [min(own) if len(own) == 1 else None for own in clocks]
    names: list[Hashable] = []
    for rank, order in enumerate(problem.dag.ranks):
        steady = is_steady(order) if tie == "steady" else [True] * len(order)
        for instruction, tied in zip(order, steady, strict=True):
            name = "" if tie == "rank" else instruction.kind
            names.append((rank, name, only[problem.kind[len(names)]]) if tied else None)
    return names


def _common_choices(problem: FrontProblem, kinds: Sequence[int], count: Sequence[int]) -> tuple[Int, Plans]:
    """Options with the same clock and knobs of all kinds, shape ``(kinds, choices)``, with their total time and cost.

    Choices that another one beats in these are left out.
    """
    tables = []
    for k in kinds:
        table: dict[object, int] = {}
        for i, option in enumerate(problem.sets[k].options):
            table.setdefault((option.clock_mhz, option.knobs), i)
        tables.append(table)
    keys = [key for key in tables[0] if all(key in other for other in tables)]
    index = np.array([[other[key] for key in keys] for other in tables])
    sets = [problem.sets[k] for k in kinds]
    time = np.sum([n * s.time_s[i] for n, s, i in zip(count, sets, index, strict=True)], axis=0)
    cost = np.sum([n * s.cost_j[i] for n, s, i in zip(count, sets, index, strict=True)], axis=0)
    best = undominated(Plans(time, cost, np.arange(len(keys))[:, None]))
    return np.asarray(index[:, best.position[:, 0]]), best


def _starts(problem: FrontProblem, curve: TimeCostCurve, ties: Ties, limits_s: Array) -> Int:
    """Choices next to the mean spans of the continuous optimum at each limit, shape ``(limits, groups)``."""
    g = problem.graph
    times = np.clip(limits_s / TIME_QUANTUM_S, curve.time[-1], curve.time[0])
    span = spans_s(problem, curve, times)
    wanted = np.clip(span, g.time_s[g.fastest], g.time_s[g.slowest])
    starts = np.zeros((len(limits_s), len(ties.choices)), dtype=np.int64)
    for j, choices in enumerate(ties.choices.tolist()):
        members = ties.group == j
        total = wanted[:, members].sum(1)
        starts[:, j] = np.clip(np.searchsorted(ties.time_s[j, :choices], total), 0, choices - 1)
    return starts
