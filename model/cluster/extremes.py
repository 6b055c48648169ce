"""The slowest of many."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

#: Points over which the extreme's distribution is summed, from −8 to 8 standard deviations.
_POINTS = 400


@lru_cache(maxsize=1024)
def slowest_of(members: int) -> float:
    """Expected distance of the extreme of ``members`` normal values from their mean, in standard deviations.

    Blom's approximation, Φ⁻¹((n − 0.375)/(n + 0.25)), by the lower tail: beside 1 the upper one has too few digits.
    """
    return -NormalDist().inv_cdf(0.625 / (members + 0.25)) if members > 1 else 0.0


@lru_cache(maxsize=1024)
def spread_of_slowest(members: int) -> float:
    """Standard deviation of the extreme of ``members`` normal values, in theirs: the more, the surer it is.

    From the distribution of the extreme, Φⁿ, summed in even steps.
    """
    points = [16.0 * i / _POINTS - 8.0 for i in range(_POINTS + 1)]
    below = [NormalDist().cdf(x) ** members for x in points]
    middles = [0.5 * (a + b) for a, b in pairwise(points)]
    weights = [b - a for a, b in pairwise(below)]
    mean = sum(w * x for w, x in zip(weights, middles, strict=True))
    return math.sqrt(sum(w * (x - mean) ** 2 for w, x in zip(weights, middles, strict=True)))
