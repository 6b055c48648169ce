"""Tiles that a GPU cannot hold: one message with the limit and the nearest tile that it can."""

from dataclasses import replace

import pytest

import joulecast as jc

ROWS = jc.Streaming("rmsnorm", 1e9, 1e9, elements=5e8, rows=122070, columns=4096)


@pytest.fixture(scope="module")
def gpu():
    return jc.gpu("h200-sxm")


def refused(gpu, operator, **how):
    with pytest.raises(jc.InputError) as caught:
        gpu.predict(operator, **how)
    return str(caught.value)


def product(*tile, **more):
    return jc.Gemm(4096, 4096, 4096, tile=jc.Tile(*tile, **more))


def attention(*tile, **more):
    return jc.Attention(2, 16, 16, 4096, 128, tile=jc.Tile(*tile, **more))


@pytest.mark.parametrize(
    ("operator", "limit", "nearest"),
    [
        (product(128, 256, 64, 8, 8), "at most 232448", "stages = 4"),
        (product(512, 512, 64, 8, 1), "at most 255", "n = 64"),
        (product(128, 256, 64, 4, 3), "at most 255", "warps = 8"),
        (product(256, 256, 64, 8, 8), "at most 232448", "k = 32, m = 128"),
        (product(128, 128, 64, 8, 10**9), "at most 232448", "stages = 7"),
        (product(2**30, 2**30, 64, 8, 3), "at most 232448", "half the size"),
        (product(128, 128, 64, 64, 3), "at most 1024", "nearest is 32"),
        (product(100, 128, 64, 8, 3), "multiples of 8", "nearest is 96"),
        (product(128, 128, 64, 8, 0), "at least 1", "nearest is 1"),
        (product(128, 128, 64, 8, 3, split_k=100), "64 steps of 64", "nearest is 64"),
        (attention(128, 128, warps=8, stages=8), "at most 232448", "stages = 3"),
        (attention(128, 128, warps=4, stages=2), "at most 255", "warps = 8"),
        (ROWS.with_tile(jc.RowTile(0, 0, 4)), "rows = 0", "nearest is 1"),
        (ROWS.with_tile(jc.RowTile(1, -8, 4)), "columns = -8", "nearest is 1"),
        (ROWS.with_tile(jc.RowTile(4, 0, 1)), "at most 255", "warps = 4"),
        (ROWS.with_tile(jc.RowTile(8, 0, 1)), "at most 255", "warps = 8"),
        (ROWS.with_tile(jc.RowTile(64, 0, 16, staged=True)), "at most 232448", "rows = 16"),
        (ROWS.with_tile(jc.RowTile(1, 512, 4)), "whole rows of 4096", "nearest is 4096"),
        (jc.Streaming("exp", 1e9, 1e9).with_tile(jc.RowTile(1, 0, 4)), "no rows", "columns of a block"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_that_does(gpu, operator, limit, nearest):
    message = refused(gpu, operator)
    assert "[tile" in message and limit in message and nearest in message


def test_the_nearest_tile_does_fit(gpu):
    assert gpu.predict(product(128, 256, 64, 8, 4)).time_s > 0
    assert gpu.predict(product(128, 256, 64, 8, 3)).time_s > 0
    assert gpu.predict(product(128, 256, 32, 8, 8)).time_s > 0
    assert gpu.predict(product(128, 128, 64, 8, 3, split_k=64)).time_s > 0
    assert gpu.predict(attention(128, 128, warps=8, stages=3)).time_s > 0
    assert gpu.predict(ROWS.with_tile(jc.RowTile(4, 0, 4))).time_s > 0


def test_attention_whose_values_the_compiler_computes_again_fits(gpu):
    """The fastest measured tile of its gradients needs about 280 registers, and compiles to 255 without a spill."""
    gradients = replace(attention(64, 128, warps=8, stages=2), direction="backward")
    assert gpu.tile_use(gradients).registers > 255
    assert gpu.predict(gradients).time_s > 0
    assert "at most 255" in refused(gpu, replace(attention(64, 128, warps=4, stages=2), direction="backward"))


def test_smaller_shared_memory_holds_fewer_stages():
    a40 = jc.gpu("a40")
    assert "at most 101376" in refused(a40, product(128, 128, 64, 8, 4))


def test_spills_are_forecast_where_they_are_asked_for(gpu):
    fits = gpu.predict(product(128, 256, 64, 8, 3))
    spills = gpu.predict(product(128, 256, 64, 4, 3), may_spill=True)
    assert spills.time_s > 2 * fits.time_s
    assert spills.energy_j > 2 * fits.energy_j
    assert "shared memory" in refused(gpu, product(128, 256, 64, 4, 8), may_spill=True)


def test_any_clock(gpu):
    tile = ROWS.with_tile(jc.RowTile(4, 0, 8))
    slow, fast = (gpu.predict(tile, clock_mhz=clock) for clock in (1005, 1980))
    assert slow.time_s > fast.time_s and slow.power_w < fast.power_w
    backward = replace(attention(64, 64, warps=8, stages=2), direction="backward")
    assert gpu.predict(backward, clock_mhz=1500).time_s > gpu.predict(replace(backward, direction="forward")).time_s
