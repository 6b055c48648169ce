"""Improvement of discrete plans that lie along a front.

Neighbours are crossed: the beginning of one and the end of another give a plan between them, which may have the better
parts of both. A plan's slack is handed on to the next slower one. Where the distance to the lower bound stays large,
single instructions are sped up so that others can be slowed down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array
from joulecast.plan.exact.compiled import affordable
from joulecast.plan.exact.parametric_flow import TimeCostCurve
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, distance_to_bound, joined, undominated

if TYPE_CHECKING:
    from joulecast.plan.exact.rounding_kernels import Gains


#: Most plans that are kept along a front while it is searched, and most rounds of crossing.
MOST_PLANS, ROUNDS = 1000, 40
#: How far apart parents are at most, as a share of the plans.
REACH = 0.08
#: Instructions of the plans that crossing, and the local search, may try: these bound the time they take.
CROSSED_INSTRUCTIONS, SEARCHED_INSTRUCTIONS = 5_000_000, 1_500_000
#: Distance to the lower bound above which the local search works, relative.
SEARCH_ABOVE = 0.005
#: Most trials of the local search for one plan.
TRIALS = 300


def improved(problem: FrontProblem, curve: TimeCostCurve, plans: Plans, gains: Gains) -> Plans:
    """The plans, with better ones in place of some and more between them."""
    from joulecast.plan.exact.rounding_kernels import hand_on

    g = problem.graph
    hand_on(g, *plans.columns, gains)
    plans = _crossed(problem, curve, undominated(plans), gains)
    hand_on(g, *plans.columns, gains)
    if _searched(problem, curve, plans, gains):
        hand_on(g, *plans.columns, gains)
    return plans


def _crossed(problem: FrontProblem, curve: TimeCostCurve, plans: Plans, gains: Gains) -> Plans:
    """Rounds in which every plan is crossed with one of its neighbours at a random place; the same ones every time."""
    from joulecast.plan.exact.rounding_kernels import join

    random = np.random.default_rng(0)
    place, left = _places(problem, curve), affordable(CROSSED_INSTRUCTIONS) // problem.dag.instructions
    for _ in range(ROUNDS):
        plans = _thinned(plans)
        count = len(plans)
        if count < 2 or left < count:
            break
        left -= count
        first = np.arange(count)
        apart = random.integers(1, max(round(REACH * count), 1), count, endpoint=True) * random.choice([-1, 1], count)
        other = np.clip(first + apart, 0, count - 1)
        cuts = random.uniform(0.05, 0.95, count)
        new = Plans(np.empty(count), np.empty(count), np.empty_like(plans.position))
        join(problem.graph, plans.position, np.stack([first, other], 1), place, cuts, gains, *new.columns)
        plans = undominated(joined(plans, new))
    return _thinned(plans)


def _thinned(plans: Plans) -> Plans:
    """The plans that matter most: those without which the steps of the front would be largest."""
    if len(plans) <= MOST_PLANS:
        return plans
    area = np.diff(plans.time_s)[1:] * -np.diff(plans.cost_j)[:-1]
    worth = np.concatenate([[np.inf], area, [np.inf]])
    kept = np.sort(np.argsort(-worth, kind="stable")[:MOST_PLANS])
    return Plans(plans.time_s[kept], plans.cost_j[kept], plans.position[kept])


def _searched(problem: FrontProblem, curve: TimeCostCurve, plans: Plans, gains: Gains) -> bool:
    """Improve the plans that are far from the bound in place; whether there are any."""
    from joulecast.plan.exact.rounding_kernels import exchange

    far = np.flatnonzero(distance_to_bound(problem, curve, plans) > SEARCH_ABOVE)
    if not len(far):
        return False
    trials = int(np.clip(affordable(SEARCHED_INSTRUCTIONS) // (problem.dag.instructions * len(far)), 1, TRIALS))
    for i in far.tolist():
        plans.cost_j[i] = exchange(problem.graph, plans.position[i], plans.time_s[i], gains, trials, i)
    return True


def _places(problem: FrontProblem, curve: TimeCostCurve) -> Array:
    """Where along the iteration each instruction begins, from 0 to 1, in the graph's order, shape ``(n,)``."""
    start = curve.start[-1][problem.dag.order]
    return np.argsort(np.argsort(start, kind="stable")) / max(len(start) - 1, 1)
