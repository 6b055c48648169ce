"""The highest mean power that boards see of a plan, over the time that their limits average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.plan.exact.front_guards import AT_ONCE, ends_of_plans, of_choices

if TYPE_CHECKING:
    from joulecast.plan.exact.front import FrontPoint
    from joulecast.plan.exact.problem import FrontProblem

Float = NDArray[np.float64]


def within_power(problem: FrontProblem, points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Plans in which no rank's mean power exceeds its limit: the board would not hold the others' clocks."""
    limit = problem.power_limit_w
    if limit is None:
        return list(points)
    doubted = _may_exceed(problem, points, limit)
    drawn = highest_means_w(problem, [p for p, doubt in zip(points, doubted, strict=True) if doubt])
    return [p for p, doubt in zip(points, doubted, strict=True) if not doubt or (next(drawn) <= limit).all()]


def _may_exceed(problem: FrontProblem, points: Sequence[FrontPoint], limit_w: Float) -> list[bool]:
    """Whether an instruction of each plan, or waiting, draws more than the limit; no mean does where none of them."""
    limit_of = np.where(problem.wait_power_w > limit_w, 0.0, limit_w)[problem.dag.rank_of, None]
    at_once = max(1, AT_ONCE // problem.dag.instructions)
    found: list[bool] = []
    for first in range(0, len(points), at_once):
        time, energy = of_choices(problem, np.stack([p.choice for p in points[first : first + at_once]], axis=1))
        found.extend(np.any(energy > limit_of * time, axis=0).tolist())
    return found


def highest_means_w(problem: FrontProblem, points: Sequence[FrontPoint]) -> Iterator[Float]:
    """Of each plan, repeated again and again, the highest mean power of every rank's GPUs, shape ``(ranks,)`` [W].

    Over ``problem.averaged_s``, where that is shorter than an iteration, else over the iteration.
    """
    ends = np.cumsum([len(order) for order in problem.dag.ranks])[:-1]
    window = problem.averaged_s
    wait_of = problem.wait_power_w[problem.dag.rank_of, None]
    at_once = max(1, AT_ONCE // problem.dag.instructions)
    for first in range(0, len(points), at_once):
        block = points[first : first + at_once]
        time, energy = of_choices(problem, np.stack([point.choice for point in block], axis=1))
        end = ends_of_plans(problem, time)
        beyond = np.add.reduceat(energy - wait_of * time, [0, *ends])
        for column, point in enumerate(block):
            if window is None or window >= point.time_s:
                yield problem.wait_power_w + beyond[:, column] / point.time_s
                continue
            of_ranks = (np.split(values[:, column], ends) for values in (time, energy, end))
            ranks = zip(*of_ranks, problem.wait_power_w.tolist(), strict=True)
            yield np.array([_highest_mean_w(t, e, at, wait, point.time_s, window) for t, e, at, wait in ranks])


def _highest_mean_w(
    time_s: Float, energy_j: Float, end_s: Float, wait_w: float, length_s: float, window_s: float
) -> float:
    """Of one rank: a mean over a window is highest where the window begins or ends with an instruction."""
    at = np.concatenate([[0.0], np.stack([end_s - time_s, end_s], axis=1).ravel(), [length_s]])
    spent = np.zeros(len(at))
    spent[2:-1:2] = energy_j
    spent[1::2] = wait_w * np.diff(at)[::2]
    total = spent.cumsum()
    starts = np.concatenate([at, (at - window_s) % length_s])

    def until(instant_s: Float) -> Float:
        times, rest = np.divmod(instant_s, length_s)
        return np.asarray(times * total[-1] + np.interp(rest, at, total))

    return float((until(starts + window_s) - until(starts)).max() / window_s)
