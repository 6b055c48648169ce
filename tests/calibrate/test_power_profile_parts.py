"""The parts of a power profile, each against numbers that are known without it."""

import numpy as np
import pytest

from joulecast.calibrate.power_profile.analysis import mean_power
from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.dataset import golden_runs
from joulecast.calibrate.power_profile.evaluate import _steady_execution
from joulecast.calibrate.power_profile.guidance import guidance_for
from joulecast.calibrate.power_profile.inverse import Estimate, solve
from joulecast.calibrate.power_profile.kernels import kernel_benchmark
from joulecast.calibrate.power_profile.layout import OUTSIDE, Layout, rest_edges
from joulecast.calibrate.power_profile.protocol import Channel, ClockRead, Run
from joulecast.calibrate.power_profile.readings import readings_of
from joulecast.calibrate.power_profile.resolve import resolve
from joulecast.calibrate.power_profile.response import response_rows
from joulecast.calibrate.power_profile.steady import EndPower, SteadyPower, find_steady_power, steady_execution
from joulecast.calibrate.power_profile.trend import fit_trend
from joulecast.errors import InputError, MeasurementError, UnknownNameError


class TestGuidance:
    @pytest.mark.parametrize(
        ("kernel_s", "runs", "spacing_s", "margin"),
        [
            (25e-6, 400, 5e-6, 0.05),
            (50e-6, 400, 5e-6, 0.05),
            (51e-6, 200, 10e-6, 0.05),
            (199e-6, 200, 10e-6, 0.05),
            (201e-6, 200, 10e-6, 0.02),
            (5e-3, 200, 10e-6, 0.02),
        ],
    )
    def test_table(self, kernel_s, runs, spacing_s, margin):
        found = guidance_for(kernel_s)
        assert (found.runs, found.spacing_s, found.margin) == (runs, spacing_s, margin)

    def test_too_short(self):
        with pytest.raises(MeasurementError, match="too short"):
            guidance_for(3e-6)


def reads(seed, *, drift=40e-6, offset=100.0, count=400, busy=0.1, length_s=20.0):
    """Reads of a clock, answered after the same least delay on both ways plus random waits."""
    random = np.random.default_rng(seed)
    found = []
    for before in np.sort(random.uniform(0.0, length_s, count)):
        there, back = 4e-6 + random.exponential(4e-6, 2)
        there += 500e-6 * (random.random() < busy)
        found.append(ClockRead(before, before + there + back, offset + (1.0 + drift) * (before + there)))
    return found


class TestClocks:
    @pytest.mark.parametrize("seed", range(8))
    def test_offset_and_drift_are_found_within_their_errors(self, seed):
        fit = fit_clock(reads(seed))
        moments = np.linspace(0.0, 20.0, 5)
        off = np.abs(fit.gpu_time(moments) - (100.0 + (1.0 + 40e-6) * moments))
        assert off.max() < 2e-6
        assert off.max() < 4.0 * fit.standard_error_s
        assert fit.drift == pytest.approx(40e-6, abs=4.0 * fit.drift_standard_error)
        assert fit.drift_standard_error < 0.1e-6
        assert fit.bound_s == pytest.approx(4e-6, rel=0.3)

    def test_slow_reads_do_not_matter(self):
        # Half of the reads wait half a millisecond on one side; a plain line through all would be off by 125 µs.
        fit = fit_clock(reads(2, busy=0.5))
        assert abs(fit.gpu_time(np.array(10.0)) - (100.0 + (1.0 + 40e-6) * 10.0)) < 2e-6

    def test_what_cannot_be_fitted(self):
        with pytest.raises(MeasurementError, match="too few"):
            fit_clock(reads(0)[:3])
        with pytest.raises(MeasurementError, match="differ by"):
            fit_clock(reads(0, drift=0.1))


class TestGolden:
    def test_no_fixed_edge_cuts_a_crowd(self):
        random = np.random.default_rng(0)
        times = np.concatenate([random.normal(1.0, 0.002, 80), random.normal(1.08, 0.002, 15), [1.5] * 5])
        assert golden_runs(times, 0.02).tolist() == [True] * 80 + [False] * 20

    def test_the_narrower_of_equally_full_bins_wins(self):
        assert golden_runs(np.array([1.0, 1.04, 2.0, 2.01]), 0.05).tolist() == [False, False, True, True]


def polled(values_at, period_s, first_s, polls):
    ticks = np.floor((polls - first_s) / period_s)
    return np.array([values_at(tick) for tick in ticks])


class TestReadings:
    def test_a_rhythm_gives_the_moves_better_than_the_polls(self):
        random = np.random.default_rng(3)
        polls = np.sort(random.uniform(0.0, 30.0, 3000))
        values = polled(lambda tick: np.sin(37.0 * tick), 0.1002, 0.0345, polls)
        found = readings_of(Channel("power", "power", polls, values))
        assert found.regular
        assert found.period_s == pytest.approx(0.1002, rel=5e-5)
        beyond = (found.times_s - 0.0345) / 0.1002
        assert np.abs(beyond - np.round(beyond)).max() * 0.1002 < 1e-3
        off = np.sqrt(np.mean((beyond - np.round(beyond)) ** 2)) * 0.1002
        assert 0.3 < off / found.timing_error_s < 3.0
        assert found.power_w == pytest.approx(np.sin(37.0 * np.round(beyond)))

    def test_values_that_repeat_are_readings_too(self):
        polls = np.arange(0.0, 20.0, 0.007)
        # Every third value repeats the one before.
        values = polled(lambda tick: float((tick - (tick % 3 == 2)) % 7), 0.1, 0.0, polls)
        found = readings_of(Channel("power", "power", polls, values))
        assert found.period_s == pytest.approx(0.1, rel=1e-3)
        assert len(found.times_s) == pytest.approx(200, abs=3)

    def test_an_irregular_sensor_keeps_the_time_of_the_polls(self):
        random = np.random.default_rng(4)
        moves = np.cumsum(random.uniform(0.05, 0.2, 100))
        polls = np.arange(0.0, moves[-1], 0.004)
        values = np.searchsorted(moves, polls).astype(float)
        found = readings_of(Channel("power", "power", polls, values))
        assert not found.regular
        assert np.abs(found.times_s - moves[: len(found.times_s)]).max() < 0.004

    def test_an_energy_counter_gives_the_mean_power_between_its_moves(self):
        polls = np.arange(0.0, 10.0, 0.003)
        values = polled(lambda tick: 1000.0 + 30.0 * tick, 0.1, 0.05, polls)
        found = readings_of(Channel("energy", "energy", polls, values))
        assert found.power_w == pytest.approx(300.0, rel=1e-3)
        assert found.span_s == pytest.approx(0.1, rel=1e-3)

    @pytest.mark.parametrize(
        ("kind", "values", "message"),
        [("power", [5.0] * 200, "stood still"), ("energy", list(np.linspace(50.0, 0.0, 200)), "ran backward")],
    )
    def test_a_sensor_that_cannot_be_used(self, kind, values, message):
        with pytest.raises(MeasurementError, match=message):
            readings_of(Channel("energy", kind, np.linspace(0.0, 20.0, 200), np.array(values)))


class TestResponse:
    LAYOUT = Layout(np.array([0.0, 2.0, 4.0]), np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.3]), 1)
    RUNS = (
        Run(np.array([0.0, 6.0]), np.array([10.0, 16.0])),
        Run(np.array([0.0, 6.0]), np.array([20.0, 26.0])),
    )

    def test_a_window_is_shared_by_what_it_covers(self):
        pieces = self.LAYOUT.segments(self.RUNS, np.array([True, True]))
        rows, usable = response_rows(np.array([9.0, 13.0, 15.9]), np.array([11.0, 14.5, 16.5]), *pieces, 6)
        assert usable.all()
        assert rows[0] == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.0, 0.5])  # half resting, half first bin
        assert rows[1] == pytest.approx([0.0, 1.0 / 1.5, 0.5 / 1.5, 0.0, 0.0, 0.0])
        assert rows[2] == pytest.approx([0.0, 0.0, 0.0, 0.1 / 0.6, 0.3 / 0.6, 0.2 / 0.6])

    def test_a_moment_belongs_to_one_bin(self):
        pieces = self.LAYOUT.segments(self.RUNS, np.array([True, True]))
        moments = np.array([10.5, 12.1, 14.6, 15.2, 16.1, 18.0, 25.9])
        rows, _ = response_rows(moments, moments, *pieces, 6)
        assert np.argmax(rows, axis=1).tolist() == [0, 1, 3, 2, 4, 5, 3]
        assert rows.sum(axis=1) == pytest.approx(1.0)

    def test_a_reading_of_a_run_that_does_not_count_is_left_out(self):
        edges, labels = self.LAYOUT.segments(self.RUNS, np.array([True, False]))
        assert OUTSIDE in labels
        _, usable = response_rows(np.array([11.0, 19.5, 26.5]), np.array([12.0, 20.5, 27.5]), edges, labels, 6)
        assert usable.tolist() == [True, False, True]

    def test_rest_grows_in_doubling_steps(self):
        assert np.diff(rest_edges(0.048)) == pytest.approx([1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3])


class TestInverse:
    WIDTH = np.full(20, 1.0)

    def system(self, window, count, seed=0):
        """Means over ``window`` bins at random places of twenty bins."""
        random = np.random.default_rng(seed)
        start = random.uniform(0.0, 20.0 - window, count)
        edges = np.arange(21.0)
        overlap = np.minimum(start[:, None] + window, edges[1:]) - np.maximum(start[:, None], edges[:-1])
        return np.maximum(overlap, 0.0) / window, random

    def test_noise_and_errors_are_judged_rightly(self):
        true = 500.0 + 50.0 * np.sin(np.arange(20) / 3.0)
        scores, noises, means = [], [], []
        for seed in range(20):
            rows, random = self.system(1.5, 400, seed)
            readings = rows @ true + random.normal(0.0, 4.0, 400)
            found = solve(rows, readings, [slice(0, 20)], np.zeros(400, dtype=int))
            scores.append((found.power_w - true) / np.sqrt(np.diag(found.covariance)))
            noises.append(found.noise_w[0])
            mean, error = found.mean(self.WIDTH)
            means.append((mean - true.mean()) / error)
        assert np.std(means) == pytest.approx(1.0, abs=0.4)
        assert np.std(scores) == pytest.approx(1.0, abs=0.2)
        assert np.mean(noises) == pytest.approx(4.0, rel=0.05)

    def test_powers_are_never_negative(self):
        rows, random = self.system(4.0, 200)
        true = np.where(np.arange(20) < 10, 0.0, 300.0)
        found = solve(rows, rows @ true + random.normal(0.0, 20.0, 200), [slice(0, 20)], np.zeros(200, dtype=int))
        assert found.power_w.min() >= 0.0
        assert found.power_w[:8] == pytest.approx(0.0, abs=60.0)

    def test_a_step_survives_between_groups(self):
        rows = np.eye(20)[np.repeat(np.arange(20), 5)]
        true = np.where(np.arange(20) < 10, 100.0, 700.0)
        found = solve(rows, rows @ true, [slice(0, 10), slice(10, 20)], np.zeros(100, dtype=int))
        assert found.power_w == pytest.approx(true, rel=1e-3)

    def test_what_was_not_read_is_not_known(self):
        rows = np.eye(20)[np.repeat(np.arange(5), 8)]
        found = solve(rows, np.full(40, 400.0), [slice(0, 20)], np.zeros(40, dtype=int))
        resolved = resolve(found, slice(0, 20), self.WIDTH)
        assert np.sqrt(found.covariance[19, 19]) > 100.0
        assert not resolved.resolved[10:].any()

    def test_a_wide_window_and_noise_cost_resolution(self):
        true = np.full(20, 500.0)

        def resolution(window, sigma):
            rows, random = self.system(window, 600, 7)
            readings = rows @ true + random.normal(0.0, sigma, 600)
            found = solve(rows, readings, [slice(0, 20)], np.zeros(600, dtype=int))
            return resolve(found, slice(0, 20), self.WIDTH).resolution_s

        assert resolution(0.5, 2.0) == pytest.approx(1.0, abs=0.3)
        assert resolution(5.0, 2.0) > resolution(0.5, 2.0)
        assert resolution(1.5, 20.0) > 1.5 * resolution(1.5, 2.0)


def test_what_repeats_is_told_by_all_of_its_repeats():
    known = Estimate(np.full(4, 500.0), np.eye(4), np.eye(4), np.ones(1))
    once, often = (mean_power(known, np.full(4, 1e-3), 10e-3, repeats) for repeats in (1.0, 3.0))
    assert (once.resolved, often.resolved) == (False, True)
    assert often.over_s == pytest.approx(4e-3)
    assert often.standard_error_w == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settled", "error_w", "known"), [(True, 14.0, True), (True, 16.0, False), (False, 1.0, False)]
)
def test_the_end_of_longer_runs_is_the_later_half_of_their_executions(settled, error_w, known):
    end = EndPower(5, 500.0, error_w, 1e-3)
    time_s, passes, power, moment = _steady_execution(None, SteadyPower(4, settled, (end,)), {}, end)
    assert (time_s, passes, power.resolved, moment) == (1e-3, 4, known, None)
    assert power.over_s == pytest.approx(2e-3)


class TestSteady:
    def test_time_that_no_longer_falls(self):
        durations = np.array([[1.4, 1.1, 1.05, 1.0, 1.003, 1.001]] * 3)
        assert steady_execution(durations) == 3

    def test_time_that_rises_later_was_steady_before(self):
        assert steady_execution(np.array([[1.3, 1.0, 1.0, 1.1, 1.2]])) == 1

    @staticmethod
    def search(power, most=4096, enough=1):
        asked = []

        def measure(passes):
            asked.append(passes)
            return EndPower(passes, power(passes), 1.0)

        return find_steady_power(measure, 4, 2, most, enough), asked

    def test_doubling_then_halving(self):
        found, asked = self.search(lambda n: 500.0 + 200.0 * np.exp(-n / 20.0))
        # 2 % of 500 W remain at 60 executions.
        assert found.settled
        assert 48 <= found.passes <= 80
        assert asked[:5] == [4, 8, 16, 32, 64]

    def test_power_that_is_steady_at_once(self):
        found, _ = self.search(lambda n: 500.0)
        assert found.settled
        assert found.passes == 2

    def test_a_slow_change_is_not_taken_for_none(self):
        slow = lambda n: 500.0 * (1.0 - 0.15 * n / (n + 300.0))  # noqa: E731 - under 2 % from 4 to 16
        hasty, _ = self.search(slow)
        found, _ = self.search(slow, enough=500)
        assert hasty.passes < 20
        assert found.passes > 100

    def test_power_that_never_settles(self):
        found, _ = self.search(lambda n: 300.0 + n, most=256)
        assert not found.settled
        assert found.passes == 256


def test_a_trend_of_degree_4_is_found_again():
    time = np.linspace(0.0, 1e-3, 200)
    power = 500.0 + 40.0 * np.polynomial.legendre.legval(2 * time / 1e-3 - 1, [0, 1, 0, -0.5, 0.25])
    trend = fit_trend(time, power, np.ones(200), 1e-3)
    assert trend.coefficients_w == pytest.approx([500.0, 40.0, 0.0, -20.0, 10.0], abs=1e-6)
    assert trend.power_w(time) == pytest.approx(power)
    assert trend.explained == pytest.approx(1.0)
    assert fit_trend(time[:5], power[:5], np.ones(5), 1e-3) is None


def test_marks_of_kernels_in_turn_are_filled_in():
    # Two kernels of 1 and 3 s; passes 0 and 1 marked kernel by kernel, then two passes together.
    run = Run(np.array([0.0, 1, 2, 3, 4, 8]), np.array([0.0, 1, 4, 5, 8, 16])).filled(2)
    assert run.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert run.times_s == pytest.approx([0, 1, 4, 5, 8, 9, 12, 13, 16])


class TestKernels:
    def test_shapes(self):
        assert kernel_benchmark("gemm:8192x4096x1024:fp16:zeros").row | {"flops": 0} == {
            "name": "gemm_fp16_8192x4096x1024_zeros",
            "op": "gemm",
            "M": 8192,
            "N": 4096,
            "K": 1024,
            "dtype": "fp16",
            "data": "zeros",
            "layout": "tn",
            "flops": 0,
        }
        row = kernel_benchmark("attention:2x32x8x4096x128:backward:full").row
        assert (row["B"], row["Hq"], row["Hkv"], row["S"], row["D"]) == (2, 32, 8, 4096, 128)
        assert (row["direction"], row["causal"], row["backend"]) == ("bwd", False, "CUDNN_ATTENTION")
        assert kernel_benchmark("attention:2x32x8x4096x128:flash-attention-2").needs == ("flash-attention",)

    def test_a_name_of_the_catalogue(self):
        assert kernel_benchmark("copy_512MB").row["op"] == "copy"

    @pytest.mark.parametrize(
        ("word", "error", "message"),
        [
            ("gemm:8192x8192", InputError, "3 sizes"),
            ("gemm:8192x8192x0", InputError, "3 sizes"),
            ("gemm", InputError, "3 sizes"),
            ("attention:", InputError, "5 sizes"),
            ("gemm:٣x٣x٣", InputError, "3 sizes"),
            ("gemm:64x64x64:bf17", UnknownNameError, "unknown data type 'bf17'.*'bf16'"),
            ("gemm:64x64x64:bf16:randn:zeros", InputError, "says more than"),
            ("attention:2x32x8x4096x128:quick", UnknownNameError, "unknown option of attention 'quick'.*causal"),
            ("attention:2x32x8x4096x128:cudnn:flash-attention-2", InputError, "exclude each other"),
            ("attention:2x32x8x4096x128:backward:forward", InputError, "forward and backward exclude each other"),
            ("attention:2x32x7x4096x128", InputError, "32 heads cannot share 7 key-value heads"),
            ("copy_513MB", UnknownNameError, "copy_512MB"),
            ("idle", InputError, "no single kernel"),
        ],
    )
    def test_what_is_none(self, word, error, message):
        with pytest.raises(error, match=message):
            kernel_benchmark(word)
