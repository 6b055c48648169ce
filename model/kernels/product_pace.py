"""Cycles that tiles of matrix products take on an SM.

    K·(m^8 + l^8 + f^8)^(1/8) + c0·BM·BN/(128·256),    m = 2·BM·BN / (R·η),    η = η0 / (1 + b·(64/BM + 64/BN)²)

with R the dense rate of one SM, l what loading the operands takes ((a·BM + b·BN)·size over the bytes that the SM loads
in a cycle, a and b by how operands lie in memory), f a least time of a step along K and c0 the end of a tile, whose
result leaves. η falls for small tiles because every operand byte staged through shared memory then serves
fewer operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.kernels.product_tiles import ProductTiles

#: Tile by which operand traffic is counted, so that it grows smoothly with the product.
REFERENCE_TILE = (128.0, 256.0)
#: Values of K are taken so many bytes at a time.
STEP_BYTES = 128.0
#: Exponent of the smooth maximum of a tile's operations and loads, by tiles on which both are near.
SMOOTH = 8.0


def tile_efficiency(bm: Array, bn: Array, eta: float, penalty: float) -> Array:
    """Share of the dense rate that a tile of ``bm × bn`` reaches between its first and last operand load."""
    return np.asarray(eta / (1.0 + penalty * (64.0 / bm + 64.0 / bn) ** 2))


@dataclass(frozen=True)
class Pace:
    """Cycles that tiles of products of one kind take on an SM.

    Attributes
    ----------
    library, size
        Its tiles, and bytes of an operand's value.
    rate, eta, penalty, loads
        Operations of an SM in a cycle, of which so large a share is reached, less for small tiles; bytes that it loads.
    end
        Cycles at the end of a tile of :data:`REFERENCE_TILE`.
    l2_bytes
        Bytes that L2 gives all SMs in a cycle.
    bias
        Cycles that a bias puts off the end of any tile.
    """

    library: ProductTiles
    size: float
    rate: Array | float
    eta: float
    penalty: float
    loads: float
    end: float
    l2_bytes: float
    bias: float = 0.0

    def tile(
        self, rows: Array, columns: Array, k: Array, left: Array | float = 1.0, right: Array | float = 1.0
    ) -> Array:
        """Of a tile with ``k`` values to sum; ``left``, ``right``: what loading the operands takes more."""
        step = STEP_BYTES / self.size
        eta = tile_efficiency(rows, columns, self.eta, self.penalty * self.library.kind.penalty)
        operations = (2.0 * rows * columns / (self.rate * eta)) ** SMOOTH
        loads = ((rows * left + self.library.kind.shared * columns * right) * self.size / self.loads) ** SMOOTH
        pace = (operations + loads + (self.library.kind.least_step / step) ** SMOOTH) ** (1.0 / SMOOTH)
        return np.asarray(np.ceil(k / step) * step * pace + self.ends(rows, columns))

    def ends(self, rows: Array, columns: Array) -> Array:
        """Of what follows a tile's last operation: its result leaves."""
        share = rows * columns / (REFERENCE_TILE[0] * REFERENCE_TILE[1])
        by_size = np.ones_like(share) if self.library.kind.ends_alike else share
        return np.asarray(self.end * self.library.kind.end * by_size + self.bias)

    def sum(self, rows: Array, columns: Array, values: Array, splits: Array) -> Array:
        """Of what adds up so many results, whose K is split: partial sums in fp32 are written and read, through L2."""
        return np.asarray(self.ends(rows, columns) + 2.0 * 4.0 * values * splits / self.l2_bytes)


def expected_pace(library: ProductTiles, size: float, rate: float) -> Pace:
    """What a library expects when it chooses, of SMs with so many operations in a cycle.

    The same of all GPUs, and near the H200's ``kernel.gemm``: with values that are being fitted a choice would jump
    while they move, and a step of one of them seem to tell much. Each GPU's kernels load as fast as they compute.
    """
    loads = 76.0 * rate * size / (4096.0 * 2.0)
    return Pace(library, size, rate, eta=0.9, penalty=0.01, loads=loads, end=3300.0, l2_bytes=3500.0)
