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
    from joulecast.model.kernels.documents import Documents
    from joulecast.model.kernels.operators import Attention, Collective, Gemm, RowTile, Scan, Streaming, Tile

__version__ = "0.2.0"

#: Public names by the module that has them.
_MODULES = {
    "joulecast.api": ("choose", "compare", "convert", "front", "gpu", "meter", "predict", "sweep"),
    "joulecast.errors": (
        "DataError",
        "DoesNotFitError",
        "GuardError",
        "InputError",
        "JoulecastError",
        "NotYetError",
        "UnknownNameError",
    ),
    "joulecast.model.cluster.fabric": ("Fabric",),
    "joulecast.model.kernels.documents": ("Documents",),
    "joulecast.model.kernels.operators": ("Attention", "Collective", "Gemm", "RowTile", "Scan", "Streaming", "Tile"),
}

__all__ = [
    "Attention",
    "Collective",
    "DataError",
    "Documents",
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
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'joulecast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
