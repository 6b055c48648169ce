"""Windows, counters and power histories, worked out by hand: lengths, numbers of steps, and errors of means."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from joulecast.calibrate.devices.protocol import PowerReading, Sample
from joulecast.calibrate.measure.counter import Steps, counter_steps
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.history_window import (
    LEAST_BATCHES,
    batch_error,
    history_window,
    over_counter,
    series_error,
)
from joulecast.calibrate.measure.settings import MeasureSettings
from joulecast.calibrate.measure.window import _counter_error, cut_window

SETTINGS = MeasureSettings()


def read(moves: list[float], joules: list[float], times: np.ndarray) -> list[Sample]:
    """Readings of a counter that moves at ``moves`` and shows ``joules`` from then on, 0 before."""
    shown = [0.0, *joules]
    return [Sample(float(t), 1e-3, energy_j=shown[int(np.searchsorted(moves, t, side="right"))]) for t in times]


@pytest.mark.parametrize("phase_s", [0.003, 0.033, 0.071])
def test_steps_of_uneven_energy_are_numbered_by_their_rhythm(phase_s: float) -> None:
    """A step every 100 ms whatever the power: each is told to 2 ms, though readings are 13 ms apart."""
    moves = [0.1 * k + phase_s for k in range(60)]
    joules = np.cumsum(np.random.default_rng(1).uniform(10.0, 90.0, 60))
    steps = counter_steps(read(moves, joules.tolist(), 0.013 * np.arange(400)), 1.0, 4.5)
    assert steps.regular
    assert steps.step_s == pytest.approx(0.1, rel=1e-3)
    assert steps.number.tolist() == list(range(len(steps)))
    own = [round((t - phase_s) / 0.1) for t in steps.time_s]
    assert steps.time_s == pytest.approx([moves[k] for k in own], abs=2e-3)
    assert steps.energy_j == pytest.approx(joules[own])


def test_steady_steps_that_are_missed_are_counted() -> None:
    """Each adds 70 J: a gain of 140 J is two."""
    moves = [0.1 * k + 0.033 for k in range(60)]
    times = np.array([0.013 * k for k in range(460) if not 2.30 < 0.013 * k < 2.46])
    steps = counter_steps(read(moves, [70.0 * (k + 1) for k in range(60)], times), 1.0, 4.5)
    assert np.diff(steps.energy_j) == pytest.approx(70.0 * np.diff(steps.number))
    assert steps.number[-1] == len(steps)


def test_how_sure_the_length_between_irregular_steps_is() -> None:
    """Either end lies anywhere within a gap of 21 ms: each has a standard deviation of 21 ms/sqrt(12)."""
    moves = np.cumsum(np.random.default_rng(3).uniform(0.03, 0.2, 60)).tolist()
    steps = counter_steps(read(moves, [500.0 * t for t in moves], np.arange(0.3, 5.0, 0.021)), 0.5, 4.5)
    assert not steps.regular
    assert steps.length_error_s == pytest.approx(math.hypot(0.021 / 12**0.5, 0.021 / 12**0.5))
    assert steps.step_s == pytest.approx((steps.time_s[-1] - steps.time_s[0]) / (len(steps) - 1))
    assert steps.number.tolist() == list(range(len(steps)))


def test_one_step_tells_no_length() -> None:
    few = counter_steps(read([1.0, 9.0], [5.0, 6.0], np.arange(0.0, 3.0, 0.1)), 0.5, 2.5)
    assert len(few) == 1 and math.isnan(few.step_s) and not few.regular
    two = counter_steps(read([1.0, 2.0], [5.0, 6.0], np.arange(0.03, 3.0, 0.1)), 0.5, 2.5)
    assert len(two) == 2 and two.step_s == pytest.approx(1.0)


def steps_of(power_w: list[float], *, regular: bool = True) -> Steps:
    """Steps of 100 ms at these powers, after six of 900 W; the length is known to 6 ms."""
    joules = np.concatenate([[0.0], np.cumsum(0.1 * np.array([*[900.0] * 6, *power_w]))])
    count = np.arange(len(joules), dtype=np.float64)
    return Steps(0.1 * count, joules, count, count.astype(np.int64), 0.1, 0.006, regular)


def test_the_error_between_two_steps_is_that_of_batches_and_of_the_length() -> None:
    """Of 36 steps six batches of six; of periods of 400 ms four batches of two of them."""
    power = np.repeat([690.0, 710.0, 700.0, 720.0, 680.0, 700.0], 6)
    found = _counter_error(steps_of(power.tolist()), 6, 42, 0.0)
    batches = np.std([690, 710, 700, 720, 680, 700], ddof=1) / 6**0.5 / 700.0
    assert found == pytest.approx(math.hypot(batches, 0.006 / 3.6))
    eights = np.std(power[:32].reshape(4, 8).mean(axis=1), ddof=1) / 4**0.5 / np.mean(power[:32])
    assert _counter_error(steps_of(power.tolist()), 6, 42, 0.4) == pytest.approx(math.hypot(eights, 0.006 / 3.6))
    pulses = np.tile([700.0, 100.0], 18)
    assert _counter_error(steps_of(pulses.tolist()), 6, 42, 0.2) == pytest.approx(0.006 / 3.6)


def test_a_step_that_was_missed_is_no_power_of_its_own() -> None:
    """Twice the energy in twice the time is the same power."""
    even, kept = steps_of([700.0] * 36), np.array([k for k in range(43) if k != 20])
    missed = replace(even, time_s=even.time_s[kept], energy_j=even.energy_j[kept], number=even.number[kept])
    assert _counter_error(missed, 6, 41, 0.0) == pytest.approx(0.006 / 3.6)


def test_an_irregular_counters_batches_are_no_surer_than_their_lengths() -> None:
    """The scatter that six batches have from their own lengths, 6 ms of 600 each, is none of the power's."""
    power = np.repeat([690.0, 710.0, 700.0, 720.0, 680.0, 700.0], 6).tolist()
    batches = np.std([690, 710, 700, 720, 680, 700], ddof=1) / 6**0.5 / 700.0
    timing = 0.006 / 3.6
    own = math.sqrt(max(batches**2 - (timing * 6) ** 2 / 6, 0.0))
    assert _counter_error(steps_of(power, regular=False), 6, 42, 0.0) == pytest.approx(math.hypot(own, timing))


def test_the_fewest_batches_tell() -> None:
    values = np.array([9.0, 11.0] * LEAST_BATCHES)[: 2 * LEAST_BATCHES]
    assert batch_error(values, 2) == 0.0
    assert batch_error(values[:-1], 2) == math.inf


def test_the_error_of_a_series_by_hand() -> None:
    """All batches of six neighbours of 36, and what those of three lack beside them."""
    values = np.random.default_rng(4).normal(700.0, 20.0, 36).cumsum() / 100.0 + 700.0

    def variance(size: int) -> float:
        means = [float(np.mean(values[i : i + size])) for i in range(36 - size + 1)]
        centre = sum(means) / len(means)
        return size / (36 - size) * sum((m - centre) ** 2 for m in means) / len(means)

    expected = math.sqrt(max(variance(6), 2 * variance(6) - variance(3))) / float(np.mean(values))
    assert series_error(values) == pytest.approx(expected)


def written(count: int) -> list[PowerReading]:
    """A power history from 1 s on, in steps of 20 ms; at each time the mean since the one before."""
    return [PowerReading(1.0 + 0.02 * k, 700.0 + k) for k in range(1, count + 1)]


def test_a_history_of_just_the_least_length_is_enough() -> None:
    """125 steps of 20 ms are 2.5 s; 124 are not. The first step begins with the work."""
    found = history_window(written(125), 1.0, 3.5, SETTINGS)
    assert (found.steps, found.power_w) == (125, pytest.approx(763.0))
    assert (found.start_s, found.end_s) == (pytest.approx(1.0), pytest.approx(3.5))
    with pytest.raises(FaultError) as caught:
        history_window(written(124), 1.0, 3.49, SETTINGS)
    assert caught.value.reason is Reason.TOO_FEW_STEPS
    short = replace(SETTINGS, window_s=0.1, least_steps=20)
    assert history_window(written(20), 1.0, 1.41, short).steps == 20


def test_two_powers_are_a_history_to_hold_a_counter_against() -> None:
    """500 W for 10 s; the counter's readings 4 s apart tell 2,000 J, its steps of 100 ms leave 50 J at either end."""
    samples = [Sample(2.0, 1e-3, energy_j=100.0), Sample(6.0, 1e-3, energy_j=2100.0)]
    apart, resolution = over_counter(samples, [PowerReading(0.0, 0.0), PowerReading(10.0, 500.0)])
    assert apart == pytest.approx(0.0)
    assert resolution == pytest.approx(50.0 / 2000.0)
    assert over_counter(samples, [PowerReading(0.0, 500.0)]) == (None, math.inf)
    assert over_counter([replace(s, energy_j=5.0) for s in samples], written(500)) == (None, math.inf)


def steady(times: np.ndarray, **values: float) -> list[Sample]:
    return [Sample(float(t), 1e-3, power_w=700.0, **values) for t in times]


def test_readings_that_are_rare_throughout_are_no_stall() -> None:
    """Every 0.3 s, beyond the 0.25 s of a stall, but as regular as they are; one missing is 0.6 s, five are 1.8 s."""
    rare = steady(np.arange(0.1, 8.0, 0.3))
    assert cut_window(rare, 1.0, 7.5, SETTINGS, energy_counter=False).power_w == pytest.approx(700.0)
    gone = [s for s in rare if not 3.0 < s.time_s < 4.5]
    with pytest.raises(FaultError, match=r"did not answer for 1\.80 s"):
        cut_window(gone, 1.0, 7.5, SETTINGS, energy_counter=False)


def test_temperatures_at_the_ends_are_means_of_a_fifth() -> None:
    """One degree a second over 0 to 6 s: 0.6 s from either end."""
    warming = [replace(s, temperature_c=40.0 + s.time_s) for s in steady(np.arange(0.0, 6.005, 0.01))]
    window = cut_window(warming, 0.0, 6.0, SETTINGS, energy_counter=False)
    assert window.temperature_c == pytest.approx(43.0, abs=0.01)
    assert window.temperature_ends_c == (pytest.approx(40.6, abs=0.01), pytest.approx(45.4, abs=0.01))
    few = [replace(s, temperature_c=t) for s, t in zip(steady(np.arange(0.0, 6.1, 2.0)), (1, 2, 3, 9), strict=True)]
    window = cut_window(few, 0.0, 6.0, SETTINGS, energy_counter=False)
    assert window.temperature_ends_c == (1.0, 9.0)


def test_as_many_steps_as_are_asked_for_are_enough() -> None:
    moves = [0.1 * k + 0.033 for k in range(60)]
    samples = read(moves, [70.0 * (k + 1) for k in range(60)], np.arange(0.0, 5.0, 0.013))
    found = cut_window(samples, 1.0, 4.0, SETTINGS)
    assert cut_window(samples, 1.0, 4.0, replace(SETTINGS, least_steps=found.steps)).steps == found.steps
    with pytest.raises(FaultError) as caught:
        cut_window(samples, 1.0, 4.0, replace(SETTINGS, least_steps=found.steps + 1))
    assert caught.value.reason is Reason.TOO_FEW_STEPS
    assert all(b.time_s > a.time_s for a, b in pairwise(samples))
