"""Refuses work that no kernel has, before it becomes a number that means nothing."""

from __future__ import annotations

import math
from numbers import Real

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.operators import DTYPE_BYTES, Attention, Collective, Gemm, Operator, Streaming

#: Orders of a product's operands, and what attention computes.
LAYOUTS, DIRECTIONS = ("tn", "nn", "nt"), ("forward", "backward")


def check_operator(operator: Operator) -> None:
    """Refuse sizes that are not whole or too small, bytes that are negative, and unknown words.

    Raises
    ------
    InputError
        One message with the field, its value and the remedy.
    """
    if isinstance(operator, Gemm):
        _check_gemm(operator)
    elif isinstance(operator, Attention):
        _check_attention(operator)
    elif isinstance(operator, Streaming):
        _check_streaming(operator)
    elif isinstance(operator, Collective):
        _whole(operator, "gpus")
        _optional(operator, "ctas", "threads")
        _amounts(operator, "bytes")
    else:
        kinds = "Gemm, Attention, Streaming or Collective"
        raise InputError(f"{type(operator).__name__} is no kernel", remedy=f"Give a {kinds}.")


def _check_gemm(gemm: Gemm) -> None:
    _whole(gemm, "m", "n", "k", "batch", "parts")
    _named(gemm, "dtype", "data type", tuple(DTYPE_BYTES))
    _named(gemm, "out_dtype", "data type", ("", *DTYPE_BYTES))
    _named(gemm, "layout", "layout", LAYOUTS)
    _footprint(gemm)


def _check_attention(attention: Attention) -> None:
    _whole(attention, "batch", "heads", "kv_heads", "sequence", "head_dim")
    _whole(attention, "kv_sequence", least=0)
    _named(attention, "direction", "direction", DIRECTIONS)
    if attention.heads % attention.kv_heads:
        raise InputError(
            f"{attention.heads} heads cannot share {attention.kv_heads} of keys and values",
            key="kv_heads",
            remedy="Use a divisor of heads.",
        )


def _check_streaming(streaming: Streaming) -> None:
    _amounts(streaming, "bytes_read", "bytes_written", "far_bytes", "elements")
    _whole(streaming, "rows", "columns", least=0)
    _footprint(streaming)


def _whole(operator: Operator, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(operator, name)
        if not (_number(value) >= least and _number(value).is_integer()):
            raise InputError(f"{name} = {value!r}", key=name, remedy=f"It is a whole number of {least} or more.")


def _number(value: object) -> float:
    """A value as a number; NaN where it is none, which no bound holds."""
    return float(value) if isinstance(value, Real) else math.nan


def _optional(operator: Operator, *names: str) -> None:
    _whole(operator, *(name for name in names if getattr(operator, name) is not None))


def _amounts(operator: Operator, *names: str) -> None:
    for name in names:
        value = getattr(operator, name)
        if not 0 <= _number(value) < math.inf:
            raise InputError(f"{name} = {value!r}", key=name, remedy="It is a number of 0 or more.")


def _footprint(operator: Gemm | Streaming) -> None:
    value = operator.footprint_bytes
    if value is not None and not _number(value) >= 0:
        raise InputError(
            f"footprint_bytes = {value!r}", key="footprint_bytes", remedy="It is a number of 0 or more, inf, or None."
        )


def _named(operator: Operator, field: str, kind: str, known: tuple[str, ...]) -> None:
    value = getattr(operator, field)
    if value not in known:
        raise UnknownNameError(kind, str(value), [name for name in known if name], key=field)
