"""Linear layers of PyTorch in FP8, after torchao's recipes: every operand is cast in front of each product.

Nothing is kept in FP8. A layer y = x·Wᵀ runs

    forward                casts of x and W                       y  = x·Wᵀ
    input's gradient       casts of dy and W, a copy of Wᵀ        dx = dy·W
    weight's gradient      cast of x, copies of xᵀ and dyᵀ        dW = dyᵀ·x

with one scale for a tensor, or one for each row along the sum (``rowwise``), of which two directions are needed and
dy is cast twice. Without ``torch.compile`` a cast is seven kernels: the greatest absolute value in two, values widened
to fp32, scaled, clamped and rounded, and scalars between them. Compiled, a cast is two, fused with what makes the
values: one reads them for the greatest value, one reads them again and writes FP8, also turned. A scale of each row
is found and used in one kernel. The forward sums in the matrix units alone (``use_fast_accum``).

Sources: torchao, ``float8_linear`` and ``float8_scaling_utils`` (2025); Micikevicius et al., arXiv 2209.05433. Cycles
of an SM for a value are those of single kernels on an H200 (`validate/recorded/h200_sxm/fp8_kernels.jsonl`)
[estimates, +-7 %].
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import (
    Launch,
    input_gradient,
    issued,
    linear_forward,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer.row_operators import widened

#: Cycles of an SM for a value: the greatest value, scaling by one number, a transposed copy of FP8 by PyTorch's own
#: kernel and what that draws; compiled, a cast that also writes the transposed copy, one that writes it alone,
#: and one with a scale for each column. The last two are from traces of the first rows of either recipe in
#: `train_float8.jsonl`.
GREATEST, SCALE, TURN, TURN_POWER, BOTH, TURNED, COLUMN = 0.17, 0.69, 1.47, 2.9, 0.41, 0.24, 0.75
#: Reads of a row that is searched for its greatest value and then cast, partly while L2 still has it [1; +-0.4].
ROW_READS = 1.5
#: Kernels of one number that make a scale.
SCALARS = 6


def forward(name: str, s: Shard, outputs: int, inputs: int) -> tuple[Launch, ...]:
    """A linear layer's product, with casts where it is in FP8."""
    run = s.implementation
    wide = linear_forward(name, s.tokens, outputs, inputs, run.dtype)
    if run.narrow is None:
        return (wide,)
    return (
        *_cast(f"{name}.input", s, s.tokens * inputs, run.narrow),
        *_cast(f"{name}.weight", s, outputs * inputs, run.narrow),
        _narrow(wide, fast=True),
    )


def backward(name: str, s: Shard, outputs: int, inputs: int, completes: str) -> tuple[Launch, ...]:
    """Gradients of the weight, then of the input; in FP8 the other way round, with their casts."""
    run = s.implementation
    dgrad = input_gradient(name, s.tokens, outputs, inputs, run.dtype)
    wgrad = weight_gradient(name, s.tokens, outputs, inputs, run.dtype, completes=completes)
    if run.narrow is None:
        return wgrad, dgrad
    gradient, weight, values = s.tokens * outputs, outputs * inputs, s.tokens * inputs
    if run.narrow.recipe == "rowwise":
        return (
            *_cast(f"{name}.grad", s, gradient, run.narrow),
            *_columns(f"{name}.weight", s, weight),
            _narrow(dgrad),
            *_columns(f"{name}.grad", s, gradient),
            *_columns(f"{name}.input", s, values),
            _narrow(wgrad),
        )
    return (
        *_cast(f"{name}.grad", s, gradient, run.narrow, turned=run.compiled),
        *_cast(f"{name}.weight", s, weight, run.narrow, turned=True, known=run.compiled),
        _narrow(dgrad),
        *_cast(f"{name}.input", s, values, run.narrow, turned=True, known=run.compiled),
        *(() if run.compiled else (turned(f"{name}.grad", gradient),)),
        _narrow(wgrad),
    )


def _narrow(launch: Launch, *, fast: bool = False) -> Launch:
    wide = launch.operator
    if not isinstance(wide, Gemm):
        raise TypeError(f"{launch} is no product")
    narrow = replace(wide, dtype="fp8", layout="tn", out_dtype=wide.dtype, fast_accumulation=fast)
    return replace(launch, operator=narrow)


def _cast(
    name: str, s: Shard, elements: int, narrow: Narrow, *, turned: bool = False, known: bool = False
) -> tuple[Launch, ...]:
    run = s.implementation
    options = {"also_turned": turned, "known": known, "rowwise": narrow.recipe == "rowwise"}
    return cast(name, elements, run.dtype, compiled=run.compiled, **options)


def cast(
    name: str,
    elements: int,
    dtype: str,
    *,
    compiled: bool,
    also_turned: bool = False,
    known: bool = False,
    rowwise: bool = False,
) -> tuple[Launch, ...]:
    """FP8 of values: ``also_turned`` with their transposed copy, or that alone where the scale is ``known`` already."""
    if not compiled:
        return _eager_cast(name, elements, dtype, also_turned=also_turned)
    if rowwise:
        return (streaming("reduce", f"{name}.cast", elements, reads=ROW_READS, writes=0.5, dtype=dtype),)
    made = streaming("unary", f"{name}.cast", elements, writes=0.5, dtype=dtype)
    if also_turned:
        cycles, writes = (TURNED, 0.5) if known else (BOTH, 1.0)
        made = issued("unary", f"{name}.cast", elements, cycles * elements, activity=1.5, writes=writes, dtype=dtype)
    return (made,) if known else (*greatest(name, elements, dtype, compiled=True), made)


def _columns(name: str, s: Shard, elements: int) -> tuple[Launch, ...]:
    """FP8 of values with a scale for each column, and their transposed copy."""
    dtype, cycles = s.implementation.dtype, COLUMN * elements
    if not s.implementation.compiled:
        return _eager_cast(name, elements, dtype, also_turned=True)
    return (issued("unary", f"{name}.columns", elements, cycles, activity=1.5, reads=2, dtype=dtype),)


def greatest(name: str, elements: int, dtype: str, *, compiled: bool) -> tuple[Launch, ...]:
    """The greatest absolute value."""
    if compiled:
        return (streaming("reduce", f"{name}.greatest", elements, writes=0, dtype=dtype),)
    return (
        streaming("unary", f"{name}.absolute", elements, dtype=dtype),
        issued("reduce", f"{name}.greatest", elements, GREATEST * elements, activity=1.0, writes=0, dtype=dtype),
    )


def _eager_cast(name: str, elements: int, dtype: str, *, also_turned: bool) -> tuple[Launch, ...]:
    """The same by PyTorch's own kernels, one operation each."""
    return (
        *greatest(name, elements, dtype, compiled=False),
        replace(streaming("copy", f"{name}.scale", 1, dtype="fp32"), repeat=SCALARS),
        widened(f"{name}.widen", elements, dtype),
        issued("unary", f"{name}.scaled", elements, SCALE * elements, activity=1.0, dtype="fp32"),
        streaming("unary", f"{name}.clamp", elements, dtype="fp32"),
        streaming("unary", f"{name}.round", elements, writes=0.25, dtype="fp32"),
        *((turned(name, elements),) if also_turned else ()),
    )


def turned(name: str, elements: int) -> Launch:
    """Transposed copy of FP8 values by PyTorch's copying kernel."""
    return issued("copy", f"{name}.turn", elements, TURN * elements, activity=TURN_POWER, dtype="fp8")
