"""Documents in one sequence, each of which attention keeps to itself: a causal mask of blocks along the diagonal.

Of a document of l tokens l²/2 pairs of positions are left, of a sequence of S tokens Σ l²/2 where it would have S²/2.
Kernels for sequences of various lengths (``cu_seqlens``) begin anew at each document. Blocks of B queries take keys in
steps of half as many (backward blocks of keys take queries so), so that one of l tokens takes

    Σ ⌈min(l, B·i) / (B/2)⌉ / 2,    i = 1 … ⌈l / B⌉

squares of B by B. What a block takes to begin and to end follows its positions, so that all of a sequence take the
same: forwards of documents of 64, 96, 128 and 192 tokens show both (`validate/recorded/documents`).

Kernels that go by a list of squares (PyTorch's ``flex_attention``) lay one grid over the whole sequence and leave out
the squares that no document touches. Where documents begin at any position of a block alike, one of
``l = (a - 1) B + r`` tokens, ``0 < r <= B``, meets a blocks with the chance ``1 - (r - 1) / B`` and a + 1 otherwise;
two neighbours share the square on the diagonal in which one ends and the other begins. Documents of whole blocks lie on
the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hashing import HashedOnce, hashed_once

Array = NDArray[np.float64]

#: Tokens to which lengths are gathered where there are more than so many: no kernel's step is smaller.
STEP, MOST = 64, 256


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a kernel computes of a head of the mean sequence.

    Attributes
    ----------
    queries
        Blocks of queries, of a part of one its share.
    squares
        Squares of queries and keys.
    longest
        Squares of the longest block of queries, the mean over sequences.
    more
        What costs more than it does where one document fills a sequence. Of kernels that begin anew: blocks of queries
        of documents that have several. On a grid: squares off the diagonal in which a document begins or ends.
    """

    queries: float
    squares: float
    longest: float
    more: float


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
        squares = more = 0.0
        for length, count in self.pieces:
            whole, step = math.floor(length / size), 0.5 * size
            rest = math.ceil(length / step) if length > whole * size else 0
            squares += count * (whole * (whole + 1) / 2.0 + rest / 2.0)
            more += count * length / size if length > size else 0.0
        return Blocks(self._queries(size), squares, self._longest(size), more)

    def grid(self, size: float) -> Blocks:
        """The same of kernels that lay one grid over the sequence."""
        if all(length % size == 0 for length, _ in self.pieces):
            return replace(self.blocks(size), more=0.0)
        squares = met = more = 0.0
        inner = max(1.0 - 2.0 / self.count, 0.0)  # the first begins on the grid, the last ends on it
        for length, count in self.pieces:
            fewest = math.ceil(length / size)
            chance = inner * (length - (fewest - 1) * size - 1.0) / size
            for blocks, share in ((fewest, 1.0 - chance), (fewest + 1, chance)):
                met += count * share * blocks
                squares += count * share * blocks * (blocks + 1) / 2.0
                more += count * share * max(2.0 * blocks - 3.0, 0.0)
        queries = self._queries(size)
        return Blocks(queries, squares - max(met - queries, 0.0), self._longest(size), more)

    def _queries(self, size: float) -> float:
        return sum(count * length for length, count in self.pieces) / size

    def _longest(self, size: float) -> float:
        """Blocks of the longest document, the mean over sequences, of which as many as may be have another one."""
        longest = reached = 0.0
        for length, count in reversed(self.pieces):
            share = min(count, 1.0 - reached)
            longest, reached = longest + share * math.ceil(length / size), reached + share
        return longest


def gathered(lengths: Array, counts: Array) -> Documents:
    """Documents of so many tokens, so many of each in a sequence; both of shape ``(n,)``.

    Where there are very many, those that take as many steps become one length, the root of their mean square: neither
    pairs nor squares change.

    >>> gathered(np.array([100.0, 300.0, 100.0]), np.array([1.0, 2.0, 2.0])).pieces
    ((100.0, 3.0), (300.0, 2.0))
    """
    distinct, place = np.unique(lengths, return_inverse=True)
    count = np.bincount(place, weights=counts)
    distinct, count = distinct[count > 0.0], count[count > 0.0]
    if len(distinct) <= MOST:
        return Documents(tuple(zip(distinct.tolist(), count.tolist(), strict=True)))
    _, step, members = np.unique(np.ceil(distinct / STEP), return_inverse=True, return_counts=True)
    together = np.bincount(step, weights=count)
    mean = np.sqrt(np.bincount(step, weights=count * distinct**2) / together)
    alone = np.bincount(step, weights=distinct)
    length = np.where(members == 1, alone, mean)
    return Documents(tuple(zip(length.tolist(), together.tolist(), strict=True)))
