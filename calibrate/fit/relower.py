"""Lowering of the same kernels again and again while a fit moves a few parameters at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from joulecast.arrays import Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import Columns
from joulecast.model.kernels.costs import Costs, zeros
from joulecast.model.kernels.families import families_of
from joulecast.model.kernels.lowering import OperatorGroup, group_operators, lower_group
from joulecast.model.kernels.operators import Operator
from joulecast.model.kernels.remembered import Found, Remembered, RememberingKernels


class Relowering:
    """:func:`joulecast.model.kernels.lowering.lower` for fixed operators, redone only where a parameter has changed.

    Parameters
    ----------
    operators
        Kernels, ``n`` of them.
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        groups = group_operators(operators)
        self._groups: list[OperatorGroup] = [replace(g, operators=RememberingKernels(g.operators)) for g in groups]
        self._lowered = [Remembered(partial(lower_group, group)) for group in self._groups]
        self._shown: list[Found[Columns] | None] = [None] * len(self._groups)
        self._readers: dict[str, set[int]] = {}
        self._before: dict[str, float | None] = {}
        self._stale = set(range(len(groups)))
        self._columns = zeros(len(operators))
        self._operators = tuple(operators)
        self._family: Int | None = None

    def __call__(self, gpu: GpuModel) -> Costs:
        """Work of the kernels on ``gpu``: what ``lower`` gives, of the same device at every call."""
        value = gpu.parameters.get
        moved = [name for name, before in self._before.items() if value(name) != before]
        stale = self._stale.union(*(self._readers[name] for name in moved))
        self._stale = set(range(len(self._groups)))  # should one of them be refused
        for place in sorted(stale):
            lowered = self._lowered[place](gpu)
            if lowered is not self._shown[place]:
                for name, column in lowered.result.items():  # a group has the same columns at any values
                    self._columns[name][self._groups[place].index] = column
                self._shown[place] = lowered
            for name in lowered.names:
                self._readers.setdefault(name, set()).add(place)
        if stale:
            self._before = {name: value(name) for name in self._readers}
        self._stale = set()
        if self._family is None:
            self._family = families_of(self._operators, gpu.device)
        return Costs(**{name: column.copy() for name, column in self._columns.items()}, family=self._family)
