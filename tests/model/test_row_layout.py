"""How row-wise tiles lie over threads, and what follows for their time and energy."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm, Streaming
from joulecast.model.kernels.row_layout import barriers, row_layout
from joulecast.model.kernels.row_tiles import tile_blocks
from joulecast.model.kernels.tile_estimates import estimate
from joulecast.model.power.contention import alone, compute_drag
from joulecast.model.power.kernel_power import kernel_time_s

BF16, FP32 = 2.0, 4.0


def layout(rows, columns, warps, size):
    return row_layout(*(np.array([float(x)]) for x in (rows, columns, warps, size)))


def kernel(pattern="tile_rmsnorm", rows=4, warps=16, columns=4096, tile_columns=0, height=65536):
    dtype, size = ("fp32", 4.0) if pattern == "tile_reduce_min" else ("bf16", 2.0)
    read = height * columns * size
    written = height * size if pattern == "tile_reduce_min" else read
    return Streaming(
        pattern,
        read,
        written,
        elements=height * columns,
        dtype=dtype,
        rows=height,
        columns=columns,
        tile_rows=rows,
        tile_columns=tile_columns,
        warps=warps,
    )


@pytest.mark.parametrize(
    ("rows", "columns", "warps", "size", "across", "down", "held", "loads"),
    [
        (1, 64, 8, FP32, 2, 4, 1, 1),  # held four times
        (4, 64, 1, FP32, 1, 1, 2, 2),
        (4, 256, 4, FP32, 2, 2, 2, 2),
        (16, 1024, 8, FP32, 8, 1, 16, 16),
        (1, 4096, 32, BF16, 32, 1, 1, 1),
        (4, 4096, 32, BF16, 16, 2, 2, 2),
        (8, 4096, 16, BF16, 16, 1, 8, 8),
        (1, 4096, 1, BF16, 1, 1, 1, 16),
    ],
)
def test_layouts_are_those_of_compiled_kernels(rows, columns, warps, size, across, down, held, loads):
    """Warps along and across rows as Triton 3.6 prints them, loads as its machine code for sm_90 has them."""
    found = layout(rows, columns, warps, size)
    assert (found.across[0], found.down[0], found.rows[0], found.loads[0]) == (across, down, held, loads)


def test_warps_that_share_no_row_do_not_wait_for_each_other():
    waits = [barriers(layout(rows, 4096, warps, BF16))[0] for rows, warps in ((1, 1), (1, 32), (2, 32))]
    assert waits == [0, 1, 2]
    assert barriers(layout(16, 64, 8, FP32))[0] == 0


@pytest.mark.parametrize(
    ("rows", "warps", "registers", "resident"),
    [(1, 8, 32, 8), (2, 16, 32, 4), (4, 16, 52, 2), (8, 8, 158, 1), (2, 2, 168, 6), (1, 1, 228, 8)],
)
def test_registers_are_nearly_those_compiled(h200, rows, warps, registers, resident):
    found = tile_blocks([kernel(rows=rows, warps=warps)], h200)
    assert found.blocks.registers[0] == pytest.approx(registers, rel=0.1)
    threads = found.blocks.threads[0]
    assert 65536 // (threads * 8 * np.ceil(found.blocks.registers[0] / 8)) == pytest.approx(resident, abs=1)


def test_warps_wait_again_where_rows_are_combined_twice(h200):
    """Of blocks of 1,024 threads an SM holds two; a warp with a row of its own waits for none."""
    once, twice = (lower([kernel(p, 1, 32)], h200).core_cycles[0] for p in ("tile_rmsnorm", "tile_softmax"))
    rounds = 65536 / (2 * h200.sm_count)
    assert twice - once == pytest.approx(rounds * estimate(h200, "kernel.tile_rows.second_wait_cycles"))
    lone = [lower([kernel(p, 1, 1, 1024)], h200).core_cycles[0] for p in ("tile_rmsnorm", "tile_softmax")]
    assert lone[0] == pytest.approx(lone[1])


def test_the_last_blocks_of_few_waves_leave_the_memory_idle(h200):
    """As many bytes in fewer and larger blocks, none of which the SMs wait for."""
    tiles = [kernel("tile_reduce_min", rows, 4, 1024, 64, height=524288) for rows in (4, 16)]
    costs = lower(tiles, h200)
    waves = [costs.memory_s[0] * 62.06, costs.memory_s[0] * 15.52]
    share = estimate(h200, "kernel.tile_rows.tail_share")
    assert costs.memory_s[1] == costs.memory_s[0]
    tail = share * costs.memory_s[0] ** 2 * (1 / waves[1] - 1 / waves[0])
    assert costs.fixed_s[1] - costs.fixed_s[0] == pytest.approx(tail, rel=1e-3)


def test_an_sm_with_one_block_waits_between_two(h200):
    """Blocks of eight rows leave room for no second one, of four they do."""
    two, one = (lower([kernel(rows=rows)], h200) for rows in (4, 8))
    rounds = 65536 / 8 / h200.sm_count
    waiting = rounds * estimate(h200, "kernel.tile_rows.lone_block_cycles") / (h200.max_clock_mhz * 1e6)
    assert one.fixed_s[0] - two.fixed_s[0] == pytest.approx(waiting, rel=0.05)


def test_an_sm_with_one_block_computes_its_exponentials_by_themselves(h200):
    """16 in a cycle; a layer norm waits twice but has none."""
    norm, softmax = (lower([kernel(p, 8, 16)], h200).fixed_s[0] for p in ("tile_layernorm", "tile_softmax"))
    cycles = 65536 / 8 / h200.sm_count * 8 * 4096 / 16
    assert softmax - norm == pytest.approx(cycles / (h200.max_clock_mhz * 1e6), rel=0.01)
    shared = [lower([kernel(p, 4, 16)], h200).fixed_s[0] for p in ("tile_layernorm", "tile_softmax")]
    assert shared[0] == pytest.approx(shared[1], rel=0.02)


def test_blocks_of_fewer_bytes_turn_the_memory_around_more_often_until_reads_and_writes_mix(h200):
    """Two halvings of 64 KB, and the smallest blocks; kernels that only read do not care."""
    seconds = lower([kernel(rows=rows, warps=4) for rows in (8, 4, 2, 1)], h200).memory_s
    once = estimate(h200, "kernel.tile_rows.turning_share")
    assert seconds / seconds[1] == pytest.approx([1, 1, 1 + once, 1 + 2 * once])
    small, smaller = lower(
        [kernel(rows=1, columns=c, warps=1, height=65536 * 4096 // c) for c in (2048, 1024)], h200
    ).memory_s
    assert small == smaller == pytest.approx(seconds[1] * (1 - estimate(h200, "kernel.tile_rows.mixed_share")))
    reading = [kernel("tile_reduce_min", rows, 4, 1024, 64) for rows in (1, 16)]
    assert np.ptp(lower(reading, h200).memory_s) == 0


def test_element_wise_tiles_take_longer_runs_the_larger_they_are(h200):
    """Three doublings of 4 KB; what only writes does not turn."""

    def exponentials(columns, read=1.0):
        bytes_ = 2.0**32
        return Streaming("tile_exp", bytes_ * read, bytes_, dtype="fp32", tile_rows=1, tile_columns=columns, warps=1)

    seconds = lower([exponentials(c) for c in (256, 512, 1024, 2048, 4096, 8192)], h200).memory_s
    share = estimate(h200, "kernel.tile_rows.running_share")
    assert seconds / seconds[0] == pytest.approx([1, 1, *(1 + share * n for n in (1, 2, 3, 3))])
    written = lower([exponentials(c, 0.0) for c in (512, 4096)], h200).memory_s
    assert written[0] == written[1]


def test_what_goes_on_beside_the_memory_shows_less_than_in_other_kernels(h200):
    tile = kernel(rows=1, warps=16)
    costs = lower([tile, Gemm(4096, 4096, 4096)], h200)
    assert costs.overlap[0] == estimate(h200, "kernel.tile_rows.overlap_exponent") > h200["kernel.overlap_exponent"]
    assert costs.overlap[1] == 0.0
    usual = replace(costs, overlap=np.zeros(2))
    assert kernel_time_s(costs, 1980.0, h200)[0] < kernel_time_s(usual, 1980.0, h200)[0]
    assert kernel_time_s(costs, 1980.0, h200)[1] == kernel_time_s(usual, 1980.0, h200)[1]


def test_it_hides_as_well_beside_communication(h200):
    """SMs that are taken cost a memory-bound tile less than its smooth maximum of other kernels would."""
    costs = lower([kernel(rows=1, warps=16), Collective("all_gather", 1e8, 4)], h200)
    clocks = np.array([990.0, 1980.0])
    rows, taken = np.arange(2), 32.0

    def drag(own):
        seconds = kernel_time_s(own, clocks[:, None], h200).T
        return compute_drag(alone(own, rows, seconds, clocks), 0, 1, taken, h200)

    assert np.all(drag(costs) > 1.0)
    assert drag(costs)[1] < drag(replace(costs, overlap=np.zeros(2)))[1]


def test_joins_and_loads_cost_energy_where_values_are_folded(h200):
    """Warps that lie along rows join a part of each, those on rows of their own join one."""
    shared, own = lower([kernel("tile_reduce_min", 16, 8, 1024, c) for c in (1024, 64)], h200).vector_j
    threads = 65536 / 16 * 256
    joins = threads * (16 * 5 - 4) * estimate(h200, "power.tile_rows.pj_per_join") * 1e-12
    assert shared - own == pytest.approx(joins)


def test_joins_cost_energy_where_rows_are_whole(h200):
    """Four warps across each of 16 rows join them all, one warp with four rows joins those: 3 % of energy."""
    wide, own = lower([kernel("tile_softmax", r, w, 1024) for r, w in ((16, 4), (4, 1))], h200).vector_j
    threads = 65536 / 4 * 32
    join = estimate(h200, "power.tile_rows.pj_per_join") * 1e-12
    assert wide - own == pytest.approx(2 * threads * (16 - 4) * 5 * join)  # a maximum, then a sum


@pytest.mark.parametrize(("pattern", "vectors", "joined"), [("tile_rmsnorm", 1, 1), ("tile_layernorm", 2, 2)])
def test_each_block_of_a_norm_reads_its_weights(h200, pattern, vectors, joined):
    """With two rows in a block weights are read half as often; as many threads join as many rows each twice."""
    one, two = lower([kernel(pattern, r, w) for r, w in ((1, 4), (2, 8))], h200).vector_j
    byte = estimate(h200, "power.tile_rows.pj_per_weight_byte") * 1e-12
    join = estimate(h200, "power.tile_rows.pj_per_join") * 1e-12
    saved, joins = 65536 / 2 * 4096 * BF16 * vectors, 65536 * 4 * 32 * 5 * joined
    assert one - two == pytest.approx(saved * byte - joins * join)


def test_narrow_tiles_of_many_warps_are_bound_by_their_loads(h200):
    """Four warps on 64 columns load each value twice, in 16 steps: 2.3 to 2.6 % longer than one warp on two cards."""
    one, four = (lower([kernel("tile_reduce_min", 1, w, 1024, 64, height=524288)], h200) for w in (1, 4))
    rows = 524288 / h200.sm_count
    assert four.core_cycles[0] == pytest.approx(rows * 4 * 16 * estimate(h200, "kernel.tile_rows.cycles_per_load"))
    assert one.core_cycles[0] < four.core_cycles[0] / 2
    key = "power.tile_rows.pj_per_load"
    free = lower([kernel("tile_reduce_min", 1, 4, 1024, 64, height=524288)], h200.with_values({key: 0.0}))
    loads = 524288 * 4 * 32 * 16 * estimate(h200, key) * 1e-12
    assert four.vector_j[0] - free.vector_j[0] == pytest.approx(loads)
    slower = kernel_time_s(four, 1800.0, h200)[0] / kernel_time_s(one, 1800.0, h200)[0]
    assert 1.01 < slower < 1.04
