"""The slowest of many."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist


@lru_cache(maxsize=1024)
def slowest_of(members: int) -> float:
    """Expected distance of the extreme of ``members`` normal values from their mean, in standard deviations.

    Blom's approximation, Φ⁻¹((n − 0.375)/(n + 0.25)), by the lower tail: beside 1 the upper one has too few digits.
    """
    return -NormalDist().inv_cdf(0.625 / (members + 0.25)) if members > 1 else 0.0
