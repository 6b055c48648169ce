"""Kernels over all parameters at once, as PyTorch's ``foreach`` and fused optimizers launch them."""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.multi_tensor import BLOCK_VALUES, MOST_BLOCKS


def many_tensors(
    pattern: str, name: str, elements: float, reads: float, writes: float, dtype: str
) -> tuple[Launch, ...]:
    """Multi-tensor launches that share ``elements``: whole ones, and one with the rest."""
    whole, rest = divmod(elements, MOST_BLOCKS * BLOCK_VALUES)
    return tuple(
        replace(streaming(pattern, name, size, reads=reads, writes=writes, dtype=dtype), repeat=count)
        for size, count in ((MOST_BLOCKS * BLOCK_VALUES, int(whole)), (rest, 1))
        if count and size >= 1
    )
