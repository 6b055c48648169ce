"""Overlap and tiles chosen together at every clock."""

import json

import numpy as np
import pytest
from command import status_of
from paths import EXAMPLES

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Tile
from joulecast.model.training.nanobatches import layers_forward
from joulecast.plan.fronts.forecast_front import forecast_front, problem_from_plan
from joulecast.plan.fronts.joint_choice import CLOCKS_AND_BLOCKS, SHARDED, joint_choice
from joulecast.plan.knobs.front_space import FrontSpace, load_space
from joulecast.plan.knobs.overlap_space import overlap_variants
from joulecast.plan.knobs.pareto import pareto, pareto_in_order
from joulecast.plan.knobs.tile_space import fewest_tiles_first, library_first, with_plan_tiles
from joulecast.simulator.instructions.layer_options import TiledKernels, every_combination
from joulecast.simulator.instructions.tables import instruction_table, kernels_of
from joulecast.simulator.plan_file.implementation import implementation_of, nanobatches_of
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.plan_file.tiles import read_tiles

PLAN = EXAMPLES / "llama-3.1-8b-4xh200.toml"
SPACE = """
[power]
clock_mhz = [1110, 1500, 1980]
[overlap]
nanobatches = [1, 2]
launch = ["asap", "window"]
window = ["all", ["qkv", "output"], ["up", "down"]]
comm_ctas = [4, 16]
[implementation.tiles]
qkv = ["library", [128, 256, 64], [64, 64, 64]]
norm1 = ["library", {rows = 4, warps = 8}]
down = ["library", [256, 128, 64]]
"""


@pytest.fixture(scope="module")
def space_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("choose") / "space.toml"
    path.write_text(SPACE)
    return path


def plan_of(layers=4, power=None, **overlap):
    return plan_from_dict(
        {
            "workload": {
                "model": "llama-3.1-8b", "layers": layers, "sequence_length": 4096, "micro_batch_size": 4,
                "global_batch_size": 4,
            },
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"tensor_model_parallel_size": 2},
            "schedule": {"name": "none"},
            "overlap": overlap,
            "power": power or {},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(space_file):
    return joint_choice(plan_of(), space=load_space(space_file))


def test_every_part_has_its_points_at_every_clock(found):
    assert list(found.parts) == ["attention", "mlp", "stage"]
    for clocks in found.parts.values():
        assert [at.clock_mhz for at in clocks] == [1110.0, 1500.0, 1980.0]
        for at in clocks:
            time, energy = ([getattr(p, name) for p in at.points] for name in ("time_s", "energy_j"))
            assert time == sorted(time) and energy == sorted(energy, reverse=True)
            assert (at.time_best, at.energy_best) == (at.points[0], at.points[-1])


def test_a_part_names_its_own_tiles_only(found):
    tiles = {
        part: {k for k, _ in clocks[0].points[0].knobs if k.startswith("tiles.")}
        for part, clocks in found.parts.items()
    }
    assert tiles["attention"] == {"tiles.qkv", "tiles.norm1"}
    assert tiles["mlp"] == {"tiles.down"}
    assert tiles["stage"] == {"tiles.qkv", "tiles.norm1", "tiles.down"}


def test_the_stage_is_forecast_with_its_knobs_in_a_plan(found):
    """The composed point is what the whole stack of layers takes, not the sum of its halves."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    best = found.parts["stage"][1].time_best
    knobs = dict(best.knobs)
    words = {"128x256x64w8s3": [128, 256, 64], "64x64x64w8s3": [64, 64, 64], "256x128x64w8s3": [256, 128, 64]}
    tiles = {k[6:]: words.get(v, v) for k, v in knobs.items() if k.startswith("tiles.")}
    tiles = {k: {"rows": 4, "warps": 8} if v == "4xallw8" else v for k, v in tiles.items()}
    overlap = {k: v for k, v in knobs.items() if not k.startswith("tiles.") and v != "all"}
    overlap["window"] = overlap["window"].split("-") if "window" in overlap else "all"
    plan = with_plan_tiles(plan_of(**overlap), read_tiles(tiles, Source()))
    launches = stack(plan)
    clocks = gpu.clocks_mhz
    peak = gpu.device["power_limit_w"] * gpu["governor.peak_share"]
    table = instruction_table([launches], kernels_of([[launches]], clocks, gpu, peak), gpu)
    at = int(np.searchsorted(clocks, 1500.0))
    assert best.time_s == pytest.approx(table.duration_s[0, at], rel=1e-9)
    assert best.energy_j == pytest.approx(2 * table.energy_j[0, at], rel=1e-9)
    halves = sum(found.parts[half][1].time_best.time_s for half in ("attention", "mlp"))
    assert best.time_s < 0.999 * 4 * halves, "communication of one half runs beside the other"


def answers(clocks, power):
    """Lines of the answer for two GPUs at some of their clocks, or at all, by part, clock and knobs."""
    space = FrontSpace(clocks, (None, 16), (("nanobatches", (1, 2)),), (("qkv", (None, Tile(128, 256))),))
    lines = joint_choice(plan_of(power=power), space=space).lines()
    knobs = ("comm_ctas", "nanobatches", "tiles.qkv")
    return {(line["part"], line["clock_mhz"], *(line.get(name) for name in knobs)): line for line in lines}


@pytest.mark.parametrize(
    "power", [{}, {"power_limit_w": 350}, {"component_limits_w": {"compute": 240}}], ids=["700 W", "350 W", "parts"]
)
def test_a_clock_has_the_same_answer_whichever_others_are_asked_for(power):
    """A kernel above the board's instant limit runs at a lower clock of the GPU, whether that is listed or not."""
    whole = answers(None, power)
    for clocks in [(1980.0,), (1905.0,), (1500.0,), (345.0,), (1110.0, 1500.0, 1980.0)]:
        few = answers(clocks, power)
        assert few.keys() == {key for key in whole if key[1] in clocks}
        for key, line in few.items():
            for name in ("time_s", "energy_j", "time_s_p05", "energy_j_p95", "power_w_p95"):
                assert line[name] == pytest.approx(whole[key][name], rel=1e-9), (key, name)


def stack(plan):
    w = plan.workload
    return layers_forward(w.model, implementation_of(plan), 4, w.sequence_length, 4, nanobatches_of(plan))


def test_no_combination_of_a_full_search_beats_the_composed_stage(space_file, found):
    """All ways of overlap with all tiles, one by one."""
    gpu, space = gpu_model(load_gpu("h200-sxm")), load_space(space_file)
    choices = {**dict(space.overlap), "comm_ctas": space.comm_ctas}
    programs = [stack(way) for _, way in overlap_variants(plan_of(), choices, gpu.description)]
    tiles = dict(space.tiles)
    clocks = space.clock_indices(gpu.clocks_mhz)
    kernels = TiledKernels(programs, tiles, gpu, clocks, gpu.device["power_limit_w"] * gpu["governor.peak_share"])
    combinations = every_combination(tiles, tuple(tiles))
    scores = [kernels.score(launches, combinations) for launches in programs]
    for at, chosen in enumerate(found.parts["stage"]):
        time = min(float(s.time_s[:, at].min()) for s in scores)
        energy = 2 * min(float(s.energy_j[:, at].min()) for s in scores)
        assert chosen.time_best.time_s <= time * 1.002
        assert chosen.energy_best.energy_j <= energy * 1.002


def test_how_sure_the_choices_are(found):
    several = 0
    for part, clocks in found.parts.items():
        for at, ends in zip(clocks, found.intervals[part], strict=True):
            first = at.time_best
            assert ends[0].time_ratio_p05 == ends[0].time_ratio_p95 == 1.0
            for choice, end in zip(at.points, ends, strict=True):
                assert end.time_s_p05 < choice.time_s < end.time_s_p95
                assert end.energy_j_p05 < choice.energy_j < end.energy_j_p95
                assert end.power_w_p05 < choice.power_w < end.power_w_p95
                ratio = choice.energy_j / first.energy_j
                assert end.energy_ratio_p05 <= ratio <= end.energy_ratio_p95
                level = end.energy_j_p95 / end.energy_j_p05
                assert end.energy_ratio_p95 / end.energy_ratio_p05 < level
            several += len(at.points) > 1
    assert several


def test_a_choice_runs_the_kernels_of_its_launches(found):
    kernels = found.kernels
    serial = [
        point.runs @ kernels.times.time_s[np.searchsorted(kernels.clocks_mhz, at.clock_mhz - 1e-6)] / point.time_s
        for part in ("attention", "mlp", "stage")
        for at in found.parts[part]
        for point in at.points
    ]
    assert min(serial) > 0.95 and max(serial) < 1.5, "overlap hides some of what kernels take alone"


def test_what_the_board_would_not_hold_is_marked(found):
    top, low = found.parts["stage"][-1].time_best, found.parts["stage"][0].time_best
    assert low.held and not top.held


def test_a_folded_stage_is_held_by_the_limit_of_its_rank():
    """Rank 0 of a folded pipeline of two has the first and the last stage."""
    plan = plan_from_dict(
        {
            "workload": {
                "model": "llama-3.2-1b", "layers": 4, "sequence_length": 4096, "micro_batch_size": 4,
                "global_batch_size": 16,
            },
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"pipeline_model_parallel_size": 2},
            "schedule": {"name": "zb-v"},
            "power": {"power_limit_w": [200, 700]},
        }
    )  # fmt: skip
    space = FrontSpace(clocks_mhz=(600.0, 1200.0, 1800.0))
    held = [[at.time_best.held for at in joint_choice(plan, space=space, stage=n).parts["stage"]] for n in range(4)]
    assert held[0] == held[3]
    assert held[1] == held[2]
    assert sum(held[0]) < sum(held[1])


def test_backward_and_a_plan_without_communication():
    alone = jc.choose(PLAN, ["parallelism.tensor_model_parallel_size=1", "power.clock_mhz=1500"], direction="backward")
    assert all(len(at.points) == 1 for at in alone.parts["stage"]), "there is nothing to choose"
    assert len(alone.parts["stage"]) > 50


@pytest.mark.parametrize(
    ("how", "message"), [({"direction": "sideways"}, "forward, backward"), ({"stage": 9}, "It has 0 to 1")]
)
def test_wrong_questions(how, message):
    with pytest.raises(jc.InputError, match=message):
        jc.choose(PLAN, **how)


def test_tiles_are_checked(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text('[implementation.tiles]\nqkv = ["library", {m = 128, n = 256, stages = 9}]\n')
    with pytest.raises(jc.InputError, match=r"space\.toml.*stages = 4"):
        jc.choose(PLAN, space=path)
    path.write_text('[implementation.tiles]\nqkw = ["library"]\n')
    with pytest.raises(jc.InputError, match="Did you mean 'qkv'"):
        jc.choose(PLAN, space=path)
    path.write_text("[implementation.tiles]\nqkv = []\n")
    with pytest.raises(jc.InputError, match="no tile to choose from"):
        jc.choose(PLAN, space=path)


def test_the_front_takes_tiles_as_options(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        "[power]\nclock_mhz = [1110, 1500]\n[overlap]\ncomm_ctas = [16]\n[implementation.tiles]\n"
        'norm1 = ["library", {rows = 4, warps = 8}]\nqkv = [[64, 64, 64], [128, 256, 64]]\n'
    )
    problem = problem_from_plan(load_plan(PLAN), gpu_model(load_gpu("h200-sxm")), load_space(path))
    knobs = {pair for options in problem.sets for option in options.options for pair in option.knobs}
    assert ("tiles.qkv", "128x256x64w8s3") in knobs
    assert ("tiles.qkv", "64x64x64w8s3") not in knobs, "it is slower and needs more energy"
    assert any("tiles" in note for note in problem.notes)


def test_the_front_compares_tiles_at_few_clocks_as_at_all(tmp_path):
    """Norms want more rows a block at high clocks than at low ones."""
    rows = 'norm1 = ["library", {rows = 1, warps = 4}, {rows = 2, warps = 4}, {rows = 4, warps = 4}]'

    def tiles(*clocks):
        path = tmp_path / "space.toml"
        path.write_text(
            f"[power]\nclock_mhz = {list(clocks)}\n[overlap]\ncomm_ctas = [16]\n[implementation.tiles]\n{rows}\n"
        )
        problem = problem_from_plan(load_plan(PLAN), gpu_model(load_gpu("h200-sxm")), load_space(path))
        return {dict(option.knobs)["tiles.norm1"] for options in problem.sets for option in options.options}

    assert tiles(345).isdisjoint(tiles(1980))
    assert tiles(345, 1980) == tiles(345) | tiles(1980)


def test_command(space_file, capsys):
    assert status_of("choose", PLAN, "--space", space_file, "--json", "--set", "workload.micro_batch_size=2") == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["parts"]) == {"attention", "mlp", "stage"}
    point = answer["parts"]["stage"][0]["points"][0]
    assert {"time_s", "energy_j", "power_w", "held", "knobs"} == {
        name for name in point if not name.endswith(("_p05", "_p95"))
    }
    assert point["time_s_p05"] < point["time_s"] < point["time_s_p95"]
    assert point["energy_ratio_p05"] == point["energy_ratio_p95"] == 1.0
    status_of("choose", PLAN, "--space", space_file, "--csv", "--set", "workload.micro_batch_size=2")
    assert capsys.readouterr().out.startswith("part,clock_mhz,time_s,energy_j,power_w,time_s_p05,")
    status_of("choose", PLAN, "--space", space_file, "--set", "workload.micro_batch_size=2")
    table, assumed = capsys.readouterr().out.split("\nAssumed:\n")
    assert "configurations scored" in table
    assert "attention, forward; energy and power of 2 GPUs\n" in table
    assert answer["gpus"] == 2
    assert assumed.startswith("- every kernel runs at the clock shown")


def test_pareto():
    time, energy = np.array([2.0, 1.0, 1.0, 3.0, 4.0]), np.array([5.0, 7.0, 6.0, 5.0, 1.0])
    assert pareto(time, energy).tolist() == [2, 0, 4]
    assert pareto(np.zeros(0), np.zeros(0)).tolist() == []


def test_of_equal_options_the_first_is_taken():
    rounded = 1.0 + 1e-13
    time = np.array([3.0, 1.0 * rounded, 1.0, 3.0 / rounded, 2.0, 2.0, 2.0])
    energy = np.array([4.0, 6.0 * rounded, 6.0, 4.0 * rounded, 5.0 * rounded, 5.0, 5.0 / rounded])
    assert pareto_in_order(time, energy).tolist() == [1, 4, 0]
    assert pareto_in_order(time[::-1], energy[::-1]).tolist() == [4, 0, 3]
    assert pareto_in_order(np.array([1.0, rounded]), np.array([9.0, 5.0])).tolist() == [1], "as fast, and cheaper"
    assert pareto_in_order(np.array([1.0, 2.0]), np.array([5.0 * rounded, 5.0])).tolist() == [0], "as cheap, and faster"
    assert pareto_in_order(np.zeros(0), np.zeros(0)).tolist() == []


def knobs_of(plan, overlap, **tiles):
    """What is chosen of each part at two clocks."""
    space = load_space({"power": {"clock_mhz": [1200, 1980]}, "overlap": overlap, "implementation": {"tiles": tiles}})
    found = joint_choice(plan, space=space)
    return {part: [dict(point.knobs) for at in every for point in at.points] for part, every in found.parts.items()}


def test_ways_that_take_the_same_are_one_however_they_are_listed():
    """What overlap the MLP has does not depend on the attention's window, but the first listed was shown."""
    listed = {"nanobatches": [2, 1], "window": [["qkv", "output"], "all"], "launch": ["window", "asap"]}
    turned = {name: values[::-1] for name, values in listed.items()}
    found = knobs_of(plan_of(), listed)
    assert found == knobs_of(plan_of(), turned)
    assert {(way["window"], way["launch"]) for way in found["mlp"]} == {("all", "asap")}
    assert any(way["window"] == "qkv-output" for way in found["attention"])


def test_without_communication_the_fewest_thread_blocks_are_shown():
    alone = load_plan(PLAN, ["parallelism.tensor_model_parallel_size=1"])
    found = knobs_of(alone, {"comm_ctas": [32, 4, 8], "comm_threads": [512, 256]})
    assert {way["comm_ctas"] for ways in found.values() for way in ways} == {4}


def test_tiles_stand_in_order_of_preference():
    tile, other = Tile(128, 256), Tile(64, 64)
    lists = library_first((("down", (tile, other)), ("qkv", (tile, other, None))))
    assert lists == (("down", (tile, other)), ("qkv", (None, tile, other)))
    ordered = fewest_tiles_first(lists, np.array([[0, 1], [0, 0], [1, 2], [1, 0]]))
    assert ordered.tolist() == [[0, 0], [1, 0], [0, 1], [1, 2]]


def test_experts_whose_communication_is_hidden():
    """Halves in shares of a micro-batch: the same work, energy and all."""
    plan = load_plan(PLAN.parent / "deepseek-v3-1024xh100.toml")
    found = joint_choice(plan, space=FrontSpace(clocks_mhz=(1980.0,), comm_ctas=(None,)))
    points = [at.time_best for clocks in found.parts.values() for at in clocks]
    assert all(0.0 < point.time_s < 1.0 and np.isfinite(point.energy_j) for point in points)


def test_a_choice_without_a_space_says_what_one_may_open(found):
    assert CLOCKS_AND_BLOCKS in joint_choice(plan_of(), space=FrontSpace((1980.0,))).notes
    assert CLOCKS_AND_BLOCKS not in found.notes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cluster": {"gpu": "mi300x", "gpus": 2}},
        {"cluster": {"gpus": 8, "gpus_per_node": 4}, "parallelism": {"tensor_model_parallel_size": 8}},
        {
            "workload": {"precision": "tf32"}, "cluster": {"gpus": 1}, "parallelism": {},
            "implementation": {"modules": "transformers", "attention_backend": "unfused"},
        },
        {
            "cluster": {"gpus": 1}, "parallelism": {},
            "schedule": {"name": "none", "recompute": "full", "recompute_interval": 2},
        },
    ],
    ids=["plain", "links of a pair", "two nodes", "tf32", "one layer of two recomputed"],
)  # fmt: skip
def test_layers_take_as_long_as_in_an_iteration(changes):
    """Four layers more cost a stage by choice what they cost an iteration, each micro-batch."""

    def tables(layers):
        own = {
            "workload": {"model": "llama-3.1-8b", "layers": layers, "sequence_length": 2048, "micro_batch_size": 4,
                         "global_batch_size": 4},
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"tensor_model_parallel_size": 2},
            "schedule": {"name": "none"},
            "overlap": {"comm_ctas": 16},
            "power": {"clock_mhz": 1200},
        }  # fmt: skip
        kept = ("workload", "cluster")
        return own | {table: own[table] | keys if table in kept else keys for table, keys in changes.items()}

    whole = [jc.predict(tables(layers)).time_by_instruction_s for layers in (4, 8)]
    for direction in ("forward", "backward"):
        found = [jc.choose(tables(n), direction=direction, space={"power": {"clock_mhz": 1200}}) for n in (4, 8)]
        few, many = (one.parts["stage"][0].time_best.time_s for one in found)
        assert many - few == pytest.approx(whole[1][direction] - whole[0][direction], rel=1e-9)


def test_a_choice_says_that_sharding_is_left_out():
    plan = plan_from_dict(
        {
            "workload": {"model": "llama-3.1-8b", "layers": 4, "sequence_length": 2048, "global_batch_size": 4},
            "cluster": {"gpu": "h200-sxm", "gpus": 4},
            "parallelism": {"fsdp": True},
        }
    )
    assert SHARDED in joint_choice(plan, space=FrontSpace((1980.0,))).notes


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"implementation": {"compile": True}}, "compiled layers are not cut into nano-batches"),
        ({"implementation": {"modules": "transformers"}}, "do not know layers cut into nano-batches"),
        ({"parallelism": {"tensor_model_parallel_size": 2, "fsdp": True}}, "this does not go with FSDP"),
    ],
)
def test_what_predict_would_refuse_is_not_chosen(tables, says):
    plan = plan_from_dict(
        {
            "workload": {"model": "llama-3.1-8b", "layers": 2, "micro_batch_size": 2, "global_batch_size": 4}
            | {"sequence_length": 2048},
            "cluster": {"gpu": "h200-sxm", "gpus": 4},
            "parallelism": {"tensor_model_parallel_size": 2},
        }
        | tables
    )
    space = load_space({"power": {"clock_mhz": [1500]}, "overlap": {"nanobatches": [1, 2]}})
    for ask in (joint_choice, forecast_front):
        with pytest.raises(InputError, match=says):
            ask(plan, space=space)
