"""Whole matrices shared out over data-parallel ranks, as Megatron's layer-wise distributed optimizer does.

Largest first, each goes to the rank that has the fewest values so far. With fewer matrices of a shape than ranks some
have none of it, and all wait for those that have the most.

Source: ``LayerWiseDistributedOptimizer`` of Megatron-LM (2026), whose buckets are shared out one by one, and here all
at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import heapify, heapreplace

from joulecast.model.training.matrix import Matrix, values_of


@lru_cache(maxsize=256)
def _shares(matrices: tuple[tuple[Matrix, int], ...], ranks: int) -> tuple[tuple[tuple[Matrix, int], ...], ...]:
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    held: list[Counter[Matrix]] = [Counter() for _ in range(ranks)]
    for matrix, count in sorted(matrices, key=lambda pair: -pair[0].elements):
        for _ in range(count):
            load, rank = loads[0]
            held[rank][matrix] += 1
            heapreplace(loads, (load + matrix.elements, rank))
    return tuple(dict.fromkeys(tuple(one.items()) for one in held))


def shares(matrices: Mapping[Matrix, int], ranks: int) -> Iterable[Mapping[Matrix, int]]:
    """What ranks have of so many matrices of each shape, ranks with the same once.

    >>> small, large = Matrix((2,), 2), Matrix((4,), 2)
    >>> [values_of(share) for share in shares({small: 3, large: 1}, 2)]
    [12, 8]
    """
    return [dict(one) for one in _shares(tuple(matrices.items()), ranks)]


def largest_share(matrices: Mapping[Matrix, int], ranks: int) -> int:
    """Most values that a rank has."""
    return max(values_of(share) for share in shares(matrices, ranks))
