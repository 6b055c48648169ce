"""Joulecast forecasts the time, power and energy of training a large language model.

>>> import joulecast as jc
>>> jc.Gemm(m=8192, n=8192, k=8192, dtype="bf16").m
8192

Everything named in ``__all__`` is imported on first use, so that ``import joulecast`` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.api import choose, compare, convert, front, gpu, meter, predict, sweep
    from joulecast.errors import (
        DataError,
        DoesNotFitError,
        GuardError,
        InputError,
        JoulecastError,
        NotYetError,
        UnknownNameError,
    )
    from joulecast.model.cluster.fabric import Fabric
    from joulecast.model.kernels.operators import Attention, Collective, Gemm, RowTile, Scan, Streaming, Tile

__version__ = "0.1.0"

_HOMES = {
    "Attention": "joulecast.model.kernels.operators",
    "Collective": "joulecast.model.kernels.operators",
    "DataError": "joulecast.errors",
    "DoesNotFitError": "joulecast.errors",
    "Fabric": "joulecast.model.cluster.fabric",
    "Gemm": "joulecast.model.kernels.operators",
    "GuardError": "joulecast.errors",
    "InputError": "joulecast.errors",
    "JoulecastError": "joulecast.errors",
    "NotYetError": "joulecast.errors",
    "RowTile": "joulecast.model.kernels.operators",
    "Scan": "joulecast.model.kernels.operators",
    "Streaming": "joulecast.model.kernels.operators",
    "Tile": "joulecast.model.kernels.operators",
    "UnknownNameError": "joulecast.errors",
    "choose": "joulecast.api",
    "compare": "joulecast.api",
    "convert": "joulecast.api",
    "front": "joulecast.api",
    "gpu": "joulecast.api",
    "meter": "joulecast.api",
    "predict": "joulecast.api",
    "sweep": "joulecast.api",
}

__all__ = [
    "Attention",
    "Collective",
    "DataError",
    "DoesNotFitError",
    "Fabric",
    "Gemm",
    "GuardError",
    "InputError",
    "JoulecastError",
    "NotYetError",
    "RowTile",
    "Scan",
    "Streaming",
    "Tile",
    "UnknownNameError",
    "__version__",
    "choose",
    "compare",
    "convert",
    "front",
    "gpu",
    "meter",
    "predict",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'joulecast' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
