"""Fronts of plans from forecasts: the same times as the evaluator's, knobs carried through, limits kept."""

from dataclasses import replace

import numpy as np
import pytest
from plan_evaluator import iteration_evaluator

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.kernel_power import wait_power_w
from joulecast.plan.fronts.forecast_front import forecast_front, problem_from_plan
from joulecast.plan.fronts.joint_choice import joint_choice
from joulecast.plan.knobs.front_space import FrontSpace, load_space
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

PIPELINE = ("cluster.gpus=8", "parallelism.pipeline_model_parallel_size=4")


@pytest.fixture(scope="module")
def plan(examples):
    return load_plan(examples / "llama-3.1-8b-4xh200.toml", PIPELINE)


@pytest.fixture(scope="module")
def free(plan):
    return forecast_front(plan, switch_s=0.0)


def test_times_and_energies_are_those_of_the_evaluator(plan):
    """Far below the limit, where no card lags."""
    grid = gpu_model(load_gpu(plan.cluster.gpu)).clocks_mhz.tolist()
    low = tuple(clock for clock in grid if clock <= 1200)
    front = forecast_front(plan, space=FrontSpace(comm_ctas=(None,), clocks_mhz=low), switch_s=0.0)
    evaluator = iteration_evaluator(plan, wait_clock_mhz=1200)
    points = front.points[:: max(1, len(front.points) // 20)]
    clocks = [[grid.index(c) for order in front.clocks_mhz(p) for c in order] for p in points]
    time_ns, energy_j = evaluator.evaluate(np.array(clocks, dtype=np.uint8).T)
    assert time_ns * 1e-9 == pytest.approx([p.time_s for p in points], rel=1e-6)
    gpus = plan.tp * plan.dp
    assert energy_j * gpus == pytest.approx([p.energy_j for p in points], rel=1e-5)
    gaps = np.array([p.gap for p in front.points])
    assert gaps.mean() < 0.0025
    assert gaps.max() < 0.015


def test_a_front_saves_energy_without_loss_of_time(plan, free):
    top = forecast_front(plan, space=FrontSpace(clocks_mhz=(1980.0,)), switch_s=0.0)
    assert len(top.points) < len(free.points)
    at_top = top.at(top.points[-1].time_s)
    assert free.points[0].time_s <= at_top.time_s * (1 + 1e-9)
    assert free.points[0].energy_j < 0.9 * at_top.energy_j


def test_communication_blocks_are_a_knob(free, plan):
    knobs = {o.knobs for p in free.points for order in free.options(p) for o in order}
    assert len(knobs) > 2
    assert {name for knob in knobs for name, _ in knob} == {"comm_ctas"}
    entry = free.to_dict()["points"][0]
    assert [len(row) for row in entry["knobs"]] == [len(row) for row in entry["plan"]]
    default = forecast_front(plan, space=FrontSpace(comm_ctas=(None,)), switch_s=0.0)
    assert free.lower_bound[1][-1] < default.lower_bound[1][-1]
    assert "knobs" not in default.to_dict()["points"][0]


def test_energy_and_waiting_are_of_all_gpus_of_a_stage(plan):
    gpu = gpu_model(load_gpu(plan.cluster.gpu))
    problem = problem_from_plan(plan, gpu, FrontSpace(clocks_mhz=(600.0, 1200.0)))
    assert problem.gpus_per_rank == 2
    assert problem.wait_power_w == pytest.approx([2 * float(wait_power_w(1200.0, gpu))] * 4)


@pytest.mark.parametrize("clock", [345, 1005, 1500])
@pytest.mark.parametrize("limits", [(), ("power.power_limit_w=500", "power.component_limits_w.compute=240")])
def test_a_front_at_one_clock_is_the_forecast_at_it(plan, clock, limits):
    """Whether the space lists it or the plan sets it: GPUs wait at the clock that they are given, too."""
    free = load_plan(plan.file, [*PIPELINE, *limits])
    locked = load_plan(plan.file, [*PIPELINE, *limits, f"power.clock_mhz={clock}"])
    forecast, blocks = jc.predict(locked), FrontSpace(comm_ctas=(None,))
    for front in (
        forecast_front(free, space=replace(blocks, clocks_mhz=(clock,))),
        forecast_front(locked, space=blocks),
    ):
        (point,) = front.points
        assert point.time_s == pytest.approx(forecast.time_s, rel=1e-9)
        assert point.energy_j == pytest.approx(forecast.energy_j, rel=1e-9)


def test_mean_power_keeps_the_limit(plan):
    low = load_plan(plan.file, [*PIPELINE, "power.power_limit_w=400"])
    front, free = forecast_front(low, switch_s=0.0), forecast_front(plan, switch_s=0.0)
    assert front.points[0].time_s > 1.1 * free.points[0].time_s
    for p in front.points:
        power = front.problem.rank_energies_j(p.choice, p.time_s) / p.time_s / 2
        assert power.max() <= 400.0


def test_the_first_plan_below_a_power_limit_keeps_its_own_time(examples):
    """A search for more plans beside it must not lose it."""
    settings = ("cluster.gpu=l4", "cluster.gpus=2", "parallelism.tensor_model_parallel_size=1", "schedule.name=gpipe")
    model = ("workload.model=llama-3.2-1b", "workload.sequence_length=512", "workload.global_batch_size=16")
    tight = load_plan(examples / "llama-3.1-8b-4xh200.toml", (*settings, *model))
    space = FrontSpace(comm_ctas=(None,))
    first = forecast_front(tight, space=space, switch_s=0.0).points[0]
    limited = forecast_front(tight, space=space, switch_s=0.0, time_limit_s=first.time_s)
    assert limited.points[-1].energy_j <= first.energy_j


def test_a_slow_change_of_clock_keeps_one_clock_for_each_stage(plan):
    front = forecast_front(plan)
    assert "a change of clock takes 20 ms" in front.problem.notes[-1]
    assert all(len(set(clocks)) == 1 for p in front.points for clocks in front.clocks_mhz(p))


def test_a_stage_may_have_a_clock_at_which_its_board_holds_one_kind_of_instruction_lower():
    """Here the optimizer, which draws more than the limit at every clock, so that it runs at the lowest."""
    plan = plan_from_dict(
        {
            "workload": {"model": "llama-3.2-1b", "layers": 4, "sequence_length": 1024, "global_batch_size": 4},
            "cluster": {"gpu": "l4", "gpus": 2},
            "parallelism": {"pipeline_model_parallel_size": 2},
            "power": {"power_limit_w": 49},
        }
    )
    fastest = forecast_front(plan, simple="rank").points[0]
    assert fastest.time_s < 1.03 * jc.predict(plan).time_s


@pytest.mark.parametrize("clocks", [{"forward": 1200}, {"forward": 1200, "backward": 1500}, {"optimizer": 345}])
def test_clocks_of_the_plan_are_kept_where_a_stage_keeps_one_for_the_rest(plan, clocks):
    table = ", ".join(f"{kind} = {clock}" for kind, clock in clocks.items())
    front = forecast_front(load_plan(plan.file, [*PIPELINE, f"power.clock_mhz={{{table}}}"]), simple="rank")
    for point in front.points:
        for own, kinds in zip(front.clocks_mhz(point), front.instructions(), strict=True):
            of = {kind: {c for c, k in zip(own, kinds, strict=True) if k == kind} for kind in kinds}
            assert all(of[kind] == {clock} for kind, clock in clocks.items())
            assert len({c for kind, every in of.items() if kind not in clocks for c in every}) <= 1


def locked_as(front, point, plan):
    """The plan of a front's point whose stages keep one clock for each kind of instruction."""
    clocks = {"forward": {}, "backward": {}, "optimizer": {}}
    for stage, (own, kinds) in enumerate(zip(front.clocks_mhz(point), front.instructions(), strict=True)):
        for clock, kind in zip(own, kinds, strict=True):
            clocks[kind][stage] = clock
    stages = range(plan.pp)
    table = ", ".join(f"{kind} = {[of[stage] for stage in stages]}" for kind, of in clocks.items())
    return f"power.clock_mhz={{{table}}}"


def waiting_at_optimizers_clock_j(front, point, plan):
    """What waiting takes more in ``predict``, which waits at the optimizer's clock where that is the highest."""
    problem, gpus, more = front.problem, plan.tp * plan.replicas, 0.0
    chosen = [problem.option(v, c) for v, c in enumerate(point.choice.tolist())]
    for rank, (clocks, kinds) in enumerate(zip(front.clocks_mhz(point), front.instructions(), strict=True)):
        others = max(clock for clock, kind in zip(clocks, kinds, strict=True) if kind != "optimizer")
        if (clock := clocks[kinds.index("optimizer")]) > others:
            own = problem.dag.rank_of == rank
            waited_s = point.time_s - sum(option.time_s for option, is_own in zip(chosen, own, strict=True) if is_own)
            drawn_w = gpus * float(wait_power_w(clock, gpu_model(load_gpu(plan.cluster.gpu))))
            more += (drawn_w - problem.wait_power_w[rank]) * waited_s
    return more


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-3.1-8b-4xh200", ()),
        ("gpt3-175b-64xa100", ("workload.global_batch_size=64",)),
        ("llama-3.1-8b-4xh200", ("power.power_limit_w=450", "parallelism.tensor_model_parallel_size=1")),
    ],
)
def test_predict_of_a_points_clocks_is_the_point(examples, name, settings):
    """Near the power limit too, where GPUs wait for the slowest card; the energy but for the clocks they wait at."""
    plan = load_plan(examples / f"{name}.toml", settings)
    front = forecast_front(plan, space=FrontSpace(comm_ctas=(None,)), simple="stage")
    near = [point for point in front.points if point.time_s < 1.03 * front.points[0].time_s]
    for point in near[:: max(1, len(near) // 4)]:
        lock = locked_as(front, point, plan)
        found = jc.predict(load_plan(examples / f"{name}.toml", [*settings, lock]))
        assert found.time_s == pytest.approx(point.time_s, rel=0.001)
        expected = point.energy_j + waiting_at_optimizers_clock_j(front, point, plan)
        assert found.energy_j == pytest.approx(expected, rel=0.005)
        assert front.bound_j(found.time_s * 1.0001) < found.energy_j


@pytest.mark.parametrize("clock", [1200, 1980])
def test_clocks_of_the_plan_are_kept(plan, clock):
    """The highest one too."""
    locked = load_plan(plan.file, [*PIPELINE, f"power.clock_mhz={{forward = {clock}}}"])
    front = forecast_front(locked, switch_s=0.0)
    names = front.instructions()
    for p in front.points[:3]:
        for clocks, kinds in zip(front.clocks_mhz(p), names, strict=True):
            assert {c for c, k in zip(clocks, kinds, strict=True) if k == "forward"} == {clock}
    assert "clocks that the plan sets are kept" in front.problem.notes


@pytest.mark.parametrize(
    "settings",
    [
        ("schedule.name=gpipe",),
        ("schedule.name=zb-h1",),
        ("schedule.name=interleaved-1f1b", "parallelism.virtual_pipeline_model_parallel_size=2"),
        ("parallelism.pipeline_model_parallel_size=1", "cluster.gpus=4", "schedule.name=none"),
    ],
)
def test_other_schedules(plan, settings):
    front = forecast_front(load_plan(plan.file, [*PIPELINE, *settings]), switch_s=0.0)
    assert np.mean([p.gap for p in front.points]) < 0.004
    for p in front.points[:: max(1, len(front.points) // 5)]:
        assert front.problem.evaluate(p.choice) == pytest.approx((p.time_s, p.energy_j), rel=1e-9)


def test_from_python(examples, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text("[power]\nclock_mhz = {min = 1005, max = 1980, step = 195}\n[overlap]\ncomm_ctas = [8, 24]\n")
    front = jc.front(examples / "llama-3.1-8b-4xh200.toml", PIPELINE, space=space, switch_s=0.0)
    clocks = {c for p in front.points for order in front.clocks_mhz(p) for c in order}
    assert clocks <= {1005, 1200, 1395, 1590, 1785, 1980}
    assert len(clocks) > 2
    assert {dict(o.knobs)["comm_ctas"] for p in front.points for order in front.options(p) for o in order} == {8, 24}
    front.write(tmp_path / "zeus", "zeus-pfo")  # which sets no thread blocks: they stand in a table of their own
    lines = (tmp_path / "zeus" / "instructions.csv").read_text().splitlines()
    assert lines[0].endswith("comm_ctas") and {line.rpartition(",")[2] for line in lines[1:]} <= {"8", "24", ""}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[power]\nclock_mhz = []\n", "no list of numbers"),
        ("[power]\nclock_mhz = {min = 1, most = 2}\n", "is no range"),
        ("[overlap]\ncomm_ctas = [1.5]\n", "whole numbers"),
        ("[power]\nclock_mhz = {min = 1500, max = 900, step = 15}\n", "is no range.*the minimum not above the maximum"),
        ("[workload]\nmicro_batch_size = [1, 2]\n", "a front does not choose this"),
        ("[overlap]\ngrad_reduce = ['after', 'overlapped']\n", "a front does not choose this"),
        ("[power]\nclock_mhz = ['fast']\n", "no list of numbers"),
        ("[overlap]\ncom_ctas = [4]\n", r"unknown key\. Did you mean 'overlap\.comm_ctas"),
        ("[power]\nclocks_mhz = [1200]\n", r"unknown key\. Did you mean 'power\.clock_mhz"),
        ("\n[pwer]\n", "a front does not choose this"),
        ("[implementation]\ntile = {}\n", r"unknown key\. Did you mean 'implementation\.tiles"),
    ],
)
def test_spaces_that_are_refused(tmp_path, text, says):
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        load_space(path)
    assert (caught.value.file, caught.value.line) == (str(path), 2)


@pytest.mark.parametrize(
    ("clocks", "nearest"),
    [("[99999]", "1980"), ("{min = 100, max = 1980, step = 100}", "345"), ("[1200, 1001]", "1005")],
)
def test_clocks_that_the_gpu_does_not_have_are_refused(plan, tmp_path, clocks, nearest):
    path = tmp_path / "space.toml"
    path.write_text(f"[power]\nclock_mhz = {clocks}\n")
    for choose in (forecast_front, joint_choice):
        with pytest.raises(
            InputError, match=rf"space.toml:2 .*345 to 1980 MHz in steps of 15; the nearest is {nearest}\."
        ):
            choose(load_plan(plan.file, PIPELINE), space=load_space(path))


def test_options_stop_at_the_instant_limit(plan):
    gpu = gpu_model(load_gpu(plan.cluster.gpu))
    low = load_plan(plan.file, [*PIPELINE, "power.power_limit_w=300"])
    problem = problem_from_plan(low, gpu, FrontSpace(comm_ctas=(None,)))
    peak = 300 * gpu["governor.peak_share"] * 2
    for options in problem.sets:
        power = [o.energy_j / o.time_s for o in options.options if o.clock_mhz > 345]
        assert max(power) <= peak * (1 + 1e-9)


def test_latencies_of_transfers_are_rounded_up_in_the_bound_too(tmp_path, examples):
    """With few clocks plans lie so near the bound that a fraction of a microsecond would put it above them."""
    space = tmp_path / "space.toml"
    space.write_text("[power]\nclock_mhz = [1110, 1500]\n[overlap]\ncomm_ctas = [16]\n")
    front = jc.front(examples / "llama-3.1-8b-4xh200.toml", space=space)
    assert len(front.points) > 10
    assert all(point.lower_bound_j <= point.energy_j for point in front.points)
