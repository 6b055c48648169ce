"""Learning how a card's sensors work, before their readings are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joulecast.calibrate.power_profile.budget import TimedBench
from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.protocol import Channel, Series
from joulecast.calibrate.power_profile.sensor import SensorFit, find_sensor, known_sensor
from joulecast.errors import MeasurementError

#: Runs for learning how a sensor works, and their length in periods of the sensor.
SENSOR_RUNS, SENSOR_SHARE = 60, 0.6
#: Fewer runs than these tell no window, and what part of the time that is left one try may take.
FEWEST_RUNS, SHARE = 20, 0.4
#: Time in which power may fall after a run while the sensor is being learnt, in periods.
FALL_SHARE = 0.03
#: Longest period that the first guess at a sensor covers, and the longest that is followed at all.
USUAL_PERIOD_S, LONGEST_PERIOD_S = 0.1, 2.0
#: A component's sensor that a plain window explains no better than this is left out.
WORST_MISFIT = 0.1


class SensorSchool:
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
            passes = max(round(SENSOR_SHARE * period / self.pass_s), 2)
            run_s = passes * self.pass_s + 0.8 * period
            runs = min(SENSOR_RUNS, max(self.bench.fitting(run_s, SHARE * self.bench.left_s), FEWEST_RUNS))
            delays = [float(rest) for rest in period * (0.3 + self.random.random(runs))]
            found = self._learn(self.bench.series(passes, delays), period)
            longest = max(fit.period_s for fit in found.values())
            again_s = FEWEST_RUNS * (SENSOR_SHARE + 0.8) * longest
            if longest <= 1.5 * period or period >= LONGEST_PERIOD_S or again_s > SHARE * self.bench.left_s:
                return found
            period = min(longest, LONGEST_PERIOD_S)

    def _learn(self, series: Series, period: float) -> dict[str, SensorFit]:
        found: dict[str, SensorFit] = {}
        failed: dict[str, MeasurementError] = {}
        for channel in series.channels:
            try:
                found[channel.name] = self._one(channel, series, period)
            except MeasurementError as error:
                failed[channel.name] = error
        if not any(channel.whole_card for channel in series.channels if channel.name in found):
            raise next(iter(failed.values()), MeasurementError("no sensor reads the whole card"))
        self.left_out = tuple(f"left out: {error.message}" for error in failed.values())
        for fit in found.values():
            self.say(
                f"sensor {fit.name}: a new value every {fit.period_s * 1e3:.2f} ms over {fit.window_s * 1e3:.2f} ms,"
                f" {fit.lag_s * 1e3:.2f} ms late"
            )
        return found

    def _one(self, channel: Channel, series: Series, period: float) -> SensorFit:
        """One sensor.

        Raises
        ------
        MeasurementError
            It stands still, runs backward, or does not follow the runs.
        """
        clock = fit_clock(series.clock_reads)
        # Few and stiff bins: what a flexible power could explain as well, the window cannot be found from.
        edges = np.array([0.0, 0.2, 0.5, 1.0]) * series.passes * self.kernels
        coarse = Layout(edges, np.array([]), np.array([0.0, FALL_SHARE * period]), self.kernels)
        fit = known_sensor(channel) or find_sensor(channel, clock, coarse, series)
        if not channel.whole_card and fit.misfit > WORST_MISFIT:
            raise MeasurementError(f"the sensor {channel.name!r} is no plain mean over a window")
        return fit
