"""Bounded robust least squares with priors, and what the data say about each parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.priors import Prior
from joulecast.model.kernels.remembered import Recorder

#: Residuals beyond this many standard deviations count linearly, not squared.
ROBUST_SCALE = 2.0
#: Step of a numerical slope, in prior standard deviations. Fixed, so that rounding does not decide where a search ends.
STEP = 1e-4
#: Relative change of the parameters, of the sum of squares and of its slope at which a search ends.
TOLERANCE = 1e-10
#: Steps after which a search ends in any case.
MOST_EVALUATIONS = 100


@dataclass(frozen=True)
class Solution:
    """Fitted parameters with their joint uncertainty.

    Attributes
    ----------
    names, values
        Parameters in order.
    covariance
        Posterior covariance, shape ``(n, n)``, in the parameters' units; where the rows scatter more than their noise,
        times :func:`residual_variance`.
    identified
        Share of each parameter's prior variance that the data removed: 0 for one that stayed at its prior.
    """

    names: tuple[str, ...]
    values: Array
    covariance: Array
    identified: Array

    def as_dict(self) -> dict[str, float]:
        """Values by name."""
        return dict(zip(self.names, self.values.tolist(), strict=True))


def solve(
    residuals: Callable[[Mapping[str, float]], Array],
    priors: Mapping[str, Prior],
    names: Sequence[str],
    tolerance: float = TOLERANCE,
) -> Solution:
    """Minimise the robust sum of squared residuals plus the priors'.

    Parameters
    ----------
    residuals
        From values by name to residuals in units of their standard deviation.
    priors
        Start, bounds and spread of every parameter in ``names``.
    tolerance
        Relative change of parameters, sum of squares and slope at which the search ends.
    """
    from scipy.optimize import least_squares

    chosen = [priors[name] for name in names]
    scale = np.array([p.sd for p in chosen])
    start = np.array([p.start for p in chosen])
    bounds = (
        (np.array([p.lower for p in chosen]) - start) / scale,
        (np.array([p.upper for p in chosen]) - start) / scale,
    )

    def values(z: Array) -> dict[str, float]:
        return dict(zip(names, (start + z * scale).tolist(), strict=True))

    def weighted(z: Array) -> Array:
        return np.concatenate([robust(residuals(values(z))), z])

    def slopes(z: Array) -> Array:
        recorder = Recorder(values(z))
        rows = len(residuals(recorder))
        return _slopes(weighted, z, *bounds, rows, [name in recorder.read for name in names])

    fit = least_squares(
        weighted,
        np.zeros(len(chosen)),
        jac=slopes,
        bounds=bounds,
        method="trf",
        x_scale=1.0,
        xtol=tolerance,
        ftol=tolerance,
        gtol=tolerance,
        max_nfev=MOST_EVALUATIONS,
    )
    posterior = np.linalg.inv(fit.jac.T @ fit.jac)
    posterior *= max(1.0, residual_variance(fit.fun[: -len(chosen)], posterior))
    posterior = 0.5 * (posterior + posterior.T)
    identified = np.clip(1.0 - np.diag(posterior), 0.0, 1.0)
    return Solution(tuple(names), start + fit.x * scale, posterior * np.outer(scale, scale), np.asarray(identified))


def residual_variance(residuals: Array, posterior: Array) -> float:
    """How many times their stated variance rows scatter, whatever part of the parameters priors hold.

    With H the slopes of the residuals r along ``n`` parameters, whose priors are independent and of variance 1::

        A⁻¹ = (Hᵀ·H + 1)⁻¹,   p = trace(H·A⁻¹·Hᵀ) = n − trace(A⁻¹),   s² = rᵀ·r / (rows − p)

    The rows give up as many degrees of freedom as they determine parameters, p: none for what stays at its prior, n
    where nothing is left to the priors. Where the truth is as the priors expect it and the noise as stated, the mean of
    s² is 1 for any H.

    Parameters
    ----------
    residuals
        At the fitted parameters, in units of their standard deviation, shape ``(rows,)``.
    posterior
        A⁻¹ in units of the priors' standard deviations, shape ``(n, n)``.

    Returns
    -------
    float
        s² [1]. At least one degree of freedom is taken to be left: a fraction of one tells no variance.

    References
    ----------
    MacKay (1992), Bayesian interpolation, doi:10.1162/neco.1992.4.3.415, where p is γ; Moody (1992), The effective
    number of parameters, NIPS 4; Hastie, Tibshirani and Friedman (2009), The elements of statistical learning, 7.6.
    """
    determined = len(posterior) - float(np.trace(posterior))
    return float(residuals @ residuals) / max(1.0, len(residuals) - determined)


def _slopes(
    residuals: Callable[[Array], Array], at: Array, lower: Array, upper: Array, rows: int, read: Sequence[bool]
) -> Array:
    """Central differences, one-sided at a bound; shape ``(rows + parameters, parameters)``.

    What no residual of a row has ``read`` moves its own distance from its prior alone.
    """
    slopes = np.zeros((rows + len(at), len(at)))
    for index in range(len(at)):
        if not read[index]:
            slopes[rows + index, index] = 1.0
            continue
        above, below = at.copy(), at.copy()
        above[index] = min(at[index] + STEP, upper[index])
        below[index] = max(at[index] - STEP, lower[index])
        slopes[:, index] = (residuals(above) - residuals(below)) / (above[index] - below[index])
    return slopes


def robust(residual: Array) -> Array:
    """Residuals whose square is Huber's loss."""
    size = np.abs(residual)
    beyond = size > ROBUST_SCALE
    bent = np.sqrt(np.maximum(2.0 * ROBUST_SCALE * size - ROBUST_SCALE**2, 0.0))
    return np.where(beyond, np.sign(residual) * bent, residual)
