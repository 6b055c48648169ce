"""What FP8 adds to a training step beside faster products: kernels that cast, transpose and find greatest values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm

if TYPE_CHECKING:
    from joulecast.model.training.parameters import ParameterTensor


def quantise(
    name: str, elements: float, narrow: Narrow | None, dtype: str, copies: int | None = None
) -> tuple[Launch, ...]:
    """Kernels that make FP8 copies of ``elements`` values of ``dtype``; by default as many as the recipe needs.

    One kernel reads the values once and writes all copies. The scale of now needs a pass before it. Without FP8 there
    are none.
    """
    if narrow is None:
        return ()
    count = narrow.copies if copies is None else copies
    cast = streaming(
        "unary" if count == 1 else "cat",
        f"{name}.quantise",
        elements,
        writes=count * narrow.value_bytes / DTYPE_BYTES[dtype],
        dtype=dtype,
    )
    if narrow.recipe != "tensorwise":
        return (cast,)
    return (streaming("reduce", f"{name}.amax", elements, writes=0, dtype=dtype), cast)


def transpose(name: str, elements: float) -> Launch:
    """Transposed copy of an FP8 tensor."""
    return streaming("cat", f"{name}.transpose", elements, dtype="fp8")


def product(launch: Launch, narrow: Narrow | None) -> Launch:
    """A linear layer's product with FP8 operands, in the only layout that the GPU knows where there is one.

    The result keeps its type. Without FP8 the product stays as it is.
    """
    wide = launch.operator
    if narrow is None or not isinstance(wide, Gemm):
        return launch
    layout = "tn" if narrow.one_layout else wide.layout
    changed = replace(
        wide,
        dtype="fp8",
        layout=layout,
        out_dtype=wide.out_dtype or wide.dtype,
        block_scaled=narrow.blocked,
        row_scaled=narrow.recipe == "blockwise" and wide.layout == "nt",  # a weight's gradient
    )
    return replace(launch, operator=changed)


def quantised_weights(parameters: Iterable[ParameterTensor], narrow: Narrow | None, dtype: str) -> tuple[Launch, ...]:
    """FP8 copies of the linear layers' weights, made once after every optimizer step.

    Weights that are kept in FP8 have been written by the optimizer: they are transposed at most.
    """
    if narrow is None or (narrow.parameters and not narrow.transposes):
        return ()
    out: list[Launch] = []
    for elements, count in Counter(p.elements for p in parameters if p.linear).items():
        one = (transpose("weights", elements),) if narrow.parameters else quantise("weights", elements, narrow, dtype)
        out += [replace(launch, repeat=count) for launch in one]
    return tuple(out)


def weight_bytes(parameters: Iterable[ParameterTensor], narrow: Narrow | None, dtype: str) -> float:
    """Bytes of all parameters with their FP8 copies, which last from one optimizer step to the next."""
    width, total = DTYPE_BYTES[dtype], 0.0
    for p in parameters:
        kept = narrow.copies * narrow.value_bytes if narrow is not None and p.linear else 0.0
        plain = 0 if kept and narrow is not None and narrow.parameters else width
        total += p.elements * (kept + plain)
    return total
