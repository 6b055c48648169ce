"""The compiled inner loop of the evaluator; importing this module imports numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from joulecast.arrays import Array, Int


@njit(cache=True)
def evaluate_blocks(
    blocks: NDArray[np.uint8],
    order: Int,
    row: Int,
    previous: Int,
    source: Int,
    latency_ns: Int,
    last: Int,
    duration_ns: Int,
    extra_j: Array,
) -> tuple[Int, Array]:
    """Time and energy above waiting of every plan; see :class:`joulecast.simulator.closed_form.evaluator.Evaluator`."""
    n_blocks, n, width = blocks.shape
    time = np.zeros((n_blocks, width), dtype=np.int64)
    energy = np.zeros((n_blocks, width))
    end = np.zeros((n + 1, width), dtype=np.int64)
    for b in range(n_blocks):
        total, finish = energy[b], time[b]
        for i in range(n):
            index = blocks[b, order[i]]
            duration, extra = duration_ns[row[i]], extra_j[row[i]]
            before, after = end[previous[i]], end[i]
            for j in range(1, len(source)):
                if source[j, i] < n:
                    sent, latency = end[source[j, i]], latency_ns[j, i]
                    for k in range(width):
                        after[k] = max(before[k], sent[k] + latency)
                    before = after
            if source[0, i] < n:
                sent, latency = end[source[0, i]], latency_ns[0, i]
                for k in range(width):
                    clock = index[k]
                    total[k] += extra[clock]
                    after[k] = max(before[k], sent[k] + latency) + duration[clock]
            else:
                for k in range(width):
                    clock = index[k]
                    total[k] += extra[clock]
                    after[k] = before[k] + duration[clock]
        for i in last:
            after = end[i]
            for k in range(width):
                finish[k] = max(finish[k], after[k])
    return time, energy
