"""Values that a mask sets to a number, as PyTorch's ``masked_fill`` does it: a copy, and a kernel that writes into it.

Source: ``aten/src/ATen/native/TensorAdvancedIndexing.cpp`` of PyTorch 2.11 (``clone``, then ``masked_fill_``).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, streaming

#: Cycles of an SM for a value: its mask's place is computed, as a row of values or heads share it. Experts' rows in
#: bf16 of three models (0.65 to 0.76) and MPT's scores in fp32 (0.79) on an H200; ``where`` on Falcon's scores takes as
#: long (`validate/recorded/h200_sxm/train_families_third.jsonl`) [estimate, +-8 %].
FILLED = 0.75


def filled(name: str, values: float, dtype: str) -> Launch:
    """Values set where they stand."""
    return issued("unary", name, values, FILLED * values, activity=1.0, dtype=dtype)


def masked(name: str, values: float, dtype: str) -> tuple[Launch, ...]:
    """A tensor of its own, with some values set."""
    return (streaming("copy", f"{name}.copy", values, dtype=dtype), filled(name, values, dtype))
