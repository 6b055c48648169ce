"""Kernels with explicit tiles: waves, loads, residency on an SM, and bytes in flight."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.occupancy import Blocks, resident_blocks, spilled_registers
from joulecast.model.kernels.operators import Attention, Gemm, RowTile, Streaming, Tile
from joulecast.model.kernels.row_tiles import tile_blocks
from joulecast.model.kernels.tile_estimates import estimate
from joulecast.model.kernels.tiles import gemm_blocks
from joulecast.model.power.kernel_power import kernel_time_s

SMS = 132
SIDES = ((128, 256), (64, 64))


def product(m, n, k, *tile, data="randn"):
    return Gemm(m, n, k, tile=Tile(*tile), data=data)


def cycles(gpu, *operators):
    return lower(operators, gpu).core_cycles


def rows(pattern="tile_rmsnorm", tile_rows=4, warps=8, columns=4096):
    total = 2.0 * 16384 * columns
    written = total if pattern == "tile_rmsnorm" else 0.0
    return Streaming(
        pattern, total, written, rows=16384, columns=columns, tile_rows=tile_rows, tile_columns=columns, warps=warps
    )


def test_one_more_tile_than_sms_adds_a_wave(h200):
    tile = (128, 256, 64, 8, 3)
    full, more, two = cycles(h200, *(product(128 * count, 256, 4096, *tile) for count in (SMS, SMS + 1, 2 * SMS)))
    assert more == two == pytest.approx(2 * full)


@pytest.mark.parametrize("knee", [0.9, 1.0, 1.1])
def test_tiles_of_128_squared_even_out_whatever_loads_cost(h200, knee):
    gpu = h200.with_values({"kernel.tile_gemm.load_knee": knee})
    counts = 2 * SMS, 2 * SMS + 50
    few, more = cycles(gpu, *(product(128 * count, 128, 4096, 128, 128, 64, 8, 3) for count in counts))
    assert more / few == pytest.approx(counts[1] / counts[0])


def test_tiles_that_are_not_full_cost_whole_ones(h200):
    """One row more than 66 tiles makes 67 of them in each of two columns: more than there are SMs."""
    tile = (128, 256, 64, 8, 3)
    exact, more = cycles(h200, product(128 * 66, 512, 4096, *tile), product(128 * 66 + 1, 512, 4096, *tile))
    assert more == pytest.approx(2 * exact)


def test_small_tiles_are_bound_by_loads(h200):
    """At equal work a tile with a quarter of the outputs takes longer than its larger siblings."""
    tiles = [(128, 256, 64, 8, 3), (64, 64, 64, 4, 3), (32, 32, 64, 4, 3)]
    time = cycles(h200, *(product(8192, 8192, 8192, *tile) for tile in tiles))
    assert time[0] < time[1] < time[2]
    assert time[2] > 2 * time[0]


def test_short_steps_cost_more(h200):
    deep, short = cycles(h200, *(product(8192, 8192, 8192, 128, 128, k, 8, 3) for k in (64, 32)))
    assert deep < short < 1.5 * deep


def test_small_tiles_stage_more_bytes_on_chip(h200):
    large, small = lower(
        [product(8192, 8192, 8192, *t) for t in ((128, 256, 64, 8, 3), (64, 64, 64, 4, 3))], h200
    ).onchip_j
    assert small > 1.5 * large


def test_zeros_cost_less_in_tiles_too(h200):
    tile = (128, 256, 64, 8, 3)
    random, zeros = lower([product(4096, 4096, 4096, *tile, data=d) for d in ("randn", "zeros")], h200).tensor_j
    assert zeros < 0.5 * random


def test_bandwidth_follows_the_bytes_in_flight(h200):
    """Few rows in flight on an SM leave the memory waiting: at the same bytes larger tiles are faster."""
    tiles = [replace(rows("tile_reduce_min", r, 8, columns=64), bytes_read=4e9) for r in (1, 4, 64)]
    time = kernel_time_s(lower(tiles, h200), 1980.0, h200)
    assert time[0] > 2 * time[1] > 2 * time[2]


def test_row_kernels_never_beat_their_share_of_the_memory(h200):
    peak = h200.device["memory_bandwidth_bytes_per_s"]
    for pattern in ("tile_rmsnorm", "tile_reduce_min"):
        operators = [rows(pattern, tile_rows=r, warps=w) for r in (1, 2, 4) for w in (4, 8)]
        moved = np.array([o.bytes_read + o.bytes_written for o in operators])
        reached = moved / kernel_time_s(lower(operators, h200), 1980.0, h200)
        assert np.all(reached <= h200[f"kernel.{pattern}.bandwidth_share"] * peak)


def test_more_threads_cost_energy(h200):
    """Each of its own, and for the lanes' five joins of four rows."""
    few, many = lower([rows(warps=w) for w in (2, 16)], h200).vector_j
    started = 14 * 32 * 16384 / 4
    each = estimate(h200, "power.tile_rmsnorm.pj_per_thread") + 4 * 5 * estimate(h200, "power.tile_rows.pj_per_join")
    assert many - few == pytest.approx(started * each * 1e-12)


def test_a_little_that_spills_costs_a_little_and_a_lot_costs_a_lot(h200):
    """Rows of 4,096 by one warp: 128 values a thread fit, 256 do not quite, 512 live in memory."""
    tiles = [rows(tile_rows=r, warps=1) for r in (1, 2, 4)]
    fits, spills, lives = kernel_time_s(lower(tiles, h200), 1980.0, h200)
    assert fits < spills < 2 * fits
    assert lives > 8 * fits
    energy = lower(tiles, h200).hbm_j
    assert energy[0] == energy[1] < 0.2 * energy[2]


def test_one_product_by_itself_does_not_hide_its_softmax(h200):
    """Two blocks of 64 queries on an SM overlap each other, one of 64 with deep buffers does not."""
    alone = "kernel.tile_attention.alone"
    (both, one), equal = (
        cycles(gpu, attend(64, 64, 4, 3), attend(64, 128, 4, 3)) for gpu in (h200, h200.with_values({alone: 1.0}))
    )
    assert both == equal[0] and one > 1.05 * both
    assert one == pytest.approx(estimate(h200, alone) * equal[1], rel=0.02)


def attend(m, n, warps, stages, **changes):
    return replace(Attention(2, 16, 16, 4096, 128, tile=Tile(m, n, warps=warps, stages=stages)), **changes)


def test_larger_query_blocks_read_keys_less_often(h200):
    small, large = lower([attend(64, 64, 4, 3), attend(128, 64, 8, 3)], h200).onchip_j
    assert small > large


def test_stages_hide_loads(h200):
    one, two, three, four = cycles(h200, *(product(4096, 4096, 4096, 128, 128, 64, 8, s) for s in (1, 2, 3, 4)))
    assert one == two > 1.5 * three
    # A fourth leaves room for one block on an SM instead of two, so that nothing goes on while it begins and ends.
    ends = h200["kernel.tile_gemm.tile_overhead_cycles"]
    assert four - three == pytest.approx(1024 / SMS * (ends - ends / 2))


def test_the_ends_of_small_tiles_hide_behind_their_neighbours(h200):
    """Halving K halves all but a tile's ends: those of 64 x 64, three on an SM, cost a fifth of one of 128 x 256."""
    ends = {}
    for m, n, warps in ((64, 64, 4), (128, 256, 8)):
        long, short = cycles(h200, *(product(8192, 8192, k, m, n, 64, warps, 3) for k in (8192, 4096)))
        ends[m] = (2 * short - long) / (8192 * 8192 / m / n / SMS)
    whole = h200["kernel.tile_gemm.tile_overhead_cycles"]
    assert ends[128] == pytest.approx(1.5 * whole, rel=0.05)
    assert ends[64] == pytest.approx((0.5 + 0.5 / 4) * whole / 4, rel=0.01)


def test_operands_that_stay_in_l2_cost_no_memory(h200):
    """2,048 cubed is 25 MB; of 8,192 cubed tiles that work at a time share stripes, and small ones read more again."""
    near, far, small = lower(
        [product(2048, 2048, 2048, 128, 256, 64, 8, 3), *(product(8192, 8192, 8192, *t, 64, 8, 3) for t in SIDES)],
        h200,
    ).hbm_j
    assert near == 0.0
    assert small / far == pytest.approx((1 / 64 + 1 / 64) / (1 / 128 + 1 / 256))
    cold = replace(product(2048, 2048, 2048, 128, 256, 64, 8, 3), footprint_bytes=1e9)
    assert lower([cold], h200).hbm_j[0] > 0.0


def test_splitting_k_fills_idle_sms_and_pays_for_the_sums(h200):
    """64 tiles leave half the SMs idle: halving K pays; of a product that fills them it does not."""
    few = kernel_time_s(lower([split(1024, 1024, 65536, s) for s in (1, 2)], h200), 1980.0, h200)
    many = kernel_time_s(lower([split(4096, 4096, 1024, s) for s in (1, 2)], h200), 1980.0, h200)
    assert few[1] < 0.7 * few[0]
    assert many[1] > many[0]


def test_partial_sums_are_written_and_read_in_fp32(h200):
    """Each of ``s`` parts of K writes its sums and one kernel reads them: 8·m·n bytes a part."""
    one = cycles(h200, Gemm(1024, 1024, 16384, tile=Tile(128, 128, 64, 8, 4)))[0]
    batch = 3
    rate = estimate(h200, "kernel.tile_gemm.sum_share") * h200["kernel.l2.bytes_per_sm_cycle"] * h200.sm_count
    two, four = (cycles(h200, replace(split(1024, 1024, 16384 * parts, parts), batch=batch))[0] for parts in (2, 4))
    assert four - 8.0 * 1024**2 * batch * 4 / rate == pytest.approx(
        2 * (two - 8.0 * 1024**2 * batch * 2 / rate), rel=0.05
    )
    assert one < two


def test_partial_sums_cost_their_energy_in_l2_and_a_launch(h200):
    costs = lower([split(1024, 1024, 16384, parts) for parts in (1, 4)], h200)
    assert np.diff(costs.fixed_s) == pytest.approx(estimate(h200, "kernel.tile_gemm.sum_fixed_s"))  # one more kernel
    assert np.diff(costs.onchip_j) == pytest.approx(8.0 * 1024**2 * 4 * h200["power.l2_pj_per_byte"] * 1e-12)


@pytest.mark.parametrize(
    ("name", "costly", "free"),
    [
        ("narrow_step", [(128, 128, 64)], [(128, 256, 64)]),
        ("short_step", [(128, 256, 32)], [(128, 256, 64), (64, 256, 128)]),
    ],
)
def test_steps_cost_more_only_below_the_widest_and_the_longest(h200, name, costly, free):
    """Half as wide as the widest instruction, or as long as the usual step: once the constant more."""
    key = f"kernel.tile_gemm.{name}"

    def of_k(gpu, tile):
        long, short = cycles(gpu, *(product(8192, 8192, k, *tile, 8, 4) for k in (8192, 4096)))
        return long - short

    for tile, more in (*((tile, 1.5) for tile in costly), *((tile, 1.0) for tile in free)):
        ratio = of_k(h200.with_values({key: 0.5}), tile) / of_k(h200.with_values({key: 0.0}), tile)
        assert ratio == pytest.approx(more)


def test_what_spills_of_a_product_is_moved_in_every_step(h200):
    """256 x 256 values in eight warps need 435 registers of 255: written and read for each step of 64."""
    one = product(256 * SMS, 256, 4096, 256, 256, 64, 8, 3)
    spilled = spilled_registers(gemm_blocks([one.tile], "bf16", h200), h200)[0]
    assert spilled > 100
    key = "kernel.tile_spill.bytes_per_sm_cycle"
    slow, fast = (cycles(h200.with_values({key: rate}), one)[0] for rate in (20.0, 40.0))
    assert slow - fast == pytest.approx(4096 / 64 * 8 * spilled * 256 * (1 / 20 - 1 / 40))


def split(m, n, k, parts):
    return Gemm(m, n, k, tile=Tile(128, 128, 64, 8, 4, split_k=parts))


def test_operands_that_are_not_staged_are_loaded_by_every_warp(h200):
    staged, own_loads = (Gemm(4096, 4096, 4096, tile=Tile(128, 128, 64, 8, 3, staged=s)) for s in (True, False))
    assert cycles(h200, own_loads)[0] > 1.5 * cycles(h200, staged)[0]
    loads = 8 * (32 + 64) * 2.0  # of each K: eight warps lie four down and two across, each on 32 rows and 64 columns
    longer = cycles(h200, replace(own_loads, k=8192))[0] - cycles(h200, own_loads)[0]
    assert longer == pytest.approx(
        1024 / SMS * 4096 * loads / estimate(h200, "kernel.tile_gemm.register_bytes_per_sm_cycle")
    )
    energy = lower([staged, own_loads], h200).onchip_j
    near = 1024 * 4096 * loads * estimate(h200, "power.tile_spill_pj_per_byte") * 1e-12
    assert energy[1] - energy[0] == pytest.approx(near)


def test_rows_in_shared_memory_free_registers_and_cost_energy(h200):
    held, staged = (rows(tile_rows=8, warps=4), replace(rows(tile_rows=8, warps=4), staged=True))
    blocks = tile_blocks([held, staged], h200).blocks
    assert blocks.registers[1] < 64 < blocks.registers[0]
    assert blocks.shared_bytes.tolist() == [0, 8 * 4096 * 2]
    assert lower([staged], h200).onchip_j[0] > lower([held], h200).onchip_j[0] - 1e-9


def test_the_library_is_the_default(h200):
    streaming = Streaming("rmsnorm", 1e9, 1e9, rows=131072, columns=4096)
    assert lower([streaming], h200).family[0] != lower([streaming.with_tile(RowTile(1, 0, 8))], h200).family[0]
    assert cycles(h200, Gemm(4096, 4096, 4096))[0] != cycles(h200, product(4096, 4096, 4096, 64, 64, 64, 4, 3))[0]


@pytest.mark.parametrize(
    "threads,registers,shared,blocks",
    [
        (256, 32, 0, 8),  # threads
        (768, 16, 0, 2),  # threads, whole blocks of them
        (32, 16, 0, 32),  # slots
        (128, 160, 0, 3),  # registers
        (256, 161, 0, 1),  # registers, handed out by eights
        (128, 32, 100_000, 2),  # shared memory
        (1024, 400, 0, 1),
    ],
)
def test_an_sm_holds_what_its_scarcest_part_allows(h200, threads, registers, shared, blocks):
    needs = Blocks(np.array([threads * 1.0]), np.array([registers * 1.0]), np.array([shared * 1.0]))
    assert resident_blocks(needs, h200)[0] == blocks


def test_threads_of_large_blocks_have_fewer_registers(h200):
    needs = Blocks(np.array([128.0, 1024.0]), np.array([300.0, 100.0]), np.zeros(2))
    assert spilled_registers(needs, h200).tolist() == [45.0, 36.0]


def test_rows_that_stay_in_l2_are_read_from_there(h200):
    """The same kernel, once among others and once again and again with its data in L2."""
    small = Streaming("rmsnorm", 8e6, 8e6, rows=1000, columns=4096).with_tile(RowTile(1, warps=8))
    warm, cold = kernel_time_s(lower([small, replace(small, footprint_bytes=np.inf)], h200), 1980.0, h200)
    assert warm < cold
    assert lower([small], h200).hbm_j[0] == 0.0
