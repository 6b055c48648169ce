"""Kernels whose power over time is known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array


@dataclass(frozen=True, slots=True)
class SimulatedKernel:
    """A kernel of known power.

    Attributes
    ----------
    name
        For reports.
    time_s
        Duration once warm.
    phases
        ``(until, power)`` in order: power [W] up to this share of the kernel's time; the last share is 1.
    """

    name: str
    time_s: float
    phases: tuple[tuple[float, float], ...]

    @property
    def mean_power_w(self) -> float:
        """Mean over the kernel [W]."""
        start = np.array([0.0, *(until for until, _ in self.phases[:-1])])
        stop = np.array([until for until, _ in self.phases])
        return float(np.sum((stop - start) * np.array([power for _, power in self.phases])))

    def power_at(self, share: Array) -> Array:
        """Power where this share of the kernel is done [W]."""
        until = np.array([u for u, _ in self.phases[:-1]])
        power = np.array([p for _, p in self.phases])
        return power[np.searchsorted(until, share, side="right")]


@dataclass(frozen=True, slots=True)
class Transient:
    """A change of the power of whatever runs, some time after a run's start.

    Attributes
    ----------
    start_s, stop_s
        Since the run's start.
    factor
        On the power above the resting card's.
    """

    start_s: float
    stop_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Truth:
    """Power and time of everything that a simulated card does.

    Attributes
    ----------
    kernels
        One pass.
    rest_w
        Power of the resting card.
    rise, rise_s
        Power above rest begins at ``1 + rise`` of its settled value and approaches it with this time constant (a
        governor that lets a burst overshoot has ``rise > 0``).
    transients
        Besides.
    fall_s
        Time constant with which power falls to rest after a run.
    warm_up
        Factors on the duration of the first passes.
    jitter
        Relative deviation of a run's execution time.
    outlier_share, outlier_time, outlier_power
        Share of runs that go otherwise, and the factors on their time and on their power above rest.
    """

    kernels: tuple[SimulatedKernel, ...]
    rest_w: float = 90.0
    rise: float = 0.0
    rise_s: float = 1e-3
    transients: tuple[Transient, ...] = ()
    fall_s: float = 2e-3
    warm_up: tuple[float, ...] = (1.25, 1.1, 1.03)
    jitter: float = 0.002
    outlier_share: float = 0.1
    outlier_time: float = 1.08
    outlier_power: float = 0.93

    @property
    def pass_s(self) -> float:
        """Duration of a warm pass [s]."""
        return sum(kernel.time_s for kernel in self.kernels)

    def settled_w(self, pass_share: Array) -> Array:
        """Power where this share of a warm pass's time is done, once settled [W]."""
        edges = np.cumsum([0.0, *(kernel.time_s for kernel in self.kernels)]) / self.pass_s
        which = np.clip(np.searchsorted(edges, pass_share, side="right") - 1, 0, len(self.kernels) - 1)
        power = np.empty(len(pass_share))
        for index, kernel in enumerate(self.kernels):
            mine = which == index
            power[mine] = kernel.power_at((pass_share[mine] - edges[index]) / (edges[index + 1] - edges[index]))
        return power

    def envelope(self, run_s: Array) -> Array:
        """Factor on the power above rest at a time since the run's start."""
        factor = 1.0 + self.rise * np.exp(-run_s / self.rise_s)
        for transient in self.transients:
            factor = np.where((run_s >= transient.start_s) & (run_s < transient.stop_s), transient.factor, factor)
        return factor

    def pass_starts(self, passes: int, slowness: float = 1.0) -> Array:
        """Shape (passes + 1,): start of each pass since the run's start, and the end of the last [s]."""
        factor = np.ones(passes)
        factor[: len(self.warm_up)] = self.warm_up[:passes]
        return np.concatenate([[0.0], np.cumsum(factor * self.pass_s * slowness)])

    def power_w(self, run_s: Array, starts_s: Array, strength: float = 1.0) -> Array:
        """Power at times since the run's start, for a run whose passes start at ``starts_s`` [W]."""
        index = np.clip(np.searchsorted(starts_s, run_s, side="right") - 1, 0, len(starts_s) - 2)
        share = (run_s - starts_s[index]) / (starts_s[index + 1] - starts_s[index])
        above = (self.settled_w(np.clip(share, 0.0, 1.0 - 1e-12)) - self.rest_w) * strength
        busy = self.rest_w + above * self.envelope(run_s)
        end = starts_s[-1]
        at_end = above * self.envelope(np.full_like(run_s, end))
        after = self.rest_w + at_end * np.exp(-np.maximum(run_s - end, 0.0) / self.fall_s)
        return np.where(run_s < 0.0, self.rest_w, np.where(run_s < end, busy, after))
