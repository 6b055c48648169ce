"""How the values of a tile lie over the threads of a block.

A thread takes vectors of at most 16 bytes along a row. The lanes of a warp lie along the row first, then the warps of
the block; what is left of both lies over further rows. A tile with fewer values than the block has threads is held more
than once. Source: the blocked layouts that Triton 3.6 gives 50 row-wise kernels, as compiled for sm_90.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.kernels.occupancy import WARP

#: Bytes that one instruction of a thread loads at most.
VECTOR_BYTES = 16.0


@dataclass(frozen=True)
class RowLayout:
    """Layout of ``n`` tiles; every field has shape ``(n,)``.

    Attributes
    ----------
    lanes
        Threads of a warp that share a row.
    across, down
        Warps that share a row, and groups of warps with rows of their own.
    rows
        Rows of which a thread holds values.
    loads
        Vectors that a thread loads of a tile.
    """

    lanes: Array
    across: Array
    down: Array
    rows: Array
    loads: Array


def row_layout(rows: Array, columns: Array, warps: Array, value_bytes: Array) -> RowLayout:
    """Layout of tiles of ``rows`` × ``columns`` values over ``warps`` warps; all have shape ``(n,)``.

    >>> wide = row_layout(*(np.array([x]) for x in (4.0, 4096.0, 32.0, 2.0)))
    >>> [float(part[0]) for part in (wide.lanes, wide.across, wide.down, wide.rows, wide.loads)]
    [32.0, 16.0, 2.0, 2.0, 2.0]
    """
    vector = (rows * columns / (WARP * warps)).clip(1.0, VECTOR_BYTES / value_bytes)
    lanes = (columns / vector).clip(1.0, WARP)
    across = (columns / (vector * lanes)).clip(1.0, warps)
    down = warps / across
    held = (rows * lanes / (down * WARP)).clip(1.0)
    return RowLayout(lanes, across, down, held, held * columns / (lanes * across * vector))


def barriers(layout: RowLayout) -> Array:
    """Rounds in which the warps of a block wait for each other to combine rows once, shape ``(n,)``.

    One where warps share a row, one more where the results of several rows are then handed to where they are stored.
    """
    shared = layout.across > 1.0
    return np.asarray(shared * (1.0 + (layout.down > 1.0)))
