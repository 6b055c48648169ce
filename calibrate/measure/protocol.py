"""Measures one microbenchmark: settle under load, cut windows, repeat until time and power are known well enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from joulecast.calibrate.devices.protocol import Device, PowerReading, Sample
from joulecast.calibrate.measure.counter import counter_steps
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.history_window import change
from joulecast.calibrate.measure.measured_row import (
    Tail,
    Take,
    disagreements,
    measured_row,
    reached_error,
    warnings_of,
)
from joulecast.calibrate.measure.recording import Failed
from joulecast.calibrate.measure.sampler import Sampler
from joulecast.calibrate.measure.settings import (
    PULSED_OPS,
    UNTIMED_OPS,
    MeasureSettings,
    history_run_s,
    period_s,
    run_s,
    window_run_s,
)
from joulecast.calibrate.measure.window import Window, cut_window
from joulecast.calibrate.microbenchmarks.protocol import Load, Microbenchmark, Runner
from joulecast.errors import DeviceError, MeasurementError

SamplerFactory: TypeAlias = Callable[[Device], Sampler]

#: Faults after which another window may be good.
_PASSING = (Reason.DRIVER_STALLED, Reason.TOO_FEW_STEPS, Reason.COUNTER_JUMPED)
#: Time between counter steps while none has been seen [s].
_USUAL_STEP_S = 0.1
#: Sampling after pulses, to see the power of their pauses [s].
_TAIL_S = 0.4
#: Standard errors that a drift must exceed, and neighbouring readings of a history that may be correlated.
_SURE, _CORRELATED = 2.5, 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """A microbenchmark that was measured.

    Attributes
    ----------
    name
        Of the microbenchmark.
    row
        Fields of the measured row, configuration and measurements, for
        :meth:`~joulecast.calibrate.measure.recorder.Recorder.append_row`.
    windows
        How many windows it took.
    spent_s
        Time that it took on the card's clock [s].
    error
        Relative standard error reached, the larger of time and power; infinite where one window could not tell.
    warnings
        What is odd about it.
    """

    name: str
    row: Mapping[str, Any]
    windows: int
    spent_s: float
    error: float
    warnings: tuple[str, ...] = ()


def measure(
    device: Device | Sequence[Device],
    runner: Runner,
    sampler_factory: SamplerFactory,
    benchmark: Microbenchmark,
    settings: MeasureSettings | None = None,
    budget_s: float = math.inf,
) -> Measurement | Failed:
    """Measure a microbenchmark.

    Parameters
    ----------
    device
        The card, or all cards that take part.
    runner
        Prepares the work; of several cards it runs the work on all of them.
    sampler_factory
        Gives the sampler of a card, such as a :class:`~joulecast.calibrate.measure.sampler.SamplerPool`; the samplers
        are started and stopped here, and closed by whoever made them.
    benchmark
        What to measure; ``settle_s`` and ``target_window_s`` in its row are least lengths.
    settings
        Of the protocol.
    budget_s
        Time after which no further window is begun; one is always taken [s].

    Returns
    -------
    Measurement or Failed
        A row, or the reason why there is none: work that fails, a driver that stalls, a counter that lies. Everything
        but an interruption by the user comes back as one of the two.
    """
    devices = list(device) if isinstance(device, Sequence) else [device]
    chosen = (settings or MeasureSettings()).of(benchmark.row)
    session = _Session(devices, benchmark, chosen)
    begin = session.now()
    try:
        takes, tails = session.measure(runner, sampler_factory, begin + budget_s)
    except FaultError as fault:
        return Failed(benchmark.name, fault.reason, str(fault))
    except DeviceError as lost:
        return Failed(benchmark.name, Reason.DEVICE_LOST, str(lost))
    except MeasurementError as failed:
        return Failed(benchmark.name, Reason.WORK_FAILED, str(failed))
    row = measured_row(benchmark, takes, tails, chosen, session.settled_s, session.spoilt)
    error = reached_error(takes, benchmark.row)
    warnings = [*session.warnings, *warnings_of(row, error, chosen), *disagreements(takes, chosen)]
    if warnings:
        row["measured_warnings"] = warnings
    return Measurement(benchmark.name, row, len(takes), session.now() - begin, error, tuple(warnings))


@dataclass
class _Session:
    """The measurement of one microbenchmark."""

    devices: Sequence[Device]
    benchmark: Microbenchmark
    settings: MeasureSettings
    warnings: list[str] = field(default_factory=list)
    settled_s: float = 0.0
    spoilt: int = 0
    _samplers: list[Sampler] = field(default_factory=list)
    _samples: list[list[Sample]] = field(default_factory=list)
    _powers: list[list[PowerReading] | None] = field(default_factory=list)

    def now(self) -> float:
        """Time on the cards' clock [s]."""
        return self.devices[0].now()

    def measure(
        self, runner: Runner, sampler_factory: SamplerFactory, end_s: float
    ) -> tuple[list[Take], list[Tail | None]]:
        """Windows, and of pulses what came after them on each card."""
        if len(self.devices) != self.benchmark.gpus:
            raise FaultError(
                Reason.NOT_RUNNABLE, f"it takes {self.benchmark.gpus} GPUs, {len(self.devices)} are measured"
            )
        try:
            load = runner.prepare(self.benchmark)
        except MeasurementError as error:
            raise FaultError(Reason.NOT_RUNNABLE, str(error)) from error
        try:
            self._samplers = [sampler_factory(device) for device in self.devices]
            return self._sampled(load, end_s)
        finally:
            load.close()

    def _sampled(self, load: Load, end_s: float) -> tuple[list[Take], list[Tail | None]]:
        try:
            pulsed = self.benchmark.row.get("op") in PULSED_OPS
            for sampler in self._samplers:
                sampler.start(dense_counter=pulsed)
            self._samples = [[] for _ in self.devices]
            self._powers = [None if pulsed or s.history_step_s is None else [] for s in self._samplers]
            self._settle(load)
            takes = self._windows(load, end_s)
            return takes, self._tails()
        finally:
            for sampler in self._samplers:
                sampler.stop()

    def _run(self, load: Load, duration_s: float) -> tuple[int, float, float, float]:
        """Repetitions, their seconds, and begin and end on the cards' clock."""
        begin = self.now()
        try:
            repetitions, seconds = load.run(duration_s)
        except DeviceError:
            raise
        except MeasurementError as error:
            raise FaultError(Reason.WORK_FAILED, str(error)) from error
        if repetitions < 1 or not seconds > 0.0:
            raise FaultError(Reason.WORK_FAILED, f"it reported {repetitions} repetitions in {seconds} s")
        return repetitions, seconds, begin, self.now()

    def _settle(self, load: Load) -> None:
        """Keep the cards busy until power and clock have stopped drifting, within bounds."""
        settings, row = self.settings, self.benchmark.row
        chunk = run_s(0.5 * settings.settle_s, row)
        begin = self.now()
        while True:
            self._run(load, chunk)
            self._read()
            self.settled_s = self.now() - begin
            if self.settled_s < settings.settle_s - 1e-6:
                continue
            if row.get("op") in PULSED_OPS:
                return
            drift = self._drift(self.now() - chunk)
            if drift < settings.drift:
                return
            if self.settled_s + 0.9 * chunk > settings.most_settle_s:
                self.warnings.append(f"power or clock still changed by {drift:.1%} after {self.settled_s:.1f} s")
                return

    def _windows(self, load: Load, end_s: float) -> list[Take]:
        settings, row = self.settings, self.benchmark.row
        takes: list[Take] = []
        while not takes or (reached_error(takes, row) > settings.error and len(takes) < settings.most_windows):
            if takes and self.now() + takes[-1].wall_s > end_s:
                break
            try:
                takes.append(self._window(load))
            except FaultError as fault:
                self.spoilt += 1
                if fault.reason not in _PASSING:
                    raise
                if self.spoilt > settings.most_stalls:
                    if not takes:
                        raise
                    self.warnings.append(f"no further window: {fault}")
                    break
                self._run(load, run_s(0.5 * settings.settle_s, row))
        return takes

    def _window(self, load: Load) -> Take:
        """One window on every card."""
        settings, row = self.settings, self.benchmark.row
        runs = [self._run(load, segment) for segment in _segments(self._window_run_s(), row, settings.segments)]
        start, end = runs[0][2], runs[-1][3]
        found: list[Window] = []
        fault: FaultError | None = None
        self._read()
        for device, samples, powers in zip(self.devices, self._samples, self._powers, strict=True):
            try:
                found.append(
                    cut_window(
                        samples,
                        start,
                        end,
                        settings,
                        energy_counter=device.facts.energy_counter,
                        period_s=period_s(row),
                        history=powers,
                    )
                )
            except FaultError as error:
                if fault is None or error.reason not in _PASSING:
                    fault = error
        if fault is not None:
            raise fault
        return Take(
            windows=tuple(found),
            repetitions=np.array([run[0] for run in runs], dtype=np.float64),
            seconds=np.array([run[1] for run in runs], dtype=np.float64),
            wall_s=end - start,
        )

    def _read(self) -> None:
        """Take what the samplers have read."""
        for sampler, samples, powers in zip(self._samplers, self._samples, self._powers, strict=True):
            samples += sampler.take()
            if powers is not None:
                powers += sampler.take_history()

    def _drift(self, since_s: float) -> float:
        """Largest change of a card's power or clock since a time, beyond what it scatters."""
        found = 0.0
        for samples, powers in zip(self._samples, self._powers, strict=True):
            late = [s for s in samples if s.time_s >= since_s]
            clocks = [s.sm_clock_mhz for s in late if s.sm_clock_mhz is not None]
            if powers is None:
                power, batch = [s.power_w for s in late if s.power_w is not None], 1
            else:
                power, batch = [reading.power_w for reading in powers if reading.time_s >= since_s], _CORRELATED
            for value, error in (change(np.array(clocks)), change(np.array(power), batch)):
                found = max(found, abs(value) if abs(value) > _SURE * error else 0.0)
        return found

    def _window_run_s(self) -> float:
        """How long the work of a window must run, for the slowest of the cards [s]."""
        return max(self._card_run_s(place) for place in range(len(self.devices)))

    def _card_run_s(self, place: int) -> float:
        settings, row = self.settings, self.benchmark.row
        history_step_s = self._samplers[place].history_step_s
        if self._powers[place] is not None and history_step_s is not None:
            return history_run_s(settings, history_step_s)
        if not self.devices[place].facts.energy_counter:
            return window_run_s(settings, row, None)
        counted = [s for s in self._samples[place] if s.energy_j is not None]
        steps = counter_steps(counted, -math.inf, math.inf) if counted else None
        step = steps.step_s if steps is not None and len(steps) >= 2 else _USUAL_STEP_S
        return window_run_s(settings, row, min(step, 1.0))

    def _tails(self) -> list[Tail | None]:
        """What cards draw in the pauses of pulses: read right after them."""
        if self.benchmark.row.get("op") != "pulse":
            return [None] * len(self.devices)
        begin = self.now()
        self.devices[0].sleep(_TAIL_S)
        found: list[Tail | None] = []
        for sampler in self._samplers:
            late = [s.power_w for s in sampler.take() if s.time_s > begin + 0.4 * _TAIL_S and s.power_w is not None]
            found.append(Tail(float(np.median(late))) if late else None)
        return found


def _segments(duration_s: float, row: Mapping[str, Any], most: int) -> list[float]:
    """Lengths of the runs in a window: whole periods of pulsed work, and one run where no time is asked [s]."""
    if row.get("op") in UNTIMED_OPS:
        return [duration_s]
    period = period_s(row)
    if period <= 0.0:
        return [duration_s / most] * most
    whole = max(round(duration_s / period), 1)
    count = min(whole, most)
    return [period * (whole // count + (place < whole % count)) for place in range(count)]
