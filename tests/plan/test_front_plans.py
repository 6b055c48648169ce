"""Discrete plans of a front: evaluated independently, near the bound, the fastest and the cheapest among them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from row_files import csv_rows

from joulecast.errors import InputError
from joulecast.plan.exact.dag import dag_of_schedule, make_dag
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.fronts.profile_front import problem_from_profile
from joulecast.plan.knobs.options import Option
from joulecast.simulator.closed_form.evaluator import make_evaluator
from joulecast.simulator.schedules import Instruction, build_schedule

A100, A40 = "stage_profile_gpt3-175b_a100-sxm.csv", "stage_profile_bloom_a40.csv"
WAIT_W = {A100: 83.64, A40: 70.4}


def front_of(data, name, stages, microbatches, **how):
    problem = problem_from_profile(
        data / "perseus_sosp24" / name, microbatches=microbatches, wait_power_w=WAIT_W[name], stages=stages
    )
    return exact_front(problem, **how)


@pytest.fixture(scope="module")
def a100(data):
    return front_of(data, A100, tuple(range(8)), 32)


def measured(data, name):
    rows = csv_rows(data / "perseus_sosp24" / name)
    return {
        (int(r["stage"]), r["instruction"], float(r["frequency"])): (float(r["time"]), float(r["energy"])) for r in rows
    }


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "mean", "worst"),
    [
        (A100, (0, 1, 2, 7), 8, 0.0025, 0.015),
        (A100, tuple(range(8)), 32, 0.0025, 0.015),
        (A40, (0, 1, 2, 7), 8, 0.007, 0.025),
        (A40, tuple(range(8)), 32, 0.007, 0.025),
    ],
)
def test_plans_are_near_the_lower_bound(data, name, stages, microbatches, mean, worst):
    front = front_of(data, name, stages, microbatches)
    gaps = np.array([p.gap for p in front.points])
    assert gaps.min() >= 0.0
    assert gaps.mean() <= mean
    assert gaps.max() <= worst
    # The same where a scheduler asks at any time and gets the plan that fits.
    times = np.linspace(front.points[0].time_s, front.points[-1].time_s, 500)
    energy = np.array([min(p.energy_j for p in front.points if p.time_s <= t) for t in times])
    bound = np.array([front.bound_j(t) for t in times])
    assert (energy / bound - 1).mean() <= mean
    assert (energy / bound - 1).max() <= worst


def test_times_and_energies_are_those_of_the_measured_rows(a100, data):
    rows = measured(data, A100)
    schedule = build_schedule("1f1b", 8, 32, tail=())
    clocks = sorted({clock for _, _, clock in rows})
    names = list(itertools.product(range(8), ("forward", "backward")))
    type_of = [[2 * r + (i.kind == "backward") for i in order] for r, order in enumerate(schedule.ranks)]
    table = np.array([[rows[stage, name, clock] for clock in clocks] for stage, name in names])
    evaluator = make_evaluator(schedule, type_of, np.rint(table[..., 0] * 1e9).astype(int), table[..., 1], WAIT_W[A100])
    points = a100.points[:: max(1, len(a100.points) // 40)]
    chosen = [[clocks.index(c) for order in a100.clocks_mhz(p) for c in order] for p in points]
    time_ns, energy_j = evaluator.evaluate(np.array(chosen, dtype=np.uint8).T)
    assert time_ns * 1e-9 == pytest.approx([p.time_s for p in points], abs=1e-6)
    assert energy_j == pytest.approx([p.energy_j for p in points], rel=1e-7)
    for p in points:
        assert a100.problem.evaluate(p.choice) == pytest.approx((p.time_s, p.energy_j), rel=1e-12)


def test_the_first_plan_is_the_fastest_there_is(a100, data):
    rows = measured(data, A100)
    schedule = build_schedule("1f1b", 8, 32, tail=())
    best = {key: min(t for (s, n, _), (t, _) in rows.items() if (s, n) == key) for key in {k[:2] for k in rows}}
    type_of = [[2 * r + (i.kind == "backward") for i in order] for r, order in enumerate(schedule.ranks)]
    duration = [[round(best[s, n] * 1e12)] for s in range(8) for n in ("forward", "backward")]
    evaluator = make_evaluator(schedule, type_of, duration, np.zeros((16, 1)), 0.0)
    time, _ = evaluator.evaluate(np.zeros((evaluator.instructions, 1), dtype=np.uint8))
    assert a100.points[0].time_s == pytest.approx(time[0] * 1e-12, rel=1e-10)


def test_points_are_a_front(a100):
    time, energy = np.array([[p.time_s, p.energy_j] for p in a100.points]).T
    assert (np.diff(time) > 0).all()
    assert (np.diff(energy) < 0).all()
    assert len(time) > 200
    bound_time, bound_energy = a100.lower_bound
    assert (np.diff(bound_time) > 0).all()
    assert (np.diff(bound_energy) < 0).all()
    assert time[0] - 512e-6 <= bound_time[0] <= time[0]
    assert [p.lower_bound_j for p in a100.points] == pytest.approx(np.interp(time, bound_time, bound_energy), rel=1e-9)


def test_plans_beyond_the_energy_best_serve_those_who_wait(a100):
    slow = a100.points[-1].time_s * 1.1
    plan = a100.at(slow)
    assert a100.points[-1].time_s < plan.time_s <= slow
    assert a100.energy_j(plan, slow) < a100.energy_j(a100.points[-1], slow)
    assert plan.energy_j > a100.points[-1].energy_j
    costs = [a100.energy_j(p, slow) for p in a100.plans if p.time_s <= slow]
    assert a100.energy_j(plan, slow) == min(costs)


def test_a_time_before_the_fastest_is_refused(a100):
    for ask in (a100.at, a100.bound_j):
        with pytest.raises(InputError, match=r"no plan takes 1 s or less.*fastest takes 5\.89"):
            ask(1.0)


@pytest.mark.parametrize("time", [math.nan, "6", None, True])
def test_what_is_no_time_is_refused(a100, time):
    for ask in (a100.at, a100.bound_j, lambda time: a100.energy_j(a100.points[0], time)):
        with pytest.raises(InputError, match=r"is no time\. Give a number of seconds"):
            ask(time)


def test_no_rank_waits_for_less_than_the_plan_takes(a100):
    last = a100.points[-1]
    assert a100.energy_j(last, last.time_s) == last.energy_j
    with pytest.raises(InputError, match=rf"no rank waits until 1 s\. The plan takes {last.time_s:.6g} s"):
        a100.energy_j(last, 1.0)


def test_time_limit(data):
    whole = front_of(data, A100, (0, 1, 2, 7), 8)
    limit = 0.5 * (whole.points[0].time_s + whole.points[-1].time_s)
    front = front_of(data, A100, (0, 1, 2, 7), 8, time_limit_s=limit)
    last = front.points[-1]
    assert last.time_s <= limit
    assert last.energy_j / whole.bound_j(limit) - 1 < 0.005
    with pytest.raises(InputError, match="no plan takes 1 s or less"):
        front_of(data, A100, (0, 1, 2, 7), 8, time_limit_s=1.0)


def test_a_time_limit_costs_no_plan(data):
    """However the search goes, what is found without a limit is found with it."""
    whole = front_of(data, A100, (0, 1, 2, 7), 8)
    for point in whole.points[40:360:80]:
        last = front_of(data, A100, (0, 1, 2, 7), 8, time_limit_s=point.time_s).points[-1]
        assert last.time_s <= point.time_s * (1 + 1e-12)
        assert last.energy_j <= point.energy_j


@st.composite
def small_problems(draw):
    """Few instructions with few options, so that every plan can be tried."""
    option = st.tuples(st.integers(1, 12), st.integers(1, 30))
    options = [
        [
            Option(t * 0.01 + 1.1e-7 * i, float(e), float(i))
            for i, (t, e) in enumerate(draw(st.lists(option, min_size=1, max_size=4)))
        ]
        for _ in range(2)
    ]
    kinds = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
    across = draw(st.sampled_from([[], [(0, 3)], [(0, 2)], [(1, 3)], [(0, 2), (1, 3)]]))
    dag = make_dag([[Instruction("forward")] * 2] * 2, [u for u, _ in across], [v for _, v in across], 1.234e-3)
    return make_problem(dag, options, kinds, draw(st.sampled_from([0.0, 20.0])))


def shorter_than_a_quantum_apart():
    """Two ways through a rank take 20.00022 ms: one is counted as a microsecond longer, and needs less energy."""
    options = [
        Option(0.01, 2.0, 0.0),
        Option(0.01000011, 1.0, 1.0),
        Option(0.01000022, 1.0, 2.0),
        Option(0.02, 1.0, 3.0),
    ]
    dag = make_dag([[Instruction("forward")] * 2] * 2)
    return make_problem(dag, [options, [Option(0.01, 1.0, 0.0)]], [0, 0, 0, 0], 20.0)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(small_problems())
@example(shorter_than_a_quantum_apart())
def test_against_every_plan_of_small_problems(problem):
    front = exact_front(problem)
    counts = [range(len(problem.sets[k].options)) for k in problem.kind]
    times, energies = np.array([problem.evaluate(np.array(choice)) for choice in itertools.product(*counts)]).T
    assert front.points[0].time_s == pytest.approx(times.min(), rel=1e-12)
    for point in front.points:
        assert problem.evaluate(point.choice) == pytest.approx((point.time_s, point.energy_j), rel=1e-12)
        least = energies[times <= point.time_s * (1 + 1e-12)].min()
        assert point.lower_bound_j * (1 - 1e-9) <= least <= point.energy_j * (1 + 1e-12)
        assert front.bound_j(point.time_s) * (1 - 1e-9) <= point.lower_bound_j  # at its own time
    assert front.points[-1].energy_j <= energies.min() * 1.02
    assert energies.min() >= front.lower_bound[1][-1] * (1 - 1e-9)


def test_options_that_take_equally_many_quanta():
    # The fastest option is then not on the hull, and the kind before must not lend it a corner.
    slow = [Option(0.01, 1.0, 1.0)]
    close = [Option(0.01000011, 2.0, 1.0), Option(0.01000022, 1.0, 2.0)]
    dag = make_dag([[Instruction("forward")] * 2] * 2)
    front = exact_front(make_problem(dag, [slow, close], [0, 0, 1, 1], 0.0))
    assert [p.time_s for p in front.points] == pytest.approx([0.02000022, 0.02000033, 0.02000044])
    assert [p.energy_j for p in front.points] == pytest.approx([6.0, 5.0, 4.0])


def test_a_limit_on_mean_power_leaves_out_plans(data):
    from dataclasses import replace

    whole = front_of(data, A100, (0, 1, 2, 7), 8)
    ranks = [whole.problem.rank_energies_j(p.choice, p.time_s) / p.time_s for p in whole.points]
    limit = float(np.median([r.max() for r in ranks]))
    limited = exact_front(replace(whole.problem, power_limit_w=np.full(4, limit)))
    assert 0 < len(limited.points) < len(whole.points)
    for p in limited.points:
        assert (limited.problem.rank_energies_j(p.choice, p.time_s) <= limit * p.time_s).all()
    with pytest.raises(InputError, match="no plan keeps the power limit"):
        exact_front(replace(whole.problem, power_limit_w=np.full(4, 10.0)))


def test_crossing_neighbours_halves_the_gap(data, monkeypatch):
    crossed = front_of(data, A40, tuple(range(8)), 32)
    monkeypatch.setattr("joulecast.plan.exact.plan_search.ROUNDS", 0)
    rounded = front_of(data, A40, tuple(range(8)), 32)
    assert np.mean([p.gap for p in crossed.points]) < 0.7 * np.mean([p.gap for p in rounded.points])
    assert max(p.gap for p in crossed.points) < 0.7 * max(p.gap for p in rounded.points)


def test_local_search_improves_where_the_gap_is_large(data, monkeypatch):
    monkeypatch.setattr("joulecast.plan.exact.plan_search.ROUNDS", 0)
    found = front_of(data, A40, tuple(range(8)), 32)
    monkeypatch.setattr("joulecast.plan.exact.plan_search.SEARCH_ABOVE", 1.0)
    without = front_of(data, A40, tuple(range(8)), 32)
    far = [p.time_s * (1 + 1e-9) for p in without.points if p.gap > 0.005]
    assert len(far) > 10
    better = [found.energy_j(found.at(t), t) - without.energy_j(without.at(t), t) for t in far]
    assert np.mean(better) < -2.0
    assert np.mean(np.array(better) < -1e-6) > 0.6


def test_clocks_stand_in_order_of_execution(a100):
    point = a100.points[len(a100.points) // 2]
    clocks, names = a100.clocks_mhz(point), a100.instructions()
    assert [len(c) for c in clocks] == [64] * 8 == [len(n) for n in names]
    assert names[0][:9] == ["forward"] * 8 + ["backward"]
    assert names[7][:4] == ["forward", "backward"] * 2
    for rank, order in enumerate(a100.options(point)):
        for place, option in enumerate(order):
            kind = a100.problem.kind[64 * rank + place]
            assert option in a100.problem.sets[kind].options
            assert option.clock_mhz == clocks[rank][place]
    assert all(isinstance(c, int) for order in clocks for c in order)


def test_frame_and_dict(a100):
    plain = a100.to_dict()
    assert set(plain) == {"form", "lower_bound", "points", "instructions", "notes"}
    assert set(plain["points"][0]) == {"time_s", "energy_j", "power_w", "lower_bound_j", "plan"}
    assert len(a100.to_frame()) == len(plain["points"])
    assert dag_of_schedule(build_schedule("1f1b", 2, 2)).names[0] == "forward of stage 0, micro-batch 0"
