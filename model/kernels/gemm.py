"""Matrix products: cycles by tile and wave, and bytes by memory level.

A product is cut into tiles of ``BM × BN``; each SM works on one at a time, so the product takes

    cycles = ceil(tiles / SMs) · (K·max(2·BM·BN / (R·η), (BM + BN)·size / l) + c0),    η = η0 / (1 + b·(64/BM + 64/BN)²)

with R the dense rate of one SM and l the bytes that it loads in a cycle. η falls for small tiles because every operand
byte staged through shared memory then serves fewer operations. c0 grows with the width of the result, which leaves at
the tile's end. Where tiles are few, K can be split s-fold: s times the
tiles of K/s, and partial sums that pass through L2. The library is taken to pick the fastest of its choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.kernels.streaming import residency

Array = NDArray[np.float64]

#: Tiles (BM, BN) that the vendors' libraries have for large products: the set seen in profiles of cuBLAS on Hopper (its
#: names give BN x BM, for it computes the transpose).
LARGE_TILES = ((128, 320), (256, 128), (128, 256), (192, 192), (128, 192), (192, 128))
#: Tiles for products too small to fill the GPU with large ones.
SMALL_TILES = (
    *((128, n) for n in (64, 72, 80, 96, 104, 112, 128, 144, 160)),
    *((64, n) for n in (32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)),
    (256, 64),
    (192, 64),
)
#: What the library chooses from: every tile, and the larger ones with K split over several SMs.
SPLITS = (2, 4, 8)
#: Gain from which on a split is taken, as a factor: sums of parts are less exact, and libraries avoid them [estimate].
SPLIT_CAUTION = 1.15
CHOICES = np.array(
    [(*tile, 1) for tile in LARGE_TILES + SMALL_TILES]
    + [(*tile, split) for tile in (*LARGE_TILES, (128, 128), (64, 128), (128, 64)) for split in SPLITS],
    dtype=np.float64,
)
#: Tile by which operand traffic is counted, so that it grows smoothly with the product.
REFERENCE_TILE = (128.0, 256.0)
#: What a tile of a grouped kernel takes longer to begin and end than the library's, as a share of the latter: it looks
#: up its product and addresses, and the next one's loads do not run beside its results [estimate, +-0.4]. From the
#: times and clocks of eight rows of `validate/recorded/h200_sxm/experts.jsonl` (``grouped_up``).
GROUPED = 0.85
#: Rows that a grouped kernel's products of different numbers of rows leave free of their last tile in the mean: half of
#: 256, which two SMs of a cluster take together (PyTorch's ``GroupMM.cu``: tiles of 128 x 256, clusters of two).
UNEVEN = 128.0
#: Share of the rate of their data type that products reach where the description has none. Blocks with scales of their
#: own: pairs of Llama runs in MXFP8 and with one scale a tensor on B200 (Megatron-Bridge 25.09) [estimate, +-10 %],
#: which four products of 1 x 128 by 128 x 128 values on an H200 then bore out within 4 %; where both operands have
#: 1 x 128, the larger of two products there (`validate/recorded/h200_sxm/fp8_kernels.jsonl`) [estimate, +-8 %].
EFFICIENCY = {"blocked": 0.83, "row_blocks": 0.64}
#: What each further width of bf16 in a result, written or read again, adds to a tile's overhead, as a share of it. With
#: it gradients of weights that are added to fp32 are as far off as products with results in bf16: SimuMax's 22 large
#: ones on A100, 3 % too short without; on B200 alone it would be about 1 [estimate, 0.3 to 1].
WIDE_RESULT = 0.5


#: Types whose kernels all run on pairs of SMs, each of which loads half of one operand for both (``cta_group::2``).
PAIRED = ("fp4",)


@dataclass(frozen=True)
class GemmShapes:
    """Shapes of ``n`` products; every field has shape ``(n,)``."""

    m: Array
    n: Array
    k: Array
    batch: Array
    footprint_bytes: Array  # NaN: the product's own operands
    spare: Array | float = 0.0  # rows of tiles beyond m


@dataclass(frozen=True)
class GemmWork:
    """Work of ``n`` products; every field has shape ``(n,)``."""

    cycles: Array
    l2_bytes: Array  # operands only
    output_bytes: Array
    hbm_bytes: Array
    tile: Array  # shape (n, 2)
    splits: Array
    tiles: Array  # of all splits, of which an SM has one at a time


def tile_efficiency(bm: Array, bn: Array, eta: float, penalty: float) -> Array:
    """Share of the dense rate that a tile of ``bm × bn`` reaches between its first and last operand load."""
    return np.asarray(eta / (1.0 + penalty * (64.0 / bm + 64.0 / bn) ** 2))


def gemm_work(
    shapes: GemmShapes,
    dtype: str,
    layout: str,
    gpu: GpuModel,
    output_bytes_per_element: float | None = None,
    *,
    separate: bool = False,
    grouped: bool = False,
    scaled: str = "",
) -> GemmWork:
    """Cycles and bytes of products of one data type and layout with the library's own tiles, rows being aligned.

    Parameters
    ----------
    shapes
        Sizes, arrays of shape ``(n,)``.
    dtype, layout
        As in :class:`~joulecast.model.kernels.operators.Gemm`.
    gpu
        The GPU; reads ``kernel.gemm.*``.
    output_bytes_per_element
        Bytes written and read again for each value of the result; by default the inputs' size.
    separate
        Whether a batch is launched product by product on several streams.
    grouped
        Whether one kernel takes the batch as a list of products.
    scaled
        Which blocks of operands have scales of their own, a name of :data:`EFFICIENCY`; empty for none.

    Returns
    -------
    GemmWork
        Critical-path cycles, bytes from L2 to the SMs and from HBM.
    """
    size = DTYPE_BYTES[dtype]
    width = output_bytes_per_element or size
    overhead = gpu["kernel.gemm.tile_overhead_cycles"] * (1.0 + GROUPED * grouped) * _epilogue(width, size, separate)
    rate = _sm_rate(dtype, layout, gpu, scaled)
    shared = 0.5 if dtype in PAIRED else 1.0
    cycles, outputs = _cycles_of_choices(shapes, size, rate, overhead, gpu, separate, shared)
    best = np.argmin(cycles * np.where(CHOICES[:, 2] > 1, SPLIT_CAUTION, 1.0), axis=1)
    rows = np.arange(len(best))
    output = shapes.batch * shapes.m * shapes.n * width
    return GemmWork(
        cycles=cycles[rows, best],
        l2_bytes=outputs[rows, best] * CHOICES[best, :2].sum(axis=1) * shapes.k * size,
        output_bytes=output,
        hbm_bytes=_hbm_bytes(shapes, size, output, gpu),
        tile=CHOICES[best, :2],
        splits=CHOICES[best, 2],
        tiles=outputs[rows, best] * CHOICES[best, 2],
    )


def _sm_rate(dtype: str, layout: str, gpu: GpuModel, scaled: str) -> float:
    """Floating-point operations of one SM in a cycle at the rate that products of this kind reach."""
    rate = gpu.flops_per_cycle(dtype) / gpu.sm_count
    rate *= _share_of_type(dtype, gpu) * gpu.get(f"kernel.gemm.layout.{layout}", 1.0)
    if scaled:
        rate *= gpu.get(f"kernel.gemm.efficiency.{scaled}", EFFICIENCY[scaled])
    return rate


def _share_of_type(dtype: str, gpu: GpuModel) -> float:
    """Share of a type's rate that its products reach beside bf16's; FP4's is FP8's where nobody has fitted it.

    Blocks cost FP4's kernels nothing of note: three of four large products of cuBLASLt on GB200 lie within 6 % of that,
    one 1.5 times above (Azure's AI benchmarking guide, ND GB200 v6); kernels for blocks of 32 values on B200 reach 0.8
    to 1.13 of it at the highest clock (DeepGEMM #348) [estimate, +-15 %].
    """
    known = gpu.get("kernel.gemm.efficiency.fp8", 1.0) if dtype == "fp4" else 1.0
    return gpu.get(f"kernel.gemm.efficiency.{dtype}", known)


def _epilogue(width: float, size: float, separate: bool) -> float:
    """A tile's overhead beside that of one whose result is as wide as its operands, or as bf16 where they are narrower.

    Of products on several streams the end of one lies beside the middle of others, and costs them nothing.
    """
    return 1.0 if separate else 1.0 + WIDE_RESULT * max(width / max(size, 2.0) - 1.0, 0.0)


def _cycles_of_choices(
    shapes: GemmShapes, size: float, rate: float, overhead: float, gpu: GpuModel, separate: bool, shared: float
) -> tuple[Array, Array]:
    """Cycles of each of :data:`CHOICES` and its tiles of the result, both of shape ``(n, choices)``.

    ``shared``: share of the second operand that an SM loads itself.
    """
    bm, bn, splits = CHOICES[:, 0], CHOICES[:, 1], CHOICES[:, 2]
    eta = tile_efficiency(bm, bn, gpu["kernel.gemm.eta"], gpu["kernel.gemm.tile_penalty"])
    k = np.ceil(shapes.k[:, None] / splits)
    outputs = np.ceil((shapes.m + shapes.spare)[:, None] / bm) * np.ceil(shapes.n[:, None] / bn) * shapes.batch[:, None]
    tiles = outputs * splits
    waves = np.ceil(tiles / gpu.sm_count)
    if separate:  # half-way between all at once and one after another, as on four streams [estimate from SimuMax, B200]
        batch = shapes.batch[:, None]
        waves = np.sqrt(waves * np.ceil(tiles / batch / gpu.sm_count) * batch)
    loads = (bm + shared * bn) * size / gpu["kernel.gemm.load_bytes_per_sm_cycle"]
    cycles = waves * (np.maximum(2.0 * bm * bn / (rate * eta), loads) * k + overhead)
    cycles = cycles + np.where(splits > 1, overhead + _reduction_cycles(shapes, splits, gpu), 0.0)
    return cycles, outputs


def _hbm_bytes(shapes: GemmShapes, size: float, output_bytes: Array, gpu: GpuModel) -> Array:
    """Bytes between HBM and L2: at least every operand once, less what stays in L2 between launches."""
    compulsory = shapes.batch * (shapes.m * shapes.k + shapes.n * shapes.k) * size + output_bytes
    footprint = np.where(np.isnan(shapes.footprint_bytes), compulsory, shapes.footprint_bytes)
    missed = 1.0 - residency(footprint, gpu)
    # SMs at work together share operand stripes of about sqrt(SMs) tiles; the next wave finds little of them in L2.
    staged = shapes.batch * shapes.m * shapes.n * shapes.k * size * (1.0 / REFERENCE_TILE[0] + 1.0 / REFERENCE_TILE[1])
    return np.asarray(np.maximum(compulsory, gpu["kernel.gemm.reread_share"] * staged / np.sqrt(gpu.sm_count)) * missed)


def _reduction_cycles(shapes: GemmShapes, splits: Array, gpu: GpuModel) -> Array:
    """Cycles to write and read again the fp32 partial sums of products whose K is split, through L2."""
    partial = 2.0 * 4.0 * (shapes.batch * shapes.m * shapes.n)[:, None] * splits
    return np.asarray(partial / (gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count))
