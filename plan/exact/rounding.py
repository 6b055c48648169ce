"""Discrete plans from the continuous front: one option for every instruction.

At many times of the front the optimal spans of the instructions are rounded to neighbouring corners of their hulls, or
to options near them. What rounding leaves or takes is carried to the instructions behind; several thresholds give
several plans. Then instructions that are not critical are slowed down, with every option that is worth choosing, not
only those on the hull. Plans are evaluated with their options' own times, not the rounded ones, and filtered;
:mod:`joulecast.plan.exact.plan_search` improves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.plan.exact.compiled import affordable
from joulecast.plan.exact.parametric_flow import TimeCostCurve
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.knobs.options import TIME_QUANTUM_S
from joulecast.plan.knobs.pareto import pareto

if TYPE_CHECKING:
    from joulecast.plan.exact.rounding_kernels import Gains


#: Share of the way to the slower corner from which on it is chosen.
THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: The same where options near the hull may be chosen as well as its corners.
NEAR_THRESHOLDS = (0.25, 0.75)
#: Savings for each second at which slack is given away, before all that is left is.
GAIN_LEVELS = 7
#: Instructions visited by rounding, roughly; it bounds the time that it takes.
ROUNDED_INSTRUCTIONS = 1_500_000
#: Fewest and most times at which plans are rounded.
TIMES = (150, 600)
#: Share of these times up to the energy-best one; slower plans only serve who must wait anyway.
EFFICIENT_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Plans:
    """Plans that are not beaten in time and cost, fastest first.

    Attributes
    ----------
    time_s, cost_j
        Iteration time and the sum of ``energy - P_wait · time`` over instructions, shape ``(p,)`` [s], [J].
    position
        Positions of the chosen options in the graph's order, shape ``(p, n)``.
    """

    time_s: Array
    cost_j: Array
    position: Int

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def columns(self) -> tuple[Array, Array, Int]:
        """Time, cost and positions."""
        return self.time_s, self.cost_j, self.position


def rounded_plans(problem: FrontProblem, curve: TimeCostCurve, times_s: Array | None = None) -> Plans:
    """Discrete plans near the curve.

    Parameters
    ----------
    times_s
        Times for which plans are wanted, rising, by default along the whole curve [s].
    """
    from joulecast.plan.exact.plan_search import improved

    gains = gains_of(problem)
    fewest, most = (affordable(limit) for limit in TIMES)
    count = min(max(affordable(ROUNDED_INSTRUCTIONS) // (problem.dag.instructions * len(THRESHOLDS)), fewest), most)
    times = target_times(problem, curve, count) * TIME_QUANTUM_S if times_s is None else times_s
    found = [_fastest(problem, curve, gains)] if times_s is None else []
    found.append(rounded(problem, curve, times))
    return evaluated(problem, improved(problem, curve, undominated(joined(*found)), gains))


def rounded(problem: FrontProblem, curve: TimeCostCurve, times_s: Array) -> Plans:
    """Plans for each of some times [s] and each threshold, those included that others beat."""
    from joulecast.plan.exact.rounding_kernels import round_all

    g, n, gains = problem.graph, problem.dag.instructions, gains_of(problem)
    times = np.clip(times_s / TIME_QUANTUM_S, *curve.time[[-1, 0]].astype(np.float64))
    deadlines, limits, found = deadlines_s(problem, curve, times), times * TIME_QUANTUM_S, []
    for corner, thresholds in ((g.corner, THRESHOLDS), (g.near, NEAR_THRESHOLDS)):
        rows = len(times) * len(thresholds)
        found.append(Plans(np.empty(rows), np.empty(rows), np.empty((rows, n), dtype=np.int64)))
        round_all(g, corner, deadlines, limits, np.array(thresholds), gains, *found[-1].columns)
    return joined(*found)


def joined(*plans: Plans) -> Plans:
    """All plans in a row."""
    return Plans(*(np.concatenate(parts) for parts in zip(*(p.columns for p in plans), strict=True)))


def gains_of(problem: FrontProblem) -> Gains:
    """Savings for each second of slack, from high to zero: in this order slack is given away."""
    from joulecast.plan.exact.rounding_kernels import Gains

    slopes = [-np.diff(s.cost_j[s.hull]) / np.diff(s.time_s[s.hull]) for s in problem.sets]
    every = np.concatenate(slopes)
    levels = np.quantile(every, np.linspace(0.95, 0.05, GAIN_LEVELS)) if len(every) else np.empty(0)
    least = np.append(levels, 0.0)
    last = np.empty((len(least), len(problem.sets)), dtype=np.int64)
    for k, (options, falling) in enumerate(zip(problem.sets, slopes, strict=True)):
        steps = [int((falling >= w).sum()) for w in levels]
        last[:, k] = [*options.hull[steps], options.worth - 1]
    kind = problem.kind[problem.dag.order]
    return Gains(least, last[:, kind] + problem.graph.fastest)


def deadlines_s(problem: FrontProblem, curve: TimeCostCurve, times: Array) -> Array:
    """When instructions must have ended in the optimum of each time, in the graph's order, shape ``(t, n)`` [s]."""
    return _between(problem, curve, curve.end, times)


def spans_s(problem: FrontProblem, curve: TimeCostCurve, times: Array) -> Array:
    """How long instructions may take in the optimum of each time, in the graph's order, shape ``(t, n)`` [s]."""
    return _between(problem, curve, curve.end - curve.start, times)


def _between(problem: FrontProblem, curve: TimeCostCurve, values: Int, times: Array) -> Array:
    """Values at the kept breakpoints interpolated to other times [time quanta], in the graph's order, in seconds.

    Means of feasible spans are feasible spans of the mean time.
    """
    at = curve.time[curve.kept]
    if len(at) == 1:
        same = np.repeat(values[:, problem.dag.order], len(times), axis=0)
        return np.ascontiguousarray(same * TIME_QUANTUM_S, dtype=np.float64)
    after = np.clip(np.searchsorted(-at, -times, side="right"), 1, len(at) - 1)
    share = ((at[after - 1] - times) / (at[after - 1] - at[after]))[:, None]
    found = (1.0 - share) * values[after - 1] + share * values[after]
    return np.ascontiguousarray(found[:, problem.dag.order] * TIME_QUANTUM_S, dtype=np.float64)


def undominated(plans: Plans) -> Plans:
    """Plans that no other one beats in time and cost, fastest first."""
    kept = pareto(plans.time_s, plans.cost_j)
    return Plans(plans.time_s[kept], plans.cost_j[kept], plans.position[kept])


def evaluated(problem: FrontProblem, plans: Plans) -> Plans:
    """The plans with their times and costs computed anew, and filtered."""
    from joulecast.plan.exact.rounding_kernels import lengths

    g = problem.graph
    return undominated(Plans(lengths(g, g.time_s, plans.position), g.cost_j[plans.position].sum(1), plans.position))


def distance_to_bound(problem: FrontProblem, curve: TimeCostCurve, plans: Plans) -> Array:
    """How far the plans' energies lie above the least ones of their times, relative, shape ``(p,)``."""
    wait = problem.total_wait_power_w * plans.time_s
    least = np.interp(plans.time_s, curve.time_s[::-1], curve.cost_j[::-1])
    return np.asarray((plans.cost_j - least) / (least + wait))


def target_times(problem: FrontProblem, curve: TimeCostCurve, count: int) -> Array:
    """About ``count`` times for which to look for plans [time quanta].

    Evenly up to the energy-best one and more thinly beyond.
    """
    fastest, slowest = float(curve.time[-1]), float(curve.time[0])
    best = float(curve.time[energy_best(problem, curve)])
    efficient = max(round(EFFICIENT_SHARE * count), 1)
    times = np.concatenate([np.linspace(fastest, best, efficient), np.linspace(best, slowest, count - efficient + 1)])
    return np.unique(times)


def energy_best(problem: FrontProblem, curve: TimeCostCurve) -> int:
    """Index of the curve's breakpoint of least energy: where a second costs as much waiting as it saves."""
    return int(np.argmin(curve.cost_j + problem.total_wait_power_w * curve.time_s))


def _fastest(problem: FrontProblem, curve: TimeCostCurve, gains: Gains) -> Plans:
    """A plan of the shortest time that there is, which rounded times only reach to some quanta."""
    from joulecast.plan.exact.rounding_kernels import cost, latest_ends, length, reclaim, round_to_corners

    g, n = problem.graph, problem.dag.instructions
    plan, end, late = g.fastest.copy(), np.zeros(n), np.zeros(n)
    shortest = length(g, g.time_s, plan, end)
    latest_ends(g, plan, shortest, late)
    deadline = np.minimum(late, deadlines_s(problem, curve, curve.time[-1:].astype(np.float64))[0])
    round_to_corners(g, g.corner, deadline, 1.0, plan, end)
    reclaim(g, plan, shortest, gains, np.ones(n, dtype=np.bool_), end, late)
    return Plans(np.array([length(g, g.time_s, plan, end)]), np.array([cost(g, plan)]), plan[None])
