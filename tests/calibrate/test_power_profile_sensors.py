"""Sensors that must be found out, sensors of components, and kernels in turn, on a card of known power."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_bench import AVERAGED, LOGGER, SimulatedBench, SimulatedSensor, take
from simulated_truth import SimulatedKernel, Transient, Truth

from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.readings import readings_of
from joulecast.calibrate.power_profile.response import Misfit
from joulecast.calibrate.power_profile.sensor import find_sensor

pytest.importorskip("scipy")

POWER, TIME_S = 0.03, 20e-6
KERNEL = SimulatedKernel("kernel", 300e-6, ((0.25, 420.0), (0.7, 610.0), (1.0, 520.0)))
TRUTH = Truth((KERNEL,), rise=0.15, rise_s=2e-3)
SLOW = replace(AVERAGED, noise=0.0025)
SLOW_TRUTH = Truth(
    (SimulatedKernel("kernel", 0.4e-3, ((0.3, 500.0), (1.0, 600.0))),),
    rise=0.15,
    rise_s=8e-3,
    transients=(Transient(30e-3, 37e-3, 0.85),),
)


def test_a_window_that_is_not_told_is_found():
    profile = take(SLOW_TRUTH, [replace(SLOW, tells_window=False, lag_s=0.012, poll_s=8e-3)], 5)
    sensor = profile.sensors[0]
    assert sensor.period_s == pytest.approx(0.1, rel=5e-4)
    assert sensor.window_s == pytest.approx(25e-3, abs=1e-3)
    assert sensor.lag_s == pytest.approx(12e-3, abs=1e-3)
    assert profile.ssp.power_w == pytest.approx(570.0, rel=0.03)


def test_what_is_left_unexplained_is_told_for_the_readings_beyond_what_is_fitted():
    truth = Truth((SimulatedKernel("kernel", 0.4e-3, ((1.0, 570.0),)),), outlier_share=0.0)
    series = SimulatedBench(truth, [replace(AVERAGED, noise=0.01, tells_window=False)]).series(150, [0.05] * 8)
    clock, layout = fit_clock(series.clock_reads), Layout(np.array([0.0, 0.5, 1.0]) * 150, np.array([]), np.zeros(1), 1)
    fit = find_sensor(series.channels, [clock], layout, [series])
    found, pieces = readings_of(series.channels[0]), layout.segments(series.runs, np.ones(8, dtype=bool))
    left = Misfit([found], [clock], [pieces], layout)(fit.window_s, fit.lag_s)
    assert layout.size == 3  # powers, beside window and lag
    assert fit.misfit == pytest.approx(np.sqrt(left / (len(found.power_w) - 5)) / found.power_w.max())


@pytest.mark.parametrize("poll_s", [2e-3, 4e-3])
def test_a_sensor_that_is_faster_than_its_reads_is_learnt(poll_s):
    profile = take(TRUTH, [replace(LOGGER, window_s=1e-3, tells_window=False, poll_s=poll_s)], 2, runs=300)
    sensor = profile.sensors[0]
    # A value is up to one period old when it is read: that widens its window, and its mean age is the lag.
    assert 1e-3 < sensor.window_s < 2e-3 and sensor.window_error_s < 1e-4
    assert 0.0 < sensor.lag_s < 0.7e-3
    assert profile.ssp.power_w == pytest.approx(KERNEL.mean_power_w, rel=POWER)
    assert any("faster than it is read" in line for line in profile.warnings)


def test_an_averaging_logger_of_1_millisecond_resolves_less_and_says_so():
    blurred = replace(LOGGER, window_s=1e-3)
    profile = take(TRUTH, [blurred], 0, runs=200)
    assert all(curve.resolution_s > 3 * TIME_S for curve in profile.curves.values())
    assert any("inside an execution" in line for line in profile.unresolved)
    assert profile.ssp.power_w == pytest.approx(KERNEL.mean_power_w, rel=POWER)


@pytest.mark.parametrize(("share", "told"), [(0.9, True), (0.98, False)])
def test_sensors_of_the_whole_card_are_held_against_each_other(share, told):
    sensors = [LOGGER, replace(LOGGER, name="history", share=share)]
    profile = take(Truth((KERNEL,), rise=0.0), sensors, 0, runs=40, longest_run_s=0.02)
    assert any("disagree about steady power: history" in line for line in profile.warnings) is told


class TestComponentsAndInterleaving:
    @pytest.fixture(scope="class")
    @classmethod
    def profile(cls):
        light = SimulatedKernel("light", 150e-6, ((1.0, 300.0),))
        heavy = SimulatedKernel("heavy", 250e-6, ((1.0, 600.0),))
        parts = [
            LOGGER,
            SimulatedSensor(name="hbm", noise=0.02, share=0.25),
            SimulatedSensor(name="xcd", kind="energy", noise=1e-4, share=0.6),
        ]
        return take(Truth((light, heavy), rise=0.0), parts, 1, runs=200, longest_run_s=0.02)

    def test_kernels_in_turn_get_their_own_power(self, profile):
        light, heavy = profile.shares
        assert light.time_s == pytest.approx(150e-6, rel=0.01)
        assert light.power.power_w == pytest.approx(300.0, rel=POWER)
        assert heavy.power.power_w == pytest.approx(600.0, rel=POWER)
        assert light.energy_j + heavy.energy_j == pytest.approx(profile.energy_j, rel=0.01)

    def test_components_get_their_share(self, profile):
        mean = (300.0 * 150 + 600.0 * 250) / 400
        assert profile.components["hbm"][1].power_w == pytest.approx(0.25 * mean, rel=POWER)
        assert profile.components["xcd"][1].power_w == pytest.approx(0.6 * mean, rel=POWER)

    def test_the_end_of_runs_weighs_kernels_by_their_time(self, profile):
        mean = (300.0 * 150 + 600.0 * 250) / 400
        assert [trial.power_w for trial in profile.trials] == pytest.approx([mean] * len(profile.trials), rel=POWER)

    def test_times_and_energies_are_those_of_steady_power(self):
        """A board at its limit slows down while power settles: the first executions take a tenth less."""
        kernels = (SimulatedKernel("a", 150e-6, ((1.0, 300.0),)), SimulatedKernel("b", 250e-6, ((1.0, 600.0),)))
        truth = Truth(kernels, rise=0.15, rise_s=2e-3, warm_up=(1.25, 1.1, 1.03, *[0.9] * 6))
        profile = take(truth, [LOGGER], 1, runs=60, longest_run_s=0.02)
        assert profile.execution_s == pytest.approx(400e-6, rel=0.003)
        assert profile.energy_j == pytest.approx(0.195, rel=0.01)
        assert [share.time_s for share in profile.shares] == pytest.approx([150e-6, 250e-6], rel=0.003)
        assert [share.energy_j for share in profile.shares] == pytest.approx([0.045, 0.15], rel=POWER)

    def test_a_slow_sensor_does_not_invent_the_kernels_apart(self):
        kernels = (SimulatedKernel("a", 0.3e-3, ((1.0, 300.0),)), SimulatedKernel("b", 0.5e-3, ((1.0, 600.0),)))
        profile = take(Truth(kernels, rise=0.0), [SLOW], 0, runs=60)
        assert [share.power for share in profile.shares] == [None, None]
        assert sum("apart from its neighbours" in line for line in profile.unresolved) == 2
