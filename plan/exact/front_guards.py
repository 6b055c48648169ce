"""Conservation laws that every plan of a front must keep; a breach is a defect of Joulecast and names the plan.

Plans come from compiled loops that keep running sums. Here all plans of a front are evaluated once more, side by side,
from nothing but the graph and the options themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array
from joulecast.errors import GuardError
from joulecast.plan.exact.parametric_flow import TimeCostCurve
from joulecast.plan.exact.problem import FrontProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulecast.plan.exact.front import FrontPoint


#: Relative difference that is rounding of sums.
TOLERANCE = 1e-9
#: Instructions, over all plans, that are evaluated at once.
AT_ONCE = 4_000_000


def check_curve(curve: TimeCostCurve) -> None:
    """Costs fall with time, and fall ever less; each is the one before and what its slope says.

    Raises
    ------
    GuardError
        They do not.
    """
    if (np.diff(curve.time) >= 0).any() or (np.diff(curve.slope_w, prepend=0.0) < 0).any():
        raise GuardError("the lower bound does not fall with time, or is not convex")
    step = curve.slope_w * -np.diff(curve.time_s)
    scale = float(np.abs(curve.cost_j).max()) + float(step.sum())
    if (np.abs(np.diff(curve.cost_j) - step) > TOLERANCE * scale).any():
        raise GuardError("the lower bound is not the integral of its slope")


def check_points(problem: FrontProblem, points: Sequence[FrontPoint]) -> None:
    """Time is the longest path, and energy that of instructions and of waiting.

    Raises
    ------
    GuardError
        An instruction starts before what it waits for has ended, a rank is busy for longer than the iteration takes, or
        a time or energy is not what the choices say.
    """
    at_once = max(1, AT_ONCE // problem.dag.instructions)
    for first in range(0, len(points), at_once):
        _check(problem, points[first : first + at_once], first)


def _check(problem: FrontProblem, points: Sequence[FrontPoint], first: int) -> None:
    time_s, energy_j = of_choices(problem, np.stack([point.choice for point in points], axis=1))
    end_s = ends_of_plans(problem, time_s)
    _check_causality(problem, time_s, end_s, first)
    length = end_s.max(axis=0)
    busy_s, spent_j = (_by_rank(problem, values) for values in (time_s, energy_j))
    waited_s = length - busy_s
    if (waited_s < -TOLERANCE * length).any():
        rank, number = (int(i) for i in np.argwhere(waited_s < -TOLERANCE * length)[0])
        raise GuardError(f"plan {first + number} of the front: rank {rank} is busy for longer than the iteration takes")
    total = spent_j.sum(axis=0) + problem.wait_power_w @ waited_s
    _equal("longest path", "time", length, [p.time_s for p in points], "s", first)
    _equal("instructions and waiting", "energy", total, [p.energy_j for p in points], "J", first)


def of_choices(problem: FrontProblem, choice: NDArray[np.int32]) -> tuple[Array, Array]:
    """Time and energy of every instruction of every plan, shape ``(n, plans)`` [s], [J]."""
    first = np.cumsum([0, *(len(s.options) for s in problem.sets)])
    at = first[problem.kind][:, None] + choice
    options = [option for s in problem.sets for option in s.options]
    time, energy = (np.array([getattr(o, name) for o in options]) for name in ("time_s", "energy_j"))
    return time[at], energy[at]


def ends_of_plans(problem: FrontProblem, time_s: Array) -> Array:
    """When every instruction ends, each starting as soon as it can, shape ``(n, plans)`` [s]."""
    dag = problem.dag
    by = np.argsort(dag.target, kind="stable")
    first = np.searchsorted(dag.target[by], np.arange(dag.instructions + 1)).tolist()
    source, latency = dag.source[by], dag.latency_s[by, None]
    end = np.zeros_like(time_s)
    for v in dag.order.tolist():
        edges = slice(first[v], first[v + 1])
        end[v] = time_s[v]
        if edges.start < edges.stop:
            end[v] += (end[source[edges]] + latency[edges]).max(axis=0)
    return end


def _check_causality(problem: FrontProblem, time_s: Array, end_s: Array, first: int) -> None:
    dag = problem.dag
    for u, v, latency in zip(dag.source.tolist(), dag.target.tolist(), dag.latency_s.tolist(), strict=True):
        early = end_s[v] - time_s[v] < end_s[u] + latency - TOLERANCE * end_s[v]
        if early.any():
            number = first + int(np.argmax(early))
            raise GuardError(f"plan {number} of the front: {dag.names[v]} starts before {dag.names[u]} has ended")


def _by_rank(problem: FrontProblem, values: Array) -> Array:
    """Sums over the instructions of every rank, shape ``(ranks, plans)``."""
    starts = np.cumsum([0, *(len(order) for order in problem.dag.ranks)])[:-1]
    return np.asarray(np.add.reduceat(values, starts, axis=0))


def _equal(what: str, of: str, ours: Array, stated: Sequence[float], unit: str, first: int) -> None:
    theirs = np.array(stated)
    off = ~(np.abs(ours - theirs) <= TOLERANCE * np.maximum(np.abs(ours), np.abs(theirs)))
    if off.any():
        at = int(np.argmax(off))
        says = f"{of} {float(theirs[at])!r} {unit}, but {what} give {float(ours[at])!r} {unit}"
        raise GuardError(f"plan {first + at} of the front: {says}")
