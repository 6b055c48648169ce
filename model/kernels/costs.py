"""Work of many kernels as arrays, and its time and energy at any clock.

A kernel is lowered once, for one GPU, to quantities that no clock changes; time and energy then follow in closed form
for every clock at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from joulecast.arrays import Array, Int


@dataclass(frozen=True)
class Costs:
    """Clock-independent work of ``n`` kernels on one GPU; every field is an array of shape ``(n,)``.

    Attributes
    ----------
    fixed_s
        Launch and latency floor [s].
    wait_s
        Time that the SMs wait beside nothing else, with work at hand [s].
    core_cycles
        SM clock cycles on the critical path [cycles].
    memory_s
        Time that the memory (HBM, or L2 where the data stay there) needs on its own [s].
    link_s
        Time that the link needs on its own [s].
    tiles
        Tiles of the library's products, of which an SM has one at a time [1]; 0 where no waves of them show.
    overlap
        Exponent of the smooth maximum of these times [1], 0 where it is the GPU's ``kernel.overlap_exponent``.
    activity
        SM-side activity while running: share of the SMs' clocked logic that is busy [1].
    tensor_use
        Share of the dense tensor rate that the critical path uses [1].
    tensor_j, vector_j, onchip_j
        Dynamic energy of tensor units, vector units and on-chip memory at the reference voltage [J].
    hbm_j, link_j
        Dynamic energy of HBM and link; they have their own supply [J].
    family
        Index into :data:`joulecast.model.kernels.families.FAMILIES`: kernels whose errors are alike.
    """

    fixed_s: Array
    wait_s: Array
    core_cycles: Array
    memory_s: Array
    link_s: Array
    tiles: Array
    overlap: Array
    activity: Array
    tensor_use: Array
    tensor_j: Array
    vector_j: Array
    onchip_j: Array
    hbm_j: Array
    link_j: Array
    family: Int

    def __len__(self) -> int:
        return len(self.fixed_s)

    def take(self, index: Int | Sequence[int]) -> Costs:
        """Rows ``index`` of every array."""
        rows = np.asarray(index, dtype=np.int64)
        return Costs(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def concatenate(parts: Sequence[Costs]) -> Costs:
    """One table from several."""
    return Costs(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Costs)})


def zeros(count: int) -> dict[str, Array]:
    """Float columns of a :class:`Costs` filled with zeros, to be overwritten by a lowering."""
    return {f.name: np.zeros(count) for f in fields(Costs) if f.name != "family"}
