"""The trend of power over a kernel or a run: a polynomial of degree 4."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array

DEGREE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """``power(x) = Σ c_k·P_k(2·x − 1)`` with Legendre polynomials P_k and x the share of the stretch.

    Attributes
    ----------
    coefficients_w
        Shape (degree + 1,): c_0 is the mean.
    duration_s
        Length of the stretch.
    explained
        Share of the variance that the trend explains.
    """

    coefficients_w: Array
    duration_s: float
    explained: float

    def power_w(self, time_s: Array) -> Array:
        """The trend at times since the stretch's start [W]."""
        share = 2.0 * time_s / self.duration_s - 1.0
        return np.asarray(np.polynomial.legendre.legval(share, self.coefficients_w), dtype=np.float64)


def fit_trend(time_s: Array, power_w: Array, weight: Array, duration_s: float) -> Trend | None:
    """Weighted least squares of degree 4 (of FinGraV, ISPASS 2025, which fits it to stitched points).

    Parameters
    ----------
    time_s, power_w, weight
        Shape (n,): points since the stretch's start, and their weights.
    duration_s
        Length of the stretch.

    Returns
    -------
    Trend or None
        ``None`` for fewer than ten points.
    """
    if len(time_s) < 2 * (DEGREE + 1):
        return None
    coefficients = np.polynomial.legendre.legfit(2.0 * time_s / duration_s - 1.0, power_w, DEGREE, w=np.sqrt(weight))
    trend = Trend(np.asarray(coefficients, dtype=np.float64), duration_s, 0.0)
    left = float(np.sum(weight * (power_w - trend.power_w(time_s)) ** 2))
    total = float(np.sum(weight * (power_w - np.average(power_w, weights=weight)) ** 2))
    return replace(trend, explained=1.0 - left / total if total > 0.0 else 0.0)
