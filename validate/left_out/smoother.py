"""Each of several values from all others: kriging under the covariance that errs least, chosen in hindsight."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def each_from_the_others(
    value: Array, covariances: Iterable[Array], together: Sequence[Hashable] | None = None
) -> Array:
    """Values ``(n,)``, each as the others say it.

    With C the covariance, the error of forecasting the values g from all others is ``((C⁻¹)_gg)⁻¹·(C⁻¹·y)_g``.

    Parameters
    ----------
    value
        What was measured; its mean counts as known.
    covariances
        Candidates, each ``(n, n)``; that of the least mean absolute error is taken.
    together
        A key of each value: those that share one are left out at once. By default each by itself.
    """
    groups: dict[Hashable, list[int]] = {}
    for i in range(len(value)):
        groups.setdefault(i if together is None else together[i], []).append(i)
    best, least = value, np.inf
    for covariance in covariances:
        inverse = np.linalg.inv(covariance)
        factor = inverse @ (value - value.mean())
        error = np.empty_like(value)
        for places in groups.values():
            error[places] = np.linalg.solve(inverse[np.ix_(places, places)], factor[places])
        if np.abs(error).mean() < least:
            best, least = value - error, float(np.abs(error).mean())
    return best
