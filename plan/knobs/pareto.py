"""The Pareto front: options that no other one beats in both time and cost."""

from __future__ import annotations

import numpy as np

from joulecast.arrays import Array, Int

#: Relative difference of times or costs that is rounding of sums.
ROUNDING = 1e-9


def pareto(time_s: Array, cost: Array) -> Int:
    """Indices of the options that no other one beats in both, fastest first.

    >>> pareto(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 4.0, 4.0, 6.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((cost, time_s))
    lowest = np.minimum.accumulate(cost[order])
    better = np.r_[True, lowest[1:] < lowest[:-1]] if len(order) else np.zeros(0, dtype=bool)
    return np.asarray(order[better])


def pareto_in_order(time_s: Array, cost: Array) -> Int:
    """The same of options in order of preference, whose costs are positive: of equal ones the first.

    Options are equal that differ by rounding alone in both, and none is better for what is rounding.

    >>> pareto_in_order(np.array([2.0, 1.0, 1.0, 2.0 - 1e-15]), np.array([4.0, 5.0, 5.0 - 1e-15, 4.0])).tolist()
    [1, 0]
    """
    found = pareto(time_s, cost)
    time = time_s[found]
    slower = np.append(time[1:] > time[:-1] * (1.0 + ROUNDING), True)[: len(found)]
    found = found[slower]  # of equal times the cheapest
    least = cost[found]
    cheaper = np.insert(least[1:] < least[:-1] * (1.0 - ROUNDING), 0, True)[: len(found)]
    return np.array([_first_equal(time_s, cost, i) for i in found[cheaper].tolist()], dtype=np.int64)


def _first_equal(time_s: Array, cost: Array, option: int) -> int:
    """The first option that takes the same."""
    same = np.abs(time_s - time_s[option]) <= ROUNDING * time_s[option]
    return int(np.flatnonzero(same & (np.abs(cost - cost[option]) <= ROUNDING * cost[option]))[0])
