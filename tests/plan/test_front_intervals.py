"""How sure the plans of a front are: their levels as a forecast's, their ratios better."""

from dataclasses import replace

import numpy as np
import pytest

import joulecast as jc
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.uncertainty import FEW_DIRECTIONS, NINETY_PERCENT, changes, deviations, spread_of
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.front_intervals import plan_intervals
from joulecast.plan.fronts.forecast_front import forecast_front, problem_from_plan
from joulecast.plan.fronts.profile_front import MEASURED, problem_from_profile
from joulecast.plan.fronts.stragglers import parse_slow_rank, throttled
from joulecast.plan.knobs.front_space import FrontSpace
from joulecast.simulator.iteration import uncertainty
from joulecast.simulator.iteration.uncertainty import main_kernels
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

ENDS = tuple(f"{name}_{end}" for name in ("time_s", "energy_j", "power_w") for end in ("p05", "p95"))
#: One number of communication blocks: a quick front.
SPACE = FrontSpace(comm_ctas=(None,))


@pytest.fixture(scope="module")
def plan(examples):
    return load_plan(examples / "llama-3.1-8b-4xh200.toml")


@pytest.fixture(scope="module")
def front(plan):
    return forecast_front(plan, space=SPACE)


def table(front):
    """Points and intervals as columns."""
    rows = front.rows()
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def factors(of):
    return [getattr(of, name) / getattr(of, name[:-4]) for name in ENDS]


@pytest.mark.parametrize(
    ("name", "clock"),
    [("llama-3.1-8b-4xh200", 1200), ("llama-3.1-70b-8xh200", 1005), ("gpt3-175b-64xa100", 900)],
)
def test_a_plan_of_one_clock_is_as_sure_as_its_forecast(examples, name, clock):
    own = load_plan(examples / f"{name}.toml", [f"power.clock_mhz={clock}"])
    (row,) = forecast_front(own, space=SPACE).rows()
    forecast = jc.predict(own)
    assert row["time_s"] == pytest.approx(forecast.time_s, rel=0.02)
    found = [row[end] / row[end[:-4]] for end in ENDS]
    assert found == pytest.approx(factors(forecast), rel=1e-9)
    assert [row[f"{q}_ratio_{end}"] for q in ("time", "energy") for end in ("p05", "p95")] == [1.0] * 4


def of_small_kernels(**tables):
    """A plan whose host hardly keeps up with its GPU."""
    given = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 2},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {"modules": "transformers"},
    }
    return plan_from_dict({key: {**given.get(key, {}), **tables.get(key, {})} for key in {**given, **tables}})


@pytest.mark.parametrize("stated", [{}, {"host_launch_us": 30.0}, {"host_launch_us": 0.0}])
def test_a_slow_host_is_in_the_intervals_of_fronts_as_in_those_of_forecasts(stated):
    own = of_small_kernels(implementation=stated, power={"clock_mhz": 1500})
    (row,) = forecast_front(own, space=SPACE).rows()
    forecast = jc.predict(own)
    found = [row[end] / row[end[:-4]] for end in ENDS]
    assert found == pytest.approx(factors(forecast), rel=1e-6)
    reach = row["time_s_p95"] / row["time_s"] / (row["time_s"] / row["time_s_p05"])
    assert (reach > 1.2) == (not stated)


def test_a_slow_host_evens_out_what_clocks_cost():
    """Where it is waited for, a lower clock loses less time; of the energy it saves less."""
    ends = []
    for stated in ({}, {"host_launch_us": 0.0}):
        t = table(forecast_front(of_small_kernels(implementation=stated), space=SPACE))
        ends.append((t["time_ratio_p05"] * t["time_s"][0] / t["time_s"]).min())
    assert ends[0] < 0.9 < ends[1]


def carried(front, point, problem):
    """A plan's choice in another problem, where its board may not hold a clock: at the next one that it does."""

    def nearest(kind, wanted):
        alike = [i for i, o in enumerate(problem.sets[kind].options) if o.knobs == wanted.knobs]
        return min(alike, key=lambda i: abs(problem.sets[kind].options[i].clock_mhz - wanted.clock_mhz))

    chosen = (front.problem.option(v, c) for v, c in enumerate(point.choice.tolist()))
    return np.array([nearest(kind, o) for kind, o in zip(problem.kind.tolist(), chosen, strict=True)])


def test_other_ways_beside_it_make_a_plan_no_less_sure(plan, front):
    problem = problem_from_plan(plan, gpu_model(load_gpu("h200-sxm")), FrontSpace())
    assert len(problem.kernels.ways) > 3
    place = len(front.points) // 2
    point, alone = front.points[place], front.intervals[place]
    choice = carried(front, point, problem)
    taken = np.array([point.time_s]), np.array([point.energy_j])
    (among,) = plan_intervals(problem, problem.kernels, [choice], *taken)
    assert [getattr(among, end) for end in ENDS] == pytest.approx([getattr(alone, end) for end in ENDS], rel=1e-9)


def test_intervals_hold_their_plans(front):
    t = table(front)
    for value in ("time_s", "energy_j"):
        low, high = t[f"{value}_p05"], t[f"{value}_p95"]
        assert np.all(low < t[value]) and np.all(t[value] < high)
        assert low * high == pytest.approx(t[value] ** 2)
        ratio, name = t[value] / t[value][0], value.split("_")[0]
        low, high = t[f"{name}_ratio_p05"], t[f"{name}_ratio_p95"]
        assert np.all(low[1:] < ratio[1:]) and np.all(ratio[1:] < high[1:])
        assert (low[0], high[0]) == (1.0, 1.0)
        assert low * high == pytest.approx(ratio**2)
    assert t["power_w"] == pytest.approx(t["energy_j"] / t["time_s"])
    assert np.all(t["power_w_p05"] < t["power_w"]) and np.all(t["power_w"] < t["power_w_p95"])


def test_a_limit_leaves_power_no_more_than_it_holds():
    """A plan that draws nearly what the board holds can hardly draw more; far below, as much more as less."""
    stated = {"power": {"power_limit_w": 400}, "implementation": {"host_launch_us": 0.0}}
    near = table(forecast_front(of_small_kernels(**stated), space=SPACE))
    assert 0.97 * 400.0 < near["power_w"][0] < 400.0
    ends = np.log([near["power_w"] / near["power_w_p05"], near["power_w_p95"] / near["power_w"]])
    assert ends[1, 0] < 0.03 < 0.06 < ends[1, -1]
    assert ends[1, -1] == pytest.approx(ends[0, -1])
    assert near["power_w_p95"].max() < 1.03 * 400.0


def test_ratios_are_surer_than_levels_and_less_so_further_apart(front):
    t = table(front)
    for value in ("time", "energy"):
        unit = "s" if value == "time" else "j"
        level, ratio = (np.log(t[f"{name}_p95"] / t[f"{name}_p05"]) for name in (f"{value}_{unit}", f"{value}_ratio"))
        assert np.all(ratio < 0.8 * level)
        assert ratio[len(ratio) // 4] < ratio[-1]


def test_how_a_derived_gpu_answers_to_clocks_is_less_sure(examples, monkeypatch):
    """A few per cent far from the fastest clock, nothing where the clock is the same; levels stay as they are."""
    derived = load_plan(examples / "llama-3.1-8b-4xh200.toml", ['cluster.gpu="a100-sxm-80gb"'])
    with_response = table(forecast_front(derived, space=SPACE))
    monkeypatch.setattr(uncertainty, "CLOCK_RESPONSE_SD", 0.0)
    without = table(forecast_front(derived, space=SPACE))
    for name in ("time_ratio", "energy_ratio"):
        wide, narrow = (np.log(t[f"{name}_p95"] / t[f"{name}_p05"]) / 2.0 for t in (with_response, without))
        assert wide[0] == narrow[0] == 0.0
        assert wide[-1] > narrow[-1] + 0.01
    assert with_response["time_s_p95"] == pytest.approx(without["time_s_p95"], rel=1e-12)


def with_spread(description, table, factor, *names):
    """A description with less sure values of some parameters, each on its own."""
    content = getattr(description, table)
    found = {key: replace(p, sd=p.sd * factor) if key in names else p for key, p in content.parameters.items()}
    kept = [i for i, name in enumerate(content.covariance_names) if name not in names]
    covariance = content.covariance[np.ix_(kept, kept)]
    left = tuple(content.covariance_names[i] for i in kept)
    return replace(
        description, **{table: replace(content, parameters=found, covariance_names=left, covariance=covariance)}
    )


def widths(plan, description):
    t = table(forecast_front(plan, description, space=SPACE))
    names = ("time_s", "energy_j", "time_ratio", "energy_ratio")
    return {name: float(np.log(t[f"{name}_p95"] / t[f"{name}_p05"])[-1]) for name in names}


def test_a_less_sure_parameter_widens_what_hangs_on_it(plan):
    description = load_gpu("h200-sxm")
    voltage = [n for n in description.voltage.parameters if description.voltage.parameters[n].sd > 0]
    before = widths(plan, with_spread(description, "voltage", 1.0, *voltage))
    after = widths(plan, with_spread(description, "voltage", 3.0, *voltage))
    assert after["energy_ratio"] > 1.5 * before["energy_ratio"]
    assert after["energy_j"] > before["energy_j"]
    assert after["time_ratio"] == pytest.approx(before["time_ratio"], rel=0.05)


def test_what_cards_differ_by_is_nearly_common_to_all_plans(plan):
    """A card that needs more power needs it at every clock."""
    description = load_gpu("h200-sxm")
    before = widths(plan, with_spread(description, "power", 0.0, "card_core", "card_memory"))
    after = widths(plan, with_spread(description, "power", 2.0, "card_core", "card_memory"))
    assert after["energy_j"] > 1.5 * before["energy_j"]
    added = {name: np.sqrt(after[name] ** 2 - before[name] ** 2) for name in ("energy_j", "energy_ratio")}
    assert added["energy_ratio"] < 0.4 * added["energy_j"]


def test_ratios_are_as_sure_as_whole_forecasts_again(plan, front):
    """Tables of all instructions made again at each deviation of the parameters, with waits and communication."""
    description = load_gpu("h200-sxm")
    points = [front.points[i] for i in (0, len(front.points) // 2, -1)]

    def energies(gpu):
        problem = problem_from_plan(plan, gpu, SPACE)
        return [problem.evaluate(carried(front, point, problem))[1] for point in points]

    gpu = gpu_model(description)
    moved = [energies(gpu.with_values(values)) for values in deviations(description, FEW_DIRECTIONS)]
    change = changes(np.array(energies(gpu)), np.array(moved))
    expected = spread_of(change - change[:, :1]) * NINETY_PERCENT
    t = table(front)
    found = np.log(t["energy_ratio_p95"] / t["energy_ratio_p05"])[[0, len(front.points) // 2, -1]] / 2.0
    assert found[0] == expected[0] == 0.0
    assert found[1:] == pytest.approx(expected[1:], rel=0.3)


def test_a_slow_rank_has_the_kernels_of_its_plan(front):
    slowed = throttled(front, parse_slow_rank("1=1.2")).slowed
    assert len(slowed.intervals) == len(slowed.points)
    one, other = slowed.intervals[0], front.intervals[0]
    assert one.time_s_p95 / slowed.points[0].time_s == pytest.approx(
        other.time_s_p95 / front.points[0].time_s, rel=0.01
    )


def test_measured_options_have_no_intervals(tmp_path):
    lines = [f"{s},{kind},{c},{100 / c},{20 + c / 100}" for s in (0, 1) for kind in ("forward", "backward")
             for c in (900, 1000)]  # fmt: skip
    path = tmp_path / "profile.csv"
    path.write_text("\n".join(["stage,instruction,frequency,time,energy", *lines, ""]))
    front = exact_front(problem_from_profile(path, microbatches=2, wait_power_w=80.0))
    assert front.intervals == ()
    assert not [name for row in front.rows() for name in row if name.endswith("p05")]
    assert MEASURED in front.to_dict()["notes"]


def test_main_kernels_are_the_largest_by_time_or_energy_until_they_are_enough():
    time = np.array([[0.5, 0.3, 0.15, 0.05], [0.9, 0.04, 0.03, 0.03]])
    energy = np.array([[0.5, 0.3, 0.05, 0.15], [0.9, 0.04, 0.03, 0.03]])
    assert main_kernels(time, energy).tolist() == [[True, True, False, False], [True, False, False, False]]
