"""The time that a profile may take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from joulecast.calibrate.power_profile.protocol import Bench, Series

#: Time that a series takes besides its rests and runs: rest before the first and after the last, and starting the log.
OVERHEAD_S = 1.0
#: Kept for evaluating and drawing at the end: a share of the budget, at most so long.
KEPT_SHARE, KEPT_S = 0.15, 20.0


class TimedBench:
    """A bench that knows how long its series take, and how many runs still fit.

    Time counts on the bench's own clock, which a simulated card runs ahead, and on the machine's; the one that has gone
    farther counts.

    Parameters
    ----------
    bench
        Launches and logs.
    budget_s
        From now on; ``None`` has no end.

    Attributes
    ----------
    kernels, power_limit_w
        Of the bench.
    """

    def __init__(self, bench: Bench, budget_s: float | None) -> None:
        self._bench, self.kernels, self.power_limit_w = bench, bench.kernels, bench.power_limit_w
        self._end_s = math.inf if budget_s is None else budget_s
        self._kept_s = min(KEPT_SHARE * self._end_s, KEPT_S)
        self._began_s = (bench.now_s(), time.monotonic())
        self._pace = 1.0

    @property
    def spent_s(self) -> float:
        """Time since the beginning [s]."""
        return max(self._bench.now_s() - self._began_s[0], time.monotonic() - self._began_s[1])

    @property
    def left_s(self) -> float:
        """Time left to measure: without what evaluating will take; infinite without a budget [s]."""
        return self._end_s - self._kept_s - self.spent_s

    @property
    def left(self) -> str:
        """What is left of the budget, in words; empty without one."""
        whole = self._end_s - self.spent_s
        return f" ({max(whole, 0.0):.0f} s left)" if math.isfinite(whole) else ""

    def fitting(self, run_s: float, within_s: float) -> int:
        """Runs of ``run_s`` with their rest that fit into a time, at the pace of the series before."""
        if math.isinf(within_s):
            return 10**9
        return max(int((within_s - OVERHEAD_S) / (self._pace * run_s)), 0)

    def series(self, passes: int, delays_s: Sequence[float]) -> Series:
        """Launch one run after each delay; see :class:`Bench`."""
        begin = self.spent_s
        found = self._bench.series(passes, delays_s)
        planned = sum(delays_s) + sum(float(run.times_s[-1] - run.times_s[0]) for run in found.runs)
        self._pace = float(np.clip((self.spent_s - begin - OVERHEAD_S) / planned, 1.0, 5.0))
        return found
