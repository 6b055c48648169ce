"""Softmax of rows by PyTorch's kernels: a few values of a row in every thread, one after the other.

Up to 2,048 columns a warp takes a row (of up to 128 columns two), padded to a power of two; up to 9,216 a block of
1,024 threads, whose registers keep the row; beyond that such a block keeps it in shared memory and loads 16 bytes at a
time. Rows that are too long for that or not aligned are read three times instead: counted as the last, not measured.

    cycles of an SM = c·v + max(1, r/(n·w))·(L + l·e)

with v the values of an SM, r the rows, n the SMs, w the rows at work on one SM, and e the values of a thread. c is what
the instructions of a value take, which are the same in bf16 and in fp32; l how long a thread waits for each of its
values, and L for the row's maximum and sum. Registers decide w: a thread of a warp with a row of 2,048 needs 80, and 24
warps hide less of l than 40; one of a block with more than six values needs more than 32, and no second block fits.
Nothing hides the reads of the rows that begin together: they come before the rest.

Source: ``aten/src/ATen/native/cuda/SoftMax.cu`` and ``PersistentSoftmax.cuh`` of PyTorch 2.11 for which kernel a width
gets, and its shape; names, registers and cycles of kernels on an H200 (``validate/recorded/products``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.occupancy import WARP, Blocks, resident_blocks

#: The access pattern whose kernels these are.
PATTERN = "softmax"
#: Most columns of a row that one warp takes, and of one of two that it takes together.
WARP_COLUMNS, PAIRED_COLUMNS = 2048, 128
#: Threads of a block of warps, and of one that takes a row; most values that each of the latter keeps in registers.
WARPS_THREADS, ROW_THREADS, MOST_KEPT = 128, 1024, 9
#: Bytes that a thread loads at once where shared memory keeps the row.
VECTOR_BYTES = 16.0
#: Registers of a thread beside its values, and those of each value, of a warp and of a block; of a block with shared
#: memory. Compiled kernels have 48 and 80 for 32 and 64 values, 30 and 34 for five and seven, and 32.
WARP_REGISTERS, KEPT_REGISTERS, SHARED_REGISTERS = (16.0, 1.0), (20.0, 2.0), 32.0
#: c [cycles of an SM per value] where a warp, a block's registers, or shared memory hold the row. 127 shapes of 1,024
#: to 32,768 rows by 128 to 14,336 columns on one H200, as the next two: forecasts miss them by 6 % in the mean, 64 of
#: an H100 by 7 %; by one rate for all widths, 38 and 37 % [+-10 %].
WARP_CYCLES, KEPT_CYCLES, SHARED_CYCLES = 0.26, 0.57, 0.325
#: l [cycles per value of a thread; +-15 %].
VALUE_WAIT = 180.0
#: L of a warp, which shuffles [cycles; estimate, +-50 %], and of a block, which meets at barriers twice [+-15 %].
WARP_WAIT, BLOCK_WAIT = 500.0, 1800.0
#: Bytes of a value in bf16, read and written, by which a description gives cycles and energy of its instructions.
#: Those are the same in wider types: the one softmax in fp32 whose power was measured, 16,384 rows of 128 on an H200,
#: took 6 % less energy than so, and 23 % less than by its own bytes [estimate, +-20 %].
FITTED_BYTES = 4.0
#: The row whose cycles a description gives as bytes that an SM moves in one: most rows of the kernels that calibrations
#: measure are as long.
FITTED_COLUMNS = 8192


@dataclass(frozen=True)
class RowShape:
    """How rows lie on an SM; every field has shape ``(n,)``.

    Attributes
    ----------
    values
        e, of one thread.
    at_work
        w, rows on one SM at a time.
    cycles, wait
        c and L [cycles].
    """

    values: Array
    at_work: Array
    cycles: Array
    wait: Array


def row_shape(columns: Array, value_bytes: float, gpu: GpuModel) -> RowShape:
    """Shape of rows of so many values of ``value_bytes`` [bytes], by the kernel that PyTorch takes."""
    warp, kept = columns <= WARP_COLUMNS, columns <= MOST_KEPT * ROW_THREADS
    padded = 2.0 ** np.ceil(np.log2(np.maximum(columns, 1.0)))
    lanes, together = np.minimum(padded, WARP), np.where(columns <= PAIRED_COLUMNS, 2.0, 1.0)
    vector = VECTOR_BYTES / value_bytes
    of_block = np.where(kept, np.ceil(columns / ROW_THREADS), vector * np.ceil(columns / (vector * ROW_THREADS)))
    values = np.where(warp, together * padded / lanes, of_block)
    of_warp, of_rows = (beside + each * values for beside, each in (WARP_REGISTERS, KEPT_REGISTERS))
    registers = np.where(warp, of_warp, np.where(kept, of_rows, SHARED_REGISTERS))
    threads = np.where(warp, float(WARPS_THREADS), float(ROW_THREADS))
    shared = np.where(kept, 0.0, columns * value_bytes)
    rows = np.where(warp, WARPS_THREADS / lanes * together, 1.0)
    return RowShape(
        values=values,
        at_work=rows * resident_blocks(Blocks(threads, registers, shared), gpu),
        cycles=np.where(warp, WARP_CYCLES, np.where(kept, KEPT_CYCLES, SHARED_CYCLES)),
        wait=np.where(warp, WARP_WAIT, BLOCK_WAIT),
    )


def softmax_cycles(values: Array, columns: Array, value_bytes: float, gpu: GpuModel) -> tuple[Array, Array]:
    """Cycles of all SMs together, and the share of rows that begin together.

    Parameters
    ----------
    values, columns
        Values of the kernels, and of a row of each, shape ``(n,)``; where a row has none the answer says nothing.
    value_bytes
        Of a value that is read [bytes].
    gpu
        Reads ``kernel.streaming.softmax.bytes_per_sm_cycle``, the rate of many rows of :data:`FITTED_COLUMNS`.
    """
    shape = row_shape(columns, value_bytes, gpu)
    rows, together = values / np.maximum(columns, 1.0), shape.at_work * gpu.sm_count
    waves = np.maximum(rows / together, 1.0)
    cycles = values * shape.cycles + gpu.sm_count * waves * (shape.wait + shape.values * VALUE_WAIT)
    return cycles * _slower(gpu), together / np.maximum(rows, together)


def _slower(gpu: GpuModel) -> float:
    """Cycles on a card over those of the constants above: of a row as long as those that were fitted."""
    fitted = row_shape(np.array([float(FITTED_COLUMNS)]), FITTED_BYTES / 2.0, gpu)
    waited = (fitted.wait + fitted.values * VALUE_WAIT) / fitted.at_work
    here = FITTED_COLUMNS * FITTED_BYTES / gpu[f"kernel.streaming.{PATTERN}.bytes_per_sm_cycle"]
    return float(here / (FITTED_COLUMNS * fitted.cycles + waited)[0])
