"""Documents of given lengths packed into sequences of one length: what the mean sequence has, and how far they differ.

``cut``
    Documents in random order are joined and cut every S tokens, as pretraining has it. Boundaries then fall on every
    position of a lattice alike (all lengths and S are multiples of its step; of documents of S tokens none is cut), so
    that the pieces of the mean sequence follow exactly: of a document of L steps and a sequence of W >= L, one that
    begins at one of W - L + 1 positions is whole, and for each k < L two positions leave a piece of k. Of a longer one,
    L - W + 1 positions fill the sequence.
``whole``
    Each document is put where it leaves the least room (best fit, the longest first), as trainers for finetuning do
    (TRL's ``bfd``; Axolotl's and Megatron's first fit comes near). What is left of a sequence is padding, which is one
    more document there. Documents that are longer than a sequence are cut at its end.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.kernels.documents import Documents, gathered

Packing = Literal["cut", "whole"]

#: Sequences that are cut to see how far they differ, and documents that are packed whole, more being drawn from.
SEQUENCES, FEWEST, MOST = 2000, 1000, 20_000
#: Documents that are cut at most: where a sequence has thousands, sequences hardly differ, and fewer tell it.
MOST_CUT = 2_000_000


@dataclass(frozen=True, slots=True)
class Packed:
    """Documents in sequences.

    Attributes
    ----------
    documents
        Those of the mean sequence, which they fill; ``None``: one fills it.
    spread
        Standard deviation over sequences of Σ l², the squares of documents' lengths, relative to its mean.
    filled
        Share of the positions that are documents', the rest being padding.
    """

    documents: Documents | None
    spread: float
    filled: float


@lru_cache(maxsize=64)
def packed(lengths: tuple[int, ...], counts: tuple[float, ...], sequence: int, packing: Packing) -> Packed:
    """Documents in sequences.

    Parameters
    ----------
    lengths, counts
        Tokens of documents, and how many are as long.
    sequence
        Tokens of a sequence.
    """
    drawn = _drawn(lengths, counts, sequence, packing)
    if packing == "whole":
        return _whole(drawn, sequence)
    of = _pieces(lengths, counts, sequence)
    spread = float(_squares_of_cut(drawn, sequence).std() / (2.0 * of.pairs()))
    return Packed(_unless_whole(of, sequence), spread, 1.0)


def _drawn(lengths: Sequence[int], counts: Sequence[float], sequence: int, packing: Packing) -> Int:
    """Documents in random order, always the same: as many as there are, or as it takes."""
    tokens, weights = np.array(lengths, dtype=np.int64), np.array(counts, dtype=np.float64)
    if packing == "cut":
        needed = min(math.ceil(SEQUENCES * sequence / float(weights @ tokens / weights.sum())), MOST_CUT)
    else:
        needed = min(max(FEWEST, math.ceil(weights.sum())), MOST)
    generator = np.random.default_rng(0)
    if weights.sum() > MOST_CUT:
        return generator.choice(tokens, needed, p=weights / weights.sum())
    rounds = max(1, math.ceil(needed / weights.sum()))
    each = np.floor(rounds * weights + 0.5).astype(np.int64)
    return generator.permutation(np.repeat(tokens, each))[:needed]


def _pieces(lengths: Sequence[int], counts: Sequence[float], sequence: int) -> Documents:
    """Of joined documents in the mean sequence."""
    step = math.gcd(sequence, *lengths)
    steps, weights = np.array(lengths, dtype=np.int64) // step, np.array(counts, dtype=np.float64)
    width = sequence // step
    rate = weights / float(weights @ steps)
    pieces = np.zeros(width + 1)
    np.add.at(pieces, np.minimum(steps, width), rate * (np.abs(width - steps) + 1.0))
    longer = np.zeros(width + 1)  # documents that leave a piece of k steps where a sequence begins or ends in them
    np.add.at(longer, np.minimum(steps, width) - 1, rate)
    pieces += 2.0 * np.cumsum(longer[::-1])[::-1] * (np.arange(width + 1) > 0)
    return gathered(np.arange(width + 1, dtype=np.float64) * step, pieces)


def _squares_of_cut(drawn: Int, sequence: int) -> Array:
    """Σ l² of each sequence that the documents fill, shape ``(n,)``."""
    ends = np.cumsum(drawn)
    sequences = min(int(ends[-1]) // sequence, 2 * SEQUENCES)
    if sequences == 0:
        return np.array([float(sequence) ** 2])
    edges = np.concatenate([ends[ends <= sequences * sequence], sequence * np.arange(1, sequences + 1)])
    edges.sort(kind="stable")  # two sorted runs, which it merges
    edges = edges[np.diff(edges, prepend=0) > 0]
    pieces = np.diff(edges, prepend=0).astype(np.float64)
    return np.bincount((edges - 1) // sequence, weights=pieces**2).astype(np.float64)


def _whole(drawn: Int, sequence: int) -> Packed:
    """Whole documents, best fit; the emptiest sequence, in which they ended, is left out where there are others."""
    full, over = int((drawn // sequence).sum()), drawn % sequence
    rooms: list[tuple[int, int]] = []  # of sequences with room: what is left, and the sequence
    bins: list[list[float]] = []
    for length in np.sort(over[over > 0])[::-1].tolist():
        place = bisect_left(rooms, (length, -1))
        if place < len(rooms):
            room, index = rooms.pop(place)
        else:
            room, index = sequence, len(bins)
            bins.append([])
        bins[index].append(float(length))
        if room > length:
            insort(rooms, (room - length, index))
    padding = sum(room for room, _ in rooms)
    for room, index in rooms:
        bins[index].append(float(room))
    if rooms and full + len(bins) > 1:
        room, index = rooms[-1]
        padding -= room
        bins.pop(index)
    whole = [[float(sequence)]] if full else []
    counts = np.array([full] * len(whole) + [1] * len(bins), dtype=np.float64)
    kinds = whole + bins
    found = gathered(
        np.array([length for one in kinds for length in one]), np.repeat(counts, [len(one) for one in kinds])
    )
    sequences = full + len(bins)
    of = Documents(tuple((length, count / sequences) for length, count in found.pieces))
    sums = np.array([sum(length * length for length in one) for one in kinds])
    return Packed(_unless_whole(of, sequence), _spread(sums, counts), 1.0 - padding / (sequences * sequence))


def _spread(sums: Array, counts: Array) -> float:
    """Standard deviation of ``sums``, so many of each, relative to their mean."""
    least, weights = float(sums.min()), counts / counts.sum()
    above = sums - least  # of which all are 0 where none differs
    mean = float(weights @ above)
    return math.sqrt(float(weights @ (above - mean) ** 2)) / (least + mean)


def _unless_whole(of: Documents, sequence: int) -> Documents | None:
    return None if [length for length, _ in of.pieces] == [sequence] else of
