"""Finds the time-energy front of a graph of instructions: its exact lower bound, and discrete plans along it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import GuardError, InputError
from joulecast.plan.exact.front import ROUNDING, Front, FrontPoint
from joulecast.plan.exact.front_guards import check_curve, check_points
from joulecast.plan.exact.parametric_flow import TimeCostCurve, time_cost_curve
from joulecast.plan.exact.power_means import highest_means_w
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, energy_best, rounded_plans
from joulecast.plan.knobs.options import TIME_QUANTUM_S, quanta
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
    if simple is None:
        plans = rounded_plans(problem, curve, time_limit_s)
    else:
        from joulecast.plan.exact.simple_plans import simple_plans

        plans = simple_plans(problem, curve, simple, time_limit_s)
    points = _points(problem, curve, plans)
    check_curve(curve)
    check_points(problem, points)
    if problem.power_limit_w is not None:
        points = _within_power(problem, points, problem.power_limit_w)
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
    """Plans with energies and lower bounds.

    The bound is that of the time that a plan as fast takes at most with its options' times and the latencies rounded
    up, as the curve's are; only the waiting in between is taken off. At the plan's own time it would be too high by as
    much as rounding adds.
    """
    from joulecast.plan.exact.rounding_kernels import lengths

    wait = problem.total_wait_power_w
    energy = plans.cost_j + wait * plans.time_s
    latency: Float = quanta(problem.graph.before_s) * np.float64(TIME_QUANTUM_S)
    whole = problem.graph._replace(before_s=latency)
    added = problem.graph._replace(before_s=latency - problem.graph.before_s)
    most = np.concatenate([np.full(len(s.options), (s.quanta * TIME_QUANTUM_S - s.time_s).max()) for s in problem.sets])
    rounded = np.maximum(
        lengths(whole, whole.rounded_s, plans.position), plans.time_s + lengths(added, most, plans.position[:1])
    )
    last = energy_best(problem, curve)
    best = curve.time_s[last]
    at = np.minimum(rounded, best)
    bound = np.interp(at, curve.time_s[::-1], curve.cost_j[::-1]) + wait * at - wait * (rounded - plans.time_s)
    if (energy < bound * (1.0 - ROUNDING)).any():
        number = int(np.argmax(bound - energy))
        raise GuardError(
            f"plan {number} of the front: {float(energy[number])!r} J, below the bound {float(bound[number])!r} J"
        )
    choice = np.empty(plans.position.shape, dtype=np.int32)
    choice[:, problem.dag.order] = plans.position - problem.graph.fastest
    rows = zip(plans.time_s.tolist(), energy.tolist(), np.minimum(bound, energy).tolist(), choice, strict=True)
    return [FrontPoint(t, e, b, c) for t, e, b, c in rows]


def _within_power(problem: FrontProblem, points: list[FrontPoint], limit_w: Float) -> list[FrontPoint]:
    """Plans in which no rank's mean power exceeds its limit: the board would not hold the others' clocks."""
    kept = [p for p, drawn in zip(points, highest_means_w(problem, points), strict=True) if (drawn <= limit_w).all()]
    if not kept:
        raise InputError(
            "no plan keeps the power limit", key="power.power_limit_w", remedy="Raise it, or allow lower clocks."
        )
    return kept
