"""Dropout of the residual stream: each branch before its addition, and the embedding, as GPT-2 has them.

The forward draws a number for each value and keeps a mask of one byte; the backward multiplies by it.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Cycles of an SM for a value of PyTorch's fused kernel, which draws random numbers: 49 kernels of one row of
#: `validate/recorded/h200_sxm/train_modules.jsonl` [estimate, +-3 %].
DRAWN = 0.353


def forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Dropout of a tensor of the residual stream's shape; nothing without it."""
    if not _drops(s):
        return ()
    return (dropped(f"{name}.dropout", s.stream_values, s.dtype),)


def backward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    if not _drops(s):
        return ()
    return (dropped_gradient(f"{name}.dropout.grad", s.stream_values, s.dtype),)


def dropped(name: str, values: int, dtype: str) -> Launch:
    """Dropout of so many values, with a mask of one byte each."""
    mask = 1.0 / DTYPE_BYTES[dtype]
    return issued("unary", name, values, DRAWN * values, writes=1.0 + mask, dtype=dtype)


def dropped_gradient(name: str, values: int, dtype: str) -> Launch:
    """Gradient of :func:`dropped`."""
    return streaming("mul", name, values, reads=1.0 + 1.0 / DTYPE_BYTES[dtype], dtype=dtype)


def kept_bytes(s: Shard) -> float:
    """Masks of a layer's two branches [bytes]."""
    return 2.0 * s.stream_values if _drops(s) else 0.0


def _drops(s: Shard) -> bool:
    """Whether there is any in kernels of its own: Megatron's are fused with what stands beside them."""
    return s.implementation.dropout > 0 and not s.implementation.megatron
