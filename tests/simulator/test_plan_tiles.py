"""Tiles in plans: which kernels they mean, and what a plan with a wrong one says."""

import tomllib

import pytest
from paths import EXAMPLES

from joulecast.errors import InputError
from joulecast.model.framework.tiling import tile_word, with_tiles
from joulecast.model.kernels.operators import Attention, Gemm, RowTile, Streaming, Tile
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

PLAN = EXAMPLES / "llama-3.1-8b-4xh200.toml"


def plan_with(**tiles):
    tables = tomllib.loads(PLAN.read_text("utf-8"))
    tables.setdefault("implementation", {})["tiles"] = tiles
    return plan_from_dict(tables)


def operators(plan):
    arguments = (plan.workload.model, implementation_of(plan), 1, plan.workload.sequence_length)
    return [launch.operator for launch in (*layer_forward(*arguments), *layer_backward(*arguments))]


def test_a_name_means_its_gradients_and_linear_means_every_other_product():
    found = operators(plan_with(linear=[128, 128, 64], qkv={"m": 128, "n": 256}, **{"qkv.wgrad": [256, 128, 64]}))
    tiles = {o.name: o.tile for o in found if isinstance(o, Gemm)}
    assert tiles["qkv"] == tiles["qkv.dgrad"] == Tile(128, 256)
    assert tiles["qkv.wgrad"] == Tile(256, 128, 64)
    assert tiles["down"] == tiles["up.wgrad"] == Tile(128, 128, 64)
    assert all(o.tile is None for o in found if isinstance(o, Attention))


def test_row_tiles_mean_one_kernel():
    found = operators(plan_with(norm1={"rows": 4, "warps": 8}))
    tiled = [o for o in found if isinstance(o, Streaming) and o.warps]
    assert {o.name for o in tiled} == {"norm1"}
    assert (tiled[0].tile_rows, tiled[0].warps) == (4, 8)


def test_the_library_is_the_default_and_can_be_named():
    assert plan_with(qkv="library") == plan_with() and not load_plan(PLAN).implementation.tiles
    assert operators(plan_with(qkv="library")) == operators(load_plan(PLAN))


def test_equal_launches_stay_the_same_object():
    plan = plan_with(linear=[128, 256, 64])
    layer = layer_forward(plan.workload.model, implementation_of(plan), 1, 4096)
    tiled = with_tiles(layer * 2, (("qkv", Tile(64, 64)),))
    assert all(a is b for a, b in zip(tiled[: len(layer)], tiled[len(layer) :], strict=True))


def test_tiles_change_what_a_plan_takes():
    library, good, poor = (forecast(plan_with(**t)) for t in ({}, {"linear": [128, 256]}, {"linear": [32, 32]}))
    assert library.time_s < 1.1 * good.time_s < 0.8 * poor.time_s
    assert poor.energy_j > good.energy_j


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        ({"qkw": [128, 256]}, "Did you mean 'qkv'"),
        ({"qkw": "library"}, "Did you mean 'qkv'"),
        ({"qkv": {"m": 128, "n": 256, "stages": 9}}, "nearest that fits has stages = 4"),
        ({"qkv": {"m": 128, "n": 256, "warp": 8}}, "Did you mean 'warps'"),
        ({"qkv": {"m": 128}}, "needs m and n"),
        ({"qkv": {"m": 128, "n": 256.5}}, "not a whole number"),
        ({"qkv": {"rows": 4}}, "takes another kind of tile"),
        ({"norm1": [128, 128]}, "takes another kind of tile"),
        ({"norm1": {"rows": 8, "warps": 1}}, "at most 255"),
        ({"norm1": {"rows": 0, "warps": 4}}, "norm1.rows]: rows = 0 must be at least 1"),
        ({"norm1": {"rows": 4, "warps": 0}}, "norm1.warps]: warps = 0 must be at least 1"),
        ({"norm1": {"rows": 100000, "warps": 4}}, "nearest that fits has rows = 6"),
        ({"norm1": {"rows": 1, "columns": 512}}, "whole rows of 4096"),
        ({"attention": {"m": 64, "n": 64, "warps": 4}}, "attention.backward"),
        ({"qkv": [1]}, "is no tile"),
    ],
)
def test_a_wrong_tile_is_one_readable_error(tiles, message):
    with pytest.raises(InputError, match=r"implementation\.tiles") as caught:
        plan_with(**tiles)
    assert message in str(caught.value)


def test_words():
    assert tile_word(Tile(128, 128, 64, split_k=4, staged=False)) == "128x128x64w8s3k4-unstaged"
    assert tile_word(RowTile(1, 1024, 4, staged=True)) == "1x1024w4-staged"
