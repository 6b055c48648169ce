"""Rotary embedding as torchtitan writes it: pairs of values as complex numbers in fp32, times a table of such."""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, one_by_one, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer.rotary import rotated
from joulecast.model.transformer.row_operators import rounded, widened

#: Cycles of an SM for a complex product: kernels of four shapes of a row of
#: `validate/recorded/h200_sxm/train_modules.jsonl`, which differ by 6 % [estimate, +-6 %].
PRODUCT = 0.649


def forward(s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and keys: both widened, both multiplied and rounded."""
    parts = _parts(s, "rotary")
    if s.implementation.compiled:
        return (*_widened(s, parts), *(_product(*part) for part in parts), *_rounded(parts))
    turned = tuple(launch for part in parts for launch in (_product(*part), *_rounded((part,))))
    return (*_widened(s, parts), *turned)


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`: products with the conjugate table, keys first."""
    parts = _parts(s, "rotary.grad")[::-1]
    turned = tuple(launch for part in parts for launch in (*_widened(s, (part,)), _product(*part)))
    return (*turned, *_rounded(parts))


def _parts(s: Shard, name: str) -> tuple[tuple[str, int], ...]:
    return tuple((f"{name}.{part}", values) for part, values in rotated(s))


def _widened(s: Shard, parts: tuple[tuple[str, int], ...]) -> tuple[Launch, ...]:
    if s.implementation.compiled:
        return tuple(streaming("unary", f"{name}.widen", values, writes=2.0, dtype=s.dtype) for name, values in parts)
    return tuple(widened(f"{name}.widen", values, s.dtype) for name, values in parts)


def _product(name: str, values: int) -> Launch:
    return one_by_one("unary", f"{name}.product", values, PRODUCT / 2, dtype="fp32")


def _rounded(parts: tuple[tuple[str, int], ...]) -> tuple[Launch, ...]:
    return tuple(rounded(f"{name}.round", values) for name, values in parts)
