"""Finds the time-energy front of a graph of instructions: its exact lower bound, and discrete plans along it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import GuardError, InputError
from joulecast.plan.exact.front import ROUNDING, Front, FrontPoint, lower_bound
from joulecast.plan.exact.front_guards import check_curve, check_points
from joulecast.plan.exact.parametric_flow import TimeCostCurve, time_cost_curve
from joulecast.plan.exact.power_means import within_power
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, rounded_plans
from joulecast.plan.knobs.pareto import pareto
from joulecast.plan.knobs.time_limit import ROOM, none_within

#: Times at which simple plans are sought between the last one beyond a power limit and the first one that keeps it.
TIMES_BETWEEN = 24


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
    points = _along(problem, curve, simple)
    if time_limit_s is not None:  # beside the plans that are found without it, so that no limit costs one of them
        limit_s = time_limit_s * ROOM
        beside = within_power(problem, _found(problem, curve, simple, np.array([time_limit_s])))
        fastest = points[0].time_s if points else 0.0
        points = sorted([*points, *(p for p in beside if fastest <= p.time_s <= limit_s)], key=lambda p: p.time_s)
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
        points = _unbeaten(problem, [p for p in points if p.time_s <= limit_s])
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


def _along(problem: FrontProblem, curve: TimeCostCurve, simple: str | None) -> list[FrontPoint]:
    """Plans that keep the power limits; more around the fastest of them, where there are faster ones that do not."""
    plans = _found(problem, curve, simple)
    kept, limit_w = within_power(problem, plans), problem.power_limit_w
    if limit_w is None or (kept and kept[0] is plans[0]):
        return kept
    from joulecast.plan.exact.power_caps import plans_at_limit

    near = _points(problem, curve, plans_at_limit(problem, limit_w, simple))
    if simple is not None and kept:
        first = plans.index(kept[0])
        times_s = np.linspace(plans[first - 1].time_s, plans[first].time_s, TIMES_BETWEEN)
        near += _found(problem, curve, simple, times_s)
    return _unbeaten(problem, [*kept, *within_power(problem, near)])


def _found(
    problem: FrontProblem, curve: TimeCostCurve, simple: str | None, times_s: Array | None = None
) -> list[FrontPoint]:
    if simple is None:
        return _points(problem, curve, rounded_plans(problem, curve, times_s))
    from joulecast.plan.exact.simple_plans import simple_plans

    return _points(problem, curve, simple_plans(problem, curve, simple, times_s))


def _unbeaten(problem: FrontProblem, points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Plans that no other one beats in time and in energy beyond waiting, fastest first."""
    time = np.array([p.time_s for p in points])
    kept = pareto(time, np.array([p.energy_j for p in points]) - problem.total_wait_power_w * time)
    return [points[i] for i in kept.tolist()]
