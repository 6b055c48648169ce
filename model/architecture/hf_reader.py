"""Typed access to a model's ``config.json``; every complaint names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from joulecast.errors import InputError

T = TypeVar("T", bool, str)


@dataclass(frozen=True, slots=True)
class Reader:
    """A JSON object of a file, below the keys of ``prefix``."""

    data: Mapping[str, Any]
    file: str
    prefix: str = ""

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise self.error(key, f"missing {key}", "Add it as a whole number.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, f"must be a positive whole number, not {value!r}")
        return value

    def whole(self, key: str) -> int:
        """A whole number that may be missing or zero."""
        return 0 if self.data.get(key) in (None, 0) else self.count(key)

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self.data.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.error(key, f"must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def places(self, key: str, layers: int) -> frozenset[int]:
        """Layers that a list names, counted from 0; none where it is missing."""
        value = self.data.get(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(one, int) and 0 <= one < layers for one in value):
            raise self.error(key, f"must be a list of layers from 0 to {layers - 1}")
        return frozenset(value)

    def table(self, key: str) -> Mapping[str, Any]:
        """An object, empty where it is missing."""
        value = self.data.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(key, f"must be an object, not {value!r}")
        return value

    def divide(self, hidden: int, heads: int, key: str) -> int:
        """Size of a head where the file gives none."""
        if hidden % heads:
            problem = f"the hidden size {hidden} is not divisible by {heads} attention heads"
            raise self.error(key, problem, "Correct one of them or give head_dim.")
        return hidden // heads

    def error(self, key: str, problem: str, remedy: str = "Correct it.") -> InputError:
        """What is wrong with a key, to be raised."""
        return InputError(problem, file=self.file, key=self.prefix + key, remedy=remedy)


def shortest(pattern: Sequence[T]) -> tuple[T, ...]:
    """The shortest pattern that repeats to a longer one."""
    layers = len(pattern)
    periods = (n for n in range(1, layers + 1) if all(pattern[i] == pattern[i % n] for i in range(layers)))
    return tuple(pattern[: next(periods)])
