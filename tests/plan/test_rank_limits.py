"""Power limits of whole pipeline ranks: the search, its front, and how the command line tells of it."""

import itertools
import json
import tomllib
from dataclasses import replace

import command
import pytest
from row_files import csv_text

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.plan.fronts.forecast_front import forecast_front
from joulecast.plan.knobs.front_space import FrontSpace, load_space
from joulecast.plan.limits import rank_limits_search as search
from joulecast.plan.limits.power_limits import JobPoint, board_steps_w, check_limits, interval_ends
from joulecast.plan.limits.rank_limits import RankLimitFront, RankLimits, undominated
from joulecast.reports.numbers import percent
from joulecast.reports.pages.limits import rank_limits_page
from joulecast.simulator.plan_file.plan import plan_from_dict

PLAN = """
[workload]
model = "llama-3.2-1b"
sequence_length = 2048
micro_batch_size = 2
global_batch_size = 16
[cluster]
gpu = "h200-sxm-rows"
gpus = 8
[parallelism]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 4
"""
GRID = (300.0, 450.0, 600.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "plan.toml"
    file.write_text(PLAN)
    return file


@pytest.fixture(scope="module")
def plan():
    return plan_from_dict(tomllib.loads(PLAN))


@pytest.fixture(scope="module")
def exact(plan):
    return search.rank_limit_front(plan, GRID)


def run(capsys, *arguments):
    return command.run(capsys, "front", *arguments)


def test_plans_are_what_predict_says_of_their_limits(exact, path):
    assert exact.simulated == 3**4
    for point in exact.points[::5]:
        same = jc.predict(path, [f"power.power_limit_w={list(point.power_limit_w)}"])
        assert (point.time_s, point.energy_j) == pytest.approx((same.time_s, same.energy_j), rel=1e-9)
        assert list(point.power_w) == [rank.power_w for rank in same.ranks]
        ends = ("time_s_p05", "time_s_p95", "energy_j_p05", "energy_j_p95", "power_w_p05", "power_w_p95")
        assert list(interval_ends(point).values()) == pytest.approx([getattr(same, end) for end in ends], rel=1e-9)
        assert all(power < limit for power, limit in zip(point.power_w, point.power_limit_w, strict=True))


def test_it_beats_one_limit_for_all(exact):
    assert [p.power_limit_w for p in exact.uniform] == [600.0, 450.0, 300.0]
    times, energies = ([getattr(p, key) for p in exact.points] for key in ("time_s", "energy_j"))
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)
    for one in exact.uniform:
        assert exact.at(one.time_s).energy_j <= one.energy_j * (1 + 1e-3)
    assert exact.at(exact.uniform[1].time_s).energy_j < 0.97 * exact.uniform[1].energy_j


def test_the_search_finds_what_is_there(exact, plan, monkeypatch):
    monkeypatch.setattr(search, "ALL", 0)
    found = search.rank_limit_front(plan, GRID)
    assert "not proven" in found.notes[0]
    assert found.simulated < 0.75 * exact.simulated
    for point in exact.points:
        assert found.at(point.time_s * 1.001).energy_j <= 1.005 * point.energy_j


def test_the_limits_that_locked_clocks_need_are_good_starts(exact, plan, monkeypatch):
    monkeypatch.setattr(search, "ALL", 0)
    monkeypatch.setattr(search, "STRIDES", ())
    found = search.rank_limit_front(plan, GRID)
    assert found.simulated <= 10
    for end in (0, -1):
        assert found.points[end].power_limit_w == exact.points[end].power_limit_w


def test_neighbours_find_what_no_start_is_near(exact, plan, monkeypatch):
    for name, value in (("ALL", 0), ("STARTS", 1), ("STRIDES", (1,))):
        monkeypatch.setattr(search, name, value)
    found = search.rank_limit_front(plan, GRID)
    for point in exact.points:
        assert found.at(point.time_s * 1.001).energy_j <= 1.005 * point.energy_j


def test_a_search_within_a_budget_gives_one_ranks_watts_to_another(plan, monkeypatch):
    budget = 2 * 4 * 450.0
    exact = search.rank_limit_front(plan, GRID, budget_w=budget)
    for name, value in (("ALL", 0), ("STARTS", 1), ("STRIDES", (1,))):
        monkeypatch.setattr(search, name, value)
    found = search.rank_limit_front(plan, GRID, budget_w=budget)
    for point in exact.points:
        assert found.at(point.time_s * 1.001).energy_j <= 1.001 * point.energy_j


def test_a_budget_is_kept_and_used_well(exact, plan):
    budget = 2 * 4 * 450.0
    found = search.rank_limit_front(plan, GRID, budget_w=budget)
    within = [limits for limits in itertools.product(GRID, repeat=4) if 2 * sum(limits) <= budget]
    assert found.simulated == len(within) + len([limit for limit in GRID if 8 * limit > budget])
    assert all(found.together_w(point) <= budget for point in found.points)
    allowed = [p for p in exact.points if exact.together_w(p) <= budget]
    assert found.points[0].time_s <= allowed[0].time_s
    assert found.points[0].time_s < exact.uniform[1].time_s
    with pytest.raises(InputError, match=r"power-budget.*2400 W together"):
        search.rank_limit_front(plan, GRID, budget_w=2399.0)
    with pytest.raises(InputError, match="The board takes 200 to 700 W"):
        search.rank_limit_front(plan, (100.0, 700.0))


@pytest.mark.parametrize(("stages", "limit_w", "budget_w"), [(3, 200.3, 600.9), (6, 200.2, 3603.6)])
def test_a_budget_of_just_the_lowest_limits_is_enough(stages, limit_w, budget_w):
    """Floating-point numbers add up to a little more."""
    tables = {**tomllib.loads(PLAN), "parallelism": {"pipeline_model_parallel_size": stages}}
    tables["workload"] |= {"layers": stages, "global_batch_size": 6}
    tables["cluster"] |= {"gpus": round(budget_w / limit_w)}
    found = search.rank_limit_front(plan_from_dict(tables), (limit_w, 700.0), budget_w=budget_w)
    assert [point.power_limit_w for point in found.points] == [(limit_w,) * stages]


def test_overlap_is_chosen_beside_the_limits(plan, tmp_path):
    file = tmp_path / "space.toml"
    file.write_text("[power]\npower_limit_w = [300, 600]\n[overlap]\ncomm_ctas = [1, 16]\n")
    found = search.rank_limit_front(plan, space=load_space(file))
    assert {limit for point in found.points for limit in point.power_limit_w} == {300.0, 600.0}
    assert {point.knobs for point in found.points} == {(("comm_ctas", 16),)}
    assert found.to_dict()["points"][0]["knobs"] == {"comm_ctas": 16}
    assert found.rows()[0]["comm_ctas"] == 16
    with pytest.raises(InputError, match="not for instructions"):
        forecast_front(plan, space=load_space(file))
    file.write_text("[power]\npower_limit_w = [300, 600]\nclock_mhz = [1200]\n")
    with pytest.raises(InputError, match=r"space.toml:2 \[power.power_limit_w\]"):
        load_space(file)


def test_locked_clocks_are_kept(plan):
    locked = replace(plan, power=replace(plan.power, clocks_mhz=(("", (1200.0,) * 4),)))
    found = search.rank_limit_front(locked, (300.0, 700.0), space=FrontSpace())
    assert found.points[0].clock_mhz == (1200.0,) * 4


def test_a_report_holds_limits_of_ranks_against_one_limit_for_all(exact, plan):
    """Of one limit for all the most economical that is no slower than the plan that is chosen."""
    chosen = exact.best(0.5)
    assert chosen is not exact.points[0]
    saved = min(p.energy_j for p in exact.uniform if p.time_s <= chosen.time_s) / chosen.energy_j - 1.0
    page = rank_limits_page(exact, plan, 0.5)
    assert page.more.startswith(f"One limit for all, no slower, takes {percent(saved)} more energy.")
    slow = replace(exact, uniform=tuple(replace(p, time_s=9.0) for p in exact.uniform))
    assert rank_limits_page(slow, plan, 0.5).more.startswith("The plan of least energy takes ")


def test_equal_plans_have_the_lowest_limits():
    two = [RankLimits((700.0, limit), 1.0, 5.0, (), ()) for limit in (700.0, 500.0)]
    worse = [RankLimits((700.0, 400.0), 1.1, 4.999, (), ()), RankLimits((700.0, 300.0), 1.2, 4.0, (), ())]
    assert [p.power_limit_w[1] for p in undominated([*two, *worse])] == [500.0, 300.0]


def test_a_weight_counts_what_all_boards_could_draw():
    """Two ranks of two GPUs at 700 W: 0.1 s are worth 280 J, 300 J are saved; they are even at 280 / 580 = 0.483."""
    fast, slow = (
        RankLimits((600.0, 500.0), time, energy, (700.0, 700.0), (1.0, 1.0))
        for time, energy in ((1.0, 3000.0), (1.1, 2700.0))
    )
    one_for_all = tuple(JobPoint(limit, 1.0, 3100.0) for limit in (700.0, 500.0))
    front = RankLimitFront((fast, slow), one_for_all, 2, None, 4, ())
    assert front.best(0.48) is fast
    assert front.best(0.485) is slow
    assert front.together_w(fast) == 2200.0
    assert [front.rows()[i]["iteration_power_w"] for i in (0, -1)] == [3000.0, 2700.0 / 1.1]
    assert front.at(1.0) is front.at(1.09) is fast
    assert front.at(1.1) is slow
    assert (front.within(1.09).points, front.within(1.1).points) == ((fast,), (fast, slow))


def test_limits_to_choose_from_are_steps_of_the_boards_range():
    board = load_gpu("h200-sxm")  # 200 to 700 W
    assert search._grid(None, None, board) == tuple(200.0 + 50.0 * step for step in range(11))
    assert board_steps_w(board, 20) == pytest.approx([200.0 + 25.0 * step for step in range(21)])
    check_limits((200.0, 700.0), board)
    for outside in (199.0, 701.0):
        with pytest.raises(InputError, match="The board takes 200 to 700 W"):
            check_limits((300.0, outside), board)


def test_the_command_line_tells_which_rank_gets_how_many_watts(path, capsys, tmp_path):
    arguments = (path, "--per-rank", "--power-limits", "300,600")
    status, out, err = run(capsys, *arguments, "--eta", 0.5, "--json", "--report", tmp_path / "r.html")
    assert (status, err) == (0, f"wrote {tmp_path / 'r.html'}\n")
    told = json.loads(out)
    assert told["form"] == "joulecast-rank-limits-1"
    assert all(len(point["power_limit_w"]) == 4 for point in told["points"])
    assert told["choice"]["power_limit_w"] in [point["power_limit_w"] for point in told["points"]]
    assert "one limit for all" in (tmp_path / "r.html").read_text()
    limit = told["points"][1]["time_s"]
    _, out, _ = run(capsys, *arguments, "--time-limit", limit, "--csv")
    rows = csv_text(out)
    assert len(rows) == 2 * 4
    assert float(rows[0]["iteration_energy_j_p95"]) == pytest.approx(told["points"][0]["energy_j_p95"])
    assert [float(r["power_limit_w"]) for r in rows[:4]] == told["points"][0]["power_limit_w"]
    _, out, _ = run(capsys, path, "--power-limits", "300,600", "--power-budget", 3000)
    assert "all 16 combinations of limits within the budget" in out
    for name in ("f.json", "f.csv"):
        assert run(capsys, *arguments, "--out", tmp_path / name)[0] == 0
    assert json.loads((tmp_path / "f.json").read_text())["points"] == told["points"]
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 4 * len(told["points"]) + 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--per-rank",), "a plan is missing"),
        (("PLAN", "--per-rank", "--power-limits", "300,lots"), "no list of watts"),
        (("PLAN", "--per-rank", "--power-limits", "300,nan"), "nan W"),
        (("PLAN", "--per-rank", "--power-limits", "300,900"), "900 W. The board takes 200 to 700 W"),
        (("PLAN", "--power-budget", "100"), "100 W for 8 GPUs"),
        (("PLAN", "--per-rank", "--epochs", "x.csv"), "[--epochs]: belongs to power limits of a job"),
        (("PLAN", "--per-rank", "--simple", "rank"), "[--simple]: belongs to a plan or a profile"),
        (("PLAN", "--per-rank", "--stages", "0,1"), "[--stages]: belongs to a profile"),
        (("PLAN", "--per-rank", "--power-limits", "300", "--format", "zeus-pfo", "--out", "x"), "no format of these"),
        (("PLAN", "--per-rank", "--power-limits", "300", "--time-limit", "0.001"), "no plan takes 0.001 s or less"),
        (("PLAN", "--power-limits", "300", "--slow-rank", "0=2"), "[--slow-rank]: belongs to a plan or a profile"),
        (("PLAN", "--power-limits", "300", "--time-limit", "2"), "[--time-limit]: belongs to"),
        (("PLAN", "--power-limits", "300", "--gpus", "2"), "[--gpus]: belongs to measured power limits"),
        (("PLAN", "--microbatches", "4"), "[--microbatches]: belongs to a profile, not to a plan"),
    ],
)
def test_what_is_refused(path, capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *(path if a == "PLAN" else a for a in arguments))
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("*"))
