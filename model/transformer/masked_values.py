"""Values that a mask sets to a number, as PyTorch's ``masked_fill`` does it: a copy, and a kernel that writes into it.

Source: ``aten/src/ATen/native/TensorAdvancedIndexing.cpp`` of PyTorch 2.11 (``clone``, then ``masked_fill_``).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Cycles of an SM for a value: its mask's place is computed, as a row of values or heads share it. Experts' rows in
#: bf16 of three models (0.65 to 0.76) and MPT's scores in fp32 (0.79) on an H200; ``where`` on Falcon's scores takes as
#: long (`validate/recorded/h200_sxm/train_families_third.jsonl`) [estimate, +-8 %].
FILLED = 0.75
#: The same where a mask chooses between two numbers, as PyTorch's fused attention makes a tensor to add of it: five
#: sizes on an H200 (`validate/recorded/masked`) [+-0.02].
CHOSEN = 0.6


def filled(name: str, values: float, dtype: str) -> Launch:
    """Values set where they stand."""
    return issued("unary", name, values, FILLED * values, activity=1.0, dtype=dtype)


def masked(name: str, values: float, dtype: str) -> tuple[Launch, ...]:
    """A tensor of its own, with some values set."""
    return (streaming("copy", f"{name}.copy", values, dtype=dtype), filled(name, values, dtype))


def chosen(name: str, values: float, dtype: str) -> Launch:
    """A tensor of one of two numbers, by a mask of true and false."""
    cycles, mask = CHOSEN * values, 1.0 / DTYPE_BYTES[dtype]
    return issued("unary", name, values, cycles, activity=1.0, reads=mask, dtype=dtype)
