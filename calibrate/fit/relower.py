"""Lowering of the same kernels again and again while a fit moves a few parameters at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import Columns, Kernels
from joulecast.model.kernels.costs import Costs, zeros
from joulecast.model.kernels.families import families_of
from joulecast.model.kernels.lowering import OperatorGroup, group_operators, lower_group
from joulecast.model.kernels.operators import Operator

#: Lowered forms of a group that are kept: the point of a search and a step to either side of it.
KEPT = 4


class Recorder(Mapping[str, float]):
    """Parameters that remember which of them were read."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        self._parameters = parameters
        self.read: dict[str, float | None] = {}

    def __getitem__(self, key: str) -> float:
        self.read[key] = self._parameters.get(key)
        return self._parameters[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


@dataclass(frozen=True)
class _Lowered:
    """Columns of a group, and the parameters from which they follow."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]
    columns: Columns


class Relowering:
    """:func:`joulecast.model.kernels.lowering.lower` for fixed operators, redone only where a parameter has changed.

    Parameters
    ----------
    operators
        Kernels, ``n`` of them.
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        groups = group_operators(operators)
        self._groups: list[OperatorGroup] = [replace(group, operators=Kernels(group.operators)) for group in groups]
        self._known: list[deque[_Lowered]] = [deque(maxlen=KEPT) for _ in self._groups]
        self._shown: list[_Lowered | None] = [None] * len(self._groups)
        self._readers: dict[str, set[int]] = {}
        self._before: dict[str, float | None] = {}
        self._stale = set(range(len(groups)))
        self._columns = zeros(len(operators))
        self._operators = tuple(operators)
        self._family: NDArray[np.int64] | None = None

    def __call__(self, gpu: GpuModel) -> Costs:
        """Work of the kernels on ``gpu``: what ``lower`` gives, of the same device at every call."""
        value = gpu.parameters.get
        moved = [name for name, before in self._before.items() if value(name) != before]
        stale = self._stale.union(*(self._readers[name] for name in moved))
        self._stale = set(range(len(self._groups)))  # should one of them be refused
        for place in sorted(stale):
            group, lowered = self._groups[place], self._lowered(place, self._groups[place], gpu)
            if lowered is not self._shown[place]:
                for name, column in self._columns.items():
                    column[group.index] = lowered.columns.get(name, 0.0)
                self._shown[place] = lowered
            for name in lowered.names:
                self._readers.setdefault(name, set()).add(place)
        self._before = {name: value(name) for name in self._readers}
        self._stale = set()
        if self._family is None:
            self._family = families_of(self._operators, gpu.device)
        return Costs(**{name: column.copy() for name, column in self._columns.items()}, family=self._family)

    def _lowered(self, place: int, group: OperatorGroup, gpu: GpuModel) -> _Lowered:
        known, value = self._known[place], gpu.parameters.get
        for entry in known:
            if tuple(map(value, entry.names)) == entry.values:
                if entry is not known[0]:
                    known.remove(entry)
                    known.appendleft(entry)
                return entry
        recorder = Recorder(gpu.parameters)
        columns = lower_group(group, replace(gpu, parameters=recorder))
        entry = _Lowered(tuple(recorder.read), tuple(recorder.read.values()), columns)
        known.appendleft(entry)
        return entry
