"""A bench on which everything is known: two clocks that drift apart, noisy sensors, runs that vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from simulated_truth import Truth

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.campaign import Campaign, Options
from joulecast.calibrate.power_profile.protocol import Channel, ClockRead, Run, Series
from joulecast.calibrate.power_profile.result import PowerProfile

#: Time after a run for which its power is followed before the card counts as resting, in falling times.
FALLS = 12.0


@dataclass(frozen=True, slots=True)
class SimulatedSensor:
    """A sensor of known working.

    Attributes
    ----------
    name, kind
        As in :class:`Channel`.
    period_s
        Time between new values.
    window_s
        Time that a value averages over; zero reads the moment.
    lag_s
        From the end of the window to the new value.
    noise
        Relative deviation of a value; of an accumulated energy, of each growth.
    poll_s
        Time between polls; zero hands every new value out with its own time, as a logger does.
    tells_window
        Whether the channel says its window and lag.
    share
        Of the power above rest that belongs to this sensor; below one for a component.
    """

    name: str = "power"
    kind: Literal["power", "energy"] = "power"
    period_s: float = 1e-3
    window_s: float = 0.0
    lag_s: float = 0.0
    noise: float = 0.01
    poll_s: float = 0.0
    tells_window: bool = True
    share: float = 1.0


#: A fast logger that reads the moment every millisecond.
LOGGER = SimulatedSensor()
#: A driver's power reading that moves every 100 ms and averages the last 25 ms, polled.
AVERAGED = SimulatedSensor(period_s=0.1, window_s=0.025, noise=0.005, poll_s=2e-3)


class SimulatedBench:
    """Runs of a known truth, logged by known sensors; time is simulated.

    Parameters
    ----------
    truth
        What the card does.
    sensors
        What reads it.
    seed
        Of everything random.
    gpu_offset_s, drift
        GPU time less host time at the start, and seconds that it gains in a second.
    read_delay_s
        Shortest delay of a read of the GPU's clock; half before, half after, and random waits on both sides.
    mark_every
        Marks stand after every so many kernels, and after each of the first ten passes.
    power_limit_w
        That the card tells; its truth must follow it.
    """

    def __init__(
        self,
        truth: Truth,
        sensors: Sequence[SimulatedSensor] = (LOGGER,),
        *,
        seed: int = 0,
        gpu_offset_s: float = 4321.5,
        drift: float = 37e-6,
        read_delay_s: float = 9e-6,
        mark_every: int = 8,
        power_limit_w: float | None = None,
    ) -> None:
        self.truth = truth
        self.power_limit_w = power_limit_w
        self.sensors = tuple(sensors)
        self.random = np.random.default_rng(seed)
        self.offset_s, self.drift, self.read_delay_s, self.mark_every = gpu_offset_s, drift, read_delay_s, mark_every
        self.host_s = 1000.0

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels of one pass."""
        return tuple(kernel.name for kernel in self.truth.kernels)

    def now_s(self) -> float:
        """The host's simulated time [s]."""
        return self.host_s

    def series(self, passes: int, delays_s: Sequence[float]) -> Series:
        """One simulated run after each delay."""
        begin = self.host_s
        reads: list[ClockRead] = []
        bursts: list[_Burst] = []
        for delay in delays_s:
            self.host_s += delay
            reads.extend(self._read_clock() for _ in range(3))
            bursts.append(self._burst(passes))
            self.host_s = bursts[-1].end_s + self.random.exponential(20e-6)
            reads.append(self._read_clock())
        self.host_s += max(FALLS * self.truth.fall_s, 2.5 * max(sensor.period_s for sensor in self.sensors))
        reads.append(self._read_clock())
        finest = min(sensor.window_s if sensor.kind == "power" else sensor.period_s for sensor in self.sensors)
        power = _Power(self.truth, bursts, self.host_s, finest)
        channels = tuple(self._channel(sensor, power, begin) for sensor in self.sensors)
        runs = tuple(self._marks(burst, passes) for burst in bursts)
        return Series(passes, runs, tuple(reads), channels)

    def close(self) -> None:
        """Nothing to free."""

    def _gpu_time(self, host_s: Array | float) -> Array:
        return self.offset_s + (1.0 + self.drift) * np.asarray(host_s)

    def _read_clock(self) -> ClockRead:
        there, back = self.read_delay_s / 2 + self.random.exponential(3e-6, 2)
        if self.random.random() < 0.05:  # the host was busy with something else
            back += self.random.exponential(300e-6)
        before = self.host_s
        self.host_s = before + there + back
        return ClockRead(before, self.host_s, float(self._gpu_time(before + there)))

    def _burst(self, passes: int) -> _Burst:
        truth, odd = self.truth, self.random.random() < self.truth.outlier_share
        slowness = (truth.outlier_time if odd else 1.0) * (1.0 + truth.jitter * self.random.standard_normal())
        start = self.host_s + 5e-6 + self.random.exponential(10e-6)
        return _Burst(start, start + truth.pass_starts(passes, slowness), truth.outlier_power if odd else 1.0)

    def _marks(self, burst: _Burst, passes: int) -> Run:
        kernels = len(self.truth.kernels)
        parts = np.cumsum([0.0, *(k.time_s for k in self.truth.kernels)]) / self.truth.pass_s
        starts = burst.starts_s
        inner = starts[:-1, None] + np.diff(starts)[:, None] * parts[None, :-1]
        times = np.append(inner.ravel(), starts[-1])
        steps = np.arange(passes * kernels + 1)
        chosen = (steps <= 10 * kernels) | (steps % (self.mark_every * kernels) == 0) | (steps == steps[-1])
        return Run(steps[chosen].astype(float), self._gpu_time(times[chosen]))

    def _channel(self, sensor: SimulatedSensor, power: _Power, begin: float) -> Channel:
        first = begin + sensor.period_s * self.random.random()
        ticks = np.arange(first, self.host_s, sensor.period_s)
        stop = ticks - sensor.lag_s
        if sensor.kind == "power":
            true = power.mean(stop - sensor.window_s, stop, sensor.share)
            values = true * (1.0 + sensor.noise * self.random.standard_normal(len(ticks)))
        else:
            growth = power.mean(stop[:-1], stop[1:], sensor.share) * np.diff(stop)
            growth *= 1.0 + sensor.noise * self.random.standard_normal(len(growth))
            values = np.round(1234.5 + np.concatenate([[0.0], np.cumsum(growth)]), 3)
        told = (sensor.window_s, sensor.lag_s) if sensor.tells_window else (None, None)
        if sensor.poll_s == 0.0:
            return Channel(sensor.name, sensor.kind, ticks, values, True, *told)
        polls = np.arange(ticks[0], self.host_s, sensor.poll_s)
        polls = np.sort(polls + sensor.poll_s * self.random.random(len(polls)))
        seen = np.searchsorted(ticks, polls, side="right") - 1
        return Channel(sensor.name, sensor.kind, polls, values[seen], False, *told)


@dataclass(frozen=True, slots=True, eq=False)
class _Burst:
    """One simulated run on the host's clock."""

    start_s: float
    starts_s: Array
    strength: float

    @property
    def end_s(self) -> float:
        return float(self.starts_s[-1])


class _Power:
    """The card's power over a series: at moments as the truth says, over windows from its integral on a fine grid."""

    def __init__(self, truth: Truth, bursts: Sequence[_Burst], end_s: float, window_s: float) -> None:
        self.truth, self.bursts, self.end_s, self.window_s = truth, bursts, end_s, window_s
        self._integral: tuple[Array, Array] | None = None

    def mean(self, start_s: Array, stop_s: Array, share: float) -> Array:
        """Mean power over each window, or at the moment where windows have no length [W]."""
        if not np.any(stop_s > start_s):
            return share * self._at(stop_s)
        if self._integral is None:
            self._integral = self._integrate()
        above = np.interp(stop_s, *self._integral) - np.interp(start_s, *self._integral)
        mean: Array = share * (self.truth.rest_w + above / (stop_s - start_s))
        return mean

    def _at(self, times_s: Array) -> Array:
        """Power at ascending moments [W]."""
        power = np.full(len(times_s), self.truth.rest_w)
        starts = np.array([burst.start_s for burst in self.bursts])
        edges = np.append(np.searchsorted(times_s, starts), len(times_s))
        for index, burst in enumerate(self.bursts):
            mine = slice(edges[index], edges[index + 1])
            power[mine] = self.truth.power_w(
                times_s[mine] - burst.start_s, burst.starts_s - burst.start_s, burst.strength
            )
        return power

    def _integrate(self) -> tuple[Array, Array]:
        """Grid [s], and energy above rest up to it [J]."""
        truth = self.truth
        grids, energies, total = [np.array([-1e6])], [np.array([0.0])], 0.0
        step = min(max(truth.pass_s / 50.0, self.window_s / 1000.0), truth.fall_s / 20.0)
        for index, burst in enumerate(self.bursts):
            until = self.bursts[index + 1].start_s if index + 1 < len(self.bursts) else self.end_s
            stop = min(burst.end_s + FALLS * truth.fall_s, until)
            grid = np.linspace(burst.start_s, stop, max(int((stop - burst.start_s) / step), 2))
            middle = (grid[1:] + grid[:-1]) / 2 - burst.start_s
            above = truth.power_w(middle, burst.starts_s - burst.start_s, burst.strength) - truth.rest_w
            sums = total + np.concatenate([[0.0], np.cumsum(above * np.diff(grid))])
            grids.append(grid)
            energies.append(sums)
            total = float(sums[-1])
        return np.concatenate(grids), np.concatenate(energies)


def take(truth: Truth, sensors: Sequence[SimulatedSensor], seed: int, **options: Any) -> PowerProfile:
    """The profile that a campaign takes on such a bench."""
    bench = SimulatedBench(truth, sensors, seed=seed)
    return Campaign(bench, Options(seed=seed, **options), lambda _: None).take("sim")
