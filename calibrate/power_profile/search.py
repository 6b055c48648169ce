"""Power at the end of runs of one length, for the search for steady power."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.power_profile.bins import looks_inside, pass_edges
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.layout import Layout, even_edges, rest_edges
from joulecast.calibrate.power_profile.protocol import Bench
from joulecast.calibrate.power_profile.sensor import SensorFit
from joulecast.calibrate.power_profile.steady import EQUAL_POWER, EndPower

#: Shortest run to begin with: power does not settle within less on any card.
SHORTEST_S = 1e-3
#: Readings of a batch of runs, runs of a batch, and the longest time spent on one length.
READINGS, FEWEST_RUNS, MOST_RUNS, LONGEST_S = 40, 16, 400, 12.0
#: An execution is cut into so many parts, and the first half of a run as well.
PARTS = 16
#: Margin of execution times; wide, since the search only compares.
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class EndPowerMeter:
    """Measures the power at the end of runs.

    Attributes
    ----------
    bench, sensors, whole
        What launches and logs, how the sensors work, and the channels of the whole card.
    kernels, pass_s, sse
        Kernels of a pass, its duration, and the first of steady time.
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
    kernels: int
    pass_s: float
    sse: int
    wanted_s: float
    rest_s: float
    period_s: float
    delays: Callable[[int], list[float]]
    say: Callable[[str], None]

    def first_length(self, window_s: float) -> int:
        """Passes to begin with: they fill the sensor's window."""
        return max(4, self.sse + 2, math.ceil(max(window_s, SHORTEST_S) / self.pass_s))

    def measure(self, passes: int) -> EndPower:
        """Mean power over the second half of runs of so many passes.

        Runs are taken until it is known to a quarter of what counts as equal, or their time is up.
        """
        layout = self._layout(passes)
        runs = math.ceil(np.clip(READINGS * self.period_s / (passes * self.pass_s), FEWEST_RUNS, MOST_RUNS))
        run_s = passes * self.pass_s + self.rest_s + self.period_s / 2
        dataset = Dataset(self.kernels, min(self.sse, passes - 1), MARGIN, (), (), self.sensors)
        weights = np.zeros(layout.size)
        if len(layout.cycle_edges):
            weights[layout.cycle_bins] = np.diff(layout.cycle_edges)
        else:
            weights[layout.run_bins] = layout.run_edges[:-1] >= (passes - passes // 2) * self.kernels - 1e-9
        while True:
            dataset = dataset.with_series(self.bench.series(passes, self.delays(runs)))
            power, error = dataset.estimate(layout, dataset.golden(), self.whole).mean(weights)
            if error < EQUAL_POWER / 4 * power or len(dataset.runs) * run_s > LONGEST_S:
                break
        self.say(f"runs of {passes} executions end at {power:.1f} ± {error:.1f} W")
        return EndPower(passes, power, error)

    def _layout(self, passes: int) -> Layout:
        """Bins of runs of one length.

        Where the sensor looks into executions, those of the second half are laid over each other, so that it does not
        matter which part of them was read. Otherwise both halves are cut so finely that the window's edges see the
        power that they should.
        """
        half = float(passes - passes // 2)
        rest = rest_edges(self.rest_s)
        if looks_inside(self.pass_s, self.wanted_s):
            return Layout(
                np.array([0.0, half]) * self.kernels,
                pass_edges(np.full(self.kernels, self.pass_s / self.kernels), self.pass_s / PARTS),
                rest,
                self.kernels,
            )
        width = max(self.wanted_s / 2, passes * self.pass_s / (2 * PARTS)) / self.pass_s
        edges = np.append(even_edges(0.0, half, width)[:-1], even_edges(half, passes, width))
        return Layout(edges * self.kernels, np.array([]), rest, self.kernels)
