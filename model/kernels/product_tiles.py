"""Tiles that vendors' libraries have for matrix products, and for how many waves of them they take each.

Two kinds of libraries are told apart. Where an SM's shared memory holds several stages of a large tile, kernels exist
for tiles of many widths, which start and stay until all tiles are done; how long each takes, and which one is taken, is
known from 1,000 products on one H200 whose kernels' names tell their tiles (`validate/recorded/products`):

- a few large tiles serve any product, all others one that is done in one wave of them, or is too narrow for the large;
- 128 rows by 112 to 176 columns, on which two groups of warps take turns, serve up to six waves where both operands lie
  along K;
- K is split only where the parts fit one wave as well;
- from three waves on tiles are handed out by a counter, which a launch before sets to zero.

Elsewhere any tile serves any product, and K may be split for all; so it is everywhere for types that have only those
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf

import numpy as np

from joulecast.arrays import Array

#: Shared memory of an SM from which on kernels hold several stages of the largest tiles: Hopper's and Blackwell's for
#: data centres, 228 KB, lie above it, all others at 164 KB or less [bytes].
DEEP_BYTES = 200e3
#: Rate of an SM from which on its matrix units work in pairs, twice Hopper's [bytes of both operands in a cycle].
PAIRED_RATE = 16000.0
#: Types for whose products only the older kinds of kernels exist.
OLDER_TYPES = ("fp32", "fp64")
#: Type and layout for which Hopper's instructions take neither operand as it lies, so that the older kernels run.
TURNED_TWICE = ("tf32", "nt")
#: Rows and columns of the result that the libraries' kernels for large products take at a time, by names in profiles of
#: cuBLAS on Hopper (which give columns x rows, for it computes the transpose).
LARGE = ((128, 320), (256, 128), (128, 256), (192, 192), (128, 192), (192, 128))
#: That of them which no kernel has that adds a bias: of 252 products without one 78 took it, with one none.
UNBIASED = (128, 320)
#: Those of the older libraries for products that fill no GPU with large ones.
SMALL = (
    *((128, n) for n in (64, 72, 80, 96, 104, 112, 128, 144, 160)),
    *((64, n) for n in (32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)),
    (256, 64),
    (192, 64),
)
#: Those of which the older libraries take parts of K.
SMALL_SPLITS = (*LARGE, (128, 128), (64, 128), (128, 64))
#: Those of the newer ones: on which two groups of warps take turns, and the others.
TURNS = tuple((128, n) for n in (112, 128, 144, 160, 176))
ONE_WAVE = (
    *((128, n) for n in (64, 80, 96, 208, 224)),
    *((64, n) for n in (32, 64, 96, 128, 192)),
    *((32, 64), (80, 64), (96, 128), (160, 128), (192, 64), (192, 96), (256, 160)),
)
ONE_WAVE_SPLITS = (
    *((64, 32), (64, 64), (64, 96), (64, 128)),
    *((128, n) for n in (64, 96, 128, 192)),
    *((160, 128), (192, 128), (192, 192)),
)
#: Waves of tiles that take turns, where both operands lie along K.
MOST_TURNS = 6.0
#: Parts that K is split into, and values of K that each has at least.
PARTS = (2.0, 4.0, 8.0)
LEAST_PART = 448.0
#: How much faster than a large tile another must be, and parts of K than the whole, as factors. The first by the
#: H200's products, where 1.0 to 1.15 do nearly as well [1.06]; sums of parts are less exact, and libraries avoid them
#: [1.1 and, for the older libraries, 1.15; estimates].
CAUTION, SPLIT_CAUTION, OLDER_SPLIT_CAUTION = 1.06, 1.1, 1.15
#: The same of other tiles that take more waves: where a side of the result is much shorter than a large tile's.
MORE_WAVES = 1.3
#: Waves from which on tiles of the newer kernels are handed out by a counter.
COUNTED_WAVES = 3.0
#: Tiles of PyTorch's grouped kernels for products that have a side of so many rows or columns at most, and for all
#: others, on Hopper and on Blackwell (``dispatch_bf16_grouped_kernel_on_tile_size`` in PyTorch's ``GroupMM.cu``).
GROUPED_SIDE, GROUPED, GROUPED_PAIRED = 128.0, ((64, 128), (128, 256)), ((128, 256), (256, 256))
#: Types that these take.
GROUPED_TYPES = ("bf16",)


@dataclass(frozen=True)
class KernelKind:
    """How a library's kernels run.

    Attributes
    ----------
    start, penalty, end
        Factors on a description's ``kernel.gemm``: on how long a kernel takes to begin, on what small tiles lose, and
        on the end of a tile of 128 x 256.
    ends_alike
        Whether all tiles take as long to end; by their size elsewhere.
    by_lines
        Whether operands are fetched by lines, which rows in memory may begin within.
    least_step
        Least cycles of a step of 128 bytes along K.
    counter_s, sum_s
        Times of a launch before, which sets a counter by which tiles are handed out from :data:`COUNTED_WAVES` on, and
        of one behind, which adds up the parts of a split [s].
    shared
        Share of the second operand that an SM loads itself.
    """

    start: float
    penalty: float
    end: float
    ends_alike: bool
    by_lines: bool
    least_step: float
    counter_s: float
    sum_s: float
    shared: float = 1.0


#: Tiles of 64 x 32 to 64 x 64 take 180 cycles a step, and products of three waves and more 3,500 cycles longer, at
#: 1.8 GHz, on the H200 [+-10 %, +-0.3 us].
NEWER = KernelKind(1.0, 1.0, 1.0, ends_alike=False, by_lines=True, least_step=180.0, counter_s=1.9e-6, sum_s=1.9e-6)
#: Blackwell's matrix units work in pairs, each of which loads half of one operand for both (``cta_group::2``), and its
#: hardware hands out tiles (cluster launch control: PTX ISA). Its kernels begin sooner, by NVFP4 products of 4,096 on
#: GB200 (Azure's guide) [factor +-0.3].
PAIRED = replace(NEWER, start=0.6, counter_s=0.0, shared=0.5)
#: Such that the older kernels keep the values that they had before the newer ones had forms of their own. Rows of A100,
#: A40, MI210 [Vidur, LLMCompass, SimuMax] fit about as well with penalties of 1.5 to 6 and ends of 1.1; the start was
#: not varied [estimates].
OLDER = KernelKind(0.4, 1.5, 1.2, ends_alike=True, by_lines=False, least_step=0.0, counter_s=0.0, sum_s=0.0)


@dataclass(frozen=True, eq=False)
class ProductTiles:
    """What a library chooses from; every array has shape ``(choices,)``.

    Attributes
    ----------
    kind
        How all of them run.
    rows, columns, splits
        Of the result, and parts of K.
    few_waves, least_part
        Waves that a choice is for, and values of K that each part has at least.
    caution, beyond
        What a choice's cycles are multiplied by when it is compared with others, for so many waves and for more.
    small_side
        Where it is set the first of two choices is taken for results with a side of so much at most, the second else.
    """

    kind: KernelKind
    rows: Array
    columns: Array
    splits: Array
    few_waves: Array
    least_part: Array
    caution: Array
    beyond: Array
    small_side: float = 0.0


def kernel_kind(shared_memory_bytes: float, rate: float, dtype: str) -> KernelKind:
    """How a library's kernels for a type run on a GPU.

    Parameters
    ----------
    shared_memory_bytes
        Of an SM.
    rate
        Operations of an SM in a cycle, times the bytes of an operand's value.
    dtype
        Of the operands.
    """
    if shared_memory_bytes < DEEP_BYTES or dtype in OLDER_TYPES:
        return OLDER
    return PAIRED if rate >= PAIRED_RATE else NEWER


def product_tiles(kind: KernelKind, dtype: str, layout: str, bias: bool = False, grouped: bool = False) -> ProductTiles:
    """The choices for products of one kind.

    Parameters
    ----------
    kind
        How the library's kernels run.
    dtype, layout
        As in :class:`~joulecast.model.kernels.operators.Gemm`.
    bias
        Whether a bias is added to the result.
    grouped
        Whether one of PyTorch's kernels takes them as a list of products.
    """
    if kind is OLDER or (kind is NEWER and (dtype, layout) == TURNED_TWICE):
        return _older()
    return _grouped(kind) if grouped and dtype in GROUPED_TYPES else _newer(kind, layout == "tn", bias)


@cache
def _grouped(kind: KernelKind) -> ProductTiles:
    tiles = GROUPED_PAIRED if kind is PAIRED else GROUPED
    rows = [(*tile, 1.0, inf, 0.0, 1.0, 1.0) for tile in tiles]
    return replace(ProductTiles(kind, *np.array(rows, dtype=np.float64).T), small_side=GROUPED_SIDE)


@cache
def _newer(kind: KernelKind, along_k: bool, bias: bool) -> ProductTiles:
    turns = MOST_TURNS if along_k else 1.0
    rows = [
        *((*tile, 1.0, inf, 0.0, 1.0, 1.0) for tile in LARGE if not (bias and tile == UNBIASED)),
        *((*tile, 1.0, turns, 0.0, CAUTION, MORE_WAVES) for tile in TURNS),
        *((*tile, 1.0, 1.0, 0.0, CAUTION, MORE_WAVES) for tile in ONE_WAVE),
        *((*tile, parts, 1.0, LEAST_PART, SPLIT_CAUTION, inf) for tile in ONE_WAVE_SPLITS for parts in PARTS),
    ]
    return ProductTiles(kind, *np.array(rows, dtype=np.float64).T)


@cache
def _older() -> ProductTiles:
    rows = [
        *((*tile, 1.0, inf, 0.0, 1.0, 1.0) for tile in LARGE + SMALL),
        *((*tile, parts, inf, 0.0, OLDER_SPLIT_CAUTION, inf) for tile in SMALL_SPLITS for parts in PARTS),
    ]
    return ProductTiles(OLDER, *np.array(rows, dtype=np.float64).T)
