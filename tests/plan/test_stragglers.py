"""Plans while another pipeline, or one of its own ranks, is slower."""

import json

import numpy as np
import pytest
from command import status_of

from joulecast.errors import InputError
from joulecast.plan.exact.dag import dag_of_schedule
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.fronts.stragglers import SlowRank, parse_slow_rank, slowed_problem, straggler_table, throttled
from joulecast.plan.knobs.options import Option
from joulecast.simulator.schedules import build_schedule

CLOCKS = (1410, 1305, 1200, 1095, 1005)
WAIT_W = 75.0


def problem_of(shared=False):
    """Three stages of different length, or three equal ones of shared kinds."""
    schedule = build_schedule("1f1b", 3, 5, tail=())
    kinds, ways, kind = {}, [], []
    for rank, instruction in schedule.flat():
        key = (0 if shared else rank, instruction.kind)
        if key not in kinds:
            kinds[key] = len(ways)
            work = (0.02 + 0.003 * key[0]) * (1 if instruction.kind == "forward" else 2.1)
            ways.append([])
            for clock in CLOCKS:
                time = work * (0.3 + 0.7 * 1410 / clock)
                voltage = 0.75 + 0.25 * max(clock - 1000, 0) / 410
                ways[-1].append(Option(time, work * 260 * voltage**2 + 80 * time, clock))
        kind.append(kinds[key])
    return make_problem(dag_of_schedule(schedule), ways, kind, WAIT_W)


@pytest.fixture(scope="module")
def front():
    return exact_front(problem_of())


def test_the_table_covers_every_plan(front):
    table = straggler_table(front)
    assert [row.time_s for row in table] == [plan.time_s for plan in front.plans]
    assert all(row.energy_j == pytest.approx(row.point.energy_j) for row in table)
    assert table[-1].saved_share > table[0].saved_share > 0
    assert table[0].saved_by_reacting_share == 0


def test_of_all_plans_that_are_in_time_the_cheapest_is_chosen(front):
    low, high = front.plans[0].time_s, front.plans[-1].time_s
    for time in np.linspace(low, 1.2 * high, 25):
        (row,) = straggler_table(front, [time])
        in_time = [plan for plan in front.plans if plan.time_s <= time * (1 + 1e-12)]
        waiting = [plan.energy_j + 3 * WAIT_W * (time - plan.time_s) for plan in in_time]
        assert row.energy_j == pytest.approx(min(waiting), rel=1e-12)
        assert row.point.time_s <= time * (1 + 1e-12)


def test_energies_without_planning_are_those_of_the_fastest_options(front):
    problem = front.problem
    time, energy = problem.evaluate(np.zeros(problem.dag.instructions, dtype=np.int32))
    (row,) = straggler_table(front, [2 * time])
    assert row.fastest_options_j == pytest.approx(energy + 3 * WAIT_W * time)
    assert row.fastest_plan_j == pytest.approx(
        front.plans[0].energy_j + 3 * WAIT_W * (2 * time - front.plans[0].time_s)
    )
    assert row.energy_j < row.fastest_plan_j < row.fastest_options_j
    assert row.to_dict()["saved_share"] == pytest.approx(1 - row.energy_j / row.fastest_options_j)


def test_no_plan_is_faster_than_the_fastest(front):
    with pytest.raises(InputError, match="fastest"):
        straggler_table(front, [0.9 * front.plans[0].time_s])


@pytest.mark.parametrize("shared", [False, True])
def test_a_factor_slows_one_rank_at_waiting_power(shared):
    problem = problem_of(shared)
    slow = slowed_problem(problem, SlowRank(1, factor=1.5))
    for i, rank in enumerate(problem.dag.rank_of.tolist()):
        before, after = (p.sets[int(p.kind[i])].options for p in (problem, slow))
        factor = 1.5 if rank == 1 else 1.0
        assert [o.time_s for o in after] == pytest.approx([factor * o.time_s for o in before])
        extra = [WAIT_W * (factor - 1) * o.time_s for o in before]
        assert [o.energy_j for o in after] == pytest.approx(
            [o.energy_j + e for o, e in zip(before, extra, strict=True)]
        )
    assert "1.5 times" in slow.notes[-1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_clock_limit_leaves_lower_clocks_to_one_rank(shared):
    problem = problem_of(shared)
    slow = slowed_problem(problem, SlowRank(2, max_clock_mhz=1250))
    for i, rank in enumerate(problem.dag.rank_of.tolist()):
        clocks = {o.clock_mhz for o in slow.sets[int(slow.kind[i])].options}
        assert clocks == ({1200, 1095, 1005} if rank == 2 else set(CLOCKS))


def test_a_throttled_rank_lets_the_others_save(front):
    result = throttled(front, SlowRank(1, max_clock_mhz=1100))
    assert result.slowed.plans[0].time_s > front.plans[0].time_s
    assert result.unplanned_s >= result.slowed.plans[0].time_s * (1 - 1e-9)
    assert result.own.energy_j < result.unplanned_j
    assert result.replica.time_s == result.slowed.plans[0].time_s
    assert result.replica.saved_by_reacting_share > 0
    report = result.to_dict()
    assert report["own_saved_share"] == pytest.approx(1 - result.own.energy_j / result.unplanned_j)
    # Without planning, every other rank still runs the healthy plan's clocks and waits.
    problem = result.slowed.problem
    time, energy = problem.evaluate(np.zeros(problem.dag.instructions, dtype=np.int32))
    assert result.unplanned_s <= time * (1 + 1e-9)
    assert result.unplanned_j < energy + 3 * WAIT_W * (result.unplanned_s - time) + 1e-9


def test_a_healthy_rank_costs_nothing(front):
    result = throttled(front, SlowRank(0, factor=1.0))
    assert result.unplanned_s == pytest.approx(front.plans[0].time_s)
    assert result.unplanned_j == pytest.approx(front.plans[0].energy_j)
    assert result.own.energy_j == pytest.approx(front.plans[0].energy_j)


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (SlowRank(3, factor=1.2), "no rank 3"),
        (SlowRank(0, factor=0.9), "factor of 0.9"),
        (SlowRank(0, factor=float("inf")), "factor of inf"),
        (SlowRank(0, max_clock_mhz=900), "at or below 900 MHz"),
    ],
)
def test_ranks_that_cannot_be_slow(front, slow, words):
    with pytest.raises(InputError, match=words):
        slowed_problem(front.problem, slow)


def test_how_a_slow_rank_is_written():
    assert parse_slow_rank("2=1.2") == SlowRank(2, factor=1.2)
    assert parse_slow_rank(" 0=1100mhz") == parse_slow_rank("0=1100 MHz") == SlowRank(0, max_clock_mhz=1100.0)
    for text in ("2", "a=1.2", "2=", "2=1.2.3", "2=0", "-1=2"):
        with pytest.raises(InputError, match="slow-rank"):
            parse_slow_rank(text)


@pytest.fixture
def profile(tmp_path, front):
    from joulecast.plan.exact.exports import zeus_profile

    path = tmp_path / "profile.csv"
    path.write_text(zeus_profile(front))
    return ["front", "--profile", str(path), "--microbatches", "5", "--wait-power", str(WAIT_W)]


def run(arguments):
    return status_of(*arguments)


def test_the_command_line_has_plans_for_stragglers(front, profile, capsys):
    late = 1.3 * front.plans[0].time_s
    assert not run([*profile, "--straggler-time", str(late), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["stragglers"]
    (wanted,) = straggler_table(front, [late])
    assert row["energy_j"] == pytest.approx(wanted.energy_j)
    assert row["plan"] == front.clocks_mhz(wanted.point)


def test_the_command_line_has_the_front_with_a_slow_rank(front, profile, capsys):
    assert not run([*profile, "--slow-rank", "1=1100MHz", "--json"])
    printed = json.loads(capsys.readouterr().out)
    wanted = throttled(front, SlowRank(1, max_clock_mhz=1100))
    assert printed["points"][0]["time_s"] == pytest.approx(wanted.slowed.points[0].time_s)
    assert max(printed["points"][0]["plan"][1]) <= 1100
    assert printed["slow_rank"]["replica"]["plan"] == front.clocks_mhz(wanted.replica.point)
    assert printed["slow_rank"]["own_saved_share"] == pytest.approx(wanted.to_dict()["own_saved_share"])
    assert not run([*profile, "--slow-rank", "1=1100MHz"])
    assert "its replicas" in capsys.readouterr().out


def test_the_command_line_names_a_rank_that_cannot_be_slow(profile, capsys):
    assert run([*profile, "--slow-rank", "7=1.2"]) == 2
    assert "no rank 7" in capsys.readouterr().err


def test_a_clock_above_all_clocks_slows_nothing_and_is_refused(front):
    highest = max(CLOCKS)
    assert slowed_problem(front.problem, SlowRank(1, max_clock_mhz=highest)).dag is front.problem.dag
    with pytest.raises(InputError, match=f"rank 1 has no clock above 5000 MHz. Its highest is {highest} MHz"):
        slowed_problem(front.problem, SlowRank(1, max_clock_mhz=5000.0))
