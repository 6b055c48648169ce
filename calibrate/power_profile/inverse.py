"""The power behind a sensor: a linear inverse problem, with what it can and cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int

#: Prior deviation of the difference between neighbouring unknowns, as a share of the highest reading. It is wide: it
#: decides only what the readings leave open, and lets every step of a real card pass.
PRIOR_STEP = 0.3
#: Prior deviation of every unknown, as a share of the highest reading: what nothing was read of stays unknown.
PRIOR_LEVEL = 10.0
#: Standard deviation over the median of the magnitude, of a normal distribution.
MEDIAN_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Unknown powers and how well they are known.

    Attributes
    ----------
    power_w
        Shape (m,): no entry below zero.
    covariance
        Shape (m, m) [W²].
    resolution
        Shape (m, m): row i tells how the true powers mix into ``power_w[i]``; the unit matrix where everything is told
        apart (Backus and Gilbert 1968; Menke, Geophysical Data Analysis, chapter 4).
    noise_w
        Shape (n,): deviation of each reading, judged from the residuals.
    """

    power_w: Array
    covariance: Array
    resolution: Array
    noise_w: Array

    def mean(self, weights: Array) -> tuple[float, float]:
        """A weighted mean of the unknowns and its standard error [W].

        Parameters
        ----------
        weights
            Shape (m,); scaled to a sum of one.
        """
        share = weights / weights.sum()
        return float(share @ self.power_w), float(np.sqrt(max(share @ self.covariance @ share, 0.0)))


def solve(rows: Array, readings_w: Array, groups: Sequence[slice], kinds: Int) -> Estimate:
    """Least squares with powers not below zero and a weak preference for small steps between neighbours.

    Minimises ``Σ ((A x − y)/σ)² + Σ ((x_{j+1} − x_j)/δ)²`` over x ≥ 0, the second sum inside each group only (and a
    very weak term that keeps unknowns finite that nothing was read of). The posterior covariance is
    ``C = (Aᵀ A/σ² + Dᵀ D/δ²)⁻¹`` and the resolution ``C Aᵀ A/σ²`` (Tarantola, Inverse Problem Theory, section 3.2). The
    noise of each kind of readings is judged from the residuals and the degrees of freedom that the kind keeps.

    Parameters
    ----------
    rows
        Shape (n, m): weights of the unknowns in each reading.
    readings_w
        Shape (n,).
    groups
        Stretches of unknowns that follow each other in time.
    kinds
        Shape (n,): readings of one number share one noise.
    """
    top_w = float(np.max(readings_w))
    rough = prior_rows(rows.shape[1], groups, PRIOR_STEP * top_w, PRIOR_LEVEL * top_w)
    prior = rough.T @ rough
    equations = _Equations(rows)
    noise = np.full(len(readings_w), 0.02 * top_w)
    for _ in range(3):
        information, right = equations.normal(readings_w, 1.0 / noise**2)
        covariance: Array = np.linalg.inv(information + prior).astype(np.float64)
        power = _not_negative(covariance, information + prior, right)
        residual = readings_w - rows @ power
        noise = _noise(residual, equations.leverage(covariance) / noise**2, kinds, top_w)
    return Estimate(power, covariance, covariance @ information, noise)


class _Equations:
    """Rows of weights, those apart that see one unknown alone: most of them do, and cost next to nothing."""

    def __init__(self, rows: Array) -> None:
        self.size = rows.shape[1]
        self.label = np.argmax(rows, axis=1)
        self.single = rows[np.arange(len(rows)), self.label] > 1.0 - 1e-9
        self.mixed = rows[~self.single]

    def normal(self, readings_w: Array, weight: Array) -> tuple[Array, Array]:
        """``Aᵀ W A`` and ``Aᵀ W y``."""
        label, single = self.label[self.single], self.single
        information = np.diag(np.bincount(label, weights=weight[single], minlength=self.size))
        right = np.bincount(label, weights=(weight * readings_w)[single], minlength=self.size).astype(np.float64)
        weighted = self.mixed * weight[~single][:, None]
        return information + self.mixed.T @ weighted, right + weighted.T @ readings_w[~single]

    def leverage(self, covariance: Array) -> Array:
        """Diagonal of ``A C Aᵀ``."""
        found: Array = np.diag(covariance)[self.label].copy()
        found[~self.single] = np.sum((self.mixed @ covariance) * self.mixed, axis=1)
        return found


def prior_rows(size: int, groups: Sequence[slice], step_w: float, level_w: float) -> Array:
    """Shape (k, size): differences of neighbours in units of ``step_w``, and the unknowns in units of ``level_w``."""
    return np.vstack([differences(size, groups) / step_w, np.eye(size) / level_w])


def differences(size: int, groups: Sequence[slice]) -> Array:
    """Differences of neighbours inside each group; one row per pair."""
    pairs = [i for group in groups for i in range(group.start, group.stop - 1)]
    matrix = np.zeros((len(pairs), size))
    matrix[np.arange(len(pairs)), pairs] = -1.0
    matrix[np.arange(len(pairs)), np.array(pairs, dtype=int) + 1] = 1.0
    return matrix


def _not_negative(covariance: Array, normal: Array, right: Array) -> Array:
    """The minimum over x ≥ 0; the plain one where that is already it."""
    plain: Array = covariance @ right
    if np.all(plain >= 0.0):
        return plain
    from scipy.optimize import nnls

    # The square root of the normal equations keeps the problem as small as the unknowns, whatever was read.
    factor = np.linalg.cholesky(normal)
    return np.asarray(nnls(factor.T, np.linalg.solve(factor, right))[0])


def _noise(residual: Array, leverage: Array, kinds: Int, top_w: float) -> Array:
    """Deviation of a reading of each kind, never below a ten-thousandth of the highest reading.

    It comes from the median: where the power jumps inside a bin, a few readings stand far off, which says nothing of
    the others.
    """
    noise = np.empty(len(residual))
    for kind in np.unique(kinds):
        members = kinds == kind
        left = max(1.0 - float(leverage[members].mean()), 0.1)
        noise[members] = MEDIAN_TO_DEVIATION * float(np.median(np.abs(residual[members]))) / np.sqrt(left)
    return np.asarray(np.maximum(noise, 1e-4 * top_w))
