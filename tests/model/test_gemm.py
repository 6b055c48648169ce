"""Matrix products: tiles, waves, traffic and what alignment is worth."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.kernels.gemm import GemmShapes, gemm_work
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.kernels.product_pace import tile_efficiency
from joulecast.model.kernels.product_tiles import LARGE, SMALL
from joulecast.model.power.kernel_power import kernel_time_s

SMS = 132


def shapes(m, n, k, batch=1, footprint=np.nan):
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (m, n, k, batch, footprint)))
    return GemmShapes(*(np.atleast_1d(column) for column in columns))


def work(gpu, *sizes, dtype="bf16", layout="tn", **values):
    return gemm_work(shapes(*sizes, **values), dtype, layout, gpu)


def test_cycles_grow_by_whole_waves(h200):
    """Tiles of one wave run together: up to as many as there are SMs the time stays, one more adds a wave."""
    gpu = h200.with_values({"kernel.gemm.tile_penalty": 5.0})  # large tiles win everywhere
    m = 128 * 256 * np.arange(1, 6)
    cycles = work(gpu, 256 * np.array([SMS, 2 * SMS, 2 * SMS + 1]), 128, 8192).cycles
    assert cycles[1] == pytest.approx(2 * cycles[0], rel=1e-12)
    assert cycles[2] > 1.2 * cycles[1]
    assert np.all(np.diff(work(gpu, m, 8192, 8192).cycles) > 0)


def test_products_within_one_wave_take_the_same_time(h200):
    batches = work(h200, 256, 128, 4096, batch=np.array([1, 60, SMS])).cycles
    assert batches[0] <= batches[1] <= batches[2]
    full, more = work(h200, 256, 128, 4096, batch=np.array([20 * SMS, 20 * SMS + 1])).cycles
    assert 1.0 < more / full < 1.06


def test_cycles_are_those_of_the_tensor_cores_for_large_products(h200):
    """2·M·N·K / (132 SMs · 4096 FLOP/cycle) and not more than a quarter beyond."""
    ideal = 2.0 * 8192**3 / (SMS * 4096)
    assert 1.0 < work(h200, 8192, 8192, 8192).cycles[0] / ideal < 1.25


def test_small_tiles_use_the_tensor_cores_less():
    large, small = (np.array(tiles, dtype=float) for tiles in (LARGE, SMALL))
    worst = tile_efficiency(large[:, 0], large[:, 1], 0.95, 0.15).min()
    assert worst > tile_efficiency(small[:, 0], small[:, 1], 0.95, 0.15).max()
    assert tile_efficiency(np.array(128.0), np.array(256.0), 0.95, 0.0) == pytest.approx(0.95)


def test_a_wider_result_lengthens_the_end_of_every_tile(h200):
    """Added to fp32 it is four times as wide as bf16: the overhead of as many tiles as waves grows by 3 · 0.5."""
    gpu = h200.with_values({"kernel.gemm.tile_penalty": 5.0})  # large tiles win everywhere
    sizes, overhead = shapes(2816, 7680, np.array([4096, 8192])), h200["kernel.gemm.tile_overhead_cycles"]
    narrow, wide = (gemm_work(sizes, "bf16", "nt", gpu, width) for width in (2.0, 8.0))
    assert wide.tile.tolist() == narrow.tile.tolist()
    ends = overhead * wide.tile.prod(axis=1) / (128 * 256)
    assert wide.cycles - narrow.cycles == pytest.approx(1.5 * np.ceil(wide.tiles / SMS) * ends)
    # FP8's results are in bf16, and several streams hide what one tile ends with.
    assert gemm_work(sizes, "fp8", "tn", gpu, 2.0).cycles.tolist() == gemm_work(sizes, "fp8", "tn", gpu).cycles.tolist()
    apart = [gemm_work(sizes, "bf16", "nt", gpu, width, separate=True).cycles.tolist() for width in (2.0, 8.0)]
    assert apart[0] == apart[1]


def test_the_fastest_tile_is_taken(h200):
    """A narrow product runs on a narrow tile: its time is far below that of a padded large one."""
    narrow, wide = work(h200, np.array([64, 256]), 16384, 8192).tile[:, 0]
    assert narrow == 64
    assert wide >= 128


def test_a_deep_product_with_few_outputs_splits_k(h200):
    """256 x 256 outputs fill a few SMs; with K split they fill most, and the time falls although sums are added."""
    deep = work(h200, 256, 256, 65536)
    assert deep.splits[0] > 1
    tiles = np.ceil(256 / deep.tile[0, 0]) * np.ceil(256 / deep.tile[0, 1])
    assert tiles * deep.splits[0] <= SMS
    alone = work(h200, 256, 256, 65536 / deep.splits[0])
    assert alone.cycles[0] < deep.cycles[0] < deep.splits[0] * alone.cycles[0]
    assert work(h200, 8192, 8192, 8192).splits[0] == 1


@pytest.mark.parametrize(("dtype", "share"), [("fp16", 1.0), ("tf32", 2.0), ("fp8", 0.5), ("fp32", 16.0)])
def test_types_follow_the_rate_of_their_units(h200, dtype, share):
    ratio = work(h200, 8192, 8192, 8192, dtype=dtype).cycles[0] / work(h200, 8192, 8192, 8192).cycles[0]
    assert ratio == pytest.approx(share, rel=0.15)


def test_each_operand_and_the_result_move_at_least_once(h200):
    few = work(h200, 128, 16384, 16384)
    assert few.hbm_bytes[0] == pytest.approx(2 * (128 * 16384 * 2 + 16384**2))
    assert few.l2_bytes[0] > 2 * 16384**2


def test_operands_that_stay_in_l2_do_not_come_from_memory(h200):
    resident, streamed = work(h200, 1024, 1024, 1024, footprint=np.array([1e6, np.inf])).hbm_bytes
    assert resident == 0.0
    assert streamed > 0.0
    assert np.isnan(shapes(1, 1, 1).footprint_bytes[0])


def test_a_batch_costs_what_its_products_cost(h200):
    for size in (512, 4096):
        one, four = work(h200, size, size, 4096, batch=np.array([1, 4]), footprint=np.inf).hbm_bytes
        assert four == pytest.approx(4 * one)


def test_latency_floor_and_clock(h200):
    costs = lower([Gemm(8, 8, 8), Gemm(8192, 8192, 8192)], h200)
    slow, fast = (kernel_time_s(costs, clock, h200) for clock in (990.0, 1980.0))
    assert fast[0] > h200["kernel.gemm.fixed_s"]
    assert slow[1] / fast[1] == pytest.approx(2.0, rel=0.01)  # bound by the tensor cores: inversely to the clock


def test_layouts_differ_by_their_factor(h200):
    gpu = h200.with_values({"kernel.gemm.layout.nt": 0.5})
    plain, halved = work(gpu, 8192, 8192, 8192).cycles[0], work(gpu, 8192, 8192, 8192, layout="nt").cycles[0]
    assert 1.5 < halved / plain < 2.0


def test_products_of_uneven_rows_leave_half_a_tile(h200):
    """128 rows more to compute, as with so many more in each, and no more of operands or results to move."""
    product = Gemm(512, 1536, 2048, batch=128, grouped=True, footprint_bytes=np.inf, uneven=True)
    even, more, uneven = (
        lower([one], h200) for one in (replace(product, uneven=False), replace(product, m=640, uneven=False), product)
    )
    assert uneven.core_cycles[0] == more.core_cycles[0] > 1.1 * even.core_cycles[0]
    assert uneven.memory_s[0] == even.memory_s[0] and uneven.tensor_j[0] == even.tensor_j[0]
