"""Everything that was recorded for one profile, and the equations that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.power_profile.clocks import ClockFit, fit_clock
from joulecast.calibrate.power_profile.inverse import Estimate, solve
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.protocol import WHOLE, Run, Series
from joulecast.calibrate.power_profile.sensor import SensorFit, equations_of, refine_sensor
from joulecast.errors import MeasurementError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Series of runs of one length, and how to read them.

    Attributes
    ----------
    kernels
        Kernels of a pass.
    first
        Pass from which execution times count (those before are warm-up).
    margin
        Relative width of a bin of execution times.
    series, clocks
        Shape (batches,).
    sensors
        By channel name.
    """

    kernels: int
    first: int
    margin: float
    series: tuple[Series, ...]
    clocks: tuple[ClockFit, ...]
    sensors: dict[str, SensorFit]

    def with_series(self, series: Series) -> Dataset:
        """The same with one batch more."""
        series = replace(series, runs=tuple(run.filled(self.kernels) for run in series.runs))
        clocks = (*self.clocks, fit_clock(series.clock_reads))
        return Dataset(self.kernels, self.first, self.margin, (*self.series, series), clocks, self.sensors)

    def with_refined_sensors(self, layout: Layout) -> Dataset:
        """The same with windows and lags found again from its own runs, where the sensors do not say them."""
        keep = self.golden()
        sensors = {}
        for name, fit in self.sensors.items():
            channels = [channel for series in self.series for channel in series.channels if channel.name == name]
            sensors[name] = refine_sensor(channels, fit, self.clocks, layout, self.series, keep)
        return replace(self, sensors=sensors)

    @property
    def passes(self) -> int:
        """Passes of each run."""
        return self.series[0].passes

    @property
    def whole(self) -> list[str]:
        """Channels of the whole card, the finest first."""
        return [name for name in WHOLE if name in self.sensors]

    @property
    def period_s(self) -> float:
        """Time between new values of the slowest sensor [s]."""
        return max(fit.period_s for fit in self.sensors.values())

    @property
    def runs(self) -> list[Run]:
        """All runs, in order."""
        return [run for series in self.series for run in series.runs]

    def execution_s(self) -> Array:
        """Shape (runs,): mean duration of a pass after the warm-up, of each run [s]."""
        last = self.passes * self.kernels
        start = self.first * self.kernels
        spans = [float(run.time_at(last) - run.time_at(start)) for run in self.runs]
        return np.array(spans) / (self.passes - self.first)

    def golden(self) -> Bool:
        """Shape (runs,): the runs of the fullest bin of execution times."""
        return golden_runs(self.execution_s(), self.margin)

    def nominal(self, steps: Array, keep: Bool) -> Array:
        """Time since the run's start at positions counted in kernels, mean over runs [s]."""
        total = np.zeros(np.shape(steps))
        for run, kept in zip(self.runs, keep, strict=True):
            if kept:
                total += run.time_at(steps) - run.times_s[0]
        return np.asarray(total / int(keep.sum()))

    def kernel_times(self, keep: Bool) -> Array:
        """Shape (kernels,): each kernel's duration soon after the warm-up, median over passes and runs [s]."""
        passes = min(self.passes, max(self.first + 1, 10))
        runs = [run for run, kept in zip(self.runs, keep, strict=True) if kept]
        steps = np.arange(float(self.first * self.kernels), passes * self.kernels + 1)
        times = np.array([np.diff(run.time_at(steps)) for run in runs])
        return np.asarray(np.median(times.reshape(len(runs), -1, self.kernels), axis=(0, 1)))

    def equations(self, layout: Layout, keep: Bool, names: Sequence[str]) -> tuple[Array, Array, Int]:
        """Rows, readings and their kinds, of all channels of these names.

        Raises
        ------
        MeasurementError
            No reading touches only runs that count.
        """
        weights, power, kinds = [], [], []
        start = 0
        for series, clock in zip(self.series, self.clocks, strict=True):
            mine = keep[start : start + len(series.runs)]
            start += len(series.runs)
            for channel in series.channels:
                if channel.name not in names:
                    continue
                rows, read = equations_of(channel, self.sensors[channel.name], clock, layout, series, mine)
                weights.append(rows)
                power.append(read)
                kinds.append(3 * names.index(channel.name) + _kinds(rows, layout))
        if not weights or sum(len(part) for part in power) < layout.groups()[-1].stop // 10 + 3:
            raise MeasurementError("too few readings of golden runs", remedy="Take more runs.")
        return np.concatenate(weights), np.concatenate(power), np.concatenate(kinds)

    def estimate(self, layout: Layout, keep: Bool, names: Sequence[str]) -> Estimate:
        """Solve for the unknown powers of a layout from the channels of these names."""
        rows, power, kinds = self.equations(layout, keep, names)
        return solve(rows, power, layout.groups(), kinds)


def _kinds(weights: Array, layout: Layout) -> Int:
    """Kind of each reading: 0 of the resting card, 1 of bins that are wider than others, 2 of the rest.

    In a wide bin the power itself varies, and what it varies by would count as noise of all readings.
    """
    width = np.diff(layout.run_edges)
    coarse = np.zeros(layout.size, dtype=bool)
    coarse[layout.run_bins] = width > 1.5 * width.min()
    busy = weights[:, : layout.rest_bins.start].sum(axis=1) > 0.0
    return np.where(weights @ coarse > 0.0, 1, 2 * busy).astype(np.int64)


def golden_runs(execution_s: Array, margin: float) -> Bool:
    """Which runs belong to the bin ``[x, x·(1 + margin)]`` that holds the most of them.

    The bin slides over the sorted times, so that no fixed edge can cut a crowd in two; of equally full bins the
    narrowest wins.

    Parameters
    ----------
    execution_s
        Shape (runs,): each run's execution time.
    margin
        Relative width of the bin.

    Examples
    --------
    >>> golden_runs(np.array([1.0, 1.2, 1.01, 1.3, 1.02]), 0.05).tolist()
    [True, False, True, False, True]
    """
    times = np.sort(execution_s)
    last = np.searchsorted(times, times * (1.0 + margin), side="right") - 1
    count = last - np.arange(len(times)) + 1
    width = times[last] - times
    first = min(range(len(times)), key=lambda i: (-count[i], width[i]))
    return np.asarray((execution_s >= times[first]) & (execution_s <= times[last[first]]))
