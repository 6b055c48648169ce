"""What the lowerings of all kinds of kernels have in common: columns of operators' fields, and energy of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Gemm, Operator, Streaming
from joulecast.model.kernels.toggling import memory_toggle

#: Columns of :class:`~joulecast.model.kernels.costs.Costs` by name.
Columns = dict[str, Array]

PICO = 1e-12


class Kernels(list[Any]):
    """Operators that remember columns of their fields: a fit lowers the same ones thousands of times."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        super().__init__(operators)
        self._columns: Columns = {}

    def column(self, name: str) -> Array:
        """One field of all operators, not to be written to."""
        if name not in self._columns:
            self._columns[name] = column(list(self), name)
            self._columns[name].flags.writeable = False
        return self._columns[name]


def column(items: Sequence[object], name: str) -> Array:
    """One field of all items, shape ``(n,)``."""
    if isinstance(items, Kernels):
        return items.column(name)
    return np.array([getattr(item, name) for item in items], dtype=np.float64)


def footprints(operators: Sequence[Streaming | Gemm], own_bytes: Array) -> Array:
    """Data touched between two uses, shape ``(n,)`` [bytes]: the kernel's own where nothing is said."""
    said = [operator.footprint_bytes for operator in operators]
    return np.array([own if f is None else f for f, own in zip(said, own_bytes, strict=True)], dtype=np.float64)


def hbm_energy_j(bytes_: Array, gpu: GpuModel, data: str = "randn") -> Array:
    """Energy of bytes to and from HBM: a part that always flows and one per flipped bit [J]."""
    per_byte = gpu["power.hbm_base_pj_per_byte"] + gpu["power.hbm_toggle_pj_per_byte"] * memory_toggle(data)
    return bytes_ * per_byte * PICO
