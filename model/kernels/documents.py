"""Documents in one sequence, each of which attention keeps to itself: a causal mask of blocks along the diagonal.

Of a document of l tokens l²/2 pairs of positions are left, of a sequence of S tokens Σ l²/2 where it would have S²/2.
Kernels for sequences of various lengths (``cu_seqlens``) begin anew at each document. Blocks of B queries take keys in
steps of half as many (backward blocks of keys take queries so), so that one of l tokens takes

    Σ ⌈min(l, B·i) / (B/2)⌉ / 2,    i = 1 … ⌈l / B⌉

squares of B by B. What a block takes to begin and to end follows its positions, so that all of a sequence take the
same: forwards of documents of 64, 96, 128 and 192 tokens show both (`validate/recorded/documents`).

In a window of W keys the block i leaves out the ⌊(B·(i - 1) - W + 1) / (B/2)⌋ steps before what its first query sees;
of a document longer than W tokens W·(l - W/2) pairs are left.

Kernels that go by a list of squares (PyTorch's ``flex_attention``) lay one grid over the whole sequence and leave out
the squares that no document touches. Where documents begin at any position of a block alike, one of
``l = (a - 1) B + r`` tokens, ``0 < r <= B``, meets a blocks with the chance ``1 - (r - 1) / B`` and a + 1 otherwise;
two neighbours share the square on the diagonal in which one ends and the other begins. Documents of whole blocks lie on
the grid. In a window no block of queries meets more than ⌈(W - 1) / B⌉ + 1 squares.

A step of a ring of context-parallel ranks takes q queries of each document with k keys and no mask: q·k pairs, and
⌈q / B⌉ · ⌈k / (B/2)⌉ / 2 squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hashing import HashedOnce, hashed_once

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
    load
        Pairs of positions over those of the mean sequence: of a rank whose documents are longer. In a window, which
        longer documents hardly notice, none are more.
    unmasked
        Keys of a document over its queries, all of which see all of them; 0: as many, under a causal mask.
    """

    pieces: tuple[tuple[float, float], ...]
    load: float = 1.0
    unmasked: float = 0.0

    def pairs(self, window: int = 0) -> float:
        """Pairs of positions that a causal mask leaves of a sequence, of ``window`` keys for each query if not 0."""
        whole = (self.unmasked or 0.5) * sum(count * length * length for length, count in self.pieces)
        if not self._cut(window):
            return self.load * whole
        return whole - 0.5 * sum(count * max(length - window, 0.0) ** 2 for length, count in self.pieces)

    @property
    def count(self) -> float:
        """Documents of a sequence."""
        return sum(count for _, count in self.pieces)

    def share(self, part: float, unmasked: float = 0.0) -> Documents:
        """A ``part`` of the tokens of each document, which see ``unmasked`` times as many keys; 0: those before."""
        return replace(self, pieces=tuple((part * length, count) for length, count in self.pieces), unmasked=unmasked)

    def blocks(self, size: float, window: int = 0) -> Blocks:
        """Blocks of ``size`` queries and keys, of kernels that begin anew at each document."""
        if self.unmasked:
            return self._rectangles(size)
        squares = more = 0.0
        step, cut = 0.5 * size, self._cut(window)
        for length, count in self.pieces:
            whole = math.floor(length / size)
            rest = math.ceil(length / step) if length > whole * size else 0
            left_out = _steps_before(math.ceil(length / size), size, window) if cut else 0.0
            squares += count * (whole * (whole + 1) / 2.0 + rest / 2.0 - left_out / 2.0)
            more += count * length / size if length > size else 0.0
        load = 1.0 if cut else self.load
        return Blocks(self._queries(size), load * squares, self._longest(size, window), more)

    def _rectangles(self, size: float) -> Blocks:
        """Blocks where no mask hides anything of a document."""
        keys = [math.ceil(2.0 * self.unmasked * length / size) / 2.0 for length, _ in self.pieces]
        squares = sum(
            count * math.ceil(length / size) * k for (length, count), k in zip(self.pieces, keys, strict=True)
        )
        more = sum(count * length / size for length, count in self.pieces if length > size)
        return Blocks(self._queries(size), self.load * squares, max(keys), more)

    def grid(self, size: float, window: int = 0) -> Blocks:
        """The same of kernels that lay one grid over the sequence."""
        aligned = all(length % size == 0 for length, _ in self.pieces)
        cut, seen = self._cut(window), _seen(window, size)
        squares = met = more = 0.0
        inner = max(1.0 - 2.0 / self.count, 0.0)  # the first begins on the grid, the last ends on it
        for length, count in self.pieces:
            fewest = math.ceil(length / size)
            chance = 0.0 if aligned else inner * (length - (fewest - 1) * size - 1.0) / size
            for blocks, share in ((fewest, 1.0 - chance), (fewest + 1, chance)):
                met += count * share * blocks
                most = min(blocks, seen)
                squares += count * share * (most * (most + 1) / 2.0 + (blocks - most) * most)
                more += count * share * max(most + min(blocks - 1.0, seen) - 2.0, 0.0)
        queries, load = self._queries(size), 1.0 if cut else self.load
        squares -= max(met - queries, 0.0)
        return Blocks(queries, load * squares, self._longest(size, window), 0.0 if aligned else more)

    def _cut(self, window: int) -> bool:
        """Whether a window hides positions of the longest document from others of it."""
        return 0 < window < max(length for length, _ in self.pieces)

    def _queries(self, size: float) -> float:
        return sum(count * length for length, count in self.pieces) / size

    def _longest(self, size: float, window: int) -> float:
        """Squares of the longest block, the mean over sequences, of which as many as may be have another document."""
        longest = reached = 0.0
        for length, count in reversed(self.pieces):
            share = min(count, 1.0 - reached)
            longest, reached = longest + share * min(math.ceil(length / size), _seen(window, size)), reached + share
        return longest


def _seen(window: int, size: float) -> float:
    """Squares that a whole block of queries meets in a window, any number where there is none (0)."""
    return math.ceil((window - 1.0) / size) + 1.0 if window else math.inf


def _steps_before(blocks: int, size: float, window: int) -> float:
    """Steps of keys that ``blocks`` blocks of a document's queries leave out, all together."""
    first = size * np.arange(blocks) - window + 1.0
    return float(np.floor(first.clip(0.0) / (0.5 * size)).sum())


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
