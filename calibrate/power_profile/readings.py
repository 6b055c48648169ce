"""From what was polled to what the sensor said: when it moved, and what each new value stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.protocol import Channel
from joulecast.errors import MeasurementError

#: Fewer movements of a sensor than this tell nothing of its rhythm.
FEWEST_MOVES = 8
#: A sensor of which more than this share of the polls find a new value moves faster than it is polled.
FASTER = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """New values of one sensor.

    Attributes
    ----------
    times_s
        Shape (n,): host time at which each value appeared.
    power_w
        Shape (n,): the value; of an accumulated energy its growth over ``span_s``.
    span_s
        Shape (n,): of an accumulated energy the time since the value before; zero for a power.
    period_s
        Median time between values.
    timing_error_s
        How well ``times_s`` is known.
    regular
        Whether the sensor moves in a steady rhythm, which then gives ``times_s`` better than the polls do.
    """

    times_s: Array
    power_w: Array
    span_s: Array
    period_s: float
    timing_error_s: float
    regular: bool


def readings_of(channel: Channel) -> Readings:
    """New values of a channel.

    Raises
    ------
    MeasurementError
        The sensor hardly ever moved, or ran backward.
    """
    if len(channel.times_s) < 2 or (not channel.fresh and len(np.unique(channel.values)) < 2):
        raise MeasurementError(
            f"the sensor {channel.name!r} stood still", remedy="Check that the driver reports power for this card."
        )
    if channel.fresh:
        times, values = channel.times_s, channel.values
        period, error, regular = float(np.median(np.diff(times))), 0.0, True
    else:
        times, values, period, error, regular = _moves(channel)
    if channel.kind == "power":
        return Readings(times, values, np.zeros(len(times)), period, error, regular)
    growth, span = np.diff(values), np.diff(times)
    if np.any(growth < 0.0):
        raise MeasurementError(
            f"the energy counter {channel.name!r} ran backward", remedy="Profile without it, or restart the driver."
        )
    return Readings(times[1:], growth / span, span, period, error, regular)


def _moves(channel: Channel) -> tuple[Array, Array, float, float, bool]:
    """When a polled sensor moved, and to what.

    Each change happened between two polls. If one rhythm ``a + P·k`` explains all of them, it gives the time of every
    movement far better than a single pair of polls, also of those that happened to repeat the value; otherwise the
    middle between the polls stands. Where all polls find a new value, the sensor moves faster than they do: the value
    is younger than the shortest time between two, and stands for the moment of its poll; the lag takes its mean age.
    """
    times, values = channel.times_s, channel.values
    changed = np.flatnonzero(np.diff(values) != 0.0)
    if len(changed) < FEWEST_MOVES:
        raise MeasurementError(
            f"the sensor {channel.name!r} moved {len(changed)} times only", remedy="Take more runs or longer ones."
        )
    if len(changed) > FASTER * (len(times) - 1):
        gaps = np.diff(times[changed + 1])
        error = float(np.quantile(gaps, 1.0 - FASTER)) / np.sqrt(12.0)
        return times[changed + 1], values[changed + 1], float(np.median(gaps)), error, False
    low, high = times[changed], times[changed + 1]
    middle, half = (low + high) / 2, (high - low) / 2
    period, first = _rhythm(middle, half)
    index = np.round((middle - first) / period)
    residual = middle - first - period * index
    # Uniform between the polls: the deviation is the half width over the root of three.
    expected = half / np.sqrt(3.0)
    tight = half <= 3.0 * np.median(half)
    regular = bool(np.mean((residual[tight] / expected[tight]) ** 2) < 1.5**2)
    if not regular:
        error = float(np.median(expected))
        return middle, values[changed + 1], float(np.median(np.diff(middle))), error, False
    ticks = first + period * np.arange(index[0], index[-1] + 1)
    # The poll nearest to the middle between two movements surely saw the value of that time.
    wanted = ticks + period / 2
    after = np.clip(np.searchsorted(times, wanted), 1, len(times) - 1)
    nearest = np.where(wanted - times[after - 1] < times[after] - wanted, after - 1, after)
    seen = np.abs(times[nearest] - wanted) < 0.4 * period
    error = float(np.sqrt(np.mean(expected**2) / len(middle)))
    return ticks[seen], values[nearest[seen]], period, error, True


def _rhythm(middle: Array, half: Array) -> tuple[float, float]:
    """Period and first tick that fit the changes best [s]."""
    gaps = np.diff(middle)
    # A value that repeats itself hides a movement, so that gaps are multiples; the short ones are the period.
    period = float(np.median(gaps[gaps < 1.5 * np.quantile(gaps, 0.2)]))
    weight = 1.0 / half**2
    first = float(middle[0])
    count = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(gaps / period), 1.0))])
    for _ in range(3):
        centre, level = np.average(count, weights=weight), np.average(middle, weights=weight)
        offset = count - centre
        period = float(np.sum(weight * offset * (middle - level)) / np.sum(weight * offset**2))
        first = float(level - period * centre)
        count = np.round((middle - first) / period)
    return period, first
