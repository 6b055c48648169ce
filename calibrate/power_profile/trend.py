"""The trend of power over a kernel or a run: a polynomial of degree 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.power_profile.protocol import Array

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
    basis = np.polynomial.legendre.legvander(2.0 * time_s / duration_s - 1.0, DEGREE)
    root: Array = np.sqrt(weight / weight.mean())
    coefficients: Array = np.asarray(
        np.linalg.lstsq(basis * root[:, None], power_w * root, rcond=None)[0], dtype=np.float64
    )
    residual = (power_w - basis @ coefficients) * root
    mean = float(np.average(power_w, weights=weight))
    total = float(np.sum(root**2 * (power_w - mean) ** 2))
    explained = 1.0 - float(np.sum(residual**2)) / total if total > 0.0 else 0.0
    return Trend(coefficients, duration_s, explained)
