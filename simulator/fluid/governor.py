"""A board's power-limit loops over time.

A fast loop answers the power of the last milliseconds and lets bursts run a little above the limit; a slow loop holds
the average of about a second at the limit. Both were seen in recorded pulses and ramps of an H200: after a pause the
clock falls within 40-60 ms to a plateau 3 % above the limit, and is corrected about 0.9 s later. How fast the first one
is follows from loads that take turns with rests (clocks counted on the SMs of an H200 and an H100): where both last
20 ms and more, the clock falls in each load, although the average is far below the limit, and rises in each rest.
Boards move their clock in steps of about 20 ms; the loop here does so smoothly.
"""

from __future__ import annotations

from collections import deque

from joulecast.model.hardware.gpu_model import GpuModel

#: Response of power to the clock near a limit, as a share of the limit over a share of the highest clock.
POWER_PER_CLOCK = 1.5
#: Settling time of the clock's own integrator over that of the power average.
CLOCK_TO_AVERAGE = 2.0
#: How strongly the slow loop answers an excess.
SLOW_GAIN = 1.5


class PowerGovernor:
    """Clock of one board under its power limit, as an index into a grid of clocks up to ``top_index``."""

    def __init__(self, gpu: GpuModel, limit_w: float, top_index: int, start_index: int, tick_s: float) -> None:
        self._top = float(top_index)
        self._burst_w = limit_w * gpu["governor.burst_share"]
        self._settled_w = limit_w * gpu["governor.settled_share"]
        fast_s = gpu["governor.fast_s"]
        self._blend = tick_s / (fast_s + tick_s)
        steps_per_w = gpu.max_clock_mhz / gpu.device["clock_step_mhz"] / (POWER_PER_CLOCK * limit_w)
        self._move_per_w = min(tick_s / (CLOCK_TO_AVERAGE * fast_s), 1.0) * steps_per_w
        self._length = max(1, round(gpu["governor.slow_s"] / tick_s))
        self._clock = float(start_index)
        self._fast = self._settled_w
        self._window = deque([self._settled_w] * self._length, maxlen=self._length)
        self._sum = self._settled_w * self._length

    def step(self, power_w: float) -> int:
        """Clock index for the next tick, from the last tick's mean power [W]."""
        self._fast = fast = self._fast + self._blend * (power_w - self._fast)
        self._sum += power_w - self._window[0]
        self._window.append(power_w)
        excess = self._sum / self._length - self._settled_w
        allowed = self._burst_w if excess < 0.0 else self._settled_w - SLOW_GAIN * excess
        clock = self._clock + self._move_per_w * (allowed - fast)
        self._clock = clock = 0.0 if clock < 0.0 else self._top if clock > self._top else clock
        return int(clock)
