"""What is known after some rows: a joint normal distribution of observations and forecasts.

    y = H·z + g + e,   z ~ N(0, 1),   e ~ N(0, R),      F·z are the forecasts,

with H and F the slopes of observations and forecasts along each parameter in units of its prior standard deviation, e
the noise, and g what the form gets wrong: the same for near-duplicates, independent between others. Observing some y
conditions the joint covariance C of all H·z + g and F·z on them: C − C_y·(C_yy + R_y)⁻¹·C_yᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.sessions.information import Observations

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
        self._count, self._split = len(observations.group), len(observations.variance)
        self._slopes = np.concatenate([observations.slopes, forecasts])
        self._group = observations.group
        # Of the joint covariance only what a choice reads is kept: its columns are made when a row is taken.
        self._across = forecasts @ observations.slopes.T  # of the forecasts with the observations
        self._own = np.sum(observations.slopes**2, axis=1)  # variance of each observation
        self._own[: len(FORM_ERROR) * self._count] += np.repeat(np.square(FORM_ERROR), self._count)
        self._variance = np.sum(forecasts**2, axis=1)  # of the forecasts
        self._noise = observations.variance
        self._weights = np.tile(weights / weights.sum(), 2)
        self._taken: list[Array] = []

    def observe(self, *candidates: int) -> None:
        """Condition on the rows of candidates, all at once."""
        split = self._split
        places = np.array([p for c in candidates for p in range(c, split, self._count) if np.isfinite(self._noise[p])])
        if not places.size:
            return
        shown = self._covariance(places)
        factor = np.linalg.cholesky(shown[places] + np.diag(self._noise[places]))
        columns: Array = np.asarray(np.linalg.solve(factor, shown.T).T, dtype=np.float64)
        self._taken.append(columns)
        self._across -= columns[split:] @ columns[:split].T
        self._own -= np.sum(columns[:split] ** 2, axis=1)
        self._variance -= np.sum(columns[split:] ** 2, axis=1)

    def _covariance(self, places: Int) -> Array:
        """Of observations and forecasts with some observations, given all that was observed, ``(3·n + 2·k, m)``."""
        shown = self._slopes @ self._slopes[places].T
        for quantity, form in enumerate(FORM_ERROR):
            mine = np.flatnonzero(places // self._count == quantity)
            rows = slice(quantity * self._count, (quantity + 1) * self._count)
            shown[rows, mine] += (self._group[:, None] == self._group[places[mine] % self._count]) * form**2
        for columns in self._taken:
            shown -= columns @ columns[places].T
        return np.asarray(shown)

    def gains(self) -> Array:
        """By how much each candidate would lower the mean variance of the forecasts, shape ``(n,)``.

        The quantities of a row inform disjoint parameters, so that their shares add up.
        """
        each = self._weights @ self._across**2 / (self._own + self._noise)
        return np.asarray(each.reshape(QUANTITIES, self._count).sum(axis=0))

    def uncertainty(self) -> Uncertainty:
        """Of the forecasts now."""
        spread = np.sqrt(np.maximum(self._variance, 0.0)) * self._weights
        half = len(spread) // 2
        return Uncertainty(float(spread[:half].sum()), float(spread[half:].sum()))
