"""Time and energy of a stage's instructions against the requested clock, from a vector of standardised parameters.

Of stage s and direction d at the clock f that the board really runs, with t and D taken at a reference clock f0:

    t(f) = t0·(φ + (1 − φ)·f0/f)                                  a share φ that no clock changes, and cycles
    P(f) = P_rest + D·(V(f)/V(f0))²·t(f0)/t(f)                    energy of switching ∝ V², whatever the time
    V(f)/V_max = floor ratio, then rising with the slope of :mod:`joulecast.model.power.voltage`, rounded at the knee
    1/f = ((1/f_requested)^p + (1/f_limit)^p)^(1/p)               where P(f_limit) is the board's power limit

Every parameter is a number of prior standard deviations from its prior: of the card's voltage curve and power at rest
(from its description), of means over all stages, and of each stage around the means. Stages whose readings say little
so follow the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.studies.pipeline_plans import PipelineJob

#: Parameters of each stage and direction: log time, fixed share, log dynamic power, log clock at the limit.
PER_INSTRUCTION = 4
#: Parameters of the whole job, in the order in which :func:`curves` reads them.
SHARED = ("floor", "slope", "rest", "wait", "fixed forward", "fixed backward", "dynamic", "dynamic backward")

#: Memory and links under load draw so much beside the card's static power, whatever the SM clock [W]: about 1 TB/s at
#: 40–80 pJ/B, with its prior standard deviation.
_MEMORY_POWER_W, _MEMORY_POWER_SD_W = 60.0, 25.0
#: Prior standard deviation of the floor's ratio to the highest voltage [1], and of the slope relative to itself [1].
_FLOOR_SD, _SLOPE_SD = 0.1, 0.3
#: Prior spread of waiting power [1].
_WAIT_SD = 0.1
#: Share of time that no clock changes: mean over transformer stages, its spread, and that of stages [1].
_FIXED, _FIXED_SD, _FIXED_STAGE_SD = 0.35, 0.2, 0.1
#: Dynamic power relative to half the power limit: spread, backward against forward, and of stages [1].
_DYNAMIC_SD, _DYNAMIC_BACKWARD_SD, _DYNAMIC_STAGE_SD = 0.5, 0.1, 0.15
#: Spread of an instruction's time around the mean reading [1], and of its limit's clock around the one that its
#: power implies [1].
_TIME_SD, _LIMIT_SD = 0.1, 0.05
#: How sharply the limit binds, and over how many MHz the voltage's knee bends.
_LIMIT_EXPONENT = 60.0
_KNEE_MHZ = 25.0


@dataclass(frozen=True)
class Curves:
    """Instructions against requested clock.

    Attributes
    ----------
    time_s, energy_j
        Of one instruction on all GPUs of its stage, shape ``(s, 2, c)`` [s], [J].
    wait_power_w
        Of all GPUs of a stage [W].
    limit_clock_mhz
        Clock at which an instruction reaches the power limit, shape ``(s, 2)`` [MHz].
    fixed_share
        Share φ of time that no clock changes, at the reference clock, shape ``(s, 2)`` [1].
    knee_mhz
        Clock from which the voltage rises [MHz].
    """

    time_s: Array
    energy_j: Array
    wait_power_w: float
    limit_clock_mhz: Array
    fixed_share: Array
    knee_mhz: float


@dataclass(frozen=True)
class CurveForm:
    """A job's curves as a function of standardised parameters.

    Attributes
    ----------
    job
        The job.
    log_time
        Logarithm of the mean reading of each instruction's time, shape ``(s, 2)``.
    reference_mhz
        Geometric mean of the clocks of the readings [MHz].
    """

    job: PipelineJob
    log_time: Array
    reference_mhz: float

    @property
    def size(self) -> int:
        """Number of parameters."""
        return PER_INSTRUCTION * self.log_time.size + len(SHARED)

    def curves(self, z: Array) -> Curves:
        """Curves at the parameters ``z``, shape ``(size,)``."""
        gpu, gpus = self.job.gpu, self.job.gpus_per_stage
        own = z[: -len(SHARED)].reshape(PER_INSTRUCTION, *self.log_time.shape)
        floor, slope, rest, wait, *means = z[-len(SHARED) :]
        limit_w = gpu.device["power_limit_w"]
        time0 = np.exp(self.log_time + _TIME_SD * own[0])
        fixed = _FIXED + _FIXED_SD * np.array(means[:2]) + _FIXED_STAGE_SD * own[1]
        log_dynamic = _DYNAMIC_SD * means[2] + _DYNAMIC_BACKWARD_SD * means[3] * np.array([0.0, 1.0])
        dynamic_w = 0.5 * limit_w * np.exp(log_dynamic + _DYNAMIC_STAGE_SD * own[2])
        rest_w = gpu["power.static_w"] + _MEMORY_POWER_W + _MEMORY_POWER_SD_W * rest
        voltage = _Voltage(
            gpu["voltage.floor_ratio"] + _FLOOR_SD * floor,
            gpu["voltage.slope"] * np.exp(_SLOPE_SD * slope),
            gpu.max_clock_mhz,
        )

        def relative_time(clock: Array) -> Array:
            return np.asarray(fixed[..., None] + (1.0 - fixed[..., None]) * self.reference_mhz / clock)

        def power_w(clock: Array) -> Array:
            squared = (voltage.ratio(clock) / voltage.ratio(np.array(self.reference_mhz))) ** 2
            return np.asarray(rest_w + dynamic_w[..., None] * squared / relative_time(clock))

        grid = np.linspace(0.4, 1.6, 97) * gpu.max_clock_mhz
        limit = _crossing(grid, power_w(grid), limit_w) * np.exp(_LIMIT_SD * own[3])
        period = (1.0 / self.job.clocks_mhz) ** _LIMIT_EXPONENT + (1.0 / limit[..., None]) ** _LIMIT_EXPONENT
        real = period ** (-1.0 / _LIMIT_EXPONENT)
        time = time0[..., None] * relative_time(real)
        waiting = self.job.wait_power_w * gpus * float(np.exp(_WAIT_SD * wait))
        return Curves(time, gpus * power_w(real) * time, waiting, limit, fixed, voltage.knee_mhz)


@dataclass(frozen=True)
class _Voltage:
    floor: float
    slope: float
    max_clock_mhz: float

    @property
    def knee_mhz(self) -> float:
        return float(self.max_clock_mhz * (1.0 - (1.0 - self.floor) / self.slope))

    def ratio(self, clock_mhz: Array) -> Array:
        above = _KNEE_MHZ * np.logaddexp(0.0, (clock_mhz - self.knee_mhz) / _KNEE_MHZ)
        return np.asarray(self.floor + self.slope * above / self.max_clock_mhz)


def _crossing(grid: Array, power_w: Array, limit_w: float) -> Array:
    """Clock at which power reaches the limit, by linear interpolation; extrapolated beyond the grid's last step."""
    step = np.clip((power_w < limit_w).sum(axis=-1, keepdims=True), 1, len(grid) - 1)
    low, high = (np.take_along_axis(power_w, step - k, axis=-1)[..., 0] for k in (1, 0))
    place = step[..., 0]
    return np.asarray(grid[place - 1] + (grid[place] - grid[place - 1]) * (limit_w - low) / (high - low))
