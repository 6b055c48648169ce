"""Each of several values from all others: kriging under the covariance that errs least, chosen in hindsight."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def each_from_the_others(value: Array, covariances: Iterable[Array]) -> Array:
    """Values ``(n,)``, each as the others say it.

    With C the covariance, the error of forecasting y_i from all others is ``(C⁻¹·y)_i / (C⁻¹)_ii``.

    Parameters
    ----------
    value
        What was measured; its mean counts as known.
    covariances
        Candidates, each ``(n, n)``; that of the least mean absolute error is taken.
    """
    best, least = value, np.inf
    for covariance in covariances:
        inverse = np.linalg.inv(covariance)
        error = (inverse @ (value - value.mean())) / np.diag(inverse)
        if np.abs(error).mean() < least:
            best, least = value - error, float(np.abs(error).mean())
    return best
