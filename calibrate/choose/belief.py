"""What is known after some rows: a joint normal distribution of observations and forecasts.

    y = H·z + g + e,   z ~ N(0, 1),   e ~ N(0, R),      F·z are the forecasts,

with H and F the slopes of observations and forecasts along each parameter in units of its prior standard deviation, e
the noise, and g what the form gets wrong: the same for near-duplicates, independent between others. Observing some y
conditions the joint covariance C of all H·z + g and F·z on them: C − C_y·(C_yy + R_y)⁻¹·C_yᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.choose.information import Observations

Array = NDArray[np.float64]

#: What a row shows: its time, its power, and what holds its clock back.
QUANTITIES = 3
#: Relative error of the form in time and in power: what held-out rows of well measured families show.
FORM_ERROR = (0.02, 0.03)


@dataclass(frozen=True)
class Uncertainty:
    """Mean relative standard error of the forecasts of the reference kernels, in time and in energy."""

    time: float
    energy: float


class Belief:
    """The distribution before any row, to be conditioned on one after the other.

    Parameters
    ----------
    observations
        What ``n`` candidates would show.
    forecasts
        Slopes of the reference kernels' times, then energies, shape ``(2·k, p)``.
    weights
        Of the reference kernels, shape ``(k,)``.
    """

    def __init__(self, observations: Observations, forecasts: Array, weights: Array) -> None:
        count, split = len(observations.group), len(observations.variance)
        joint = np.concatenate([observations.slopes, forecasts]) @ observations.slopes.T
        same = observations.group[:, None] == observations.group[None, :]
        for quantity, form in enumerate(FORM_ERROR):
            mine = slice(quantity * count, (quantity + 1) * count)
            joint[mine, mine] += same * form**2
        self._count, self._split = count, split
        self._joint = joint  # of observations and forecasts with observations
        self._variance = np.sum(forecasts**2, axis=1)  # of the forecasts
        self._noise = observations.variance
        self._weights = np.tile(weights / weights.sum(), 2)
        self._step = np.empty_like(joint)  # a new one for every row took longer than its arithmetic

    def observe(self, *candidates: int) -> None:
        """Condition on the rows of candidates, all at once."""
        split = self._split
        places = np.array([p for c in candidates for p in range(c, split, self._count) if np.isfinite(self._noise[p])])
        if not places.size:
            return
        shown = self._joint[:, places]
        factor = np.linalg.cholesky(shown[places] + np.diag(self._noise[places]))
        columns = np.linalg.solve(factor, shown.T).T
        self._joint -= np.matmul(columns, columns[:split].T, out=self._step)
        self._variance -= np.sum(columns[split:] ** 2, axis=1)

    def gains(self) -> Array:
        """By how much each candidate would lower the mean variance of the forecasts, shape ``(n,)``.

        The quantities of a row inform disjoint parameters, so that their shares add up.
        """
        each = self._weights @ self._joint[self._split :] ** 2 / (np.diag(self._joint) + self._noise)
        return np.asarray(each.reshape(QUANTITIES, self._count).sum(axis=0))

    def uncertainty(self) -> Uncertainty:
        """Of the forecasts now."""
        spread = np.sqrt(np.maximum(self._variance, 0.0)) * self._weights
        half = len(spread) // 2
        return Uncertainty(float(spread[:half].sum()), float(spread[half:].sum()))
