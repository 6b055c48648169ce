"""Plans with few choices: what is tied is tied, and little is lost where the steady state alone is."""

import numpy as np
import pytest

import joulecast as jc
from joulecast.errors import UnknownNameError
from joulecast.plan.exact.dag import dag_of_schedule
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.exact.simple_plans import is_steady
from joulecast.plan.fronts.forecast_front import forecast_front
from joulecast.plan.fronts.profile_front import problem_from_profile
from joulecast.plan.fronts.switching import front_of_problem, shortest_instruction_s
from joulecast.plan.knobs.options import Option
from joulecast.simulator.plan_file.plan import load_plan
from joulecast.simulator.schedules import build_schedule


@pytest.fixture(scope="module")
def problem(data):
    path = data / "perseus_sosp24" / "stage_profile_gpt3-175b_a100-sxm.csv"
    return problem_from_profile(path, microbatches=8, wait_power_w=83.64, stages=(0, 1, 2, 7))


def gaps(front):
    return np.array([p.gap for p in front.points])


def test_one_clock_for_each_stage_and_direction(problem):
    front = exact_front(problem, simple="stage")
    assert len(front.points) > 50
    for point in front.points:
        for clocks, names in zip(front.clocks_mhz(point), front.instructions(), strict=True):
            for name in ("forward", "backward"):
                assert len({c for c, n in zip(clocks, names, strict=True) if n == name}) == 1
        assert problem.evaluate(point.choice) == pytest.approx((point.time_s, point.energy_j), rel=1e-12)
    assert gaps(front).min() >= 0.0
    assert gaps(front).mean() < 0.06


def test_one_clock_for_each_stage(problem):
    front = exact_front(problem, simple="rank")
    for point in front.points:
        assert all(len(set(clocks)) == 1 for clocks in front.clocks_mhz(point))
    assert gaps(front).mean() < 0.07
    assert any(len({clocks[0] for clocks in front.clocks_mhz(p)}) > 1 for p in front.points), "stages differ"


def test_the_steady_state_alone_costs_less(problem):
    tied, steady = exact_front(problem, simple="stage"), exact_front(problem, simple="steady")
    for point in steady.points:
        for clocks, order in zip(steady.clocks_mhz(point), problem.dag.ranks, strict=True):
            for name in ("forward", "backward"):
                rows = zip(clocks, order, is_steady(order), strict=True)
                assert len({c for c, i, tie in rows if tie and i.kind == name}) <= 1
    assert gaps(steady).mean() < 0.5 * gaps(tied).mean()
    assert gaps(steady).mean() > gaps(exact_front(problem)).mean()


def test_steady_is_what_neither_fills_nor_drains():
    plan = build_schedule("1f1b", 4, 8, tail=("optimizer",))
    first, last = is_steady(plan.ranks[0]), is_steady(plan.ranks[3])
    assert first == [False] * 3 + [True] * 10 + [False] * 3 + [True]
    assert last == [True] * 17
    assert is_steady(build_schedule("gpipe", 2, 4).ranks[0]) == [True] * 9


def test_an_unknown_tie_is_refused(problem):
    with pytest.raises(UnknownNameError, match="stage"):
        exact_front(problem, simple="stages")


def test_kinds_of_a_rank_share_clocks_that_one_of_them_would_not_choose():
    # The forward is best at one clock only, but a rank's clock must suit the backward too.
    forward = [Option(1.0, 100.0, 1000.0), Option(0.9, 90.0, 1100.0)]
    backward = [Option(3.0, 200.0, 1000.0), Option(2.0, 400.0, 1100.0)]
    dag = dag_of_schedule(build_schedule("1f1b", 1, 3, tail=()))
    kind = [0 if i.kind == "forward" else 1 for i in dag.ranks[0]]
    front = exact_front(make_problem(dag, [forward, backward], kind, 10.0), simple="rank")
    assert [p.time_s for p in front.points] == pytest.approx([8.7, 12.0])
    assert [p.energy_j for p in front.points] == pytest.approx([1470.0, 900.0])


@pytest.mark.parametrize("clock", [300.0, 1100.0, 1900.0])
def test_what_has_one_clock_alone_keeps_it_and_leaves_the_others_theirs(clock):
    forward = [Option(1.0, 100.0, 1000.0), Option(0.9, 110.0, 1100.0), Option(0.8, 130.0, 1200.0)]
    backward = [Option(3.0, 200.0, 1000.0), Option(2.0, 400.0, 1100.0), Option(1.9, 450.0, 1200.0)]
    dag = dag_of_schedule(build_schedule("1f1b", 1, 1, tail=("optimizer",)))
    problem = make_problem(dag, [forward, backward, [Option(1.0, 50.0, clock)]], [0, 1, 2], 10.0)
    front = exact_front(problem, simple="rank")
    assert [front.clocks_mhz(p) for p in front.points] == [[[c, c, clock]] for c in (1200, 1100, 1000)]


@pytest.mark.parametrize("tie", ["stage", "steady", "rank"])
def test_simple_plans_come_as_near_to_a_power_limit_as_others(examples, tie):
    """Where the limit is far below the energy-best plan, around which simple ones are sought closely."""
    settings = ("cluster.gpus=1", "workload.layers=4", "power.power_limit_w=205", "workload.global_batch_size=3")
    one = ("cluster.gpu=a100-pcie-40gb", "parallelism.tensor_model_parallel_size=1", *settings)
    plan = load_plan(examples / "llama-3.1-8b-4xh200.toml", (*one, "parallelism.pipeline_model_parallel_size=1"))
    fastest = forecast_front(plan, simple=tie, switch_s=0.0).points[0]
    assert fastest.time_s == pytest.approx(jc.predict(plan).time_s, rel=0.012)


def test_a_board_that_switches_slowly_keeps_one_clock_for_each_stage(problem):
    shortest = shortest_instruction_s(problem)
    assert shortest == pytest.approx(0.0501617, rel=0.2)
    free = front_of_problem(problem, switch_s=0.9 * shortest)
    kept = front_of_problem(problem, switch_s=1.1 * shortest)
    assert free.problem.notes == problem.notes
    assert "every stage keeps one clock" in kept.problem.notes[-1]
    assert any(len(set(clocks)) > 2 for p in free.points for clocks in free.clocks_mhz(p))
    assert all(len(set(clocks)) == 1 for p in kept.points for clocks in kept.clocks_mhz(p))


def test_plans_on_the_bound_are_at_no_distance_from_it(tmp_path):
    file = tmp_path / "profile.csv"
    rows = ["0,forward,1400,0.1,20", "0,forward,1200,0.11,18", "0,backward,1400,0.2,40", "0,backward,1200,0.22,36"]
    file.write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]))
    front = exact_front(problem_from_profile(file, microbatches=4, wait_power_w=80.0))
    assert len(front.points) == 13 and gaps(front).tolist() == [0.0] * 13
