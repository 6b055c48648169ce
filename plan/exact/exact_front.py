"""Finds the time-energy front of a graph of instructions: its exact lower bound, and discrete plans along it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import GuardError, InputError
from joulecast.plan.exact.front import ROUNDING, Front, FrontPoint, lower_bound
from joulecast.plan.exact.front_guards import check_curve, check_points
from joulecast.plan.exact.parametric_flow import TimeCostCurve, time_cost_curve
from joulecast.plan.exact.power_means import highest_means_w
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, joined, rounded_plans, undominated
from joulecast.plan.knobs.time_limit import ROOM, none_within

Float = NDArray[np.float64]


def exact_front(problem: FrontProblem, *, simple: str | None = None, time_limit_s: float | None = None) -> Front:
    """The whole front of a problem.

    Parameters
    ----------
    simple
        Only plans with few different choices: ``"stage"`` one for every rank and kind of instruction, ``"rank"`` one
        for every rank, ``"steady"`` as ``"stage"``, but free while the pipeline fills and drains.
    time_limit_s
        Leave out slower plans; the best one within this time is looked for [s].

    Raises
    ------
    InputError
        No plan is as fast as the limit, or none keeps the limits of power.
    GuardError
        A plan's time or energy is not what its choices say, or below the bound: a defect.
    """
    curve = time_cost_curve(problem.dag, problem.sets, problem.kind)
    points = _points(problem, curve, _found(problem, curve, simple, time_limit_s))
    if not points:
        raise InputError(
            "no plan keeps the power limit", key="power.power_limit_w", remedy="Raise it, or allow lower clocks."
        )
    check_curve(curve)
    check_points(problem, points)
    said: tuple[str, ...] = ()
    if problem.site is not None:
        points, said = problem.site.within(problem, points)
    if time_limit_s is not None:
        fastest = points[0].time_s
        points = [p for p in points if p.time_s <= time_limit_s * ROOM]
        if not points:
            raise none_within(time_limit_s, fastest)
    return Front(problem, curve, tuple(points), said)


def _points(problem: FrontProblem, curve: TimeCostCurve, plans: Plans) -> list[FrontPoint]:
    """Plans with energies and lower bounds."""
    energy = plans.cost_j + problem.total_wait_power_w * plans.time_s
    bound = np.interp(plans.time_s, *lower_bound(problem, curve))
    if (energy < bound * (1.0 - ROUNDING)).any():
        number = int(np.argmax(bound - energy))
        raise GuardError(
            f"plan {number} of the front: {float(energy[number])!r} J, below the bound {float(bound[number])!r} J"
        )
    choice = np.empty(plans.position.shape, dtype=np.int32)
    choice[:, problem.dag.order] = plans.position - problem.graph.fastest
    rows = zip(plans.time_s.tolist(), energy.tolist(), np.minimum(bound, energy).tolist(), choice, strict=True)
    return [FrontPoint(t, e, b, c) for t, e, b, c in rows]


def _found(problem: FrontProblem, curve: TimeCostCurve, simple: str | None, time_limit_s: float | None) -> Plans:
    """Plans that keep the power limits; of simple ones more between the first of them and those that do not."""
    if simple is None:
        return _within_power(problem, curve, rounded_plans(problem, curve, time_limit_s))
    from joulecast.plan.exact.simple_plans import simple_plans

    plans = simple_plans(problem, curve, simple, time_limit_s)
    kept = _within_power(problem, curve, plans)
    first = int(np.searchsorted(plans.time_s, kept.time_s[0])) if len(kept) else 0
    if not first:
        return kept
    between = simple_plans(problem, curve, simple, None, (plans.time_s[first - 1], plans.time_s[first]))
    return undominated(joined(kept, _within_power(problem, curve, between)))


def _within_power(problem: FrontProblem, curve: TimeCostCurve, plans: Plans) -> Plans:
    """Plans in which no rank's mean power exceeds its limit: the board would not hold the others' clocks."""
    if problem.power_limit_w is None:
        return plans
    drawn = highest_means_w(problem, _points(problem, curve, plans))
    keeps = np.array([(every <= problem.power_limit_w).all() for every in drawn])
    return Plans(plans.time_s[keeps], plans.cost_j[keeps], plans.position[keeps])
