"""Scores of many combinations at once, held against instructions tabulated one by one."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.kernels.operators import RowTile, Tile
from joulecast.model.training.nanobatches import layers_backward, layers_forward
from joulecast.plan.knobs.overlap_space import overlap_variants
from joulecast.plan.knobs.tile_space import tiles_of, with_plan_tiles, worthwhile
from joulecast.simulator.instructions.layer_options import TiledKernels, every_combination, governing_name
from joulecast.simulator.instructions.tables import instruction_table, kernels_of
from joulecast.simulator.plan_file.implementation import implementation_of, nanobatches_of
from joulecast.simulator.plan_file.plan import plan_from_dict

LISTS = (
    ("attention.forward", (None, Tile(128, 64, warps=8, stages=3))),
    ("linear", (None, Tile(128, 128, 64, 8, 4))),
    ("norm1", (None, RowTile(4, warps=8), RowTile(1, warps=4))),
    ("qkv", (Tile(128, 256), Tile(64, 64, warps=4))),
)


def plan_of(**overlap):
    return plan_from_dict(
        {
            "workload": {
                "model": "llama-3.1-8b", "sequence_length": 4096, "micro_batch_size": 4, "global_batch_size": 4,
            },
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"tensor_model_parallel_size": 2},
            "schedule": {"name": "none"},
            "overlap": overlap,
        }
    )  # fmt: skip


def every(gpu, step):
    """Indices of some of the clocks of a GPU."""
    return np.arange(0, len(gpu.clocks_mhz), step)


def program(plan, layers=1, build=layers_forward):
    w = plan.workload
    cut = nanobatches_of(plan)
    return build(w.model, implementation_of(plan), w.micro_batch_size, w.sequence_length, layers, cut)


@pytest.mark.parametrize("build", [layers_forward, layers_backward])
@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("overlap", [{}, {"nanobatches": 2, "comm_ctas": 8}, {"nanobatches": 2, "window": [2, 2]}])
def test_every_combination_scores_as_its_own_plan(h200, overlap, layers, build):
    plan = plan_of(**overlap)
    choices, clocks = dict(LISTS), every(h200, 30)
    combinations = every_combination(choices, tuple(choices))[::7]
    launches = program(plan, layers, build)
    scores = TiledKernels([launches], choices, h200, clocks, 800.0).score(launches, combinations)
    for row in (0, len(combinations) // 2, len(combinations) - 1):
        tiled = program(with_plan_tiles(plan, tiles_of(LISTS, combinations[row])), layers, build)
        table = instruction_table([tiled], kernels_of([[tiled]], h200.clocks_mhz, h200, 800.0), h200)
        assert scores.time_s[row] == pytest.approx(table.duration_s[0, clocks], rel=1e-9)
        assert scores.energy_j[row] == pytest.approx(table.energy_j[0, clocks], rel=1e-9)


@pytest.mark.parametrize("overlap", [{}, {"nanobatches": 2, "comm_ctas": 8}])
def test_all_deviations_at_once_are_what_each_gives_alone(h200, overlap):
    """Of parameters of contention: the kernels stay as they are."""
    launches, clocks, choices = program(plan_of(**overlap), 8), every(h200, 30), dict(LISTS)
    varied = [
        {name: factor * h200[name] for name in h200.parameters if name.startswith("contention.")}
        for factor in (0.8, 1.1, 1.3)
    ]
    combination = every_combination(choices, tuple(choices))[5]
    found = TiledKernels([launches], choices, h200, clocks).stretches(launches, combination, varied)

    def length(gpu):
        return TiledKernels([launches], choices, gpu, clocks).score(launches, combination[None]).time_s[0]

    again = [np.log(length(h200.with_values(values)) / length(h200)) for values in varied]
    assert found == pytest.approx(np.array(again), abs=1e-9)
    assert np.any(found != 0.0) == bool(overlap)


def test_the_longest_name_governs(h200):
    operators = {launch.operator.name: launch.operator for launch in program(plan_of())}
    names = [name for name, _ in LISTS]
    assert governing_name(operators["qkv"], names) == "qkv"
    assert governing_name(operators["down"], names) == "linear"
    assert governing_name(operators["norm2"], names) == ""


def test_many_combinations_are_scored_in_pieces(h200, monkeypatch):
    plan = plan_of(nanobatches=2)
    choices, clocks = dict(LISTS), every(h200, 30)
    combinations = every_combination(choices, tuple(choices))
    launches = program(plan)
    kernels = TiledKernels([launches], choices, h200, clocks)
    whole = kernels.score(launches, combinations)
    monkeypatch.setattr("joulecast.simulator.instructions.layer_options.COLUMNS", 10)
    assert np.array_equal(kernels.score(launches, combinations).time_s, whole.time_s)


def test_tens_of_thousands_of_configurations_are_scored_in_one_call_for_each_way_of_overlap(h200):
    """Overlap, tiles and clocks of one layer; benchmarks/bench_layer_options.py has the time."""
    plan = plan_of()
    knobs = {"nanobatches": [1, 2], "window": ["all", ["qkv", "output"]], "comm_ctas": [None, 8]}
    ways = overlap_variants(plan, knobs, h200.description)
    choices = dict(LISTS)
    combinations = every_combination(choices, tuple(choices))
    programs = [program(way) for _, way in ways]
    kernels = TiledKernels(programs, choices, h200, every(h200, 1))
    scored = sum(kernels.score(launches, combinations).time_s.size for launches in programs)
    assert scored == len(ways) * len(combinations) * len(h200.clocks_mhz) > 10_000


def test_only_combinations_that_some_weight_prefers_are_kept(h200):
    clocks = every(h200, 30)
    found = worthwhile(plan_of(), LISTS, h200, clocks)
    chosen = {name: {lists[f[i]] for f in found} for i, (name, lists) in enumerate(LISTS)}
    assert Tile(64, 64, warps=4) not in chosen["qkv"], "it is slower and needs more energy than the other"
    assert len(found) < len(every_combination(dict(LISTS), tuple(dict(LISTS))))
    worse = (("qkv", (Tile(128, 256), replace(Tile(128, 256), stages=1))),)
    assert worthwhile(plan_of(), worse, h200, clocks) == [(0,)]


class Held(TiledKernels):
    """A first tile of attention that draws more than instant limits below 600 W let it, and is held at a third."""

    def __init__(self, programs, choices, gpu, clocks, peak_w=None, component_limits_w=None):
        super().__init__(programs, choices, gpu, clocks, peak_w, component_limits_w)
        self.slower = 3.0 if peak_w is not None and peak_w < 600.0 else 1.0

    def score(self, launches, combinations):
        """As it is, and slower where the first tile is chosen for a kernel of attention."""
        found = super().score(launches, combinations)
        if "attention" not in self.governed(launches):
            return found
        taken = np.where(combinations[:, self.names.index("attention")] == 0, self.slower, 1.0)[:, None]
        return replace(found, time_s=taken * found.time_s, energy_j=taken * found.energy_j)


@pytest.mark.parametrize(("limit_w", "best"), [(700.0, 0), (300.0, 1)])
def test_what_is_best_under_the_instant_limit_is_kept(h200, monkeypatch, limit_w, best):
    """Beside every combination at every weight: one that is dominated without the limit may be best under it."""
    monkeypatch.setattr("joulecast.plan.knobs.tile_space.TiledKernels", Held)
    lists = (
        ("attention", (Tile(128, 64, warps=8, stages=2), Tile(128, 128, warps=8, stages=2))),
        ("linear", (Tile(128, 256, 64, 8, 3), Tile(64, 64, 64, 4, 4))),
    )
    plan, clocks = plan_of(), every(h200, 30)
    plan = replace(plan, power=replace(plan.power, power_limit_w=limit_w))
    launches = [launch for build in (layers_forward, layers_backward) for launch in program(plan, 1, build)]
    launches = [launch for launch in launches if launch.stream == "compute"]
    combinations = every_combination(dict(lists), tuple(dict(lists)))
    peak = h200.own_limit_w(limit_w) * h200["governor.peak_share"]
    every_one = Held([launches], dict(lists), h200, clocks, peak).score(launches, combinations)
    wanted = {
        tuple(combinations[np.argmin(energy + weight * time)].tolist())
        for time, energy in zip(every_one.time_s.T, every_one.energy_j.T, strict=True)
        for weight in (0.0, *np.geomspace(1.0, 1e5, 50))
    }
    found = set(worthwhile(plan, lists, h200, clocks))
    assert wanted <= found
    assert {combination[0] for combination in found} == {best}
