"""Golden runs: those of the fullest bin of execution times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.power_profile.protocol import Array


def golden_runs(execution_s: Array, margin: float) -> NDArray[np.bool_]:
    """Which runs belong to the bin ``[x, x·(1 + margin)]`` that holds the most of them.

    The bin slides over the sorted times, so that no fixed edge can cut a crowd in two; of equally full bins the
    narrowest wins.

    Parameters
    ----------
    execution_s
        Shape (runs,): each run's execution time.
    margin
        Relative width of the bin.

    Examples
    --------
    >>> golden_runs(np.array([1.0, 1.2, 1.01, 1.3, 1.02]), 0.05).tolist()
    [True, False, True, False, True]
    """
    times = np.sort(execution_s)
    last = np.searchsorted(times, times * (1.0 + margin), side="right") - 1
    count = last - np.arange(len(times)) + 1
    width = times[last] - times
    first = min(range(len(times)), key=lambda i: (-count[i], width[i]))
    chosen: NDArray[np.bool_] = (execution_s >= times[first]) & (execution_s <= times[last[first]])
    return chosen
