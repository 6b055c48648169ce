"""Learns each sensor's period, averaging window and lag from bursts of work, before its readings are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from joulecast.calibrate.power_profile.budget import TimedBench
from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.protocol import WHOLE, Series
from joulecast.calibrate.power_profile.sensor import SensorFit, find_sensor, known_sensor
from joulecast.errors import MeasurementError

#: Runs for learning how a sensor works, and their length in periods of the sensor.
SENSOR_RUNS, SENSOR_SHARE = 60, 0.6
#: Fewer runs than these tell no window, and what part of the time that is left one try may take.
FEWEST_RUNS, SHARE = 20, 0.4
#: A window that is known to no better than this part of it is unsure; so many series are taken to learn it.
UNSURE, MOST_SERIES = 0.05, 3
#: Time in which power may fall after a run while the sensor is being learnt, in periods.
FALL_SHARE = 0.03
#: Longest period that the first guess at a sensor covers, and the longest that is followed at all.
USUAL_PERIOD_S, LONGEST_PERIOD_S = 0.1, 2.0
#: A sensor that a plain window explains no better is left out: a component's, or where another reads the card.
WORST_MISFIT = 0.1


class SensorLearner:
    """Finds out how the sensors of a bench work.

    Parameters
    ----------
    bench
        Launches and logs.
    pass_s
        Duration of a pass.
    random
        Gives the rests.
    say
        Is told what was found.

    Attributes
    ----------
    left_out
        Sensors that cannot be used, and why.
    """

    def __init__(
        self, bench: TimedBench, pass_s: float, random: np.random.Generator, say: Callable[[str], None]
    ) -> None:
        self.bench, self.pass_s, self.random, self.say = bench, pass_s, random, say
        self.kernels = len(bench.kernels)
        self.left_out: tuple[str, ...] = ()

    def learn(self, timing: Series) -> dict[str, SensorFit]:
        """Every usable sensor by its channel's name: as it says itself, or as bursts of work show.

        Parameters
        ----------
        timing
            A short series, of which loggers that say how they work need no more.

        Raises
        ------
        MeasurementError
            No sensor of the whole card can be used.
        """
        if timing.channels and all(channel.fresh for channel in timing.channels):
            known = {channel.name: known_sensor(channel) for channel in timing.channels}
            if all(known.values()):
                return {name: fit for name, fit in known.items() if fit is not None}
        self.say("learning how the sensor works")
        period = USUAL_PERIOD_S
        while True:
            found = self._up_to(period)
            longest = max(fit.period_s for fit in found.values())
            again_s = FEWEST_RUNS * (SENSOR_SHARE + 0.8) * longest
            if longest <= 1.5 * period or period >= LONGEST_PERIOD_S or again_s > SHARE * self.bench.left_s:
                return self._sure(found)
            period = min(longest, LONGEST_PERIOD_S)

    def _up_to(self, period: float) -> dict[str, SensorFit]:
        """What bursts of work show of sensors with periods up to this one; more bursts while a window is not sure."""
        passes = max(round(SENSOR_SHARE * period / self.pass_s), 2)
        run_s = passes * self.pass_s + 0.8 * period
        runs = min(SENSOR_RUNS, max(self.bench.fitting(run_s, SHARE * self.bench.left_s), FEWEST_RUNS))
        series: list[Series] = []
        while True:
            delays = [float(rest) for rest in period * (0.3 + self.random.random(runs))]
            series.append(self.bench.series(passes, delays))
            found = self._learn(series, period)
            unsure = self._unsure(found)
            if not unsure or len(series) == MOST_SERIES or runs * run_s >= SHARE * self.bench.left_s:
                return found
            self.say(f"the window of {' and '.join(unsure)} is not sure yet")

    @staticmethod
    def _unsure(found: dict[str, SensorFit]) -> list[str]:
        """Sensors of the whole card whose window is badly known."""
        return [
            name
            for name, fit in found.items()
            if name in WHOLE and fit.window_error_s > UNSURE * max(fit.window_s, fit.period_s / 10)
        ]

    def _sure(self, found: dict[str, SensorFit]) -> dict[str, SensorFit]:
        """All but the doubtful sensors, where others read the whole card as well."""
        doubtful = {
            name: f"the window of the sensor {name!r}, {_surely(found[name].window_s, found[name].window_error_s)}, "
            "is not sure"
            for name in self._unsure(found)
        }
        for name, fit in found.items():
            if name in WHOLE and name not in doubtful and fit.misfit > WORST_MISFIT:
                doubtful[name] = f"the sensor {name!r} is no plain mean over a window"
        if all(name in doubtful for name in found if name in WHOLE):
            return found
        self.left_out += tuple(f"left out: {words}" for words in doubtful.values())
        return {name: fit for name, fit in found.items() if name not in doubtful}

    def _learn(self, series: Sequence[Series], period: float) -> dict[str, SensorFit]:
        found: dict[str, SensorFit] = {}
        failed: dict[str, MeasurementError] = {}
        for channel in series[0].channels:
            try:
                found[channel.name] = self._one(channel.name, series, period)
            except MeasurementError as error:
                failed[channel.name] = error
        if not any(name in WHOLE for name in found):
            raise next(
                iter(failed.values()),
                MeasurementError("no sensor reads the whole card", remedy="See joulecast doctor."),
            )
        self.left_out = tuple(f"left out: {error.message}" for error in failed.values())
        for fit in found.values():
            self.say(
                f"sensor {fit.name}: a new value every {fit.period_s * 1e3:.2f} ms over"
                f" {_surely(fit.window_s, fit.window_error_s)}, {_surely(fit.lag_s, fit.lag_error_s)} late"
            )
        return found

    def _one(self, name: str, series: Sequence[Series], period: float) -> SensorFit:
        """One sensor.

        Raises
        ------
        MeasurementError
            It stands still, runs backward, or does not follow the runs.
        """
        heard = [batch for batch in series if any(channel.name == name for channel in batch.channels)]
        channels = [channel for batch in heard for channel in batch.channels if channel.name == name]
        clocks = [fit_clock(batch.clock_reads) for batch in heard]
        # Few and stiff bins: what a flexible power could explain as well, the window cannot be found from.
        edges = np.array([0.0, 0.2, 0.5, 1.0]) * series[0].passes * self.kernels
        coarse = Layout(edges, np.array([]), np.array([0.0, FALL_SHARE * period]), self.kernels)
        fit = known_sensor(channels[0]) or find_sensor(channels, clocks, coarse, heard)
        if name not in WHOLE and fit.misfit > WORST_MISFIT:
            raise MeasurementError(f"the sensor {name!r} is no plain mean over a window")
        return fit


def _surely(value_s: float, error_s: float) -> str:
    """A time and how sure it is, for people.

    >>> _surely(0.025, 0.0003), _surely(0.00025, float("inf"))
    ('25.00 ± 0.30 ms', 'an unknown time')
    """
    return f"{value_s * 1e3:.2f} ± {error_s * 1e3:.2f} ms" if math.isfinite(error_s) else "an unknown time"
