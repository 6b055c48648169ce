"""Power at the end of runs of one length, for the search for steady power."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.power_profile.bins import halves_layout, later_weights
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.protocol import Array, Bench
from joulecast.calibrate.power_profile.sensor import SensorFit
from joulecast.calibrate.power_profile.steady import EQUAL_POWER, EndPower

#: Shortest run to begin with: power does not settle within less on any card.
SHORTEST_S = 1e-3
#: Readings of a batch of runs, runs of a batch, and the longest time spent on one length.
READINGS, FEWEST_RUNS, MOST_RUNS, LONGEST_S = 40, 16, 400, 12.0


@dataclass(frozen=True, slots=True)
class EndPowerMeter:
    """Measures the power at the end of runs.

    Attributes
    ----------
    bench, sensors, whole
        What launches and logs, how the sensors work, and the channels of the whole card.
    kernel_s, sse
        Shape (kernels,): duration of each kernel of a pass; the first pass of steady time.
    margin
        Relative width of a bin of execution times.
    wanted_s
        Resolution that the sensor may reach.
    rest_s, period_s
        Shortest rest, and the sensor's period.
    delays
        Gives random rests for so many runs.
    say
        Is told the outcome.
    """

    bench: Bench
    sensors: dict[str, SensorFit]
    whole: Sequence[str]
    kernel_s: Array
    sse: int
    margin: float
    wanted_s: float
    rest_s: float
    period_s: float
    delays: Callable[[int], list[float]]
    say: Callable[[str], None]

    @property
    def pass_s(self) -> float:
        """Duration of a pass [s]."""
        return float(np.sum(self.kernel_s))

    def first_length(self, window_s: float) -> int:
        """Passes to begin with: they fill the sensor's window."""
        return max(4, self.sse + 2, math.ceil(max(window_s, SHORTEST_S) / self.pass_s))

    def measure(self, passes: int) -> EndPower:
        """Mean power over the second half of runs of so many passes.

        Runs are taken until it is known to a quarter of what counts as equal, or their time is up.
        """
        first = passes - passes // 2
        layout = halves_layout(first, passes, self.kernel_s, self.wanted_s, self.rest_s)
        weights = later_weights(layout, first)
        runs = math.ceil(np.clip(READINGS * self.period_s / (passes * self.pass_s), FEWEST_RUNS, MOST_RUNS))
        run_s = passes * self.pass_s + self.rest_s + self.period_s / 2
        dataset = Dataset(len(self.kernel_s), min(self.sse, passes - 1), self.margin, (), (), self.sensors)
        while True:
            # As many again as there are: the error falls evenly, and the work of evaluating stays small.
            dataset = dataset.with_series(self.bench.series(passes, self.delays(max(runs, len(dataset.runs)))))
            power, error = dataset.estimate(layout, dataset.golden(), self.whole).mean(weights)
            if error < EQUAL_POWER / 4 * power or len(dataset.runs) * run_s > LONGEST_S:
                break
        self.say(f"runs of {passes} executions end at {power:.1f} ± {error:.1f} W")
        return EndPower(passes, power, error)
