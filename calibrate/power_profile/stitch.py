"""Readings of many runs, each at its place in the kernel: the stitched profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.readings import readings_of


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Readings whose window's middle lies inside a run.

    Attributes
    ----------
    run
        Shape (n,): which run.
    run_s
        Shape (n,): time since its start.
    step
        Shape (n,): position in it, counted in kernels.
    power_w
        Shape (n,).
    golden
        Shape (n,): whether the run is.
    """

    run: Int
    run_s: Array
    step: Array
    power_w: Array
    golden: Bool

    def within(self, first_step: float, last_step: float) -> Bool:
        """Which golden points lie between two positions."""
        return self.golden & (self.step >= first_step) & (self.step < last_step)


def stitch(dataset: Dataset, name: str, keep: Bool) -> Points:
    """Place every reading of a channel in its run.

    Parameters
    ----------
    dataset
        All series.
    name
        Of the channel.
    keep
        Shape (runs,): golden runs.
    """
    fit = dataset.sensors[name]
    parts: list[tuple[Int, Array, Array, Array]] = []
    offset = 0
    for series, clock in zip(dataset.series, dataset.clocks, strict=True):
        channel = next(channel for channel in series.channels if channel.name == name)
        readings = readings_of(channel)
        span = np.where(readings.span_s > 0.0, readings.span_s, fit.window_s)
        middle = clock.gpu_time(readings.times_s - fit.lag_s - span / 2)
        starts = np.array([run.times_s[0] for run in series.runs])
        ends = np.array([run.times_s[-1] for run in series.runs])
        index = np.searchsorted(starts, middle, side="right") - 1
        inside = (index >= 0) & (middle < ends[np.maximum(index, 0)])
        index, middle = index[inside], middle[inside]
        step = np.array(
            [np.interp(t, series.runs[i].times_s, series.runs[i].steps) for i, t in zip(index, middle, strict=True)]
        )
        parts.append((index + offset, middle - starts[index], step, readings.power_w[inside]))
        offset += len(series.runs)
    run, run_s, step, power = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Points(run, run_s, step, power, keep[run])
