"""Soft-capping as separate kernels: c·tanh(x / c) of every logit or score (Gemma 2)."""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming

#: Cycles of an SM for a value whose hyperbolic tangent is taken. Kernels of two rows of
#: `validate/recorded/h200_sxm/train_modules.jsonl`, which differ by 2 % [estimate, +-5 %].
TANH = 0.16


def forward(name: str, values: float, dtype: str, *, present: bool) -> tuple[Launch, ...]:
    """Division, hyperbolic tangent and product; nothing where it is not ``present``."""
    if not present:
        return ()
    return (
        streaming("unary", f"{name}.cap.quotient", values, dtype=dtype),
        streaming("unary", f"{name}.cap.tanh", values, dtype=dtype, sm_cycles=TANH * values),
        streaming("unary", f"{name}.cap.product", values, dtype=dtype),
    )


def backward(name: str, values: float, dtype: str, *, present: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    if not present:
        return ()
    return (
        streaming("unary", f"{name}.cap.product.grad", values, dtype=dtype),
        streaming("mul", f"{name}.cap.tanh.grad", values, reads=2, dtype=dtype),
        streaming("unary", f"{name}.cap.quotient.grad", values, dtype=dtype),
    )
