"""RMSNorm as transformers writes it: tensor operations in fp32, none of them fused.

Forward, with μ the mean over a row: x widened to fp32, x², μ(x²), 1/√(μ + ε), the product of both, rounded, times the
weight. Autograd undoes each of them: two products for weight and value, whose row sums lead to the gradient of the
mean, which is spread over the row again and added to the other branch.

Gemma multiplies by 1 + weight before it rounds, OLMo-2 and gpt-oss by a weight in bf16 (``ModelConfig.norm_formula``).
Cohere writes its layer norm so, which subtracts the mean before and has a widened weight: counted, not measured.

Sources: ``LlamaRMSNorm`` of transformers 5, and traces of its kernels on an H200
(`validate/recorded/h200_sxm/train_modules.jsonl`).
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import (
    ONE_BY_ONE,
    Launch,
    column_sums,
    elementwise,
    of_rows,
    one_by_one,
    row_wise,
    streaming,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Streaming
from joulecast.model.transformer.row_operators import MIXED, from_fp32, rounded, to_fp32

#: Cycles of an SM for a value that PyTorch's kernels handle one by one: a product with its row's or its column's
#: number, and a row's number spread over the row. Layers of eight shapes on an H200 and an H100 at counted clocks
#: (`validate/recorded/in_place`), half of which chose them, and `validate/recorded/single_values` [+-4 %].
BY_ROW, BY_COLUMN, SPREAD = 0.524, 0.542, 0.465
#: Cycles for a value where attention gives the gradient with heads in front of tokens, so that kernels read values
#: one by one, by the end of the launch's name; where parameters are wide (under autocast) in the second place. The sum
#: for the weight has few columns, a head's width. The first from Qwen3 with 32 and 8 heads on both cards, there
#: [estimates, +-10 %; that sum +-30 %], the second from a Qwen3 on an H200 [estimates, +-15 %; that sum +-50 %].
TURNED = {
    ".gamma.product": (0.72, 1.33),
    ".gamma.grad": (0.45, 1.34),
    ".grad.root": (0.63, 0.84),
    ".grad.scaled": (0.65, 0.835),
    ".grad.sum": (0.56, 0.655),
    ".grad.branches": (0.585, 0.805),
}


def forward(name: str, s: Shard, rows: int, columns: int) -> tuple[Launch, ...]:
    """The norm of ``rows`` rows.

    A layer norm subtracts the mean twice: for the squares, and for the values that their root divides.
    """
    values, centred = rows * columns, s.config.norm_formula == "centred"
    return (
        *to_fp32(f"{name}.widen", values, s.dtype),
        *((_row_sum(f"{name}.centre", rows, columns), by_row(f"{name}.centred", values)) if centred else ()),
        elementwise(f"{name}.square", values),
        _row_sum(f"{name}.mean", rows, columns),
        *((by_row(f"{name}.again", values),) if centred else ()),
        of_rows(f"{name}.epsilon", rows),
        of_rows(f"{name}.root", rows),
        by_row(f"{name}.scaled", values),
        *_weighed(name, s, values, columns),
    )


def _weighed(name: str, s: Shard, values: int, columns: int) -> tuple[Launch, ...]:
    """Values times the weight, and rounded."""
    narrow = from_fp32(f"{name}.round", values, s.dtype)
    if s.config.norm_formula == "rounded":
        return (*narrow, by_column(f"{name}.weighed", values, s.dtype))
    if s.config.norm_formula == "mixed":
        return (_by_weight(f"{name}.weighed", s, values), *narrow)
    widen = (streaming("unary", f"{name}.weight.widen", columns, writes=2, dtype=s.dtype),) if narrow else ()
    shift = streaming("unary", f"{name}.weight.shift", columns, dtype="fp32")  # one added to the weight
    shifted = () if s.config.norm_formula == "centred" else (shift,)
    return (*widen, *shifted, by_column(f"{name}.weighed", values, "fp32"), *narrow)


def _by_weight(name: str, s: Shard, values: int) -> Launch:
    """Values in fp32 times a weight, which is of another type than they are."""
    if s.dtype == "fp32":
        return by_column(name, values, "fp32")
    return one_by_one("unary", name, values, MIXED, dtype="fp32")


def _weighed_backward(name: str, s: Shard, rows: int, columns: int, completes: str) -> tuple[Launch, ...]:
    """Gradients of the weight and of the values that it multiplied, in fp32."""
    values, dtype, formula = rows * columns, s.dtype, s.config.norm_formula
    wide = "fp32" if formula != "rounded" else dtype
    widened = to_fp32(f"{name}.grad.widen", values, dtype)
    product = streaming("mul", f"{name}.gamma.product", values, reads=2, dtype=wide)
    done = completes if formula == "rounded" or not widened else ""
    column_sum = column_sums(f"{name}.gamma.grad", rows, columns, wide, done)
    if formula == "rounded":
        return (by_column(f"{name}.grad.weighed", values, dtype), product, column_sum, *widened)
    narrow = rounded(f"{name}.gamma.round", columns, completes=completes)
    ends = (column_sum, narrow) if widened else (column_sum,)
    if formula == "mixed":
        return (*widened, _by_weight(f"{name}.grad.weighed", s, values), product, *ends)
    return (*widened, product, by_column(f"{name}.grad.weighed", values, "fp32"), *ends)


def backward(name: str, s: Shard, rows: int, columns: int, completes: str = "") -> tuple[Launch, ...]:
    """Gradients of weight and input of :func:`forward`."""
    values, centred = rows * columns, s.config.norm_formula == "centred"
    return (
        *_weighed_backward(name, s, rows, columns, completes),
        streaming("mul", f"{name}.grad.root", values, reads=2, dtype="fp32"),
        by_row(f"{name}.grad.scaled", values),
        _row_sum(f"{name}.grad.sum", rows, columns),
        *(of_rows(f"{name}.grad.{step}", rows) for step in ("power", "product", "half")),
        *(_negated_sum(f"{name}.grad.again", rows, columns) if centred else ()),
        _spread(f"{name}.grad.spread", values),
        streaming("copy", f"{name}.grad.base", values, dtype="fp32"),
        elementwise(f"{name}.grad.double", values),
        streaming("mul", f"{name}.grad.square", values, reads=2, dtype="fp32"),
        *(_negated_sum(f"{name}.grad.centred", rows, columns) if centred else ()),
        streaming("add", f"{name}.grad.branches", values, reads=2, dtype="fp32"),
        *(_centre_backward(f"{name}.grad.centre", rows, columns) if centred else ()),
        *from_fp32(f"{name}.grad.round", values, s.dtype),
    )


def _row_sum(name: str, rows: int, columns: int) -> Launch:
    return row_wise("reduce", name, rows, columns, writes=1 / columns, dtype="fp32")


def _spread(name: str, values: int) -> Launch:
    """A row's number for each of its values."""
    return one_by_one("unary", name, values, SPREAD, reads=0, dtype="fp32")


def _negated_sum(name: str, rows: int, columns: int) -> tuple[Launch, ...]:
    """Gradient of a row's mean that was subtracted."""
    return (streaming("unary", f"{name}.neg", rows * columns, dtype="fp32"), _row_sum(f"{name}.sum", rows, columns))


def _centre_backward(name: str, rows: int, columns: int) -> tuple[Launch, ...]:
    """Both of the mean's gradients added, spread over the row, and added to that of the values."""
    values = rows * columns
    return (
        streaming("add", f"{name}.sum", rows, reads=2, dtype="fp32"),
        _spread(f"{name}.spread", values),
        streaming("add", f"{name}.branches", values, reads=2, dtype="fp32"),
    )


def heads_backward(name: str, s: Shard, rows: int, columns: int, completes: str = "") -> tuple[Launch, ...]:
    """:func:`backward` of a norm over each head, whose gradient attention gives with heads in front of tokens."""
    values, wide = rows * columns, s.implementation.autocast
    launches = []
    for launch in backward(name, s, rows, columns, completes):
        cycles = TURNED.get(launch.operator.name.removeprefix(name))
        if cycles is not None and isinstance(launch.operator, Streaming):
            slow = replace(launch.operator, sm_cycles=cycles[wide] * values, activity=1.0, overlap=ONE_BY_ONE)
            launch = replace(launch, operator=slow)
        launches.append(launch)
    return tuple(launches)


def by_row(name: str, values: int) -> Launch:
    """Values in fp32 times a number of their row."""
    return one_by_one("unary", name, values, BY_ROW, dtype="fp32")


def by_column(name: str, values: int, dtype: str) -> Launch:
    """Values times a number of their column; in fp32 a thread has as few of them as by rows."""
    cycles = BY_ROW if dtype == "fp32" else BY_COLUMN
    return one_by_one("unary", name, values, cycles, dtype=dtype)
