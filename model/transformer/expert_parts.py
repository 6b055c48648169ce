"""To how many of the equal parts that share a layer's experts a token goes."""

from __future__ import annotations

import math

from joulecast.model.architecture.experts import Experts


def met(experts: Experts, parts: int) -> float:
    """Expected number of different parts, of ``parts`` that share the experts, to which a token goes."""
    return different_parts(experts.active, parts_allowed(experts.groups, experts.chosen_groups, parts))


def different_parts(chosen: int, parts: float) -> float:
    """Expected number of different parts among ``chosen`` independent, equally likely ones of ``parts``."""
    return parts * (1.0 - (1.0 - 1.0 / parts) ** chosen)


def parts_allowed(groups: int, chosen: int, parts: int) -> float:
    """Expected number of equal parts that hold some of the ``chosen`` groups among ``groups`` (node-limited routing).

    >>> parts_allowed(8, 4, 64), parts_allowed(8, 4, 8), parts_allowed(8, 4, 2)
    (32.0, 4.0, 1.9714285714285715)
    """
    if parts >= groups:
        return parts * chosen / groups
    without = math.comb(groups - groups // parts, chosen) / math.comb(groups, chosen)
    return parts * (1.0 - without)
