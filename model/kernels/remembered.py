"""Results that are kept while the parameters that they follow from stand still: fits move a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from typing import Any, Generic, TypeVar

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import Kernels
from joulecast.model.kernels.operators import Operator

#: Results that are kept: those at the point of a search and at a step to either side of it.
KEPT = 4

T = TypeVar("T")


class Recorder(Mapping[str, float]):
    """Parameters that remember which of them were read."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        self._parameters = parameters
        self.read: dict[str, float | None] = {}

    def __getitem__(self, key: str) -> float:
        self.read[key] = self._parameters.get(key)
        return self._parameters[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A parameter, ``default`` without it."""
        found = self.read[key] = self._parameters.get(key)
        return default if found is None else found

    def __contains__(self, key: object) -> bool:
        return self.get(str(key)) is not None

    def over(self, parameters: Mapping[str, float]) -> Recorder:
        """Other parameters with these in their places; what is read of either is remembered here."""
        both = Recorder({**parameters, **self._parameters})
        both.read = self.read
        return both

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


@dataclass(frozen=True, eq=False)
class Found(Generic[T]):
    """A result, and the parameters from which it follows; ``None`` for what a description leaves out."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]
    result: T


class Remembered(Generic[T]):
    """A function of a GPU's parameters, called again only where one that it read has changed.

    Parameters
    ----------
    find
        Of a GPU; reads of it nothing but parameters and what is the same at every call.
    """

    def __init__(self, find: Callable[[GpuModel], T]) -> None:
        self._find = find
        self._known: deque[Found[T]] = deque(maxlen=KEPT)

    def __call__(self, gpu: GpuModel) -> Found[T]:
        """Its result for ``gpu``."""
        known, value = self._known, gpu.parameters.get
        for entry in known:
            if all(map(eq, map(value, entry.names), entry.values)):
                if entry is not known[0]:
                    known.remove(entry)
                    known.appendleft(entry)
                return entry
        recorder = Recorder(gpu.parameters)
        result = self._find(replace(gpu, parameters=recorder))
        entry = Found(tuple(recorder.read), tuple(recorder.read.values()), result)
        known.appendleft(entry)
        return entry


class RememberingKernels(Kernels):
    """Operators that also remember parts of their lowering."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        super().__init__(operators)
        self._parts: dict[Callable[..., Any], Remembered[Any]] = {}

    def part(self, find: Callable[..., T], gpu: GpuModel) -> T:
        """What ``find`` makes of the kernels on a GPU."""
        if find not in self._parts:
            self._parts[find] = Remembered(partial(find, self))
        result: T = self._parts[find](gpu).result
        return result


def part(find: Callable[[Any, GpuModel], T], operators: Sequence[Operator], gpu: GpuModel) -> T:
    """What ``find`` makes of kernels on a GPU; some kernels remember it."""
    return operators.part(find, gpu) if isinstance(operators, RememberingKernels) else find(operators, gpu)


def with_values(gpu: GpuModel, values: Mapping[str, float]) -> GpuModel:
    """``gpu.with_values(values)``, which tells a :class:`Recorder` of values which of them are read."""
    if isinstance(values, Recorder):
        return replace(gpu, parameters=values.over(gpu.parameters))
    return gpu.with_values(values)
