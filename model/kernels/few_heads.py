"""Attention of few heads: what its longest thread blocks take where there are hardly more blocks than SMs.

FlashAttention-2's forward kernel has four warps in a block and two blocks on an SM, which hide each other's softmax:
one alone reaches the share s of the SM's rate, two a half each. Blocks are placed in order, first one on every SM, then
a second one; a block of b units beside one of a <= b ends after ``2 a + (b - a) / s``.

Where blocks are few it splits the keys among blocks of 64 queries, by Dao's rule (flash-attention,
``num_splits_heuristic`` in ``flash_api.cpp``, BSD-3): the fewest parts that fill 85 % as much of the last round as the
best number does. A step of 64 queries takes as long as one of 128, for each of the four warps has half as many matrix
instructions in flight. What adds up the parts finds them in L2 and is not counted.
"""

from __future__ import annotations

import numpy as np

from joulecast.arrays import Array

#: Share of an SM's rate that a block alone on it reaches: four heads of 4,096 tokens beside 16 on one H200
#: [estimate, +-5 %]; it gives 4 to 64 heads on A100 PCIe within 10 % too (SimuMax).
ALONE = 0.88
#: Queries of a block where keys are split, blocks on an SM, and the most parts.
SPLIT_QUERIES, RESIDENT, MOST_SPLITS = 64, 2, 128
#: Share of the places that blocks must take for keys to stay whole, and of the best filling that is good enough.
FULL, GOOD = 0.8, 0.85


def key_splits(heads: Array, queries: Array, keys: Array, head_dim: Array, sm_count: float) -> Array:
    """Parts in which FlashAttention-2's forward kernel takes the keys.

    Parameters
    ----------
    heads
        Heads of all sequences.
    queries, keys, head_dim
        Positions, and the width of a head; all of shape ``(n,)``.
    sm_count
        SMs of the GPU.
    """
    places = RESIDENT * sm_count
    blocks = heads * np.ceil(queries / SPLIT_QUERIES)
    splits = np.ones(len(blocks))
    few = blocks < FULL * places
    if not few.any():
        return splits
    key_blocks = np.ceil(keys / np.where(head_dim <= 64, 256, np.where(head_dim <= 128, 128, 64)))[few, None]
    counts = np.arange(1.0, min(MOST_SPLITS, sm_count * RESIDENT) + 1.0)
    rounds = blocks[few, None] * counts / places
    filled = rounds / np.ceil(rounds)
    smaller = np.ceil(key_blocks / counts) != np.ceil(key_blocks / np.maximum(counts - 1.0, 1.0))
    eligible = (counts <= key_blocks) & (smaller | (counts == 1.0))
    filled = np.where(eligible, filled, 0.0)
    splits[few] = counts[np.argmax(filled >= GOOD * filled.max(axis=1, keepdims=True), axis=1)]
    return splits


def longest_of_pairs(
    heads: Array, per_head: Array, keys: Array, causal: Array, overhead: Array, sm_count: float
) -> Array:
    """Units until the longest block ends beside the one that it shares its SM with, 0 where every block is alone.

    Parameters
    ----------
    heads, per_head, keys, causal
        Heads of all sequences, blocks of queries in one, blocks of keys, and whether the later ones are masked; of
        shape ``(n,)``.
    overhead
        Units of a block's start and end.
    sm_count
        SMs of the GPU.
    """
    offset = sm_count % per_head  # a block's partner is this much longer, or begins the next head
    extra = heads * per_head - sm_count
    partner = np.where(causal > 0, keys - offset, keys)
    around = np.where(causal > 0, keys - per_head + offset, keys)  # a head's longest beside the next head's block
    both = np.maximum(partner, np.where(extra >= per_head, around, 0.0)) + overhead
    longest = keys + overhead
    return np.where(extra > 0, 2.0 * both + (longest - both) / ALONE, 0.0)
