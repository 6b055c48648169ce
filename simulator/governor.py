"""A board's power-limit loops over time.

A fast loop answers the power of the last tens of milliseconds and lets bursts run a little above the limit; a slow loop
holds the average of about a second at the limit. Both were seen in recorded pulses and ramps of an H200: after a pause
the clock stays at the top for 40-60 ms, falls to a plateau 3 % above the limit, and is corrected about 0.9 s later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from joulecast.model.gpu_model import GpuModel

#: Response of power to the clock near a limit, as a share of the limit over a share of the highest clock.
POWER_PER_CLOCK = 1.5
#: Settling time of the clock's own integrator over that of the power average.
CLOCK_TO_AVERAGE = 1.2
#: How strongly the slow loop answers an excess.
SLOW_GAIN = 1.5


class PowerGovernor:
    """Clocks of several boards under one power limit each; indices into a grid of clocks, up to each board's top."""

    def __init__(
        self,
        gpu: GpuModel,
        limit_w: float | Sequence[float],
        top_index: Sequence[int],
        start_index: Sequence[int],
        tick_s: float,
    ) -> None:
        ranks = range(len(start_index))
        limits = [limit_w] * len(ranks) if isinstance(limit_w, int | float) else limit_w
        self._top = [float(top) for top in top_index]
        self._burst_w = [limit * gpu["governor.burst_share"] for limit in limits]
        self._settled_w = [limit * gpu["governor.settled_share"] for limit in limits]
        self._fast_s = gpu["governor.fast_s"]
        self._length = max(1, round(gpu["governor.slow_s"] / tick_s))
        steps = gpu.max_clock_mhz / gpu.device["clock_step_mhz"]
        self._steps_per_w = [steps / (POWER_PER_CLOCK * limit) for limit in limits]
        self._clock = [float(i) for i in start_index]
        self._fast = list(self._settled_w)
        self._window = [deque([settled] * self._length, maxlen=self._length) for settled in self._settled_w]
        self._sum = [settled * self._length for settled in self._settled_w]

    def step(self, power_w: Sequence[float], dt_s: float) -> list[int]:
        """Clock index of every rank for the next tick, from the last tick's mean power [W]."""
        blend = dt_s / (self._fast_s + dt_s)
        move = dt_s / (CLOCK_TO_AVERAGE * self._fast_s)
        chosen = []
        for rank, power in enumerate(power_w):
            fast = self._fast[rank] = self._fast[rank] + blend * (power - self._fast[rank])
            window = self._window[rank]
            self._sum[rank] += power - window[0]
            window.append(power)
            excess = self._sum[rank] / self._length - self._settled_w[rank]
            allowed = self._burst_w[rank] if excess < 0.0 else self._settled_w[rank] - SLOW_GAIN * excess
            clock = self._clock[rank] + min(move, 1.0) * self._steps_per_w[rank] * (allowed - fast)
            clock = self._clock[rank] = min(max(clock, 0.0), self._top[rank])
            chosen.append(int(clock))
        return chosen
