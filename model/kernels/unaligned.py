"""Products whose rows in memory do not all begin at multiples of 16 bytes.

The library's own kernels fetch tiles of which every row begins at such a multiple (strides of tensor maps must be
multiples of 16 bytes: CUDA driver API, ``cuTensorMapEncodeTiled``). Others run in kernels of older generations, at the
rate of their matrix instructions. From rows of whole words of 4 bytes an SM still copies to shared memory without its
registers (``cp.async`` moves 4, 8 or 16 bytes: PTX ISA); single values pass through registers, one by one.

Which rows count follows the layout: those of the operands are K long, but of weight gradients (``nt``) M and N, and of
input gradients' (``nn``) weights N; those of the result N. The length of a column never does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Bytes that rows must be multiples of for the library's own kernels, and for copies past the registers.
FAST_BYTES, WORD_BYTES = 16, 4
#: What loading takes more where rows do not begin at whole lines of this many bytes, the largest that divides them
#: being that of the factor before. By 1,000 products on one H200, of which it slows those on small tiles; there as much
#: as half is left unexplained where columns of tiles begin within lines [factors +-0.1].
LINES = ((256, 1.0), (128, 1.1), (32, 1.3), (16, 1.65))
#: Data types whose fast kernels want aligned rows; products in fp32 and fp64 load single values anyway.
WANT_ALIGNED = ("bf16", "fp16", "fp8", "fp4", "tf32")


@dataclass(frozen=True)
class Fallback:
    """What a kernel that the library falls back to costs.

    Attributes
    ----------
    slowdown
        Cycles over those of aligned rows, as a share of ``kernel.gemm.fallback_slowdown``.
    energy
        Energy of an operation over that of the library's own kernels.
    """

    slowdown: float
    energy: float


#: Rows of whole words; single values in the result alone; in one operand or in both, whatever the result's. Measured on
#: one H200: 8192 x N x 4096 with N = 50257, 50258 and 50260, 8192 x 8192 x K with K = 8188, 8190 and 8191, and 4225 x
#: 4225 x 4096, which one parameter of 7 then gives within 3 % of time; on another, heads with 50,257 words, forward and
#: both gradients, whose times are met within 8 % (`validate/recorded/unaligned`) and which gave the energy of single
#: values in one operand [elsewhere +-15 %, energy +-20 %].
WORDS = Fallback(3.24 / 7.0, 2.1)
RESULT = Fallback(8.3 / 7.0, 2.1)
OPERAND = Fallback(6.6 / 7.0, 2.75)
OPERANDS = Fallback(6.6 / 7.0, 3.6)


def unaligned_costs(
    m: Array, n: Array, k: Array, dtype: str, layout: str, out_dtype: str, slowdown: float
) -> tuple[Array, Array]:
    """Factors on the cycles and on the energy of a matrix operation, both of shape ``(n,)`` and 1 for aligned rows.

    Parameters
    ----------
    m, n, k
        Sizes; shape ``(n,)``.
    dtype, layout, out_dtype
        As in :class:`~joulecast.model.kernels.operators.Gemm`.
    slowdown
        ``kernel.gemm.fallback_slowdown``.
    """
    cycles, energy = np.ones(len(n)), np.ones(len(n))
    if dtype not in WANT_ALIGNED:
        return cycles, energy
    size = DTYPE_BYTES[dtype]
    left, right = _rows(m, n, k, layout)
    rows = np.array([left * size, right * size, n * DTYPE_BYTES[out_dtype or dtype]])
    slow = (rows % FAST_BYTES).any(axis=0)
    if not slow.any():  # nearly every product
        return cycles, energy
    single = rows % WORD_BYTES != 0
    kinds = (
        (slow, WORDS),
        (single[2], RESULT),
        (single[:2].any(axis=0), OPERAND),
        (single[:2].all(axis=0), OPERANDS),
    )
    for found, kind in kinds:  # the last that applies
        cycles = np.where(found, max(1.0, kind.slowdown * slowdown), cycles)
        energy = np.where(found, kind.energy, energy)
    return cycles, energy


def extra_loads(m: Array, n: Array, k: Array, layout: str, size: float) -> tuple[Array, Array]:
    """What loading the two operands takes more than from rows of whole lines, as factors of shape ``(n,)``.

    Parameters
    ----------
    m, n, k
        Sizes; shape ``(n,)``.
    layout
        As in :class:`~joulecast.model.kernels.operators.Gemm`.
    size
        Of a value [bytes].
    """
    left, right = _rows(m, n, k, layout)
    return _line_factor(left * size), _line_factor(right * size)


def _rows(m: Array, n: Array, k: Array, layout: str) -> tuple[Array, Array]:
    """Lengths of the operands' rows in memory."""
    return (m if layout == "nt" else k), (k if layout == "tn" else n)


def _line_factor(row_bytes: Array) -> Array:
    """1 also for rows that are no multiples of :data:`FAST_BYTES`, which other kernels load."""
    return np.select([row_bytes % line == 0 for line, _ in LINES], [factor for _, factor in LINES], 1.0)
