"""Functions in Triton's language become its kernels when they are first needed: importing them does not need Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiled(source: Callable[..., None]) -> Any:
    """The kernel of a function, to be launched as ``kernel[grid](…)``.

    Parameters
    ----------
    source
        In Triton's language, which it knows as ``tl`` of its own module; that is brought in here.

    Raises
    ------
    ImportError
        Triton is missing.
    """
    triton: Any = importlib.import_module("triton")
    source.__globals__["tl"] = importlib.import_module("triton.language")
    return triton.jit(source)
