"""Compilation of inner loops: numba where it is installed, plain Python elsewhere, which is about 100 times slower."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from joulecast.arrays import Int

Function = TypeVar("Function", bound=Callable[..., Any])

_njit: Any = None
try:
    from numba import njit as _njit
except ImportError:
    logging.getLogger(__name__).warning(
        "numba is not installed: fronts are computed in plain Python, about 100 times slower, with fewer plans "
        '(pip install "joulecast[fast]")'
    )

COMPILED = _njit is not None
"""Whether inner loops are compiled."""
SLOWER = 50
"""How much less work is done in plain Python, where plans are sought and not exact values computed."""


def affordable(work: int) -> int:
    """How much of some work may be done where it can be cut short: less in plain Python."""
    return work if COMPILED else work // SLOWER


def compiled(function: Function) -> Function:
    """Compile a function for native types, and keep the result between runs."""
    if _njit is None:
        return function
    fast: Function = _njit(cache=True, error_model="numpy")(function)
    return fast


@compiled
def copy_into(target: Int, source: Int) -> None:
    """``target[:] = source``; of that line numba compiles the error messages too, which takes seconds."""
    for i in range(len(target)):
        target[i] = source[i]
