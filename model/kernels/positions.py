"""What fused attention takes more where its kernels look at positions: in windows, and where documents are apart.

Under a causal mask alone kernels look at positions in the last square of a block of queries. In a window those of
FlashAttention-2 and cuDNN do so in every square, and cuDNN's where they are given lengths of documents. Blocks then
begin and end in squares of which a part is hidden, which all kernels compute:

    squares' worth of a head = squares · (1 + look) + w · blocks of queries + d · more

``more`` is what :class:`joulecast.model.kernels.documents.Blocks` says. Backwards of FlashAttention-2's form, flex
attention's too, take less of a window than their causal ones leave to be expected, as if a block had fewer squares;
why is not known.

Constants are from an H100 and an H200, beside the same kernels under a causal mask alone: windows of 512 and 4,096
tokens in sequences of 8,192, with heads of 128, and FlashAttention-2's with heads of 64 in windows of 512; documents of
512 and 2,048 tokens (`validate/recorded/windows`, `validate/recorded/documents`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Bool

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Looking:
    """What kernels take more than under a causal mask alone, in squares.

    Attributes
    ----------
    look
        Of each square.
    block
        Of each block of queries in a window; of documents, of what ``more`` counts. They are computed, and take energy.
    stall
        The same of what takes time alone.
    """

    look: float = 0.0
    block: float = 0.0
    stall: float = 0.0


#: In a window, forward and backward, by the kernels that a backend has or resembles [look: +-0.02, block: +-0.2].
WINDOWS: Mapping[str, tuple[Looking, Looking]] = {
    "flash-attention-2": (Looking(0.187), Looking(block=-0.75)),
    "cudnn": (Looking(0.047, 0.5), Looking(0.012, 0.3)),
    "flex": (Looking(block=0.38), Looking(block=-0.7)),
}
#: Where documents are apart. FlashAttention-2's forward takes half to one square more for a block in documents of 256
#: to 1,024 tokens and hardly any beyond; one figure stands for all, so that those of 256 and of 2,048 are forecast 4 to
#: 13 % too long [+-0.4]. Flex attention evaluates its mask in squares that a document does not fill [+-0.1].
APART: Mapping[str, tuple[Looking, Looking]] = {
    "flash-attention-2": (Looking(stall=1.0), Looking()),
    "cudnn": (Looking(0.088, 0.67), Looking(block=0.5)),
    "flex": (Looking(stall=0.34), Looking(stall=0.39)),
}
#: FlashAttention-2's forward looks so much longer with heads of half the width, 0.84 of a square with heads of 64
#: [+-0.03], and not at all with those of twice.
NARROW_LOOK = 4.5


def looked_at(
    squares: Array,
    queries: Array,
    windowed: Bool,
    apart: Bool,
    more: Array,
    head_dim: Array,
    kernels: str,
    *,
    backward: bool,
) -> tuple[Array, Array]:
    """Squares' worth that a head costs more: what takes time alone, and what is computed; both of shape ``(n,)``.

    Parameters
    ----------
    squares, queries
        Squares of a head, and its blocks of queries.
    windowed, apart
        Whether a kernel has a window that hides something, and whether it keeps documents apart.
    more
        What costs more of documents, 0 of kernels that know of none.
    kernels
        A name in :data:`WINDOWS` and :data:`APART`; of others nothing is known, and nothing is added.
    """
    window, documents = (table.get(kernels, (Looking(), Looking()))[backward] for table in (WINDOWS, APART))
    look = np.where(windowed, window.look, 0.0)
    if kernels == "flash-attention-2":
        look = np.where(head_dim > 128.0, 0.0, look * NARROW_LOOK ** np.log2(128.0 / head_dim).clip(0.0))
    look = np.maximum(look, np.where(apart, documents.look, 0.0))  # one look at a position tells both
    computed = np.where(windowed, window.block * queries, 0.0) + documents.block * more
    return look * squares + documents.stall * more, computed
