"""Power at the end of runs of one length, for the search for steady power."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.bins import later_part
from joulecast.calibrate.power_profile.budget import TimedBench
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.steady import EQUAL_POWER, EndPower

#: Shortest run to begin with: power does not settle within less on any card.
SHORTEST_S = 1e-3
#: Readings of a batch of runs, and runs of a batch.
READINGS, FEWEST_RUNS, MOST_RUNS = 40, 16, 400
#: The longest time spent on one length, and where its power is still too badly known to be compared.
LONGEST_S, AT_MOST_S = 12.0, 30.0
#: The first batch of a length takes about so long, so that long runs are not taken in vain.
FIRST_S = 5.0
#: Fewer runs than these show no fullest bin of execution times: runs that go otherwise may be most of them by chance.
LEAST_RUNS = 6
#: One length takes at most this part of the time that is left for the search.
SHARE_OF_REST = 0.25


@dataclass(frozen=True, slots=True)
class EndPowerMeter:
    """Measures the power at the end of runs.

    Attributes
    ----------
    bench, dataset
        What launches and logs, and how to read that: without a series yet.
    kernel_s
        Shape (kernels,): duration of each kernel of a pass.
    wanted_s
        Resolution that the sensor may reach.
    rest_s
        Shortest rest.
    delays
        Gives random rests for so many runs.
    say
        Is told the outcome.
    until_s
        When the search must end, on the bench's clock of what is spent.
    """

    bench: TimedBench
    dataset: Dataset
    kernel_s: Array
    wanted_s: float
    rest_s: float
    delays: Callable[[int], list[float]]
    say: Callable[[str], None]
    until_s: float = math.inf

    @property
    def pass_s(self) -> float:
        """Duration of a pass [s]."""
        return float(np.sum(self.kernel_s))

    def first_length(self, window_s: float) -> int:
        """Passes to begin with: they fill the sensor's window."""
        return max(4, self.dataset.first + 2, math.ceil(max(window_s, SHORTEST_S) / self.pass_s))

    def measure(self, passes: int) -> EndPower | None:
        """Mean power over the second half of runs of so many passes; ``None`` where no time is left for any.

        Runs are taken until it is known to a quarter of what counts as equal, or to half of it when they take long, or
        their time is up.
        """
        first = passes - passes // 2
        layout, weights = later_part(first, passes, self.kernel_s, self.wanted_s, self.rest_s)
        run_s = passes * self.pass_s + self.rest_s + self.dataset.period_s / 2
        most = self._most_runs(run_s)
        if most < LEAST_RUNS:
            return None
        least = min(FEWEST_RUNS, max(LEAST_RUNS, math.ceil(FIRST_S / run_s)))
        whole = self.dataset.whole
        reading_s = min(self.dataset.sensors[name].period_s for name in whole)
        runs = math.ceil(np.clip(READINGS * reading_s / (passes * self.pass_s), least, MOST_RUNS))
        dataset = replace(self.dataset, first=min(self.dataset.first, passes - 1))
        while True:
            # As many again as there are: the error falls evenly, and the work of evaluating stays small.
            taken = len(dataset.runs)
            series = self.bench.series(passes, self.delays(min(max(runs, taken), most - taken)))
            dataset = dataset.with_series(series)
            power, error = dataset.estimate(layout, dataset.golden(), whole).mean(weights)
            spent = len(dataset.runs) * run_s
            wanted = EQUAL_POWER / (4 if spent <= LONGEST_S else 2) * power
            if error < wanted or spent > AT_MOST_S or most - len(dataset.runs) < LEAST_RUNS:
                break
        self.say(f"runs of {passes} executions end at {power:.1f} ± {error:.1f} W")
        return EndPower(passes, power, error, self._later_pass_s(dataset, first, passes))

    def _most_runs(self, run_s: float) -> int:
        """Runs of this length, with their rest, that the time left allows."""
        left = min(self.until_s - self.bench.spent_s, self.bench.left_s)
        fair = self.bench.fitting(run_s, SHARE_OF_REST * left)
        return fair if fair > LEAST_RUNS else min(self.bench.fitting(run_s, left), LEAST_RUNS)

    def _later_pass_s(self, dataset: Dataset, first: int, passes: int) -> float:
        """Duration of a pass from the first on, mean over the golden runs [s]."""
        ends = dataset.nominal(np.array([first, passes]) * len(self.kernel_s), dataset.golden())
        return float(ends[1] - ends[0]) / (passes - first)
