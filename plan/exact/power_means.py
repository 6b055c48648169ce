"""The highest mean power that boards see of a plan, over the time that their limits average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array
from joulecast.plan.exact.front_guards import AT_ONCE, ends_of_plans, of_choices

if TYPE_CHECKING:
    from joulecast.plan.exact.front import FrontPoint
    from joulecast.plan.exact.problem import FrontProblem


def within_power(problem: FrontProblem, points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Plans in which no rank's mean power exceeds its limit: the board would not hold the others' clocks."""
    limit = problem.power_limit_w
    if limit is None:
        return list(points)
    kept: list[FrontPoint] = []
    limit_of = np.where(problem.wait_power_w > limit, 0.0, limit)[problem.dag.rank_of, None]
    at_once = max(1, AT_ONCE // problem.dag.instructions)
    for first in range(0, len(points), at_once):
        block = points[first : first + at_once]
        time, energy = of_choices(problem, np.stack([point.choice for point in block], axis=1))
        doubted = np.any(energy > limit_of * time, axis=0)  # no mean exceeds the limit where no instruction does
        end = iter(ends_of_plans(problem, time[:, doubted]).T)
        for point, doubt, spans, spent in zip(block, doubted.tolist(), time.T, energy.T, strict=True):
            if not doubt or _holds(problem, limit, spans, spent, next(end)):
                kept.append(point)
    return kept


def _holds(problem: FrontProblem, limit_w: Array, time_s: Array, energy_j: Array, end_s: Array) -> bool:
    of_ranks = _of_ranks(problem, time_s, energy_j, end_s)
    return all(means.max() <= most for (_, means), most in zip(of_ranks, limit_w.tolist(), strict=True))


def excess_w(problem: FrontProblem, limit_w: Array, time_s: Array, energy_j: Array) -> Array:
    """By how much the highest mean power that counts an instruction exceeds its limit, shape ``(n,)`` [W].

    Parameters
    ----------
    limit_w
        Of mean powers, shape ``(ranks,)`` [W].
    time_s, energy_j
        Of every instruction of one plan, shape ``(n,)``.
    """
    end = ends_of_plans(problem, time_s[:, None])
    length, window = float(end.max()), problem.averaged_s
    excess = np.empty(len(time_s))
    ranks = _of_ranks(problem, time_s, energy_j, end[:, 0])
    first = 0
    for order, (starts, means), limit in zip(problem.dag.ranks, ranks, limit_w, strict=True):
        own = slice(first, first + len(order))
        begin, span = (end[own, 0] - time_s[own])[:, None], time_s[own, None]
        highest = means.max()
        if window is not None and window < length:
            meets = ((begin - starts) % length < window) | ((starts - begin) % length < span)
            highest = np.where(meets, means, -np.inf).max(axis=1)
        excess[own] = highest - limit
        first = own.stop
    return excess


def _of_ranks(problem: FrontProblem, time_s: Array, energy_j: Array, end_s: Array) -> Iterator[tuple[Array, Array]]:
    """When windows of each rank begin and their mean powers, of a plan that is repeated again and again [s], [W].

    Over ``problem.averaged_s``, where that is shorter than an iteration, else over the iteration.
    """
    ends = np.cumsum([len(order) for order in problem.dag.ranks])[:-1]
    length, window = float(end_s.max()), problem.averaged_s
    of_ranks = (np.split(values, ends) for values in (time_s, energy_j, end_s))
    for time, energy, end, wait in zip(*of_ranks, problem.wait_power_w.tolist(), strict=True):
        if window is None or window >= length:
            yield np.zeros(1), wait + np.atleast_1d((energy - wait * time).sum() / length)
        else:
            yield _means_w(time, energy, end, wait, length, window)


def _means_w(
    time_s: Array, energy_j: Array, end_s: Array, wait_w: float, length_s: float, window_s: float
) -> tuple[Array, Array]:
    """Of one rank: a mean over a window is highest where the window begins or ends with an instruction."""
    at = np.concatenate([[0.0], np.stack([end_s - time_s, end_s], axis=1).ravel(), [length_s]])
    spent = np.zeros(len(at))
    spent[2:-1:2] = energy_j
    spent[1::2] = wait_w * np.diff(at)[::2]
    total = spent.cumsum()
    starts = np.concatenate([at, (at - window_s) % length_s])

    def until(instant_s: Array) -> Array:
        times, rest = np.divmod(instant_s, length_s)
        return np.asarray(times * total[-1] + np.interp(rest, at, total))

    return starts, np.asarray((until(starts + window_s) - until(starts)) / window_s)
