"""Registers that a thread of a row-wise kernel with an explicit schedule needs.

A thread keeps its values, and of norms the weights of its columns where its loads leave room:

    needed = own + each·values + w·max(0, columns − free)

Once the values alone do not fit, the weights are read again instead, but the compiler lengthens what spills by a share
of the values: those that wait between two combinations of a row, or for their weights; many weights wait too.
Element-wise kernels work in place and spill the excess alone. Source: registers and spilled words of 221 kernels as
Triton 3.6 compiles them for sm_90, 64 to 256 values a thread; of those with 256 in 255 registers the words are met
within 40 % (standard deviation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.occupancy import available_registers
from joulecast.model.kernels.tile_estimates import estimate

#: Patterns that combine the values of a row as they come, and so hold few of them.
FOLDING = ("reduce_min", "sum", "gemv")
#: Patterns that need a whole row at a time.
WHOLE_ROWS = ("rmsnorm", "layernorm", "softmax", "log_softmax", "norm_backward")
#: Patterns that combine the values of a row twice.
COMBINED = ("layernorm", "softmax", "log_softmax", "norm_backward")
#: Patterns that multiply each column by a weight.
WEIGHTED = ("rmsnorm", "layernorm", "norm_backward")
#: Patterns that add a second weight to each column, which leaves no room for the first, and registers of such a pair.
SHIFTED, REGISTERS_PER_PAIR = ("layernorm",), 0.5
#: Weights of columns for which a thread has room in registers that its loads leave free, and registers of each other.
FREE_WEIGHTS, REGISTERS_PER_WEIGHT = 40.0, 0.7
#: Values that a thread holds where it combines them as they come, or keeps them in shared memory.
FEW = 16.0
#: Words that spill beside the excess, per value that a thread holds and per column beyond the few whose weights come
#: and go [1; estimate, +-0.15].
MORE_SPILLED, FEW_COLUMNS = 0.3, 64.0


def needed_registers(
    patterns: Sequence[str], values: Array, rows: Array, staged: Bool, threads: Array, gpu: GpuModel
) -> Array:
    """Registers that a thread needs to keep everything out of memory, shape ``(n,)``.

    Parameters
    ----------
    patterns
        Of the kernels without a schedule, ``n`` of them.
    values, rows
        Values of a thread, and the rows that they are of, shape ``(n,)``.
    staged
        Whether values are kept in shared memory, shape ``(n,)``.
    threads
        Of a block, shape ``(n,)``.
    """
    folding, weighted = (np.array([p in some for p in patterns]) for some in (FOLDING, WEIGHTED))
    held = np.where(staged | folding, np.minimum(values, FEW), values)
    columns = held / rows
    own, each = (estimate(gpu, f"kernel.tile_rows.{name}") for name in ("registers", "registers_per_value"))
    plain = own + each * held
    weights = REGISTERS_PER_WEIGHT * (columns - FREE_WEIGHTS).clip(0.0) * weighted
    weights = np.where([p in SHIFTED for p in patterns], REGISTERS_PER_PAIR * columns, weights)
    waiting = np.array([p in COMBINED for p in patterns]) | (weighted & (columns > FREE_WEIGHTS))
    spilling = plain > available_registers(threads, gpu)
    spilled = MORE_SPILLED * (held * waiting + (columns - FEW_COLUMNS).clip(0.0) * weighted)
    return np.asarray(plain + np.where(spilling, spilled, weights))
