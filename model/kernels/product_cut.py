"""How the library cuts products: by their shapes and by facts of the GPU alone.

Of the tiles that it has (:mod:`joulecast.model.kernels.product_tiles`) the library is taken to pick the fastest, at
the pace that it expects of all GPUs. Nothing that a fit moves is in it, so that a fit, which lowers the same products
thousands of times, finds their cut once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.model.kernels.product_pace import expected_pace
from joulecast.model.kernels.product_tiles import COUNTED_WAVES, ProductTiles
from joulecast.model.kernels.unaligned import extra_loads

#: Cuts that are kept: those of all groups of rows between which a fit, its folds and its intervals go to and fro.
KEPT = 256


@dataclass(frozen=True, slots=True)
class Cutter:
    """What decides beside their shapes how products are cut.

    Attributes
    ----------
    library, layout, size
        Its tiles, how operands lie in memory, and bytes of a value.
    rate
        Operations of an SM in a cycle.
    sm_count, max_clock_mhz
        Of the GPU.
    separate
        Whether a batch is launched product by product on several streams.
    """

    library: ProductTiles
    layout: str
    size: float
    rate: float
    sm_count: float
    max_clock_mhz: float
    separate: bool


@dataclass(frozen=True, eq=False)
class Cut:
    """How ``n`` products are cut; every field has shape ``(n,)`` unless it says otherwise, none is to be written to.

    Attributes
    ----------
    tile
        Rows and columns of the result, shape ``(n, 2)``.
    splits, outputs, waves
        Parts of K, tiles of the result, and times that an SM takes one of all parts' tiles.
    left, right
        What loading the operands takes more than from rows of whole lines, as factors.
    launches_s
        Launches before and behind a product's own [s].
    """

    tile: Array
    splits: Array
    outputs: Array
    waves: Array
    left: Array
    right: Array
    launches_s: Array


def cut_of(by: Cutter, m: Array, n: Array, k: Array, batch: Array, spare: ArrayLike) -> Cut:
    """How products of these sizes are cut, arrays of shape ``(n,)``; ``spare``: rows of tiles beyond ``m``."""
    sizes = np.empty((5, len(m)))
    for row, values in zip(sizes, (m, n, k, batch, spare), strict=True):
        row[:] = values
    return _cut(by, sizes.tobytes())


@lru_cache(maxsize=KEPT)
def _cut(by: Cutter, sizes: bytes) -> Cut:
    values = np.frombuffer(sizes)
    m, n, k, batch, spare = values.reshape(5, len(values) // 5)
    library, covered = by.library, m + spare
    best = _choice(by, covered, n, k, batch)
    rows, columns, splits = library.rows[best], library.columns[best], library.splits[best]
    outputs = np.ceil(covered / rows) * np.ceil(n / columns) * batch
    waves = np.ceil(outputs * splits / by.sm_count)
    if by.separate:
        # Half-way between all at once and one after another, as on four streams [estimate from SimuMax, B200].
        waves = np.sqrt(waves * np.ceil(outputs * splits / batch / by.sm_count) * batch)
    whole = np.ones_like(m)
    left, right = extra_loads(m, n, k, by.layout, by.size) if library.kind.by_lines else (whole, whole)
    launches_s = _launches_s(library, waves, splits)
    found = Cut(np.stack([rows, columns], axis=-1), splits, outputs, waves, left, right, launches_s)
    for values in vars(found).values():
        values.flags.writeable = False
    return found


def _choice(by: Cutter, m: Array, n: Array, k: Array, batch: Array) -> Int:
    """Index of the choice that the library is taken to make, shape ``(n,)``."""
    library, splits = by.library, by.library.splits
    if library.small_side:
        return np.where(np.minimum(m, n) <= library.small_side, 0, 1)
    pace = expected_pace(library, by.size, by.rate)
    together = np.ones_like(batch) if by.separate else batch  # on several streams each is chosen for itself
    m, n, k, batch = (each[:, None] for each in (m, n, k, together))
    waves = np.ceil(np.ceil(m / library.rows) * np.ceil(n / library.columns) * batch * splits / by.sm_count)
    cycles = waves * pace.tile(library.rows, library.columns, k / splits)
    split = splits > 1
    cycles = cycles + split * pace.sum(library.rows, library.columns, batch * m * n, splits)
    cycles = cycles + _launches_s(library, waves, splits) * by.max_clock_mhz * 1e6
    caution = np.where(waves > library.few_waves, library.beyond, library.caution)
    return np.asarray(np.argmin(np.where(k / splits < library.least_part, np.inf, cycles * caution), axis=1))


def _launches_s(library: ProductTiles, waves: Array, splits: Array) -> Array:
    """Time of launches before and behind a product's own [s]."""
    return library.kind.counter_s * (waves >= COUNTED_WAVES) + library.kind.sum_s * (splits > 1)
