"""Matrix products: cycles by tile and wave, and bytes by memory level.

A product is cut into tiles of ``BM × BN``; each SM works on one at a time, so the product takes

    cycles = ceil(tiles / SMs) · cycles of a tile (:mod:`joulecast.model.kernels.product_pace`)

Where tiles are few, K can be split s-fold: s times the tiles of K/s, and partial sums that pass through L2. Of the
tiles that the library has (:mod:`joulecast.model.kernels.product_tiles`) it is taken to pick the fastest, without
regard to how operands lie in memory (:mod:`joulecast.model.kernels.product_cut`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.kernels.product_cut import Cut, Cutter, cut_of
from joulecast.model.kernels.product_pace import REFERENCE_TILE, Pace
from joulecast.model.kernels.product_tiles import NEWER, KernelKind, ProductTiles, kernel_kind, product_tiles
from joulecast.model.kernels.streaming import residency

#: What a tile of a grouped kernel takes longer to begin and end than the library's, as a share of the latter: it looks
#: up its product and addresses, and the next one's loads do not run beside its results [estimate, +-0.4]. From the
#: times and clocks of eight rows of `validate/recorded/h200_sxm/experts.jsonl` (``grouped_up``).
GROUPED = 0.85
#: Shares of the rate that grouped kernels reach beside that: where an operand does not lie along K, and with tiles of
#: 64 rows, on which two groups of warps take turns. Cycles of gradients over the forward's in eight shapes, and times
#: of two shapes of 128 rows, on two cards (`validate/recorded/framework_kernels`) [estimates, +-0.02 and +-0.05].
GROUPED_TURNED, GROUPED_SMALL = 0.935, 0.82
#: Rows that a grouped kernel's products of different numbers of rows leave free of their last tile in the mean: half of
#: 256, which two SMs of a cluster take together (PyTorch's ``GroupMM.cu``: tiles of 128 x 256, clusters of two).
UNEVEN = 128.0
#: Share of the rate of their data type that products reach where the description has none. Blocks with scales of their
#: own: pairs of Llama runs in MXFP8 and with one scale a tensor on B200 (Megatron-Bridge 25.09) [estimate, +-10 %],
#: which four products of 1 x 128 by 128 x 128 values on an H200 then bore out within 4 %; where both operands have
#: 1 x 128, the larger of two products there (`validate/recorded/h200_sxm/fp8_kernels.jsonl`) [estimate, +-8 %].
EFFICIENCY = {"blocked": 0.83, "row_blocks": 0.64}
#: Shares of TF32's rate that products reach on Hopper by their layout. Its matrix units take operands of other than 16
#: bits along K alone (``wgmma``: PTX ISA), one of them from registers: kernels turn an operand on its way there, and
#: where both would have to be cuBLAS takes those of Ampere (``cutlass_80_tensorop_s1688gemm`` in traces), at half the
#: rate, or others that are as slow. 14 products on an H200 (`validate/recorded/wide_values`) [+-0.05].
TURNED_TF32 = {"tn": 1.0, "nn": 0.88, "nt": 0.59}
#: Energy of their matrix units' operations over that of operands along K: by the clocks that these products got at the
#: power limit [+-0.05].
TURNED_TF32_ENERGY = {"tn": 1.0, "nn": 1.06, "nt": 1.2}
#: What each further width of bf16 in a result, written or read again, adds to a tile's overhead, as a share of it. With
#: it gradients of weights that are added to fp32 are as far off as products with results in bf16: SimuMax's 22 large
#: ones on A100, 3 % too short without; on B200 alone it would be about 1 [estimate, 0.3 to 1].
WIDE_RESULT = 0.5
#: Cycles by which a bias puts off the end of a tile, of whatever size: it is read when the sums are there. Pairs of
#: products with and without one that run on the same tile, half of those recorded on an H100
#: (`validate/recorded/products/biases.csv`) [+-150].
BIAS = 600.0
#: Share of a product's begin that further ones on several streams do not hide: 24 rows of
#: `validate/recorded/h200_sxm/experts.jsonl`, each 1.2 us a product longer than without [estimate, +-0.1].
SEPARATE_START = 0.5


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
    fixed_s: Array  # of launches


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
    bias: bool = False,
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
    bias
        Whether a bias is added.

    Returns
    -------
    GemmWork
        Critical-path cycles, bytes from L2 to the SMs and from HBM.
    """
    size = DTYPE_BYTES[dtype]
    width = output_bytes_per_element or size
    sm_rate = gpu.flops_per_cycle(dtype) / gpu.sm_count
    kind = _kind(dtype, gpu)
    library = product_tiles(kind, dtype, layout, bias, grouped)
    by = Cutter(library, layout, size, sm_rate, gpu.sm_count, gpu.max_clock_mhz, separate)
    cut = cut_of(by, shapes.m, shapes.n, shapes.k, shapes.batch, shapes.spare)
    pace = Pace(
        library=library,
        size=size,
        rate=sm_rate
        * _share_of_rate(dtype, layout, gpu, scaled)
        * _share_of_grouped(library, cut, layout)
        * _share_of_turned(dtype, layout, kind),
        eta=gpu["kernel.gemm.eta"],
        penalty=gpu["kernel.gemm.tile_penalty"],
        loads=gpu["kernel.gemm.load_bytes_per_sm_cycle"],
        end=gpu["kernel.gemm.tile_overhead_cycles"] * (1.0 + GROUPED * grouped) * _epilogue(width, size, separate),
        l2_bytes=gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count,
        bias=BIAS * bias,
    )
    (rows, columns), splits = cut.tile.T, cut.splits
    values = shapes.batch * shapes.m * shapes.n
    summed = np.where(splits > 1, pace.sum(rows, columns, values, splits), 0.0)
    output = values * width
    return GemmWork(
        cycles=cut.waves * pace.tile(rows, columns, shapes.k / splits, cut.left, cut.right) + summed,
        l2_bytes=cut.outputs * (rows + columns) * shapes.k * size,
        output_bytes=output,
        hbm_bytes=_hbm_bytes(shapes, size, output, gpu),
        tile=cut.tile,
        splits=splits,
        tiles=cut.outputs * splits,
        fixed_s=_fixed_s(shapes.batch, cut, library, gpu, separate),
    )


def _fixed_s(batch: Array, cut: Cut, library: ProductTiles, gpu: GpuModel, separate: bool) -> Array:
    """Time in which products' kernels begin, and other launches beside them [s]."""
    starts = 1.0 + separate * SEPARATE_START * (batch - 1.0)
    return np.asarray(gpu["kernel.gemm.fixed_s"] * library.kind.start * starts + cut.launches_s)


def _share_of_rate(dtype: str, layout: str, gpu: GpuModel, scaled: str) -> float:
    """Share of a type's rate that products of this kind reach beside bf16's of both operands along K."""
    share = _share_of_type(dtype, gpu) * gpu.get(f"kernel.gemm.layout.{layout}", 1.0)
    return share * gpu.get(f"kernel.gemm.efficiency.{scaled}", EFFICIENCY[scaled]) if scaled else share


def _share_of_turned(dtype: str, layout: str, kind: KernelKind) -> float:
    """Share of the rate that Hopper's products in TF32 reach where an operand does not lie along K."""
    return TURNED_TF32[layout] if dtype == "tf32" and kind is NEWER else 1.0


def turned_energy(dtype: str, layout: str, gpu: GpuModel) -> float:
    """Energy of matrix units' operations over that of operands along K [1]."""
    return TURNED_TF32_ENERGY[layout] if dtype == "tf32" and _kind(dtype, gpu) is NEWER else 1.0


def _kind(dtype: str, gpu: GpuModel) -> KernelKind:
    rate = gpu.flops_per_cycle(dtype) / gpu.sm_count * DTYPE_BYTES[dtype]
    return kernel_kind(gpu.device["shared_memory_per_sm_bytes"], rate, dtype)


def _share_of_grouped(library: ProductTiles, cut: Cut, layout: str) -> Array | float:
    """Share of the library's own rate that PyTorch's grouped kernels reach."""
    if not library.small_side:
        return 1.0
    turned = 1.0 if layout == "tn" else GROUPED_TURNED
    return np.where(cut.tile[:, 0] < REFERENCE_TILE[0], GROUPED_SMALL, 1.0) * turned


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


def _hbm_bytes(shapes: GemmShapes, size: float, output_bytes: Array, gpu: GpuModel) -> Array:
    """Bytes between HBM and L2: at least every operand once, less what stays in L2 between launches."""
    compulsory = shapes.batch * (shapes.m * shapes.k + shapes.n * shapes.k) * size + output_bytes
    footprint = np.where(np.isnan(shapes.footprint_bytes), compulsory, shapes.footprint_bytes)
    staged = shapes.batch * shapes.m * shapes.n * shapes.k * size * (1.0 / REFERENCE_TILE[0] + 1.0 / REFERENCE_TILE[1])
    return read_again(compulsory, staged, footprint, gpu)


def read_again(compulsory: Array, staged: Array, footprint: Array, gpu: GpuModel) -> Array:
    """Bytes between HBM and L2 of products whose tiles load so many ``staged`` ones, ``compulsory`` ones at least.

    SMs at work together share operand stripes of about sqrt(SMs) tiles; the next wave finds little of them in L2.
    """
    again = gpu["kernel.gemm.reread_share"] * staged / np.sqrt(gpu.sm_count)
    return np.asarray(np.maximum(compulsory, again) * (1.0 - residency(footprint, gpu)))
