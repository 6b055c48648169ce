"""Documents in one sequence, each of which attention keeps to itself: a causal mask of blocks along the diagonal.

Of a document of l tokens l²/2 pairs of positions are left, of a sequence of S tokens Σ l²/2 where it would have S²/2.
Kernels compute squares of B queries by B keys. Those for sequences of various lengths (``cu_seqlens``) begin anew at
each document, so that one of l tokens takes ``n = ⌈l / B⌉`` blocks of queries and ``n (n + 1) / 2`` squares.

Kernels that go by a list of squares (PyTorch's ``flex_attention``) lay one grid over the whole sequence and leave out
the squares that no document touches. Where documents begin at any position of a block alike, one of
``l = (a - 1) B + r`` tokens, ``0 < r <= B``, meets a blocks with the chance ``1 - (r - 1) / B`` and a + 1 otherwise;
two neighbours share the square on the diagonal in which one ends and the other begins. Documents of whole blocks lie on
the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hashing import HashedOnce, hashed_once

Array = NDArray[np.float64]

#: Tokens to which lengths are gathered: no kernel's block is smaller.
STEP = 64


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a kernel computes of a head of the mean sequence.

    Attributes
    ----------
    queries
        Blocks of queries.
    squares
        Squares of queries and keys.
    longest
        Squares of the longest block of queries.
    """

    queries: float
    squares: float
    longest: float


@hashed_once
@dataclass(frozen=True, slots=True)
class Documents(HashedOnce):
    """Documents of the mean sequence.

    Attributes
    ----------
    pieces
        Pairs (tokens, how many documents of the mean sequence are as long), ascending. Together they fill the sequence.
    """

    pieces: tuple[tuple[float, float], ...]

    @property
    def squared(self) -> float:
        """Σ l² over the documents of a sequence, twice the pairs that a causal mask leaves."""
        return sum(count * length * length for length, count in self.pieces)

    @property
    def count(self) -> float:
        """Documents of a sequence."""
        return sum(count for _, count in self.pieces)

    def times(self, load: float) -> Documents:
        """So many times as many documents: of a rank that has more to do than the mean."""
        return self if load == 1.0 else Documents(tuple((length, load * count) for length, count in self.pieces))

    def blocks(self, size: float) -> Blocks:
        """Blocks of ``size`` queries and keys, of kernels that begin anew at each document."""
        queries = squares = 0.0
        for length, count in self.pieces:
            rows = math.ceil(length / size)
            queries += count * rows
            squares += count * rows * (rows + 1) / 2.0
        return Blocks(queries, squares, self._longest(size))

    def grid(self, size: float) -> Blocks:
        """The same of kernels that lay one grid over the sequence."""
        if all(length % size == 0 for length, _ in self.pieces):
            return self.blocks(size)
        squares = met = 0.0
        inner = max(1.0 - 2.0 / self.count, 0.0)  # the first begins on the grid, the last ends on it
        for length, count in self.pieces:
            fewest = math.ceil(length / size)
            more = inner * (length - (fewest - 1) * size - 1.0) / size
            met += count * (fewest + more)
            squares += count * (fewest * (fewest + 1) / 2.0 + more * (fewest + 1))
        queries = sum(count * length for length, count in self.pieces) / size
        return Blocks(queries, squares - max(met - queries, 0.0), self._longest(size))

    def _longest(self, size: float) -> float:
        return float(math.ceil(self.pieces[-1][0] / size))


def gathered(lengths: Array, counts: Array) -> Documents:
    """Documents of so many tokens, so many of each in a sequence; both of shape ``(n,)``.

    Those that take as many blocks become one length, the root of their mean square: neither pairs nor blocks change.

    >>> gathered(np.array([100.0, 300.0, 100.0]), np.array([1.0, 2.0, 2.0])).pieces
    ((100.0, 3.0), (300.0, 2.0))
    """
    distinct, place = np.unique(lengths, return_inverse=True)
    count = np.bincount(place, weights=counts)
    distinct, count = distinct[count > 0.0], count[count > 0.0]
    _, step, members = np.unique(np.ceil(distinct / STEP), return_inverse=True, return_counts=True)
    together = np.bincount(step, weights=count)
    mean = np.sqrt(np.bincount(step, weights=count * distinct**2) / together)
    alone = np.bincount(step, weights=distinct)
    length = np.where(members == 1, alone, mean)
    return Documents(tuple(zip(length.tolist(), together.tolist(), strict=True)))
