"""Measures one microbenchmark: settle under load, cut windows, repeat until time and power are known well enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.measured_row import (
    Take,
    disagreements,
    measured_row,
    reached_error,
    still_drifting,
    warnings_of,
)
from joulecast.calibrate.measure.recording import Failed
from joulecast.calibrate.measure.settings import (
    PULSED_OPS,
    UNTIMED_OPS,
    MeasureSettings,
    period_s,
    run_s,
)
from joulecast.calibrate.measure.watch import PASSING, SamplerFactory, Watch
from joulecast.calibrate.microbenchmarks.protocol import Load, Microbenchmark, Runner
from joulecast.errors import DeviceError, MeasurementError

#: Sampling after pulses, to see the power of their pauses [s].
_TAIL_S = 0.4


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
        takes, pause_powers_w = session.measure(runner, sampler_factory, begin + budget_s)
    except FaultError as fault:
        return Failed(benchmark.name, fault.reason, str(fault))
    except DeviceError as lost:
        return Failed(benchmark.name, Reason.DEVICE_LOST, str(lost))
    except MeasurementError as failed:
        return Failed(benchmark.name, Reason.WORK_FAILED, str(failed))
    row = measured_row(benchmark, takes, pause_powers_w, chosen, session.settled_s, session.spoilt)
    error = reached_error(takes, benchmark.row)
    warnings = [*session.warnings, *warnings_of(row, error, chosen), *disagreements(takes, chosen)]
    if warnings:
        row["measured_warnings"] = warnings
    return Measurement(benchmark.name, row, len(takes), session.now() - begin, error, tuple(warnings))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a load: repetitions, their seconds, begin and end on the cards' clock [s], counted clock [MHz]."""

    repetitions: int
    seconds: float
    begin_s: float
    end_s: float
    counted_clock_mhz: float | None


@dataclass
class _Session:
    """The measurement of one microbenchmark."""

    devices: Sequence[Device]
    benchmark: Microbenchmark
    settings: MeasureSettings
    warnings: list[str] = field(default_factory=list)
    settled_s: float = 0.0
    spoilt: int = 0

    def now(self) -> float:
        """Time on the cards' clock [s]."""
        return self.devices[0].now()

    def measure(
        self, runner: Runner, sampler_factory: SamplerFactory, end_s: float
    ) -> tuple[list[Take], list[float | None]]:
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
            return self._sampled(load, Watch(self.devices, sampler_factory), end_s)
        finally:
            load.close()

    def _sampled(self, load: Load, watch: Watch, end_s: float) -> tuple[list[Take], list[float | None]]:
        try:
            watch.start(pulsed=self.benchmark.row.get("op") in PULSED_OPS)
            self._settle(load, watch)
            takes = self._windows(load, watch, end_s)
            return takes, self._pause_powers_w(watch)
        finally:
            watch.stop()

    def _run(self, load: Load, duration_s: float) -> _Run:
        """Run, and make sure that something ran."""
        begin = self.now()
        try:
            repetitions, seconds = load.run(duration_s)
        except DeviceError:
            raise
        except MeasurementError as error:
            raise FaultError(Reason.WORK_FAILED, str(error)) from error
        if repetitions < 1 or not seconds > 0.0:
            raise FaultError(Reason.WORK_FAILED, f"it reported {repetitions} repetitions in {seconds} s")
        return _Run(repetitions, seconds, begin, self.now(), load.counted_clock_mhz)

    def _settle(self, load: Load, watch: Watch) -> None:
        """Keep the cards busy until power and clock have stopped drifting, within bounds."""
        settings, row = self.settings, self.benchmark.row
        chunk = run_s(0.5 * settings.settle_s, row)
        begin = self.now()
        while True:
            self._run(load, chunk)
            watch.read()
            self.settled_s = self.now() - begin
            if self.settled_s < settings.settle_s - 1e-6:
                continue
            if row.get("op") in PULSED_OPS:
                return
            drift = watch.drift(self.now() - chunk)
            if drift < settings.drift:
                return
            if self.settled_s + 0.9 * chunk > settings.most_settle_s:
                self.warnings.append(still_drifting(drift, self.settled_s))
                return

    def _windows(self, load: Load, watch: Watch, end_s: float) -> list[Take]:
        settings, row = self.settings, self.benchmark.row
        takes: list[Take] = []
        while not takes or (reached_error(takes, row) > settings.error and len(takes) < settings.most_windows):
            if takes and self.now() + takes[-1].wall_s > end_s:
                break
            try:
                takes.append(self._window(load, watch))
            except FaultError as fault:
                self.spoilt += 1
                if fault.reason not in PASSING:
                    raise
                if self.spoilt > settings.most_stalls:
                    if not takes:
                        raise
                    self.warnings.append(f"no further window: {fault}")
                    break
                self._run(load, run_s(0.5 * settings.settle_s, row))
        return takes

    def _window(self, load: Load, watch: Watch) -> Take:
        """One window on every card."""
        settings, row = self.settings, self.benchmark.row
        runs = [self._run(load, segment) for segment in _segments(watch.run_s(settings, row), row, settings.segments)]
        start, end = runs[0].begin_s, runs[-1].end_s
        return Take(
            windows=watch.windows(start, end, settings, period_s(row)),
            repetitions=np.array([run.repetitions for run in runs], dtype=np.float64),
            seconds=np.array([run.seconds for run in runs], dtype=np.float64),
            wall_s=end - start,
            counted_clocks_mhz=tuple(run.counted_clock_mhz for run in runs),
        )

    def _pause_powers_w(self, watch: Watch) -> list[float | None]:
        """What each card draws in the pauses of pulses, read right after them [W]."""
        if self.benchmark.row.get("op") != "pulse":
            return [None] * len(self.devices)
        begin = self.now()
        self.devices[0].sleep(_TAIL_S)
        return watch.powers_after(begin + 0.4 * _TAIL_S)


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
