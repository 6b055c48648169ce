"""Profiles of a card at its power limit, whose governor answers late and twice, and profiles within a budget."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.power_profile.campaign import Campaign, Options
from joulecast.calibrate.power_profile.simulated_bench import AVERAGED, SimulatedBench
from joulecast.calibrate.power_profile.simulated_truth import SimulatedKernel, Transient, Truth
from joulecast.calibrate.power_profile.steady import EndPower, find_steady_power

pytest.importorskip("scipy")

LIMIT_W, REST_W, SETTLED_W = 700.0, 90.0, 693.0


def above(power_w):
    """Factor on the settled power above rest."""
    return (power_w - REST_W) / (SETTLED_W - REST_W)


#: After a pause the top clock for 50 ms, then 1.03 of the limit for a second, then 0.99 of it.
TRUTH = Truth(
    (SimulatedKernel("gemm", 1.39e-3, ((1.0, SETTLED_W),)),),
    rest_w=REST_W,
    transients=(Transient(0.0, 0.05, above(930.0)), Transient(0.05, 1.0, above(721.0))),
)
#: A step of 100 ms, a window of 25 ms, and 1 % noise.
SENSOR = replace(AVERAGED, noise=0.01)


@pytest.fixture(scope="module", params=range(2))
def measured(request):
    """A profile within four minutes, and the time that it took."""
    bench = SimulatedBench(TRUTH, [SENSOR], seed=request.param, power_limit_w=LIMIT_W)
    begin, told = bench.now_s(), []
    options = Options(seed=request.param, budget_s=240.0)
    return Campaign(bench, options, told.append).take("sim"), bench.now_s() - begin, told


class TestLimitedCard:
    def test_steady_power_is_that_of_the_slow_loop(self, measured):
        profile = measured[0]
        assert profile.settled
        assert profile.ssp.resolved
        assert profile.ssp.power_w == pytest.approx(SETTLED_W, rel=0.01)
        assert profile.energy_j == pytest.approx(SETTLED_W * 1.39e-3, rel=0.01)
        # The end of runs counts from their middle on.
        assert profile.ssp_index * 1.39e-3 > 1.0

    def test_the_overshoot_and_the_plateau_are_recovered(self, measured):
        curve = measured[0].curves["run"]
        assert np.interp(0.025, curve.time_s, curve.power_w) == pytest.approx(930.0, rel=0.03)
        late = curve.time_s > 0.08
        assert np.average(curve.power_w[late], weights=curve.width_s[late]) == pytest.approx(721.0, rel=0.01)

    def test_the_budget_is_kept_and_told(self, measured):
        _, spent_s, told = measured
        assert spent_s <= 240.0
        assert all(line.endswith("s left)") for line in told)


@pytest.mark.parametrize("budget_s", [30.0, 60.0])
def test_a_short_budget_ends_with_what_is_known(budget_s):
    bench = SimulatedBench(TRUTH, [SENSOR], seed=1, power_limit_w=LIMIT_W)
    begin = bench.now_s()
    profile = Campaign(bench, Options(budget_s=budget_s), lambda _: None).take("sim")
    assert bench.now_s() - begin <= budget_s
    assert any("the time ended after" in line for line in profile.warnings)
    assert profile.curves["run"].power_w.size
    # What it calls settled is.
    assert not profile.settled or profile.ssp.power_w == pytest.approx(SETTLED_W, rel=0.03)


class TestSearch:
    @staticmethod
    def search(power, error, most=2048):
        return find_steady_power(lambda n: EndPower(n, power(n), error), 4, 2, most, 16)

    def test_noise_is_not_taken_for_rest(self):
        random = np.random.default_rng(0)
        found = self.search(lambda n: 700.0 + 50.0 * random.standard_normal(), 50.0)
        assert not found.settled

    def test_a_length_on_the_overshoot_is_never_chosen(self):
        # Up to 900 W, down through 700 W to 600 W, and back.
        curve = {4: 500.0, 8: 700.0, 16: 900.0, 32: 600.0, 23: 700.0, 45: 690.0}
        found = self.search(lambda n: curve.get(n, 700.0), 2.0)
        assert found.settled
        assert found.passes == 64

    def test_without_time_the_longest_is_told_as_it_is(self):
        found = find_steady_power(lambda n: EndPower(n, 700.0, 1.0) if n < 16 else None, 4, 2, 2048, 100)
        assert found.longest.passes == 8
        assert not math.isnan(found.longest.power_w)
