"""Power limits and batch sizes of whole jobs: fronts, weighted choices, and learning while a job recurs."""

import json
import math

import command
import numpy as np
import pytest
from batch_size_replay import (
    Arm,
    Exhaustive,
    ExploreFirst,
    Fixed,
    Thompson,
    all_arms,
    best_arms,
    replay,
)

from joulecast.errors import InputError
from joulecast.plan.limits.batch_size import BatchSizeSampler, Belief, make_sampler
from joulecast.plan.limits.power_limits import (
    JobPoint,
    choices_by_weight,
    choose,
    forecast_limits,
    limit_front,
    max_power_w,
    to_target,
    zeus_cost,
    zeus_power_limits,
)
from joulecast.plan.limits.power_limits_read import mean_epochs, read_epochs, read_job_points
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import load_plan

POINTS = (
    JobPoint(300.0, 10.0, 2600.0, 64),
    JobPoint(250.0, 10.5, 2300.0, 64),
    JobPoint(200.0, 12.0, 2250.0, 64),
    JobPoint(150.0, 14.0, 2000.0, 64),
    JobPoint(100.0, 20.0, 2050.0, 64),
)


def test_the_front_leaves_out_what_is_slower_and_dearer():
    assert [p.power_limit_w for p in limit_front(POINTS[::-1])] == [300, 250, 200, 150]


def test_the_choice_is_that_of_least_cost_at_every_weight():
    power = max_power_w(POINTS)
    assert power == 300
    by_weight = choices_by_weight(POINTS, power)
    assert [c.point.power_limit_w for c in by_weight] == [300, 250, 150]
    assert (by_weight[0].eta_from, by_weight[-1].eta_to) == (0.0, 1.0)
    for eta in np.linspace(0, 1, 101):
        costs = [eta * p.energy_j + (1 - eta) * 300 * p.time_s for p in POINTS]
        assert choose(POINTS, eta, power).cost_j(eta, power) == pytest.approx(min(costs))
        (held,) = [c for c in by_weight if c.eta_from <= eta < c.eta_to or (eta == 1 and c.eta_to == 1)]
        assert held.point.cost_j(eta, power) == pytest.approx(min(costs))


def test_max_power_is_that_of_all_gpus():
    assert (max_power_w(POINTS), max_power_w(POINTS, gpus=4)) == (300, 1200)


@pytest.mark.parametrize("eta", [-0.1, 1.1])
def test_a_weight_lies_between_time_and_energy(eta):
    with pytest.raises(InputError, match="weight"):
        zeus_cost(1.0, 1.0, eta, 1.0)


def test_without_points_there_is_no_choice():
    with pytest.raises(InputError, match="no point"):
        choose((), 0.5, 300.0)


def test_epochs_make_time_and_energy_to_accuracy():
    points = (*POINTS[:1], JobPoint(300.0, 5.0, 1500.0, 128), JobPoint(300.0, 4.0, 1400.0, 256))
    reached, left_out = to_target(points, {64: 1.0, 128: 30.0, 256: math.inf})
    assert [(p.batch_size, p.time_s, p.energy_j) for p in reached] == [(64, 10.0, 2600.0), (128, 150.0, 45000.0)]
    assert left_out == (256,)
    assert choose(reached, 0.0, 300.0).batch_size == 64
    with pytest.raises(InputError, match="without one"):
        to_target((JobPoint(300.0, 1.0, 1.0),), {64: 1.0})
    with pytest.raises(InputError, match="0 epochs at batch size 128"):
        to_target(points, {128: 0.0})


def test_limits_of_a_plan_are_forecast(examples):
    points = forecast_limits(load_plan(examples / "llama-3.1-8b-4xh200.toml"), [700.0, 500.0, 350.0])
    time, energy = ([getattr(p, name) for p in points] for name in ("time_s", "energy_j"))
    assert time[0] < time[1] < time[2]
    assert energy[1] < energy[0]
    assert points[0].batch_size == 8
    with pytest.raises(InputError, match="power-limits"):
        forecast_limits(load_plan(examples / "llama-3.1-8b-4xh200.toml"), [5000.0])


def test_zeus_reads_whole_watts_of_one_batch_size(tmp_path):
    (tmp_path / "limits.json").write_text(zeus_power_limits(POINTS))
    rows = json.loads((tmp_path / "limits.json").read_text())["measurements"]
    assert rows[1] == {"power_limit": 250, "energy": 2300.0, "time": 10.5}
    with pytest.raises(InputError, match="whole watts"):
        zeus_power_limits([JobPoint(250.5, 1.0, 1.0)])
    with pytest.raises(InputError, match="two points"):
        zeus_power_limits([JobPoint(250.0, 1.0, 1.0, 8), JobPoint(250.0, 1.0, 1.0, 16)])


@pytest.mark.parametrize(
    ("text", "batch", "energy"),
    [
        ("power_limit_w,time_s,energy_j\n300,2,500\n", None, 500.0),
        ("power_limit,time,energy,batch_size\n300,2,500,64\n", 64, 500.0),
        ("network,batch_size,power_limit,time_per_epoch,average_power\nresnet,64,300,2,240\n", 64, 480.0),
        ("power_limit_0,power_limit_1,power_limit_2,time,energy\n300,300,0.0,2,500\n", None, 500.0),
    ],
)
def test_forms_of_measured_limits(tmp_path, text, batch, energy):
    path = tmp_path / "job.csv"
    path.write_text(text)
    ((job, (point,)),) = read_job_points(path).items()
    assert job == ("resnet" if "resnet" in text else "job")
    assert (point.power_limit_w, point.time_s, point.energy_j, point.batch_size) == (300, 2, energy, batch)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("power_limit,time,energy\n300,2,500\n300,2,500\n", 3, "already on line 2"),
        ("power_limit,time,energy\n300,-2,500\n", 2, "not a positive number"),
        ("power_limit,time\n300,2\n", 1, "no column for energy"),
        ("power_limit_0,power_limit_1,time,energy\n300,250,2,500\n", 2, "different power limits"),
        ("power_limit,time,energy\n300,2\n", 2, "not as many values"),
        ("power_limit,time,energy\n", None, "no measurements"),
        ("power_limit,time,energy,batch_size\n300,2,1,1.5\n", 2, "not a whole number"),
        ("power_limit,time,energy\n300,2,500\n275,2.1,480\n250,2200,450\n", 4, "units are mixed"),
    ],
)
def test_broken_lines_of_measured_limits(tmp_path, text, line, words):
    path = tmp_path / "job.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_job_points(path)
    assert words in str(error.value)
    assert (error.value.line, error.value.file) == (line, str(path))


def test_epochs_of_runs_that_never_reached_the_target(tmp_path):
    path = tmp_path / "epochs.csv"
    path.write_text("batch_size,target_epoch\n8,10\n8,12\n16,nan\n16,9\n32,\n")
    assert read_epochs(path) == {8: (10.0, 12.0), 16: (math.inf, 9.0), 32: (math.inf,)}
    assert mean_epochs(read_epochs(path)) == {8: 11.0, 16: math.inf, 32: math.inf}
    for column in ("batch_size", "epochs"):
        path.write_text(f"{column}\n8\n")
        with pytest.raises(InputError, match="no column batch_size and epochs"):
            read_epochs(path)


def test_traces_of_zeus(data):
    jobs = read_job_points(data / "zeus_nsdi23" / "summary_power_v100.csv")
    points = jobs["cifar100 shufflenetv2 adadelta"]
    assert len(points) == 70
    assert len(read_job_points(data / "perseus_sosp24" / "zeus_global_power_limit_A40.csv")) > 1
    # The best limit of a batch size falls as energy weighs more.
    one = [p for p in points if p.batch_size == 1024]
    limits = [choose(one, eta, max_power_w(one)).power_limit_w for eta in (0.0, 0.3, 0.6, 1.0)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] > limits[-1]


def test_a_finished_run_moves_the_belief_as_bayes_says():
    sampler = make_sampler({8: 100.0, 16: 200.0}, 0.5)
    sd = math.sqrt(math.log(1.25))
    assert sampler.beliefs[8].sd == pytest.approx(sd)
    after = sampler.finished(8, 150.0)
    precision = 1 / sd**2 + 1 / 0.1**2
    mean = (math.log(100) / sd**2 + math.log(150) / 0.1**2) / precision
    assert after.beliefs[8].mean == pytest.approx(mean)
    assert after.beliefs[8].sd == pytest.approx(precision**-0.5)
    assert after.beliefs[16] == sampler.beliefs[16]
    assert sampler.beliefs[8].runs == 0


def test_a_stopped_run_moves_the_belief_to_the_truncated_ones_mean_and_variance():
    belief = Belief(math.log(100.0), 0.4)
    sampler = BatchSizeSampler({8: belief, 16: Belief(0.0, 1.0)})
    after = sampler.stopped(8, 130.0).beliefs[8]
    log = np.linspace(belief.mean - 6 * 0.4, belief.mean + 6 * 0.4, 200_001)
    seen = np.array([0.5 * math.erfc((math.log(130.0) - x) / (0.1 * math.sqrt(2))) for x in log[::100]])
    weight = np.exp(-0.5 * ((log[::100] - belief.mean) / 0.4) ** 2) * seen
    mean = np.average(log[::100], weights=weight)
    assert after.mean == pytest.approx(mean, abs=1e-4)
    assert after.sd == pytest.approx(math.sqrt(np.average((log[::100] - mean) ** 2, weights=weight)), abs=1e-4)
    assert (after.stopped, after.runs) == (1, 0)


@pytest.mark.parametrize("times", [10.0, 100.0])
def test_a_run_that_is_stopped_far_above_its_belief_is_taken_to_cost_just_that(times):
    """Of what the run cost above the belief, the belief moves by its share of the variance."""
    belief = Belief(math.log(100.0), 0.05)
    after = BatchSizeSampler({8: belief}).stopped(8, times * 100.0).beliefs[8]
    share = 0.05**2 / (0.05**2 + 0.1**2)
    assert after.mean - belief.mean == pytest.approx(share * math.log(times), rel=0.01)
    assert after.sd == pytest.approx(0.05 * math.sqrt(1.0 - share), rel=0.01)


def test_scatter_is_learnt_from_repeated_runs():
    sampler = make_sampler({8: 100.0, 16: 200.0})
    assert sampler.scatter == pytest.approx(0.1)
    logs = np.log([80.0, 130.0, 95.0])
    for cost in (80.0, 130.0, 95.0):
        sampler = sampler.finished(8, cost)
    assert sampler.scatter == pytest.approx(math.sqrt((4 * 0.1**2 + logs.var() * 3) / (4 + 2)))


def test_runs_are_stopped_at_twice_the_best_cost():
    sampler = make_sampler({8: 100.0, 16: 200.0})
    sd = sampler.beliefs[8].sd
    assert sampler.stop_cost(8) == pytest.approx(2 * 100 * math.exp(2 * sd))
    sampler = sampler.finished(16, 200.0)
    assert sampler.stop_cost(8) == pytest.approx(2 * sampler.beliefs[16].cost)
    assert sampler.best() == 8


@pytest.mark.parametrize(
    ("costs", "sd", "stop"), [({}, 0.3, 2.0), ({8: -1.0}, 0.3, 2.0), ({8: 1.0}, 0.0, 2.0), ({8: 1.0}, 0.3, 1.0)]
)
def test_beliefs_that_cannot_be(costs, sd, stop):
    with pytest.raises(InputError):
        make_sampler(costs, sd, stop_at=stop)


ARMS = [
    Arm(2**k, 200.0, 10.0 / 2 ** min(k, 4), tuple(8 * (1 + 2**k / 16) * f for f in (0.95, 1, 1.05))) for k in range(8)
]
NEVER = Arm(512, 200.0, 0.1, (math.inf,))


def test_sampling_from_forecasts_costs_less_than_exploring():
    arms = [*ARMS, NEVER]
    best = min(ARMS, key=lambda a: a.usual_cost)
    truth = {a.batch_size: a.usual_cost for a in ARMS} | {512: 0.1 * 8 * 33}
    wrong = {size: cost * (1.25 if size % 3 else 0.8) for size, cost in truth.items()}

    def regret(make):
        return float(np.mean([replay(make(), arms, 60, seed).regret[-1] for seed in range(5)]))

    sampled = regret(lambda: Thompson(arms, wrong, 0.3))
    explored = regret(lambda: ExploreFirst(arms, 8))
    searched = regret(lambda: Exhaustive(arms))
    assert sampled < 0.5 * explored
    assert explored < searched
    assert regret(lambda: Fixed(best)) == pytest.approx(0.0, abs=1.0)


def test_the_best_batch_size_is_found_although_its_forecast_was_far_too_dear():
    arms = [*ARMS, NEVER]
    best = min(ARMS, key=lambda a: a.usual_cost).batch_size
    truth = {a.batch_size: a.usual_cost for a in ARMS} | {512: 5.0}
    forecasts = {size: cost * (3.0 if size == best else 1.0) for size, cost in truth.items()}
    result = replay(Thompson(arms, forecasts, 1.0), arms, 150, seed=1)
    late = result.batch_size[-50:]
    assert (late == best).mean() > 0.5
    assert result.cost[-50:].mean() < 1.1 * result.best


def test_a_run_that_never_ends_is_stopped_and_another_follows():
    arms = [ARMS[3], NEVER]
    policy = Thompson(arms, {8: ARMS[3].usual_cost, 512: 0.5 * ARMS[3].usual_cost}, 0.3)
    result = replay(policy, arms, 40, seed=0)
    assert (result.batch_size == 8).all()
    assert policy.sampler.beliefs[512].stopped >= 1
    assert policy.sampler.beliefs[512].cost > ARMS[3].usual_cost
    assert np.isfinite(result.cost).all()


def test_a_replay_is_the_same_again():
    arms = [*ARMS]
    forecasts = {a.batch_size: a.usual_cost for a in arms}
    first, second = (replay(Thompson(arms, forecasts), arms, 20, seed=3) for _ in range(2))
    assert np.array_equal(first.cost, second.cost)
    with pytest.raises(InputError, match="always reaches"):
        replay(Fixed(NEVER), [NEVER], 1)


def test_arms_at_their_best_limit():
    points = (*POINTS, JobPoint(300.0, 5.0, 1400.0, 128), JobPoint(200.0, 9.0, 1300.0, 128))
    epochs = {64: (10.0,), 128: (15.0,)}
    assert [(a.batch_size, a.power_limit_w) for a in best_arms(points, epochs, 1.0, 300.0)] == [(64, 150), (128, 200)]
    assert [(a.batch_size, a.power_limit_w) for a in best_arms(points, epochs, 0.0, 300.0)] == [(64, 300), (128, 300)]
    assert len(all_arms(points, {64: (10.0,)}, 0.5, 300.0)) == 5


def test_replay_on_the_traces_of_zeus(data):
    """Epochs made up here follow a critical batch size; the forecast has that 2.5 times too low."""
    random = np.random.default_rng(11)
    sampled, explored, searched = [], [], []
    for points in read_job_points(data / "zeus_nsdi23" / "summary_power_v100.csv").values():
        sizes = sorted({p.batch_size for p in points})
        critical = 2 * float(np.median(sizes))
        epochs = {b: tuple(8 * (1 + b / critical) * random.lognormal(0.0, 0.07, 10)) for b in sizes[:-1]}
        epochs[sizes[-1]] = (math.inf,)
        power = max_power_w(points)
        arms, every = (f(points, epochs, 0.5, power) for f in (best_arms, all_arms))
        forecasts = {a.batch_size: a.epoch_cost * 8 * (1 + 2.5 * a.batch_size / critical) for a in arms}
        default = sizes[len(sizes) // 2]
        policies = (Thompson(arms, forecasts), ExploreFirst(arms, default), Exhaustive(every, stop_at=2.0))
        for policy, found in zip(policies, (sampled, explored, searched), strict=True):
            found.append(replay(policy, every, 60, seed=2).regret[-1])
    assert np.mean(sampled) < 0.5 * np.mean(explored)
    assert np.mean(sampled) < 0.1 * np.mean(searched)


def run(*arguments):
    return command.status_of("front", *arguments)


@pytest.fixture
def measured(tmp_path):
    path = tmp_path / "measured.csv"
    lines = [f"a,{p.batch_size},{p.power_limit_w},{p.time_s},{p.energy_j}\n" for p in POINTS]
    lines += ["a,128,300,6,1700\n", "a,256,300,5,1600\n"]
    path.write_text("network,batch_size,power_limit,time,energy\n" + "".join(lines))
    return path


def test_the_command_line_chooses_a_limit(measured, capsys):
    assert not run("--power-limits", str(measured), "--eta", "1", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert (printed["choice"]["batch_size"], printed["choice"]["energy_j"]) == (256, 1600)
    assert printed["job"] == "a"
    assert len(printed["points"]) == 7


def test_the_command_line_chooses_limit_and_batch_size_to_the_target(measured, tmp_path, capsys):
    epochs = tmp_path / "epochs.csv"
    epochs.write_text("batch_size,epochs\n64,10\n128,12\n256,nan\n")
    assert not run("--power-limits", str(measured), "--epochs", str(epochs), "--eta", "0.5", "--gpus", "2", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["never_reach_the_target"] == [256]
    assert printed["max_power_w"] == 600
    points = [JobPoint(p.power_limit_w, 10 * p.time_s, 10 * p.energy_j, 64) for p in POINTS]
    wanted = choose([*points, JobPoint(300, 72.0, 20400.0, 128)], 0.5, 600.0)
    assert printed["choice"]["cost_j"] == pytest.approx(wanted.cost_j(0.5, 600.0))
    assert not run("--power-limits", str(measured), "--epochs", str(epochs))
    assert "batch size 256" in capsys.readouterr().out


def test_the_command_line_forecasts_limits_and_batch_sizes(examples, tmp_path, capsys):
    plan = str(examples / "llama-3.1-8b-4xh200.toml")
    epochs = tmp_path / "epochs.csv"
    epochs.write_text("batch_size,epochs\n8,2\n16,3\n")
    limits = ("--power-limits", "700,500")
    assert not run(plan, *limits, "--epochs", str(epochs), "--samples", "1000", "--json")
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(p["batch_size"], p["power_limit_w"]) for p in points] == [(8, 700), (8, 500), (16, 700), (16, 500)]
    assert not run(plan, *limits, "--format", "zeus-power-limit", "--out", str(tmp_path / "zeus.json"))
    rows = json.loads((tmp_path / "zeus.json").read_text())["measurements"]
    assert points[0]["time_s"] == pytest.approx(2 * 125 * rows[0]["time"])
    assert points[1]["energy_j"] == pytest.approx(2 * 125 * rows[1]["energy"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("PLAN", "--eta", "0.5"), "belongs to power limits"),
        (("--eta", "0.5"), "give either a plan or --profile"),
        (("--power-limits", "nowhere.csv"), "no such file"),
        (("--format", "zeus-power-limit"), "a plan is missing"),
        (("--power-limits", "MEASURED", "--job", "b"), "unknown job 'b'"),
        (("--power-limits", "MEASURED", "--format", "zeus-power-limit"), "two points of one power limit"),
        (("PLAN", "--power-limits", "lots"), "no list of watts"),
        (("PLAN", "--power-limits", "700", "--epochs", "EPOCHS"), "--samples"),
    ],
)
def test_what_the_command_line_cannot_do(measured, examples, tmp_path, capsys, arguments, words):
    (tmp_path / "epochs.csv").write_text("batch_size,epochs\n8,2\n")
    known = {
        "MEASURED": str(measured),
        "PLAN": str(examples / "llama-3.1-8b-4xh200.toml"),
        "EPOCHS": str(tmp_path / "epochs.csv"),
    }
    assert run(*(known.get(a, a) for a in arguments)) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "limits", "says"),
    [
        ("b200", "400,1000", "below b200's default of 1000 W save is no measured fact"),
        ("gb200", "600,1200", "is an estimate (products on B200"),
        ("b200", "1000", None),
        ("a100-sxm-80gb", "300,400", None),
    ],
)
def test_limits_below_what_was_measured_are_told_apart(examples, tmp_path, capsys, gpu, limits, says):
    plan, page = examples / "llama-3.1-8b-4xh200.toml", tmp_path / "limits.html"
    asked = (plan, "--set", f"cluster.gpu={gpu}", "--power-limits", limits)
    status, out, _ = command.run(capsys, "front", *asked, "--report", page)
    assert status == 0
    assert ("no measured fact" in out) == (says is not None)
    assert ("no measured fact" in page.read_text(encoding="utf-8")) == (says is not None)
    assert says is None or says in " ".join(out.split())
    lowest = float(limits.split(",")[0])
    assumed = forecast(load_plan(plan, [f"cluster.gpu={gpu}", f"power.power_limit_w={lowest}"])).assumptions
    assert any("no measured fact" in note for note in assumed) == (says is not None)
