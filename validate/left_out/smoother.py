"""Each of several values from all others: kriging under the covariance that errs least, chosen in hindsight."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.clock_sweeps.residuals import left_out_errors


def each_from_the_others(
    value: Array, covariances: Iterable[Array], together: Sequence[Hashable] | None = None
) -> Array:
    """Values ``(n,)``, each as the others say it.

    Parameters
    ----------
    value
        What was measured; its mean counts as known.
    covariances
        Candidates, each ``(n, n)``; that of the least mean absolute error is taken.
    together
        A key of each value: those that share one are left out at once. By default each by itself.
    """
    known: dict[Hashable, int] = {}
    keys = range(len(value)) if together is None else together
    groups = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.intp)
    best, least = value, np.inf
    for covariance in covariances:
        inverse: Array = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        error = left_out_errors(inverse, inverse @ (value - value.mean()), groups)
        if np.abs(error).mean() < least:
            best, least = value - error, float(np.abs(error).mean())
    return best
