"""What every plan of a front must keep is checked whenever one is found."""

from dataclasses import replace

import numpy as np
import pytest

import joulecast as jc
from joulecast.errors import GuardError
from joulecast.plan.exact import exact_front as module
from joulecast.plan.exact import front_guards
from joulecast.plan.exact.dag import dag_of_schedule
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.front_guards import check_curve, check_points
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.knobs.options import Option
from joulecast.simulator.schedules import build_schedule


@pytest.fixture(scope="module")
def front():
    dag = dag_of_schedule(build_schedule("1f1b", 3, 4, tail=()), 1e-3)
    ways = [Option(t, 40 + 3 / t, 1000 / t) for t in (0.05, 0.06, 0.08)]
    options = [[replace(o, time_s=o.time_s * (1 + 0.1 * k)) for o in ways] for k in range(6)]
    kind = [2 * rank + (i.kind != "forward") for rank, order in enumerate(dag.ranks) for i in order]
    return exact_front(make_problem(dag, options, kind, 80.0))


def broken(front, **changes):
    points = list(front.plans)
    points[1] = replace(points[1], **changes)
    check_points(front.problem, points)


def test_a_sound_front_passes_however_many_plans_are_seen_at_once(front, monkeypatch):
    check_curve(front.curve)
    for at_once in (1, 50, 10**6):
        monkeypatch.setattr(front_guards, "AT_ONCE", at_once)
        check_points(front.problem, front.plans)
        with pytest.raises(GuardError, match="plan 1 of the front: time"):
            broken(front, time_s=front.plans[1].time_s * (1 + 1e-7))


def test_energy_is_that_of_instructions_and_waiting(front):
    with pytest.raises(GuardError, match=r"plan 1 of the front: energy .* instructions and waiting give"):
        broken(front, energy_j=front.plans[1].energy_j * (1 + 1e-7))
    with pytest.raises(GuardError, match="plan 1 of the front: energy nan J"):
        broken(front, energy_j=float("nan"))
    other = front.plans[1].choice.copy()
    other[0] = (other[0] + 1) % 3
    with pytest.raises(GuardError, match="plan 1 of the front"):
        broken(front, choice=other)


def test_nothing_starts_before_what_it_waits_for(front):
    dag = replace(front.problem.dag, order=front.problem.dag.order[::-1].copy())
    with pytest.raises(GuardError, match=r"plan 0 of the front: .* starts before .* has ended"):
        check_points(replace(front.problem, dag=dag), front.plans)


def test_the_bound_is_convex_and_the_integral_of_its_slope(front):
    curve = front.curve
    with pytest.raises(GuardError, match="integral of its slope"):
        check_curve(replace(curve, cost_j=curve.cost_j * np.linspace(1.0, 1.001, len(curve.cost_j))))
    with pytest.raises(GuardError, match="not convex"):
        check_curve(replace(curve, slope_w=curve.slope_w[::-1].copy()))


def test_no_plan_is_below_the_bound(front, monkeypatch):
    real = module.time_cost_curve
    monkeypatch.setattr(module, "time_cost_curve", lambda *a: (c := real(*a)) and replace(c, cost_j=c.cost_j + 40.0))
    with pytest.raises(GuardError, match=r"plan \d+ of the front: .* below the bound"):
        exact_front(front.problem)


def test_a_breach_is_reported_with_the_plan(examples, monkeypatch):
    def breach(*_):
        raise GuardError("plan 0 of the front: a law does not hold")

    monkeypatch.setattr(module, "check_points", breach)
    with pytest.raises(GuardError, match="please report it with this plan: Plan"):
        jc.front(examples / "llama-3.1-8b-4xh200.toml", ["workload.global_batch_size=2"])
