"""How a sensor works: its rhythm, the time it averages over, and how late it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.power_profile.clocks import ClockFit
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.protocol import Channel, Series
from joulecast.calibrate.power_profile.readings import readings_of
from joulecast.calibrate.power_profile.response import Misfit, response_rows, windows
from joulecast.errors import MeasurementError

#: A step between neighbouring powers by this share of the highest reading costs as much as a reading that is off by a
#: watt: enough to keep a late sensor from being explained by a card that starts late, too little to bend real steps.
STIFF = 0.03
#: Windows are sought up to the sensor's period, and of faster sensors up to this, as they may overlap [s].
LONGEST_WINDOW_S = 0.05
#: The search begins on a grid of so many parts of the period ...
GRID = 24
#: ... takes so many of its best points (the valley is narrower than the grid) ...
STARTS = 4
#: ... and closes in on each so often, each time to a third, over so many points to each side.
ROUNDS = 4
REACH = 3


@dataclass(frozen=True, slots=True)
class SensorFit:
    """A sensor as it was found or as it says itself.

    Attributes
    ----------
    name, kind
        Of the channel.
    period_s
        Time between new values.
    window_s, lag_s
        See :class:`Channel`; of an accumulated energy the window is the period.
    window_error_s, lag_error_s
        Standard errors; zero where the sensor says them itself.
    timing_error_s
        How well the moments of new values are known.
    regular
        Whether it moves in a steady rhythm.
    misfit
        Root mean square of what a plain window leaves unexplained, relative to the highest reading; zero where nothing
        was fitted.
    """

    name: str
    kind: str
    period_s: float
    window_s: float
    lag_s: float
    window_error_s: float = 0.0
    lag_error_s: float = 0.0
    timing_error_s: float = 0.0
    regular: bool = True
    misfit: float = 0.0


def equations_of(
    channel: Channel, fit: SensorFit, clock: ClockFit, layout: Layout, series: Series, keep: Bool
) -> tuple[Array, Array]:
    """Readings of a channel as equations for the unknown powers, but for those that touch a run which does not count.

    Returns
    -------
    tuple
        Shape (n, unknowns) weights and (n,) powers that were read [W].
    """
    readings, pieces = readings_of(channel), layout.segments(series.runs, keep)
    weights, usable = response_rows(*windows(readings, fit.window_s, fit.lag_s, clock), *pieces, layout.size)
    return weights[usable], readings.power_w[usable]


def known_sensor(channel: Channel) -> SensorFit | None:
    """A sensor that says its window and lag; ``None`` for others."""
    if channel.lag_s is None or (channel.window_s is None and channel.kind == "power"):
        return None
    readings = readings_of(channel)
    window = readings.period_s if channel.kind == "energy" else float(channel.window_s or 0.0)
    return SensorFit(
        channel.name,
        channel.kind,
        readings.period_s,
        window,
        channel.lag_s,
        timing_error_s=readings.timing_error_s,
        regular=readings.regular,
    )


def find_sensor(
    channels: Sequence[Channel], clocks: Sequence[ClockFit], layout: Layout, series: Sequence[Series]
) -> SensorFit:
    """Window and lag under which bursts of one length explain the readings best.

    For each pair of a grid the unknown powers are fitted by least squares; the pair with the least sum of squares S
    wins and the grid closes in on it. The standard errors come from the curvature of S at its minimum:
    ``covariance = 2·s²·H⁻¹`` with the residual variance s² and the Hessian H.

    Parameters
    ----------
    channels, clocks, series
        Shape (batches,): readings of runs of about the sensor's period after random rests, and what ties the clocks.
    layout
        A few bins of the run and of the rest after it.

    Raises
    ------
    MeasurementError
        The readings do not depend on the runs.
    """
    channel, found = channels[0], [readings_of(channel) for channel in channels]
    pieces = [layout.segments(batch.runs, np.ones(len(batch.runs), dtype=bool)) for batch in series]
    fixed = channel.kind == "energy"

    misfit = cache(Misfit(found, clocks, pieces, layout))  # each finer grid shares points with the one before
    period = float(np.mean([readings.period_s for readings in found]))
    window, lag = _search(misfit, period if fixed else max(period, LONGEST_WINDOW_S), period if fixed else None)
    power = np.concatenate([readings.power_w for readings in found])
    best = misfit(window, lag)
    variance = best / max(len(power) - layout.size - (1 if fixed else 2), 1)  # lag, and window, are fitted as well
    top = float(np.max(power))
    if best > 0.5 * float(np.sum((power - power.mean()) ** 2)):
        raise MeasurementError(
            f"the sensor {channel.name!r} does not follow the runs", remedy="Another process may be using the card."
        )
    window_error, lag_error = _errors(misfit, window, lag, variance, period / 50, fixed)
    return SensorFit(
        channel.name,
        channel.kind,
        period,
        period if fixed else window,
        lag,
        window_error,
        lag_error,
        max(readings.timing_error_s for readings in found),
        all(readings.regular for readings in found),
        float(np.sqrt(variance)) / top,
    )


def refine_sensor(
    channels: Sequence[Channel],
    fit: SensorFit,
    clocks: Sequence[ClockFit],
    layout: Layout,
    series: Sequence[Series],
    keep: Bool,
) -> SensorFit:
    """Find window and lag again from the runs of the profile itself, close to what was found before.

    The finer layout could explain a late sensor by a card that starts late, which :data:`STIFF` keeps it from.

    Parameters
    ----------
    channels, clocks, series
        Shape (batches,).
    fit
        What was found before.
    layout
        Of the profile.
    keep
        Shape (runs,): golden runs.
    """
    if known_sensor(channels[0]):
        return fit
    readings = [readings_of(channel) for channel in channels]
    bounds = np.cumsum([len(batch.runs) for batch in series])[:-1]
    pieces = [layout.segments(batch.runs, mine) for batch, mine in zip(series, np.split(keep, bounds), strict=True)]
    fixed = fit.kind == "energy"
    top = max(float(np.max(r.power_w)) for r in readings)
    misfit = cache(Misfit(readings, clocks, pieces, layout, STIFF * top))
    window, lag = fit.window_s, fit.lag_s
    step = fit.period_s / GRID / 3
    for _ in range(ROUNDS):
        step /= 2
        near = [step * i for i in (-2, -1, 0, 1, 2)]
        windows = [window] if fixed else sorted({max(window + d, fit.period_s / 200) for d in near})
        _, window, lag = min((misfit(w, g), w, g) for w in windows for g in sorted({max(lag + d, 0.0) for d in near}))
    return replace(fit, window_s=window, lag_s=lag)


def _search(misfit: Callable[[float, float], float], longest: float, fixed: float | None) -> tuple[float, float]:
    """Window and lag of the least misfit: the best of a grid, then of ever closer ones around its best [s]."""
    coarse = longest / GRID
    windows = [fixed] if fixed else [coarse * i for i in range(1, GRID + 1)]
    lags = [coarse * i for i in range(GRID + 1)]
    starts = sorted((misfit(w, g), w, g) for w in windows for g in lags)[:STARTS]
    found = []
    for _, window, lag in starts:
        step = coarse
        for _ in range(ROUNDS):
            step /= 3
            near = [step * i for i in range(-REACH, REACH + 1)]
            windows = [fixed] if fixed else sorted({min(max(window + d, longest / 200), longest) for d in near})
            lags = sorted({max(lag + d, 0.0) for d in near})
            least, window, lag = min((misfit(w, g), w, g) for w in windows for g in lags)
        found.append((least, window, lag))
    return min(found)[1:]


def _errors(
    misfit: Callable[[float, float], float], window: float, lag: float, variance: float, step: float, fixed: bool
) -> tuple[float, float]:
    """Standard errors of window and lag from the curvature of the sum of squares, by central differences [s]."""
    lag_step = min(step, lag) if lag > 0.1 * step else step
    window_step = min(step, 0.5 * window)
    middle = misfit(window, lag)

    def bend(dw: float, dg: float) -> float:
        return misfit(window + dw, lag + dg) - middle

    lag_bend = (bend(0.0, lag_step) + bend(0.0, -lag_step)) / lag_step**2
    if fixed:
        return 0.0, float(np.sqrt(2.0 * variance / lag_bend)) if lag_bend > 0.0 else float("inf")
    window_bend = (bend(window_step, 0.0) + bend(-window_step, 0.0)) / window_step**2
    both = bend(window_step, lag_step) + bend(-window_step, -lag_step)
    cross = bend(window_step, -lag_step) + bend(-window_step, lag_step)
    mixed = (both - cross) / (4.0 * window_step * lag_step)
    determinant = window_bend * lag_bend - mixed**2
    if not (window_bend > 0.0 and determinant > 0.0):
        return float("inf"), float("inf")
    scale = 2.0 * variance / determinant
    return float(np.sqrt(scale * lag_bend)), float(np.sqrt(scale * window_bend))
