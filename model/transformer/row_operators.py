"""PyTorch's own operators that choose experts, put rows into their order and sum them by token: what a kernel takes.

All but the gathering of rows are bound by the SMs' instructions, a thread working on a value or a block on a row:

    ``topk``         radix selection, a block of as many threads as there are experts for a token, then a small sort
    ``argsort``      radix sort: eight passes over 64-bit keys, each mostly latency
    ``scatter_add``  an atomic addition for each value; also the gradient of ``gather``
    ``index_add``    the same, looked up value by value; also the gradient of ``index_select``
    ``index_put``    a copy of each value to its row; the gradient of rows that were indexed is the accumulating
                     ``index_put``, which sorts the indices and sums rows of one index in turn

Cycles are of one SM for one value; how much the SMs draw is in units of a kernel's that waits for memory. Times and
energies of three shapes on an H200 (`validate/recorded/h200_sxm/expert_rows.jsonl`) gave them: 131,072 rows of 2,048
values (8 experts of 128 for a token), 16,384 of 4,096 (2 of 8), 65,536 of 7,168 (8 of 256) [estimates, +-5 % in time
among these shapes, +-10 % in energy].
"""

from __future__ import annotations

import math

from joulecast.model.framework.launches import Launch, elementwise, issued, one_by_one, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Cycles of an SM for a value, and what its SMs draw.
SCATTER_ADD, INDEX_ADD, INDEX_PUT, ACCUMULATE = (0.97, 3.4), (2.13, 1.9), (1.16, 2.0), (0.56, 2.3)
#: Of a token's choice: for each thread of its block, and for the sort of what was chosen.
CHOICE_THREAD, CHOICE_SORT, CHOICE_POWER = 12.2, 200.0, 1.7
#: Of a product of a token's weights and its rows, a batch of one row: to begin a value of the result, and for each row.
WEIGHT_BEGIN, WEIGHT_ROW = 2.45, 0.17
#: Of such a product's two gradients, over the product itself; and for a value of the rows' one where a token has a
#: number of experts that is not aligned, for which the library falls back to an older kernel.
WEIGHT_GRADIENTS, UNALIGNED_ROWS, ALIGNED = 1.2, 12.0, 8
#: Of a value that is widened to fp32, and of one that is multiplied by its row's weight there.
WIDEN, WEIGH = 0.575, 0.616
#: Of one of two tensors of different types: additions to the residual stream and operations of ``gelu_new`` in four
#: rows of `validate/recorded/h200_sxm/train_modules.jsonl` [estimate, +-6 %; of products in norms +-10 %].
MIXED = 0.63
WARP, MOST_THREADS = 32, 1024
#: Rows of 16 values whose sort takes what that of one row does: up to 131,072 rows no pass is longer than its latency.
SORT_SHARE = 0.05


def choice(tokens: int, experts: int) -> Launch:
    """Each token's experts by ``topk``."""
    threads = min(max(WARP, math.ceil(experts / WARP) * WARP), MOST_THREADS)
    cycles = tokens * (CHOICE_THREAD * threads * max(1.0, experts / threads) + CHOICE_SORT)
    return issued("copy", "router.choice", tokens * experts, cycles, activity=CHOICE_POWER, writes=0, dtype="fp32")


def order(rows: int) -> Launch:
    """Rows' order by expert."""
    return streaming("embedding_sort", "router.order", 16 * SORT_SHARE * rows, dtype="fp64", rows=rows)


def added(name: str, operator: str, rows: int, tokens: int, hidden: int, dtype: str) -> Launch:
    """Rows added to their tokens' by ``scatter_add`` or ``index_add``."""
    cycles, power = SCATTER_ADD if operator == "scatter_add" else INDEX_ADD
    values, share = rows * hidden, tokens / rows
    return issued(
        "embedding", name, values, cycles * values, activity=power, reads=1 + share, writes=share, dtype=dtype
    )


def kept_value_bytes(operator: str, dtype: str) -> float:
    """What is kept of a value that is weighed and added, beyond the value itself, where nothing is compiled.

    Weights multiply values in fp32, which are kept in place of the narrow ones; ``index_add`` keeps what it adds. Three
    peaks on an H200 (`validate/recorded/h200_sxm/train_row_operators.jsonl`) are within 0.1 % with that.
    """
    if operator not in ("scatter_add", "index_add"):
        return 0.0
    width = DTYPE_BYTES[dtype]
    return float(DTYPE_BYTES["fp32"] - width + (width if operator == "index_add" else 0))


def put(name: str, rows: int, hidden: int, dtype: str) -> tuple[Launch, ...]:
    """Rows written to their places by ``index_put``, which were set to zero."""
    cycles, power = INDEX_PUT
    values = rows * hidden
    return (
        streaming("fill", f"{name}.zeros", values, reads=0, dtype=dtype),
        issued("embedding", name, values, cycles * values, activity=power, dtype=dtype),
    )


def accumulated(name: str, rows: int, tokens: int, hidden: int, dtype: str) -> tuple[Launch, ...]:
    """Gradient of tokens' rows that were indexed: sorted, and summed by token."""
    cycles, power = ACCUMULATE
    values, share = rows * hidden, tokens / rows
    return (
        streaming("fill", f"{name}.zeros", tokens * hidden, reads=0, dtype=dtype),
        streaming("embedding_sort", f"{name}.sort", 16 * SORT_SHARE * rows, dtype="fp64", rows=rows),
        issued("embedding", name, values, cycles * values, activity=power, writes=share, dtype=dtype),
    )


def weighed(name: str, values: int, dtype: str) -> tuple[Launch, ...]:
    """Values widened to fp32, multiplied by their rows' weights there and rounded again."""
    return (
        widened(f"{name}.widen", values, dtype),
        one_by_one("unary", f"{name}.weigh", values, WEIGH, dtype="fp32"),
        rounded(f"{name}.round", values),
    )


def weighed_backward(name: str, values: int, dtype: str) -> tuple[Launch, ...]:
    """Gradient of :func:`weighed`: of the values, and of the weights by a product that is summed over each row."""
    return (
        widened(f"{name}.widen", values, dtype),
        one_by_one("unary", f"{name}.weigh", values, WEIGH, dtype="fp32"),
        streaming("mul", f"{name}.weights", values, reads=2, dtype="fp32"),
        streaming("reduce", f"{name}.weights.sum", values, writes=0, dtype="fp32"),
        rounded(f"{name}.round", values),
    )


def widened(name: str, values: float, dtype: str) -> Launch:
    """Values copied to fp32."""
    return one_by_one("unary", name, values, WIDEN, writes=2.0, dtype=dtype)


def rounded(name: str, values: float, *, completes: str = "") -> Launch:
    """Values in fp32 rounded to a type of two bytes."""
    return elementwise(name, values, writes=0.5, completes=completes)


def to_fp32(name: str, values: float, dtype: str) -> tuple[Launch, ...]:
    """Values of any type copied to fp32; nothing where they are in it."""
    return () if dtype == "fp32" else (widened(name, values, dtype),)


def from_fp32(name: str, values: float, dtype: str) -> tuple[Launch, ...]:
    """Values in fp32 rounded to any type; nothing where it is fp32."""
    return () if dtype == "fp32" else (rounded(name, values),)


def combined(name: str, tokens: int, chosen: int, hidden: int, dtype: str) -> Launch:
    """A token's rows, in its order, summed with their weights by a batched product of one row."""
    return _one_row(name, tokens * hidden, chosen, dtype, WEIGHT_BEGIN + WEIGHT_ROW * chosen)


def combined_backward(name: str, tokens: int, chosen: int, hidden: int, dtype: str) -> tuple[Launch, ...]:
    """Gradients of :func:`combined` for the weights and for the rows."""
    values, cycles = tokens * hidden, WEIGHT_GRADIENTS * (WEIGHT_BEGIN + WEIGHT_ROW * chosen)
    rows = cycles if chosen % ALIGNED == 0 else UNALIGNED_ROWS * chosen
    return (
        _one_row(f"{name}.weights", values, chosen, dtype, cycles),
        _one_row(f"{name}.rows", values, chosen, dtype, rows),
    )


def _one_row(name: str, values: int, chosen: int, dtype: str, cycles: float) -> Launch:
    return issued("copy", name, values, cycles * values, reads=chosen, dtype=dtype)
