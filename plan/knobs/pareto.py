"""The Pareto front: options that no other one beats in both time and cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]


def pareto(time_s: Float, cost: Float) -> Int:
    """Indices of the options that no other one beats in both, fastest first.

    >>> pareto(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 4.0, 4.0, 6.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((cost, time_s))
    lowest = np.minimum.accumulate(cost[order])
    better = np.r_[True, lowest[1:] < lowest[:-1]] if len(order) else np.zeros(0, dtype=bool)
    return np.asarray(order[better])
