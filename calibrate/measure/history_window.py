"""Mean power of a stretch of steady work from the driver's power history, held against the energy counter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.devices.protocol import PowerReading, Sample
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.settings import MeasureSettings

#: Fewest batches that tell an error.
LEAST_BATCHES = 3
#: Longest time between two steps of a counter that readings a second apart can be held against [s].
COUNTER_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """Whole steps of a power history.

    Attributes
    ----------
    start_s, end_s
        Begin of the first step and end of the last, on the card's clock [s].
    power_w, error
        Mean power, and its relative standard error.
    steps
        How many.
    """

    start_s: float
    end_s: float
    power_w: float
    error: float
    steps: int


def history_window(
    readings: Sequence[PowerReading],
    start_s: float,
    end_s: float,
    settings: MeasureSettings,
    period_s: float = 0.0,
) -> HistoryWindow:
    """All whole steps of a power history within a stretch of work.

    Parameters
    ----------
    readings
        In order of time; each is the power since the one before.
    start_s, end_s
        When the work ran, on the card's clock [s].
    settings
        Least length and number of steps, and what counts as a stall.
    period_s
        Time after which the work repeats itself: what power does within it is no error.

    Raises
    ------
    FaultError
        The history has a gap, or holds too little of the stretch.
    """
    time, power = _arrays(readings)
    step = float(np.median(np.diff(time))) if len(time) > 1 else math.inf
    inside = np.flatnonzero((time - step >= start_s - 1e-6) & (time <= end_s + 1e-6))
    time, power = time[inside], power[inside]
    gaps = np.diff(np.concatenate([[start_s], time, [end_s]]))
    if not len(time) or float(gaps.max()) > max(settings.stall_s, 4.0 * step):
        raise FaultError(Reason.DRIVER_STALLED, f"the power history lacks {gaps.max():.2f} s")
    length = float(time[-1] - time[0]) + step if len(time) else 0.0
    if len(time) < settings.least_steps or length < settings.window_s - 1e-3:
        raise FaultError(
            Reason.TOO_FEW_STEPS,
            f"the power history tells {len(time)} powers in {length:.2f} s",
            remedy="Take longer windows.",
        )
    mean = float(np.mean(power))
    return HistoryWindow(time[-1] - length, float(time[-1]), mean, series_error(power, period_s / step), len(time))


def batch_error(values: Array, size: int) -> float:
    """Relative standard error of the mean of a series from means over batches; infinite if there are too few.

    >>> round(batch_error(np.array([9.0, 11.0, 9.0, 11.0, 9.0, 11.0]), 1), 3)
    0.045
    """
    count = len(values) // size
    if count < LEAST_BATCHES:
        return math.inf
    means = values[: count * size].reshape(count, size).mean(axis=1)
    return float(np.std(means, ddof=1) / math.sqrt(count) / abs(np.mean(means)))


def series_error(values: Array, period: float = 0.0) -> float:
    """Relative standard error of the mean of a correlated series; batches hold whole periods of so many values.

    From means over overlapping batches of the square root of the length (Meketon and Schmeiser, Overlapping batch
    means: something for nothing?, Winter Simulation Conference 1984). Batches still correlate with their neighbours
    where power drifts for longer than a batch. What batches of half the size lack in variance shows how much is lacking
    still; it is added (Vats and Flegal, Lugsail lag windows for estimating time-average covariance matrices, Biometrika
    2022), never taken away.
    """
    size = max(round(math.sqrt(len(values))), 2)
    if period > 0.0:
        size = round(math.ceil(size / period) * period)
    if len(values) < LEAST_BATCHES * size:
        return math.inf
    whole, half = _overlapping_variance(values, size), _overlapping_variance(values, size // 2)
    return math.sqrt(max(whole, 2.0 * whole - half)) / abs(float(np.mean(values)))


def _overlapping_variance(values: Array, size: int) -> float:
    """Variance of the mean of a series from all batches of neighbours."""
    count = len(values)
    means = np.lib.stride_tricks.sliding_window_view(values, size).mean(axis=1)
    squares = float(np.mean((means - np.mean(values)) ** 2))
    return size / (count - size) * squares


def over_counter(samples: Sequence[Sample], readings: Sequence[PowerReading]) -> tuple[float | None, float]:
    """Energy by the history over that by the counter, less one, and how well readings of the counter can tell.

    A reading of the counter shows the energy at its last step, up to a step earlier. Between the first and the last
    reading that the history covers, energy is known up to a step's energy at each end; the middle is compared.

    Returns
    -------
    tuple
        The relative difference, ``None`` where it cannot be told, and the largest that the steps alone may feign.
    """
    time, power = _arrays(readings)
    if len(time) < 2:
        return None, math.inf
    covered = [s for s in samples if s.energy_j is not None and time[0] <= s.time_s - COUNTER_STEP_S < time[-1]]
    if len(covered) < 2 or covered[-1].energy_j is None or covered[0].energy_j is None:
        return None, math.inf
    counted = covered[-1].energy_j - covered[0].energy_j
    if counted <= 0.0:
        return None, math.inf
    joules = np.concatenate([[0.0], np.cumsum(power[1:] * np.diff(time))])
    edges = np.array([covered[0].time_s, covered[-1].time_s])
    late, early = (np.interp(edges - shift, time, joules) for shift in (0.0, COUNTER_STEP_S))
    middle = 0.5 * float(late[1] - late[0] + early[1] - early[0])
    spread = 0.5 * float(late[0] - early[0] + late[1] - early[1])
    return middle / counted - 1.0, spread / counted


def change(values: Array, batch: int = 1) -> tuple[float, float]:
    """Relative change of a series from its first half to its second, and the standard error of that change.

    Parameters
    ----------
    values
        Equally spaced, shape (n,).
    batch
        Neighbours that may be correlated.

    Returns
    -------
    tuple
        The change, and its error from the scatter about either half's mean; 0 where the series is too short to scatter.
    """
    half = len(values) // 2 // batch
    if half < 1:
        return 0.0, 0.0
    kept = values[len(values) - 2 * half * batch :].reshape(2, half, batch).mean(axis=2)
    early, late = kept.mean(axis=1).tolist()
    if early <= 0.0:
        return 0.0, 0.0
    error = math.sqrt(float(kept.var(axis=1, ddof=1).sum()) / half) if half > 1 else 0.0
    return late / early - 1.0, error / early


def _arrays(readings: Sequence[PowerReading]) -> tuple[Array, Array]:
    """Times and powers, shape (n,) each [s, W]."""
    table = np.array([(r.time_s, r.power_w) for r in readings], dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
