"""Hashes of frozen dataclasses with many fields, by which much is looked up."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


class HashedOnce:
    """Base of a frozen dataclass with slots that :func:`hashed_once` decorates: where its hash is kept.

    The hash is no field: it is neither compared, written, copied nor sent to another process, which has hashes of its
    own.
    """

    __slots__ = ("_hash",)


def hashed_once(of: Class) -> Class:
    """Have the hash of a frozen dataclass's fields computed when it is first asked for, and kept.

    >>> from dataclasses import dataclass
    >>> @hashed_once
    ... @dataclass(frozen=True, slots=True)
    ... class Pair(HashedOnce):
    ...     first: int
    ...     second: int
    >>> hash(Pair(1, 2)) == hash(Pair(1, 2)) == hash((1, 2))
    True
    """
    of_fields: Callable[[Any], int] = vars(of)["__hash__"]

    def __hash__(self: Any) -> int:
        try:
            return self._hash  # type: ignore[no-any-return]  # a word more would be another line of a hot path
        except AttributeError:
            found = of_fields(self)
            object.__setattr__(self, "_hash", found)
            return found

    of.__hash__ = __hash__  # type: ignore[method-assign, assignment]
    return of


@lru_cache(maxsize=4096)
def shared(one: Any) -> Any:
    """The first value that is equal to this one: what is looked up by either then finds it without comparing fields."""
    return one
