"""Operators as the Python that makes them, so that a kernel of a trace can be asked for again."""

from __future__ import annotations

from dataclasses import MISSING, fields

from joulecast.model.kernels.documents import Documents
from joulecast.model.kernels.operators import Operator

#: Most lengths of documents that are written out, for each kernel of a trace.
MOST_LENGTHS = 16


def operator_text(operator: Operator) -> str:
    """An operator with what is not its default; names, tiles and links are left out, and documents of many lengths.

    Examples
    --------
    >>> from joulecast.model.kernels.operators import Gemm, Streaming
    >>> operator_text(Gemm(4096, 3072, 4096, name="qkv"))
    'Gemm(m=4096, n=3072, k=4096)'
    >>> operator_text(Streaming("copy", 1e9, 1e9, footprint_bytes=float("inf")))
    "Streaming(pattern='copy', bytes_read=1000000000.0, bytes_written=1000000000.0, footprint_bytes=float('inf'))"
    """
    told = []
    for one in fields(operator):
        value = getattr(operator, one.name)
        plain = isinstance(value, int | float | str) or _is_short(value)
        if one.name != "name" and one.init and plain and (one.default is MISSING or value != one.default):
            told.append(f"{one.name}={_text(value)}")
    return f"{type(operator).__name__}({', '.join(told)})"


def _is_short(value: object) -> bool:
    return isinstance(value, Documents) and len(value.pieces) <= MOST_LENGTHS


def _text(value: float | str | Documents) -> str:
    return "float('inf')" if value == float("inf") else repr(value)
