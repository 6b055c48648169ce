"""Windows: whole counter steps, timed far better than single readings, with errors that are honest."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.devices.protocol import PowerReading, Sample
from joulecast.calibrate.measure.counter import counter_steps
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.history_window import batch_error, change, over_counter, series_error
from joulecast.calibrate.measure.settings import MeasureSettings, expected_cost_s, run_s
from joulecast.calibrate.measure.window import cut_window
from joulecast.errors import InputError

SETTINGS = MeasureSettings()


def readings(step_s=0.1, period_s=0.02, end_s=5.0, power=lambda t: 700.0, phase_s=0.037, jitter_s=0.0, seed=0):
    """What a sampler sees of a counter that moves every ``step_s``."""
    random = np.random.default_rng(seed)
    ticks = phase_s + step_s * np.arange(-2, int(end_s / step_s) + 2)
    fine = np.arange(ticks[0], ticks[-1] + 1e-4, 1e-4)
    joules = np.concatenate([[0.0], np.cumsum([power(t) for t in 0.5 * (fine[1:] + fine[:-1])]) * 1e-4])
    at_tick = np.interp(ticks, fine, joules)
    shown = np.sort(ticks + random.normal(0.0, jitter_s, len(ticks)))
    times = np.cumsum(period_s * (0.5 + (0.618034 * np.arange(int(end_s / period_s)) + random.uniform()) % 1.0))
    return [
        Sample(
            time_s=float(t),
            call_s=1e-3,
            energy_j=1000.0 + float(at_tick[np.searchsorted(shown, t) - 1]),
            power_w=float(power(t)),
            average_power_w=float(power(t)),
            sm_clock_mhz=1500.0,
            memory_clock_mhz=3201.0,
            temperature_c=55.0,
            reasons=("power_limit",),
        )
        for t in times
        if t < end_s
    ]


@pytest.mark.parametrize(("step_s", "period_s"), [(0.1, 0.02), (0.1, 0.05), (0.1, 0.08), (0.05, 0.02), (0.02, 0.02)])
def test_regular_steps_are_timed_better_than_they_are_seen(step_s, period_s):
    errors, stated = [], []
    for seed in range(20):
        steps = counter_steps(readings(step_s, period_s, phase_s=0.003 * seed, jitter_s=2e-4, seed=seed), 1.0, 3.7)
        assert steps.regular
        assert steps.step_s == pytest.approx(step_s, rel=0.02)
        length = steps.time_s[-1] - steps.time_s[0]
        errors.append(length - (steps.energy_j[-1] - steps.energy_j[0]) / 700.0)
        stated.append(steps.length_error_s)
    rms = math.sqrt(np.mean(np.square(errors)))
    assert rms < 0.15 * period_s
    assert rms < 2.0 * np.mean(stated)


@pytest.mark.parametrize("shift_s", [0.01 * k for k in range(10)])
def test_steps_lie_inside_the_work(shift_s):
    samples = readings()
    steps = counter_steps(samples, 1.0 + shift_s, 3.7 + shift_s)
    brackets = [(samples[i - 1].time_s, samples[i].time_s) for i in steps.sample]
    assert min(low for low, _ in brackets) >= 1.0 + shift_s
    assert max(high for _, high in brackets) <= 3.7 + shift_s
    assert all(low - 1e-6 <= t <= high + 1e-6 for t, (low, high) in zip(steps.time_s, brackets, strict=True))


@pytest.mark.parametrize("depth", [0.0, 0.6])
def test_a_step_that_a_pause_hid_is_counted_or_not_claimed(depth):
    """Of uneven power energy cannot tell how many steps a pause of the readings hid: no grid is claimed then."""
    found = []
    for seed in range(40):
        pause_s = 0.15 if seed % 2 else 0.22

        def power(time_s, seed=seed):
            return 700.0 * (1.0 + depth * math.copysign(1.0, math.sin(2.0 * math.pi * (time_s / 0.31 + seed / 40.0))))

        seen = readings(0.1, 0.05, phase_s=0.0025 * seed, seed=seed, power=power)
        steps = counter_steps([s for s in seen if not 1.7 < s.time_s < 1.7 + pause_s], 0.5, 4.5)
        if not steps.regular:
            continue
        found.append(seed)
        counted = round((steps.time_s[-1] - steps.time_s[0]) / 0.1)
        assert steps.number[-1] == counted
        assert steps.step_s == pytest.approx(0.1, rel=0.01)
        assert (
            np.abs(steps.time_s - steps.time_s[0] - 0.1 * np.rint((steps.time_s - steps.time_s[0]) / 0.1)).max() < 0.03
        )
        held = np.array([s.time_s for s in seen if not 1.7 < s.time_s < 1.7 + pause_s])
        assert np.all(steps.time_s + steps.step_s > held[steps.sample] - 0.01), (
            "the counter moved again before it was read"
        )
    assert len(found) >= (35 if depth == 0.0 else 5)


def test_a_counter_that_is_always_current_is_read_at_the_readings():
    steps = counter_steps(readings(step_s=1e-3), 1.0, 3.7)
    length = steps.time_s[-1] - steps.time_s[0]
    assert (steps.energy_j[-1] - steps.energy_j[0]) / length == pytest.approx(700.0, rel=1e-3)


def test_the_error_of_a_counter_that_is_always_current_is_what_power_scatters():
    off, stated = [], []
    for seed in range(30):
        levels = 700.0 + 35.0 * np.random.default_rng(seed).normal(size=120)

        def power(time_s, levels=levels):
            return levels[int(time_s / 0.05) + 5]

        window = cut_window(readings(step_s=1e-3, power=power, phase_s=0.0, seed=seed), 1.0, 3.75, SETTINGS)
        off.append(window.power_w / 700.0 - 1.0)
        stated.append(window.power_error)
    assert math.sqrt(np.mean(np.square(stated))) == pytest.approx(math.sqrt(np.mean(np.square(off))), rel=0.25)
    assert np.median(stated) > 0.005


def test_an_irregular_counter_is_not_put_on_a_grid():
    random = np.random.default_rng(3)
    ticks = np.cumsum(random.uniform(0.03, 0.2, 60))
    samples = [
        Sample(t, 1e-3, energy_j=500.0 * float(ticks[np.searchsorted(ticks, t) - 1]))
        for t in np.arange(0.3, 5.0, 0.021)
    ]
    steps = counter_steps(samples, 0.5, 4.5)
    assert not steps.regular
    true = (steps.energy_j[-1] - steps.energy_j[0]) / 500.0
    assert abs(steps.time_s[-1] - steps.time_s[0] - true) < 0.021
    assert 0.005 < steps.length_error_s < 0.021


def test_steady_power_is_recovered():
    window = cut_window(readings(), 1.0, 3.75, SETTINGS)
    assert window.power_w == pytest.approx(700.0, rel=3e-3)
    assert window.energy_j == pytest.approx(700.0 * 0.1 * window.steps)  # whole steps, nothing interpolated
    assert window.steps >= 20 and window.length_s >= 2.5
    assert window.power_error < 0.005
    assert window.source == "counter"
    assert (window.sm_clock_mhz, window.memory_clock_mhz, window.temperature_c) == (1500.0, 3201.0, 55.0)
    assert window.reasons == {"power_limit": 1.0}
    assert 0.02 < window.stall_s < 0.04


def test_what_happens_outside_the_work_does_not_count():
    def power(t):
        return 700.0 if 1.0 <= t <= 3.75 else 90.0

    assert cut_window(readings(power=power), 1.0, 3.75, SETTINGS).power_w == pytest.approx(700.0, rel=3e-3)


def test_slow_fluctuations_count_into_the_error():
    calm = cut_window(readings(), 1.0, 3.75, SETTINGS).power_error
    rough = cut_window(readings(power=lambda t: 700.0 + 40.0 * math.sin(3.0 * t)), 1.0, 3.75, SETTINGS).power_error
    assert rough > max(0.005, 4.0 * calm)


def test_batches_see_correlation_and_need_a_few():
    random = np.random.default_rng(0)
    white = 1.0 + 0.01 * random.normal(size=4000)
    slow = np.repeat(1.0 + 0.01 * random.normal(size=400), 10)
    assert batch_error(white, 1) == pytest.approx(0.01 / math.sqrt(4000), rel=0.05)
    assert batch_error(slow, 20) == pytest.approx(0.01 / math.sqrt(400), rel=0.15)
    assert batch_error(slow, 1) < 0.5 * batch_error(slow, 20)
    assert batch_error(white[:5], 2) == math.inf


def test_pulses_are_cut_to_whole_periods():
    def power(t):
        return 700.0 if t % 0.7 < 0.3 else 130.0

    mean = (0.3 * 700.0 + 0.4 * 130.0) / 0.7
    window = cut_window(readings(power=power, end_s=6.0), 1.0, 5.2, SETTINGS, period_s=0.7)
    assert window.length_s / 0.7 == pytest.approx(round(window.length_s / 0.7), abs=0.02)
    assert window.power_w == pytest.approx(mean, rel=0.01)
    assert window.power_error < 0.02


def broken(samples, start_s, **values):
    return [replace(s, **values) if s.time_s >= start_s else s for s in samples]


def reason(samples, **options):
    with pytest.raises(FaultError) as caught:
        cut_window(samples, 1.0, 3.75, SETTINGS, **options)
    return caught.value


def test_a_counter_that_stands_still():
    fault = reason(broken(readings(), 0.0, energy_j=5.0))
    assert fault.reason is Reason.COUNTER_STILL
    assert "stood still for" in str(fault)


def test_a_counter_that_runs_backward():
    samples = [replace(s, energy_j=10_000.0 - s.energy_j) for s in readings()]
    fault = reason(samples)
    assert fault.reason is Reason.COUNTER_BACKWARD
    assert "backward by 70 J" in str(fault)


def test_a_counter_that_is_gone():
    assert reason(broken(readings(), 0.0, energy_j=None)).reason is Reason.NO_READINGS


def test_a_counter_that_moves_too_seldom():
    assert reason(readings(step_s=0.3)).reason is Reason.TOO_FEW_STEPS


@pytest.mark.parametrize("begin", [0.5, 2.0, 3.2])
def test_a_stall_spoils_a_window(begin):
    samples = [s for s in readings() if not begin <= s.time_s < begin + 1.0]
    fault = reason(samples)
    assert fault.reason is Reason.DRIVER_STALLED


def test_a_reading_that_took_long_spoils_a_window():
    samples = [replace(s, call_s=0.6) if 2.0 <= s.time_s < 2.02 else s for s in readings()]
    fault = reason(samples)
    assert fault.reason is Reason.DRIVER_STALLED
    assert "0.60 s" in str(fault)


def test_no_reading_at_all():
    assert reason([s for s in readings() if s.time_s < 0.9]).reason is Reason.DRIVER_STALLED


@pytest.mark.parametrize(("missing", "source"), [({}, "polled"), ({"power_w": None}, "averaged")])
def test_without_a_counter_power_is_integrated(missing, source):
    def power(t):
        return 400.0 + 8.0 * math.sin(9.0 * t)

    samples = [replace(s, energy_j=None, **missing) for s in readings(power=power, end_s=8.0)]
    window = cut_window(samples, 1.0, 6.1, SETTINGS, energy_counter=False)
    assert window.source == source and window.steps == 0
    assert window.power_w == pytest.approx(400.0, rel=3e-3)
    assert 1e-4 < window.power_error < 0.01


def test_neither_energy_nor_power():
    samples = [replace(s, energy_j=None, power_w=None, average_power_w=None) for s in readings()]
    assert reason(samples, energy_counter=False).reason is Reason.NO_READINGS


def test_components_are_means_over_the_window():
    samples = [replace(s, components_j={"hbm": 7.0 + 100.0 * s.time_s}) for s in readings()]
    assert cut_window(samples, 1.0, 3.75, SETTINGS).components_w == {"hbm": pytest.approx(100.0)}


def test_clocks_are_those_under_work():
    samples = [replace(s, sm_clock_mhz=345.0, reasons=("idle",)) if i % 2 else s for i, s in enumerate(readings())]
    window = cut_window(samples, 1.0, 3.75, SETTINGS)
    assert window.sm_clock_mhz == window.sm_clock_mean_mhz == 1500.0
    assert window.reasons["idle"] == pytest.approx(0.5, abs=0.02)


def test_settings_and_their_cost():
    with pytest.raises(InputError, match=r"\[window_s\]: is not positive"):
        MeasureSettings(window_s=0.0)
    asked = SETTINGS.of({"settle_s": 5.0, "target_window_s": 9.0})
    assert (asked.settle_s, asked.window_s) == (5.0, 9.0) and asked.most_settle_s >= 5.0
    assert expected_cost_s({"op": "gemm"}, SETTINGS) == pytest.approx(3.75)
    pulse = {"op": "pulse", "busy_s": 0.5, "idle_s": 0.25}
    assert run_s(1.0, pulse) == 1.5
    assert expected_cost_s(pulse, SETTINGS) == pytest.approx(1.5 + 3.75)


def written(power=lambda t: 700.0, end_s=5.0, step_s=0.02, noise_w=0.0, seed=0):
    """A driver's power history: the mean of every step."""
    random = np.random.default_rng(seed)
    ends = 0.007 + step_s * np.arange(1, int(end_s / step_s))
    means = [np.mean([power(t - share * step_s) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]) for t in ends]
    return [PowerReading(float(t), float(w + random.normal(0.0, noise_w))) for t, w in zip(ends, means, strict=True)]


def seldom(samples, times_s=(0.5, 3.8)):
    """The counter is read a few times only."""
    chosen = {min(samples, key=lambda s: abs(s.time_s - t)).time_s for t in times_s}
    return [s if s.time_s in chosen else replace(s, energy_j=None) for s in samples]


def test_a_window_is_whole_steps_of_the_history():
    def power(t):
        return 700.0 if 1.0 <= t <= 3.66 else 90.0

    for shift in np.arange(0.0, 0.02, 0.003):
        window = cut_window(seldom(readings(power=power)), 1.0 + shift, 3.66, SETTINGS, history=written(power))
        assert window.power_w == pytest.approx(700.0, rel=1e-9)  # not one step that holds anything else
        assert window.source == "history" and window.steps >= 130
        assert window.length_s == pytest.approx(0.02 * window.steps) and window.length_s > 2.6
    assert (window.sm_clock_mhz, window.temperature_c) == (1500.0, 55.0)


@pytest.mark.parametrize("correlated", [0.0, 0.4, 0.7])
def test_the_error_of_a_correlated_series_is_honest(correlated):
    random = np.random.default_rng(5)
    off, stated = [], []
    for _ in range(300):
        noise = random.normal(size=200)
        for i in range(1, len(noise)):
            noise[i] += correlated * noise[i - 1]
        series = 700.0 + 20.0 * noise[70:]
        off.append(np.mean(series) / 700.0 - 1.0)
        stated.append(series_error(series))
    assert 0.85 < np.mean(stated) / math.sqrt(np.mean(np.square(off))) < 1.25
    assert np.std(stated) < 0.3 * np.mean(stated)
    assert series_error(np.arange(5.0)) == math.inf


def test_a_gap_in_the_history_spoils_a_window():
    samples = seldom(readings())
    for low, high in ((0.9, 1.4), (2.0, 2.3), (3.3, 9.0)):
        history = [r for r in written() if not low <= r.time_s < high]
        assert reason(samples, history=history).reason is Reason.DRIVER_STALLED
    one = [r for r in written() if not 2.0 <= r.time_s < 2.03]
    assert cut_window(samples, 1.0, 3.75, SETTINGS, history=one).power_w == pytest.approx(700.0)
    assert reason(samples, history=[]).reason is Reason.DRIVER_STALLED
    stalled = [s for s in samples if not 2.0 <= s.time_s < 2.5]
    assert reason(stalled, history=written()).reason is Reason.DRIVER_STALLED


def test_a_stretch_too_short_for_a_window_of_history():
    with pytest.raises(FaultError) as caught:
        cut_window(seldom(readings()), 1.0, 3.4, SETTINGS, history=written())
    assert caught.value.reason is Reason.TOO_FEW_STEPS


@pytest.mark.parametrize("off", [0.0, 0.02, -0.1])
def test_history_and_counter_agree_as_well_as_the_counters_steps_tell(off):
    worst = 0.0
    for phase in np.arange(0.0, 0.1, 0.007):
        samples = seldom(readings(phase_s=phase))
        apart, resolution = over_counter(samples, written(lambda t: 700.0 * (1.0 + off)))
        assert apart is not None and abs((1.0 + apart) / (1.0 + off) - 1.0) <= resolution
        assert resolution == pytest.approx(0.1 / 3.3, rel=0.15)
        worst = max(worst, abs(apart - off))
    assert worst > 0.005  # the tolerance is needed
    assert over_counter(seldom(readings(), (2.0,)), written())[0] is None
    assert over_counter([replace(s, energy_j=None) for s in readings()], written())[0] is None


def test_a_counter_that_lies_is_a_fault_beside_a_history_too():
    still = broken(readings(), 2.0, energy_j=2000.0)
    assert reason(seldom(still, (2.2, 4.0)), history=written()).reason is Reason.COUNTER_STILL
    backward = [replace(s, energy_j=10_000.0 - s.energy_j) for s in readings()]
    assert reason(seldom(backward), history=written()).reason is Reason.COUNTER_BACKWARD
    assert reason(broken(readings(), 0.0, energy_j=None), history=written()).reason is Reason.NO_READINGS
    without = cut_window(
        broken(readings(), 0.0, energy_j=None), 1.0, 3.75, SETTINGS, history=written(), energy_counter=False
    )
    assert without.source == "history" and without.over_counter is None


def test_a_change_is_known_by_its_scatter():
    random = np.random.default_rng(2)
    pulls = []
    for _ in range(200):
        value, error = change(700.0 + 35.0 * random.normal(size=25), 3)
        pulls.append(value / error)
    assert 0.8 < np.std(pulls) < 1.6
    value, error = change(np.linspace(700.0, 800.0, 25), 3)
    assert value == pytest.approx(0.067, abs=0.01) and value > 2.5 * error
    assert change(np.array([1500.0])) == (0.0, 0.0)
    assert change(np.array([1500.0, 1600.0])) == (pytest.approx(1 / 15), 0.0)


def test_periods_are_no_error_of_a_series():
    random = np.random.default_rng(5)
    series = np.where(np.arange(240) % 30 < 20, 700.0, 100.0) + random.normal(0.0, 3.0, 240)
    assert series_error(series) > 0.03
    assert series_error(series, 30.0) == pytest.approx(3.0 / 500.0 / math.sqrt(240), rel=1.0)
    assert series_error(series, 100.0) == math.inf


@pytest.mark.parametrize(("when", "last"), [(0.98, 0.96), (0.9, 1.0)])
def test_a_history_beside_which_the_card_was_hardly_read_is_refused(when, last):
    """Between so few readings nothing is known of clocks, or of components; a loop that ends early may leave them."""
    history = [PowerReading(t, 500.0) for t in np.arange(0.02, last + 0.01, 0.02)]
    samples = [Sample(when, 1e-3, components_j={"hbm": 5.0}), Sample(1.01, 1e-3, energy_j=1000.0)]
    short = replace(SETTINGS, window_s=0.5, least_steps=2)
    with pytest.raises(FaultError, match=r"read . times"):
        cut_window(samples, 0.0, 1.0, short, history=history)
