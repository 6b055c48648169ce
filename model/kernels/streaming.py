"""Kernels that move data: bandwidth by access pattern, L2 residency, and the SM's own issue rate.

    t = t0 - r·d + rows·w / SMs + ((bytes / (φ·B_HBM))^p + ((bytes / x + rows·c) / (SMs·f))^p)^(1/p)

t0 is the time from a kernel's start to its end beside its bytes, d shorter where L2 serves all accesses (r = 1). φ is
the pattern's share of the memory's peak bandwidth, x the bytes that one SM moves in a clock cycle in this pattern: a
strided element-wise kernel is bound by its instructions and slows with the clock, a copy is not. Data that stay in L2
between two uses move at the L2's bandwidth, which also follows the SM clock. Kernels that work row by row lose c cycles
of an SM at each, beside other rows' bytes, and what they need twice comes from L2 again where their SM cannot keep it;
those whose threads go from row to row wait w at each, beside nothing. The softmax of rows has cycles of its own
(:mod:`~joulecast.model.kernels.row_softmax`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.model.hardware.gpu_model import GpuModel

#: Share of a large L2's effective capacity over which residency falls (copies of 20 and 24 MB on one H200), and of a
#: small one's beyond it [estimates, +-20 % and +-50 %].
EDGE, BEYOND = 0.37, 0.1
#: Least size of an L2 that has two halves, A100's being the first (NVIDIA, Ampere GA100 whitepaper) [bytes].
HALVED_BYTES = 32e6
#: Patterns that reduce a row twice, to its maximum and to its sum, before they read it once more; most values of a row
#: that registers keep for them, most bytes that a block's shared memory keeps, and what L2 has to hold for each SM: the
#: rows of two blocks, and of what is written as much as was read off [+-0.3 rows].
THREE_PASS, IN_REGISTERS, IN_SHARED_BYTES, ROWS_HELD = ("log_softmax",), 9216.0, 48 * 1024.0, 2.0 * 1.3
#: Bytes that a block's threads load at once of rows that are read again, and how many more cycles a value takes of what
#: is left of a row, which they load one by one: widths of 24,576, 32,000 and 50,304 in bf16 on an H200 [+-15 %].
BLOCK_BYTES, LEFT_OVER = 1024 * 16.0, 1.35
#: Cycles that an SM loses at each row, by pattern: one more block of threads that waits for its row, or one more
#: term of each column's sums. PyTorch's kernels on one H200, 127 shapes each of 1,024 to 32,768 rows by 128 to 14,336
#: columns (`validate/recorded/products`), which forecasts without missed by 10 to 34 %, with it by 5 to 10 % [+-10 %].
ROW_CYCLES = {
    "gamma_backward": 806.0,
    "layernorm": 233.0,
    "rmsnorm": 113.0,
    "norm_backward": 130.0,
}
#: How long an SM waits at each row, by pattern [s]: each thread of a column's sum adds what it has loaded of some rows
#: before it loads of the next ones, so that the memory's latency shows, at any clock. By 127 shapes on one H200
#: (`validate/recorded/products`); 64 on an H100 are 4.6 % off instead of 7.8 with as many cycles beside the bytes, in
#: fp32 4.4 instead of 9.7, and at three clocks of both cards (`validate/recorded/single_values`) 18 are 4.8 % off
#: instead of 7.3 [+-10 %].
ROW_WAIT_S = {"bias_reduce": 108e-9}
#: Tensors of which PyTorch's norms read every row twice, and the threads of a row's block.
READ_TWICE, ROW_THREADS = {"layernorm": 1, "rmsnorm": 1, "norm_backward": 2}, 128
#: Rows at work on an SM, as a share of its shared memory and L1: up to the first nothing is read from L2 again, from
#: the second on everything is. By the same kernels [+-0.1].
KEPT, LOST = 0.9, 1.3
#: By how much sooner a kernel is over whose data L2 holds, beside its bytes [s]: its first accesses come back sooner,
#: and what it writes last need not leave L2. 127 shapes each on one H200 with and without data in L2, fitted one by one
#: (`validate/recorded/products`): GELU and its gradient 0.6, copies 0.75, products with a number of each column 1.0,
#: sums and casts 1.1 µs. Nine kernels' forms fitted to that card with this miss those of an H100 by 4 to 12 %, without
#: by 7 to 14 [+-30 %].
FROM_L2_S = 0.8e-6


@dataclass(frozen=True)
class StreamingWork:
    """Work of ``n`` streaming kernels; every field has shape ``(n,)``."""

    fixed_s: Array
    cycles: Array
    memory_s: Array
    hbm_bytes: Array
    l2_bytes: Array


def residency(footprint_bytes: Array, gpu: GpuModel) -> Array:
    """Share of accesses that L2 serves when ``footprint_bytes`` are touched between two uses of the same data.

    With least-recently-used replacement a cyclic sweep over more than fits finds nothing left. Addresses are hashed to
    sets, which fill unevenly: a small L2 is full up to the effective capacity and holds nothing from :data:`BEYOND`
    more on. Of a large one each half keeps copies of what its SMs read from the other half: it holds less and less over
    the last :data:`EDGE` of the capacity.
    """
    size = gpu.device["l2_bytes"]
    capacity = gpu["kernel.l2.capacity_share"] * size
    full, none = (1.0 - EDGE, 1.0) if size >= HALVED_BYTES else (1.0, 1.0 + BEYOND)
    return np.clip((none * capacity - footprint_bytes) / ((none - full) * capacity), 0.0, 1.0)


def level_weights(resident: Array, exponent: float) -> tuple[Array, Array]:
    """Weights on a kernel's times from L2 and from memory where only a share r of the data is resident.

    ``r^(1/p)`` and ``(1 - r)^(1/p)``: the smooth maximum of exponent ``p`` then goes from the one time to the other.
    With weights r and 1 - r both levels would work side by side, and a kernel of more bytes take less time; but what
    comes from memory passes L2 as well.
    """
    return resident ** (1.0 / exponent), (1.0 - resident) ** (1.0 / exponent)


def streaming_work(
    pattern: str,
    bytes_: Array,
    footprint_bytes: Array,
    gpu: GpuModel,
    far_bytes: Array | float = 0.0,
    near_bytes: Array | float = 0.0,
    issued: Array | None = None,
    first_bytes: Array | float = 0.0,
) -> StreamingWork:
    """Time and bytes of kernels of one access pattern.

    Parameters
    ----------
    pattern
        Reads ``kernel.streaming.<pattern>.``: ``bandwidth_share`` (φ), ``fixed_s`` (t0).
    bytes_, footprint_bytes
        Bytes read plus written, and data touched between two uses; shape ``(n,)`` [bytes].
    far_bytes
        Part of ``bytes_`` that comes from memory in any case.
    near_bytes
        Bytes beside ``bytes_`` that come from L2 in any case.
    issued
        Cycles of all SMs together for what they issue; by default :func:`issued_cycles` without rows.
    first_bytes
        Part of ``bytes_`` that is read before there is anything else to do, in place of d: from L2 at no cost.
    """
    prefix = f"kernel.streaming.{pattern}."
    resident = residency(footprint_bytes, gpu)
    near, far = level_weights(resident, gpu["kernel.overlap_exponent"])
    reused = 1.0 - far_bytes / np.maximum(bytes_, 1.0)
    hit = resident * reused
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    if issued is None:
        issued = issued_cycles(pattern, bytes_ + near_bytes, 0.0, gpu)
    bandwidth = gpu[prefix + "bandwidth_share"] * peak
    from_l2 = near * reused * bytes_ / (gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count)
    sooner = FROM_L2_S * hit * (np.asarray(first_bytes) == 0.0)
    return StreamingWork(
        fixed_s=np.maximum(gpu[prefix + "fixed_s"] - sooner, 0.0) + (1.0 - hit) * first_bytes / bandwidth,
        cycles=np.maximum(issued / gpu.sm_count, from_l2),
        memory_s=(1.0 - (1.0 - far) * reused) * bytes_ / bandwidth,
        hbm_bytes=(1.0 - hit) * bytes_,
        l2_bytes=bytes_ + near_bytes,
    )


def issued_cycles(pattern: str, bytes_: Array, rows: Array | float, gpu: GpuModel) -> Array:
    """Cycles of all SMs together for what kernels issue for so many bytes in so many rows.

    Reads ``kernel.streaming.<pattern>.bytes_per_sm_cycle`` (x).
    """
    by_bytes = bytes_ / gpu[f"kernel.streaming.{pattern}.bytes_per_sm_cycle"]
    return np.asarray(by_bytes + rows * ROW_CYCLES.get(pattern, 0.0))


def row_waits_s(pattern: str, rows: Array, gpu: GpuModel) -> Array:
    """How long a kernel waits for its rows one after the other, beside nothing else [s]."""
    return np.asarray(rows * (ROW_WAIT_S.get(pattern, 0.0) / gpu.sm_count))


def extra_read_passes(pattern: str, columns: Array, row_bytes: Array, gpu: GpuModel) -> tuple[Array, Array]:
    """Further reads of the input, from memory and from L2, by row-wise kernels that need a row three times.

    Registers or a block's own shared memory keep short rows. Longer ones (``cunn_SoftMaxForward`` in
    ``aten/src/ATen/native/cuda/SoftMax.cu``) are read again from L2 as long as it holds all rows at work, two of 1,024
    threads on each SM: 13 widths of 4,096 to 262,144 values in two types on an H100 and an H200, whose rows at work
    come from L2 up to some 20 and 27 MB and from memory from some 35 and 45 MB on
    (`validate/recorded/framework_kernels/losses.csv`).
    """
    further = 2.0 * _is_read_again(pattern, columns, row_bytes)
    held = residency(ROWS_HELD * gpu.sm_count * row_bytes, gpu)
    return further * (1.0 - held), further * held


def left_over_factor(pattern: str, columns: Array, row_bytes: Array) -> Array:
    """Factor on the cycles of kernels with a row in each block, whose ends threads load value by value."""
    left = (row_bytes % BLOCK_BYTES) / np.maximum(row_bytes, 1.0)
    return np.asarray(1.0 + LEFT_OVER * left * _is_read_again(pattern, columns, row_bytes))


def _is_read_again(pattern: str, columns: Array, row_bytes: Array) -> Bool:
    """Whether a kernel needs its rows several times and no SM keeps them."""
    return (pattern in THREE_PASS) & (columns > IN_REGISTERS) & (row_bytes >= IN_SHARED_BYTES)


def reread_share(pattern: str, row_bytes: Array, gpu: GpuModel) -> Array:
    """Share of what is read that row-wise kernels read from L2 again, as rows at work do not stay on their SMs.

    Norms store no row: L1 keeps what it can of all rows at work on an SM, and L2 all of them.
    """
    tensors = READ_TWICE.get(pattern, 0)
    at_work = tensors * row_bytes * gpu.device["max_threads_per_sm"] / ROW_THREADS
    share = at_work / gpu.device["shared_memory_per_sm_bytes"]
    return np.clip((share - KEPT) / (LOST - KEPT), 0.0, 1.0)
