"""Kernels with explicit tiles: waves, loads, residency on an SM, and bytes in flight."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.lowering import lower
from joulecast.model.operators import Gemm, Streaming, Tile
from joulecast.model.power import kernel_time_s

SMS = 132


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


def test_more_warps_cost_energy(h200):
    few, many = lower([rows(warps=w) for w in (2, 16)], h200).vector_j
    extra = h200["power.tile_rmsnorm.pj_per_byte_and_warp"] * 3e-12
    assert many - few == pytest.approx(extra * (rows().bytes_read + rows().bytes_written))
