"""Profiles of a card at its power limit, whose governor answers late and twice, and profiles within a budget."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from command import status_of
from paths import ROOT
from simulated_bench import AVERAGED, SimulatedBench, SimulatedSensor
from simulated_truth import SimulatedKernel, Transient, Truth

from joulecast.calibrate.power_profile.campaign import Campaign, Options
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
        longest = max(trial.passes for trial in profile.trials)
        assert profile.ssp.over_s == pytest.approx(longest // 2 * 1.39e-3, rel=0.01)

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
    # What it calls settled is, and of the rest it does not say that it knows the steady power.
    assert profile.settled or not profile.ssp.resolved
    assert not profile.settled or profile.ssp.power_w == pytest.approx(SETTLED_W, rel=0.03)


class TestHistory:
    """The driver's own history beside a slow sensor, neither of which says its window; 0.25 % noise."""

    POLLED = replace(AVERAGED, noise=0.0025, tells_window=False, lag_s=4e-3, poll_s=4e-3)
    WRITTEN = SimulatedSensor(name="history", period_s=0.02, window_s=0.02, noise=0.0025, tells_window=False)
    DIP = replace(TRUTH, transients=(*TRUTH.transients, Transient(0.2, 0.205, above(600.0))))

    def take(self, sensors):
        bench = SimulatedBench(self.DIP, sensors, seed=3, power_limit_w=LIMIT_W)
        return Campaign(bench, Options(seed=3, budget_s=240.0), lambda _: None).take("sim")

    @pytest.fixture(scope="class")
    @classmethod
    def profile(cls):
        return cls().take([cls.POLLED, cls.WRITTEN])

    def test_its_window_is_found(self, profile):
        history = next(sensor for sensor in profile.sensors if sensor.name == "history")
        assert history.window_s == pytest.approx(0.02, rel=0.03)
        assert history.window_error_s < 0.03 * 0.02

    def test_a_transient_of_5_milliseconds_is_recovered(self, profile):
        curve = profile.curves["run"]
        for middle, true in ((0.0225, 930.0), (0.2025, 600.0), (0.3025, 721.0)):
            assert np.interp(middle, curve.time_s, curve.power_w) == pytest.approx(true, rel=0.03)
        assert profile.ssp.power_w == pytest.approx(SETTLED_W, rel=0.01)

    def test_it_resolves_more_than_the_slow_sensor_alone(self, profile):
        alone = self.take([self.POLLED]).curves["run"].resolution_s
        assert profile.curves["run"].resolution_s < 5.5e-3
        assert profile.curves["run"].resolution_s < 0.7 * alone


def test_a_sensor_whose_window_is_unsure_is_left_out():
    wild = replace(AVERAGED, noise=0.5, tells_window=False, poll_s=4e-3)
    good = SimulatedSensor(name="history", period_s=0.02, window_s=0.02, tells_window=False)
    bench = SimulatedBench(TRUTH, [wild, good], seed=0, power_limit_w=LIMIT_W)
    profile = Campaign(bench, Options(budget_s=200.0), lambda _: None).take("sim")
    assert [sensor.name for sensor in profile.sensors] == ["history"]
    assert any("'power'" in line and "is not sure" in line for line in profile.warnings)


class TestCommand:
    """On the simulated card, whose board has the governor's loops."""

    KERNEL = ("gemm:8192x8192x8192:bf16", "--device", "sim:h200-sxm")

    def test_a_power_limited_product_settles_at_the_limit(self, capsys, tmp_path):
        assert status_of("profile", *self.KERNEL, "--json", "--out", str(tmp_path / "out")) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        assert found["ssp"]["settled"]
        assert found["ssp"]["power_w"] == pytest.approx(0.99 * LIMIT_W, rel=0.02)
        assert {sensor["name"] for sensor in found["sensors"]} == {"power", "energy", "history"}
        assert (tmp_path / "out" / "profile.csv").stat().st_size > 1000
        left = [int(line.split("(")[1].split()[0]) for line in captured.err.splitlines() if line.endswith("s left)")]
        assert left == sorted(left, reverse=True)
        assert left[-1] > 0
        page = (ROOT / "docs" / "physics" / "profile.md").read_text(encoding="utf-8")
        # How many runs the time allows depends a little on how long they take to be worked out.
        for line, now, near in (
            (r"execution time +([\d.]+) µs", found["execution_s"] * 1e6, 1e-3),
            (r"from execution (\d+)\)", found["ssp"]["index"] + 1, 0.01),
            (r"from execution \d+\) +([\d.]+) ±", found["ssp"]["power_w"], 1e-3),
            (r"golden runs +(\d+) of", found["golden_runs"], 0.05),
            (r"resolution of the run profile +([\d.]+) ms", found["curves"]["run"]["resolution_s"] * 1e3, 0.05),
        ):
            (told,) = re.findall(line, page)
            assert float(told) == pytest.approx(now, rel=near), line

    @pytest.mark.parametrize(("budget", "message"), [("10s", "too short"), ("soon", "soon")])
    def test_bad_budgets(self, capsys, budget, message):
        assert status_of("profile", *self.KERNEL, "--budget", budget) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1
        assert message in lines[0]


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
        assert not found.settled  # equal powers of runs that are too short prove nothing
        assert not math.isnan(found.longest.power_w)
