"""The time resolution of an estimated power: the finest averages that are sure enough, and how far they smear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.power_profile.inverse import Estimate

#: Wanted standard error of a profile's points, relative to its mean power.
PRECISION = 0.01
#: Share of the points that must reach it.
MOST = 0.9
#: A point that is less sure than this multiple of the wanted error, or smears further than this multiple of the
#: averaging time, is not resolved.
TOLERATED = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A stretch of a profile at the resolution that the readings carry.

    Attributes
    ----------
    centre_s, width_s
        Shape (n,): middle and length of the bins, from the stretch's start.
    power_w, standard_error_w
        Shape (n,): mean over ``averaging_s`` around each middle; near the ends, over the first or last ``averaging_s``.
    spread_s
        Shape (n,): effective width of each point's spread, ``(Σ|K|)²/Σ(K²/w)`` with K the shares of the true powers in
        the point and w the bins' widths; of a plain mean over a time it is that time.
    resolved
        Shape (n,): whether the point is sure enough and spreads no further than it should.
    averaging_s
        The shortest averaging time with which most points reach the wanted error.
    """

    centre_s: Array
    width_s: Array
    power_w: Array
    standard_error_w: Array
    spread_s: Array
    resolved: Bool
    averaging_s: float

    @property
    def resolution_s(self) -> float:
        """Shortest feature that is told from its surroundings; infinite where none is [s]."""
        if not self.resolved.any():
            return float("inf")
        return max(self.averaging_s, float(np.median(self.spread_s[self.resolved])))

    @property
    def duration_s(self) -> float:
        """Length of the stretch [s]."""
        return float(self.width_s.sum())


def resolve(
    estimate: Estimate, bins: slice, width_s: Array, precision: float = PRECISION, least_s: float = 0.0
) -> Resolved:
    """Average neighbouring unknowns just as long as it takes to be sure of the mean.

    Parameters
    ----------
    estimate
        All unknowns.
    bins
        The stretch: unknowns that follow each other in time.
    width_s
        Shape (all unknowns,): duration of each; infinite of the resting card.
    precision
        Wanted standard error relative to the stretch's mean power.
    least_s
        Only multiples of this averaging time are tried, so that what repeats after it leaves no ripple.
    """
    width = width_s[bins]
    edges = np.concatenate([[0.0], np.cumsum(width)])
    wanted = precision * float(np.average(estimate.power_w[bins], weights=width))
    covariance = estimate.covariance[bins, bins]
    for averaging in _candidates(width, least_s):
        share = averaging_boxes(edges, averaging)
        error = np.sqrt(np.maximum(np.sum((share @ covariance) * share, axis=1), 0.0))
        if np.quantile(error, MOST) <= wanted:
            break
    kernel = share @ estimate.resolution[bins]
    # The resting card is one unknown without end; as a place that a point may leak to, it is as wide as the stretch.
    place = np.where(np.isfinite(width_s), width_s, edges[-1])
    spread = np.sum(np.abs(kernel), axis=1) ** 2 / np.maximum(np.sum(kernel**2 / place, axis=1), 1e-300)
    resolved = (error <= TOLERATED * wanted) & (spread <= TOLERATED * averaging)
    centre = (edges[1:] + edges[:-1]) / 2
    return Resolved(centre, width, share @ estimate.power_w[bins], error, spread, resolved, averaging)


def _candidates(width: Array, least_s: float) -> Array:
    """Averaging times to try, from the narrowest bin to the whole stretch [s]."""
    whole = float(width.sum())
    if least_s > 0.0:
        return np.append(least_s * np.arange(1.0, max(whole / least_s, 1.0)), whole)
    narrow = float(width.min())
    steps = max(int(np.ceil(np.log(whole / narrow) / np.log(1.25))), 0)
    return np.append(narrow * 1.25 ** np.arange(steps), whole)


def averaging_boxes(edges: Array, averaging_s: float) -> Array:
    """Row i: weights of the mean over ``averaging_s`` around the middle of bin i, moved inside at the ends."""
    half = np.minimum(np.maximum(averaging_s, np.diff(edges)), edges[-1]) / 2
    centre = np.clip((edges[1:] + edges[:-1]) / 2, edges[0] + half, edges[-1] - half)
    low = np.maximum(edges[None, :-1], (centre - half)[:, None])
    high = np.minimum(edges[None, 1:], (centre + half)[:, None])
    overlap = np.maximum(high - low, 0.0)
    return np.asarray(overlap / overlap.sum(axis=1, keepdims=True))
