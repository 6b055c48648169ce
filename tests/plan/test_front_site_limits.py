"""Power limits of the site: plans of a front that exceed one are left out and counted, in every kind of front."""

import json
from dataclasses import replace

import command
import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.plan.exact.site_limits import nothing_kept
from joulecast.plan.fronts.forecast_front import forecast_front
from joulecast.plan.fronts.joint_choice import joint_choice
from joulecast.plan.fronts.stragglers import SlowRank, throttled
from joulecast.plan.knobs.front_space import FrontSpace
from joulecast.plan.limits.rank_limits_search import rank_limit_front
from joulecast.simulator.iteration.site_peaks import LimitCheck
from joulecast.simulator.plan_file.plan import load_plan

BLOCKS = FrontSpace(comm_ctas=(16,))
CLOCKS = replace(BLOCKS, clocks_mhz=(1005.0, 1200.0, 1410.0, 1620.0))
EVERY = ("site.node_power_limit_w", "site.rack_power_limit_w", "site.power_limit_w")


@pytest.fixture(scope="module")
def load(examples):
    def loaded(*settings):
        return load_plan(examples / "llama-3.1-8b-4xh200.toml", settings)

    return loaded


def front_of(plan, space=CLOCKS):
    return forecast_front(plan, space=space, simple="rank")


def test_peaks_are_those_that_predict_forecasts(load):
    stated = ("power.clock_mhz=1200", "overlap.comm_ctas=16", "site.nodes_per_rack=2")
    plan = load(*stated, *(f"{key}=50000" for key in EVERY))
    peaks = {check.key: check.peak_w for check in jc.predict(plan).site.limits}
    front = forecast_front(plan, space=BLOCKS)
    assert len(front.left_out) == 3
    for key, note in zip(EVERY, front.left_out, strict=True):
        assert note == f"every plan keeps {key} = 50000 W: the highest peak there is {peaks[key]:.0f} W"


def test_plans_above_a_limit_are_left_out_and_counted(load):
    free = front_of(load())
    assert free.left_out == ()
    front = front_of(load("site.power_limit_w=4000"))
    assert 0 < len(front.points) < len(free.points)
    assert front.points[0].time_s > free.points[0].time_s
    kept = {(p.time_s, p.energy_j) for p in front.points}
    gone = [p for p in free.points if (p.time_s, p.energy_j) not in kept]
    (note,) = front.left_out
    assert note.startswith(f"site.power_limit_w = 4000 W leaves out {len(gone)} plans with peaks of 4")
    assert note in front.to_dict()["notes"]


def test_a_limit_that_no_plan_keeps_names_the_nearest(load):
    with pytest.raises(InputError, match=r"no plan keeps site\.power_limit_w = 2000 W") as caught:
        front_of(load("site.power_limit_w=2000"))
    nearest = int(caught.value.remedy.split("a peak of ")[1].split(" W")[0])
    assert front_of(load(f"site.power_limit_w={nearest}")).points


def test_the_worst_limit_of_the_plan_that_comes_nearest_is_named():
    """Plans exceed a limit by half, by 20 and 25 %, and by 30 %."""
    checks = [
        (LimitCheck("site.node_power_limit_w", 1000.0, node_w), LimitCheck("site.power_limit_w", 4000.0, job_w))
        for node_w, job_w in ((1500.0, 4100.0), (1200.0, 4999.5), (1300.0, 3000.0))
    ]
    error = nothing_kept(checks, "Lower it")
    assert error.message == "no plan keeps site.power_limit_w = 4000 W"
    assert error.remedy == "The nearest has a peak of 5000 W there. Lower it, or raise it."


def test_a_slow_rank_keeps_the_limit_too(load):
    front = front_of(load("site.power_limit_w=4000"))
    slowed = throttled(front, SlowRank(0, 1.1)).slowed
    assert len([note for note in slowed.notes if note.startswith("site.power_limit_w = 4000 W leaves out")]) == 1


def test_power_limits_of_a_job_and_of_ranks(load, examples, capsys):
    plan = examples / "llama-3.1-8b-4xh200.toml"
    asked = ("front", plan, "--power-limits", "400,700", "--set", "site.power_limit_w=4000", "--json")
    status, out, _ = command.run(capsys, *asked)
    assert status == 0
    found = json.loads(out)
    assert [point["power_limit_w"] for point in found["points"]] == [400.0]
    (said,) = found["site_limits"]
    assert said.startswith("site.power_limit_w = 4000 W leaves out 1 power limit with peaks of 5")
    free, ranks = (
        rank_limit_front(load(), [400.0, 700.0]),
        rank_limit_front(load("site.power_limit_w=4900"), [400, 700]),
    )
    assert ranks.points
    assert {p.power_limit_w for p in free.points} - {p.power_limit_w for p in ranks.points} == {(700.0, 700.0)}
    assert all(p.kept for p in ranks.points)
    assert "site.power_limit_w = 4900 W leaves out 1 plan with" in ranks.notes[-1]
    with pytest.raises(InputError, match=r"no plan keeps site.power_limit_w = 900 W"):
        rank_limit_front(load("site.power_limit_w=900"), [400, 700])


def test_a_choice_of_layers_says_that_it_looks_at_no_limit_of_the_site(load):
    space = replace(BLOCKS, clocks_mhz=(1200.0,))
    assert not any("site." in note for note in joint_choice(load(), space=space).notes)
    notes = joint_choice(load("site.node_power_limit_w=6000"), space=space).notes
    assert any(note.startswith("site.node_power_limit_w is not looked at") for note in notes)
