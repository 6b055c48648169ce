"""What FP8 and FP4 add to a training step beside faster products: casts, transpositions and greatest values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm

if TYPE_CHECKING:
    from joulecast.model.training.parameters import ParameterTensor


#: Cycles of an SM that stochastic rounding takes for a value of each copy: casts into two copies on B300 at 4.5 TB/s
#: beside 6.4 without it, and 7.0 into one (Transformer Engine #2412) [estimate, +-20 %].
STOCHASTIC = 0.1
#: What such kernels draw of the SMs' power beside kernels that wait for memory, as those of
#: :func:`joulecast.model.framework.launches.issued` do [estimate].
STOCHASTIC_POWER = 2.0

#: Cycles of an SM for a value of which Transformer Engine makes two FP8 copies with scales of 1 x 128 values: kernels
#: of 34 to 235 million values in an iteration on an H200, 0.33 to 0.37.
ROW_BLOCKS = 0.345


def quantise(
    name: str, elements: float, narrow: Narrow | None, dtype: str, copies: int | None = None, *, gradient: bool = False
) -> tuple[Launch, ...]:
    """Kernels that make narrow copies of ``elements`` values of ``dtype``; by default as many as the recipe needs.

    One kernel reads the values once and writes all copies. The scale of now needs a pass before it. In FP4 the Hadamard
    transform runs within both, on matrix units that nothing else uses (Transformer Engine #2411 and #2555), and a
    ``gradient`` is rounded stochastically. Without a narrow type there are none.
    """
    if narrow is None:
        return ()
    count = narrow.copies if copies is None else copies
    if narrow.recipe == "blockwise" and count > 1 and not name.startswith("weights"):
        writes = count * narrow.value_bytes / DTYPE_BYTES[dtype]
        return (
            issued(
                "cat", f"{name}.quantise", elements, ROW_BLOCKS * elements, activity=1.0, writes=writes, dtype=dtype
            ),
        )
    of = narrow.dtype if narrow.dtype == "fp4" else dtype  # FP4's casts are told apart: nobody has measured them
    reads, writes = DTYPE_BYTES[dtype] / DTYPE_BYTES[of], count * narrow.value_bytes / DTYPE_BYTES[of]
    rounds = gradient and narrow.dtype == "fp4"
    cast = streaming(
        "unary" if count == 1 else "cat",
        f"{name}.quantise",
        elements,
        reads=reads,
        writes=writes,
        dtype=of,
        sm_cycles=STOCHASTIC * count * elements if rounds else 0.0,
        activity=STOCHASTIC_POWER if rounds else 1.0,
    )
    if not narrow.scaled_now:
        return (cast,)
    return (streaming("reduce", f"{name}.amax", elements, reads=reads, writes=0, dtype=of), cast)


def transpose(name: str, elements: float, dtype: str = "fp8") -> Launch:
    """Transposed copy of an FP8 or FP4 tensor."""
    return streaming("cat", f"{name}.transpose", elements, dtype=dtype)


def product(launch: Launch, narrow: Narrow | None) -> Launch:
    """A linear layer's product with narrow operands, in the only layout that the GPU knows where there is one.

    The result keeps its type. Without a narrow type the product stays as it is.
    """
    wide = launch.operator
    if narrow is None or not isinstance(wide, Gemm):
        return launch
    layout = "tn" if narrow.one_layout else wide.layout
    changed = replace(
        wide,
        dtype=narrow.dtype,
        layout=layout,
        out_dtype=wide.out_dtype or wide.dtype,
        block_scaled=narrow.blocked and narrow.dtype == "fp8",
        row_scaled=narrow.recipe == "blockwise" and wide.layout == "nt",  # a weight's gradient
    )
    return replace(launch, operator=changed)


def quantised_weights(parameters: Iterable[ParameterTensor], narrow: Narrow | None, dtype: str) -> tuple[Launch, ...]:
    """Narrow copies of the linear layers' weights, made once after every optimizer step.

    Weights that are kept in the narrow type have been written by the optimizer: they are transposed at most.
    """
    if narrow is None or (narrow.parameters and not narrow.transposes_weights):
        return ()
    out: list[Launch] = []
    for elements, count in Counter(p.elements for p in parameters if p.linear).items():
        made = transpose("weights", elements, narrow.dtype)
        one = (made,) if narrow.parameters else quantise("weights", elements, narrow, dtype)
        out += [replace(launch, repeat=count) for launch in one]
    return tuple(out)


def weight_bytes(parameters: Iterable[ParameterTensor], narrow: Narrow | None, dtype: str) -> float:
    """Bytes of all parameters with their narrow copies, which last from one optimizer step to the next."""
    width, total = DTYPE_BYTES[dtype], 0.0
    for p in parameters:
        kept = narrow.copies * narrow.weight_value_bytes if narrow is not None and p.linear else 0.0
        plain = 0 if kept and narrow is not None and narrow.parameters else width
        total += p.elements * (kept + plain)
    return total
