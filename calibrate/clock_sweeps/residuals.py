"""What the physics leaves, interpolated: residuals that neighbouring settings share are forecast by kriging.

A card's own quirks (a step of its voltage table, a kernel chosen otherwise) show as residuals of log time and log power
that are alike at neighbouring settings, for all workloads or for one. With s the noise of a workload,

    cov(r_i, r_j) = s_i·s_j·(shared·κ(x_i, x_j) + own·κ(x_i, x_j)·[same workload] + (1 − shared − own)·[i = j]/weight_i)

and κ = exp(−|x_i − x_j|/ℓ). Shares and length are those that forecast settings left out of the training rows best; the
answer may be that there is nothing to share. Beyond the range the correction fades, and the physics alone remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array
from joulecast.calibrate.clock_sweeps.newton import Observed

#: Candidates for the shares of variance (all workloads, one workload) and for the length [share of the range].
SHARES = ((0.9, 0.0), (0.6, 0.3), (0.3, 0.6), (0.0, 0.9), (0.3, 0.3))
LENGTHS = (0.05, 0.15, 0.5)
#: Error left by a correction, against none, above which it is not worth having.
WORTHWHILE = 0.95
#: Fewest settings from which a correction is learnt.
FEWEST_SETTINGS = 8


@dataclass(frozen=True, slots=True)
class Structure:
    """Shares of variance of the residuals that all workloads share, that one has, and the length of likeness."""

    shared: float
    own: float
    length: float


@dataclass(frozen=True, slots=True)
class Correction:
    """Kriging of one quantity's residuals; ``factor`` is ``C⁻¹·r``."""

    structure: Structure
    place: Array
    workload: NDArray[np.intp]
    noise: Array
    inverse: Array
    factor: Array

    def at(self, place: Array, workload: NDArray[np.intp], noise: Array) -> tuple[Array, Array]:
        """Expected residuals and the variance of new rows around them, of workloads with this noise, ``(n,)``."""
        across = _alike(self.structure, place, workload, self.place, self.workload) * np.outer(noise, self.noise)
        removed = np.einsum("ni,ij,nj->n", across, self.inverse, across)
        return across @ self.factor, np.maximum(noise**2 - removed, 0.05 * noise**2)


def learn_correction(residual: Array, weight: Array, observed: Observed, noise: Array) -> Correction | None:
    """Correction of residuals (measured − fitted) ``(n,)`` of one quantity, ``None`` where none is worthwhile.

    ``weight`` is how much each row is trusted, ``observed.setting`` counts from 0 to 1 over the range, ``noise`` is
    the standard deviation of each row.
    """
    place = observed.setting
    if len(np.unique(place)) < FEWEST_SETTINGS:
        return None
    groups = np.unique(place, return_inverse=True)[1]
    scale = np.abs(residual) * np.minimum(weight, 1.0)
    best, least = None, WORTHWHILE * float(scale.sum())
    for (shared, own), length in product(SHARES, LENGTHS):
        structure = Structure(shared, own, length)
        inverse: Array = np.asarray(
            np.linalg.inv(_covariance(structure, place, observed.workload, noise, weight)), dtype=np.float64
        )
        factor = inverse @ residual
        error = float((np.abs(left_out_errors(inverse, factor, groups)) * np.minimum(weight, 1.0)).sum())
        if error < least:
            least = error
            best = Correction(structure, place, observed.workload, noise, inverse, factor)
    return best


def _alike(structure: Structure, a: Array, of_a: NDArray[np.intp], b: Array, of_b: NDArray[np.intp]) -> Array:
    """Correlation between two sets of rows, without the part that is each row's alone."""
    near = np.exp(-np.abs(a[:, None] - b) / structure.length)
    return np.asarray(near * (structure.shared + structure.own * (of_a[:, None] == of_b)))


def _covariance(structure: Structure, place: Array, workload: NDArray[np.intp], noise: Array, weight: Array) -> Array:
    alike = _alike(structure, place, workload, place, workload)
    alone = (1.0 - structure.shared - structure.own) / np.minimum(weight, 1.0)
    return np.asarray((alike + np.diag(alone)) * np.outer(noise, noise))


def left_out_errors(inverse: Array, factor: Array, groups: NDArray[np.intp]) -> Array:
    """Errors of forecasting the values y of each group from all others: ``((C⁻¹)_gg)⁻¹·(C⁻¹·y)_g``.

    Parameters
    ----------
    inverse, factor
        C⁻¹ of the covariance C, and C⁻¹·y.
    groups
        Number of each value's group, from 0.
    """
    errors = np.empty_like(factor)
    for group in range(int(groups.max()) + 1):
        rows = np.flatnonzero(groups == group)
        errors[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], factor[rows])
    return errors
