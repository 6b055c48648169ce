"""Documents in sequences: what cutting and packing make of them, counted by hand and one by one."""

import numpy as np
import pytest

from joulecast.model.framework import packing as of_packing


def packed(lengths, counts, sequence, packing):
    return of_packing.packed(tuple(lengths), tuple(counts), sequence, packing)


def pieces_of(lengths, counts, sequence, packing):
    found = packed(lengths, counts, sequence, packing)
    return found.documents.pieces


def test_documents_that_divide_a_sequence_are_never_cut():
    assert pieces_of([128], [1.0], 4096, "cut") == ((128.0, 32.0),)
    assert pieces_of([128], [1.0], 4096, "whole") == ((128.0, 32.0),)
    assert packed([128], [1.0], 4096, "cut").spread == 0.0


@pytest.mark.parametrize("packing", ["cut", "whole"])
def test_one_document_a_sequence_is_none(packing):
    assert packed([4096], [1.0], 4096, packing).documents is None


def test_a_document_of_several_sequences_fills_them():
    assert packed([8192], [1.0], 4096, "cut").documents is None
    assert packed([8192], [1.0], 4096, "whole").documents is None


def test_whole_documents_leave_padding_that_is_a_document():
    found = packed([1200], [1.0], 4096, "whole")
    assert found.documents.pieces == ((496.0, 1.0), (1200.0, 3.0))
    assert found.filled == pytest.approx(3600 / 4096)
    assert found.spread == 0.0


def test_best_fit_puts_each_where_it_leaves_the_least_room():
    # 60 + 40, 70 + 30 and 50 + 50 fill sequences of 100.
    found = packed([60, 40, 70, 30, 50, 50], [1000.0] * 6, 100, "whole")
    assert found.filled == 1.0
    assert 2 * found.documents.pairs() == pytest.approx((60**2 + 40**2 + 70**2 + 30**2 + 2 * 50**2) / 3, rel=0.01)


def test_whole_documents_longer_than_a_sequence_are_cut_at_its_end():
    found = packed([250], [1.0], 100, "whole")  # two of 100, and 50, of which two fill one
    assert 2 * found.documents.pairs() == pytest.approx((2 * 2 * 100**2 + 2 * 50**2) / 5, rel=0.01)


def test_cut_by_hand():
    # Of 3 tokens in sequences of 4, in turn: 3 1, 2 2, 1 3.
    found = packed([3], [1.0], 4, "cut")
    assert 2 * found.documents.pairs() == pytest.approx(((9 + 1) + (4 + 4) + (1 + 9)) / 3)
    assert found.documents.count == pytest.approx(2.0)


def test_cut_is_the_mean_of_a_long_run():
    generator = np.random.default_rng(5)
    lengths = (generator.lognormal(5.5, 1.0, 300).astype(int) + 1).tolist()
    sequence = 2048
    stream = generator.choice(lengths, 200_000)
    ends = np.cumsum(stream)
    whole = int(ends[-1]) // sequence
    edges = np.union1d(ends[ends <= whole * sequence], sequence * np.arange(1, whole + 1))
    pieces = np.diff(edges, prepend=0).astype(float)
    squares = np.bincount((edges - 1) // sequence, weights=pieces**2)
    found = packed(lengths, [1.0] * len(lengths), sequence, "cut")
    assert 2 * found.documents.pairs() == pytest.approx(squares.mean(), rel=0.01)
    assert found.documents.count == pytest.approx(len(pieces) / whole, rel=0.01)
    assert found.spread == pytest.approx(squares.std() / squares.mean(), rel=0.05)


def test_counts_are_repeated_lengths():
    once = packed([100, 300, 300], [1.0, 1.0, 1.0], 1000, "cut").documents
    counted = packed([100, 300], [1.0, 2.0], 1000, "cut").documents
    assert once.pairs() == pytest.approx(counted.pairs())


def test_documents_fill_their_sequences():
    lengths = (np.random.default_rng(2).lognormal(6.5, 1.2, 4000).astype(int) + 1).tolist()
    for packing in ("cut", "whole"):
        found = packed(lengths, [1.0] * len(lengths), 8192, packing).documents
        # Gathered lengths are roots of mean squares, a little above the mean.
        assert sum(length * count for length, count in found.pieces) == pytest.approx(8192, rel=2e-3)


def test_very_many_and_very_long_documents_are_packed_as_few_are():
    short, long = (packed([100, 20_000], [50 * n, n], 4096, "cut") for n in (1e3, 1e10))
    assert long.documents.pairs() == pytest.approx(short.documents.pairs())
    assert long.spread == pytest.approx(short.spread, rel=0.1)
    assert packed([1], [1.0], 131_072, "cut").spread < 0.001
    of = packed([10**9], [1.0], 1000, "whole")
    assert of.documents is None and of.filled == 1.0 and of.spread == 0.0
