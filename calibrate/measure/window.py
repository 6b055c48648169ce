"""From samples and a stretch of work to energy, power, clock and temperature, with their errors.

A window is whole steps of the driver's power history, or else begins and ends where the energy counter moved: energy is
never interpolated within a step. Its statistical error comes from means over consecutive batches of about the square
root of the number of steps, so that slow fluctuations count (Flegal and Jones, Batch means and spectral variance
estimators, Annals of Statistics 2010).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.devices.protocol import PowerReading, Sample
from joulecast.calibrate.measure.counter import Steps, check_counter, check_jumps, counter_steps
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.history_window import HistoryWindow, batch_error, history_window, over_counter
from joulecast.calibrate.measure.settings import MeasureSettings
from joulecast.calibrate.rows.measured import mean_of_present

#: Length of a batch of polled power, longer than what sensors average over [s].
POLLED_BATCH_S, AVERAGED_BATCH_S = 0.5, 1.25


@dataclass(frozen=True, eq=False)
class Window:
    """What one card showed during a window.

    Attributes
    ----------
    length_s, energy_j
        Length and energy [s, J].
    power_error
        Relative standard error of the mean power; infinite where one window cannot tell.
    source
        ``"history"``, ``"counter"``, ``"polled"`` or ``"averaged"`` power.
    steps
        Steps of the history or the counter; 0 without either.
    polled_power_w
        Mean of the polled power, ``None`` without it.
    sm_clock_mhz, sm_clock_mean_mhz, memory_clock_mhz, temperature_c
        Median clock under work, mean clocks, mean temperature; ``None`` where the card does not tell.
    temperature_ends_c
        Mean temperature of the first and of the last fifth of the readings.
    reasons
        Share of the readings that gave each reason for the clock.
    stall_s
        Longest time without a reading [s].
    components_w
        Mean power by component.
    over_counter, counter_resolution
        Energy by the power history over that by the counter, less one, ``None`` where they cannot be compared, and the
        largest difference that the counter's steps alone may feign.
    """

    length_s: float
    energy_j: float
    power_error: float
    source: str
    steps: int
    polled_power_w: float | None
    sm_clock_mhz: float | None
    sm_clock_mean_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    temperature_ends_c: tuple[float, float] | None
    reasons: Mapping[str, float]
    stall_s: float
    components_w: Mapping[str, float]
    over_counter: float | None = None
    counter_resolution: float = math.inf

    @property
    def power_w(self) -> float:
        """Mean power [W]."""
        return self.energy_j / self.length_s


def cut_window(
    samples: Sequence[Sample],
    start_s: float,
    end_s: float,
    settings: MeasureSettings,
    *,
    energy_counter: bool = True,
    period_s: float = 0.0,
    history: Sequence[PowerReading] | None = None,
) -> Window:
    """The longest window of whole steps within a stretch of work.

    Parameters
    ----------
    samples
        Readings in order of time, some before and after the stretch.
    start_s, end_s
        When the work ran, on the samples' clock [s].
    settings
        Least length and number of steps, and what counts as a stall.
    energy_counter
        Whether the card has one; if not, polled power is integrated.
    period_s
        Time after which the work repeats itself; the window is as near to whole periods as the steps allow.
    history
        What the driver wrote down, from some time before the stretch on; the counter is only held against it then.

    Raises
    ------
    FaultError
        The driver stalled, the counter stands still, jumps, runs backward or moved too seldom, or nothing was read.
    """
    inside = [s for s in samples if start_s <= s.time_s <= end_s]
    if not inside:
        raise FaultError(Reason.DRIVER_STALLED, f"no reading in {end_s - start_s:.1f} s")
    if energy_counter:
        counted = [s for s in samples if s.energy_j is not None]
        check_counter(counted)
    stall = _check_stalls(inside, start_s, end_s, settings)
    apart: tuple[float | None, float] = (None, math.inf)
    if history is not None:
        cut = _by_history(inside, history_window(history, start_s, end_s, settings, period_s))
        apart = over_counter(samples, history)
    elif energy_counter:
        check_jumps([s for s in counted if start_s <= s.time_s <= end_s])
        cut = _by_counter(counted, counter_steps(counted, start_s, end_s), settings, period_s)
    else:
        cut = _by_polling(inside, settings, period_s)
    return _window_of(cut, inside, stall, apart)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Where a window lies, and its energy; the samples are the first and last in it."""

    length_s: float
    energy_j: float
    power_error: float
    source: str
    steps: int
    first: Sample
    last: Sample


def _window_of(cut: _Cut, inside: Sequence[Sample], stall_s: float, apart: tuple[float | None, float]) -> Window:
    """The window with what its readings say of clocks, temperature, reasons and components."""
    seen = [s for s in inside if cut.first.time_s <= s.time_s <= cut.last.time_s]
    busy = [s for s in seen if "idle" not in s.reasons] or seen
    clocks = [s.sm_clock_mhz for s in busy if s.sm_clock_mhz is not None]
    told = Counter(reason for s in seen for reason in s.reasons)
    warmth = [s.temperature_c for s in seen if s.temperature_c is not None]
    few = max(len(warmth) // 5, 1)
    between = cut.last.time_s - cut.first.time_s
    return Window(
        length_s=cut.length_s,
        energy_j=cut.energy_j,
        power_error=cut.power_error,
        source=cut.source,
        steps=cut.steps,
        polled_power_w=mean_of_present([s.power_w for s in seen]),
        sm_clock_mhz=float(np.median(clocks)) if clocks else None,
        sm_clock_mean_mhz=mean_of_present(clocks),
        memory_clock_mhz=mean_of_present([s.memory_clock_mhz for s in seen]),
        temperature_c=mean_of_present(warmth),
        temperature_ends_c=(float(np.mean(warmth[:few])), float(np.mean(warmth[-few:]))) if warmth else None,
        reasons={reason: told[reason] / len(seen) for reason in sorted(told)},
        stall_s=stall_s,
        components_w={
            name: (joules - cut.first.components_j[name]) / between
            for name, joules in cut.last.components_j.items()
            if name in cut.first.components_j
        },
        over_counter=apart[0],
        counter_resolution=apart[1],
    )


def _by_history(inside: Sequence[Sample], whole: HistoryWindow) -> _Cut:
    """The window that the driver's power history gives."""
    length = whole.end_s - whole.start_s
    seen = [s for s in inside if whole.start_s <= s.time_s <= whole.end_s]
    if len(seen) < 2:
        raise FaultError(Reason.DRIVER_STALLED, f"the card was read {len(seen)} times in {length:.2f} s")
    return _Cut(length, whole.power_w * length, whole.error, "history", whole.steps, seen[0], seen[-1])


def _by_counter(counted: Sequence[Sample], steps: Steps, settings: MeasureSettings, period_s: float) -> _Cut:
    """The window between two steps of the energy counter."""
    first, last = _span(steps, settings, period_s)
    return _Cut(
        float(steps.time_s[last] - steps.time_s[first]),
        float(steps.energy_j[last] - steps.energy_j[first]),
        _counter_error(steps, first, last, period_s),
        "counter",
        int(steps.number[last] - steps.number[first]),
        counted[steps.sample[first]],
        counted[steps.sample[last]],
    )


def _check_stalls(inside: Sequence[Sample], start_s: float, end_s: float, settings: MeasureSettings) -> float:
    """The longest time without a reading, unless it spoils the window."""
    times = np.array([start_s, *(s.time_s for s in inside), end_s])
    gaps = np.diff(times)
    longest = max(float(gaps.max()), *(s.call_s for s in inside))
    if longest > max(settings.stall_s, 4.0 * float(np.median(gaps))):
        raise FaultError(Reason.DRIVER_STALLED, f"the driver did not answer for {longest:.2f} s")
    return longest


def _span(steps: Steps, settings: MeasureSettings, period_s: float) -> tuple[int, int]:
    """First and last step of the window."""
    lengths = steps.time_s - steps.time_s[0] if len(steps) else np.zeros(0)
    enough = np.flatnonzero((steps.number >= settings.least_steps) & (lengths >= settings.window_s - 1e-3))
    if not len(enough):
        length = float(lengths[-1]) if len(lengths) else 0.0
        raise FaultError(
            Reason.TOO_FEW_STEPS,
            f"the energy counter moved {int(steps.number[-1]) if len(steps) else 0} times in {length:.2f} s",
            remedy="Take longer windows.",
        )
    if period_s <= 0.0:
        return 0, len(steps) - 1
    beside = np.abs(lengths[enough] - period_s * np.rint(lengths[enough] / period_s))
    best = np.flatnonzero(beside <= beside.min() + 0.1 * steps.step_s)
    return 0, int(enough[best[-1]])


def _counter_error(steps: Steps, first: int, last: int, period_s: float) -> float:
    """Relative standard error of the mean power between two steps."""
    count = last - first
    power = np.diff(steps.energy_j[first : last + 1]) / np.diff(steps.time_s[first : last + 1])
    size = max(round(math.sqrt(count)), 1)
    if period_s > 0.0:  # whole periods, or a batch more of pauses than of work would look like noise
        size = max(round(math.ceil(size * steps.step_s / period_s) * period_s / steps.step_s), 1)
    length = float(steps.time_s[last] - steps.time_s[first])
    timing = steps.length_error_s / length
    found = batch_error(power, size)
    if not (steps.regular or steps.current) and math.isfinite(found):
        # Each batch's own length is as uncertain as the whole window's, but these errors cancel in the sum.
        batches = count // size
        found = math.sqrt(max(found**2 - (timing * batches) ** 2 / batches, 0.0))
    return math.hypot(found, timing)


def _by_polling(inside: Sequence[Sample], settings: MeasureSettings, period_s: float) -> _Cut:
    """The window where there is no counter: polled power, integrated."""
    for source, batch_s in (("polled", POLLED_BATCH_S), ("averaged", AVERAGED_BATCH_S)):
        pairs = [(s.time_s, s.power_w if source == "polled" else s.average_power_w) for s in inside]
        known = np.array([(t, p) for t, p in pairs if p is not None], dtype=np.float64).reshape(-1, 2)
        if len(known) < 2:
            continue
        time, power = known.T
        length = float(time[-1] - time[0])
        if length < settings.polled_window_s - 2.0 * settings.stall_s:
            raise FaultError(Reason.DRIVER_STALLED, f"power was read for {length:.2f} s only")
        energy = float(np.sum(0.5 * (power[1:] + power[:-1]) * np.diff(time)))
        size = max(round(max(batch_s, period_s) / length * len(power)), 1)
        return _Cut(length, energy, batch_error(power, size), source, 0, inside[0], inside[-1])
    raise FaultError(Reason.NO_READINGS, "the card tells neither energy nor power")
