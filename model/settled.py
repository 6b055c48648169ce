"""What a measurement window sees of work that repeats back to back under the board's limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.model.governor import settle_clock_mhz, settled_power_w
from joulecast.model.gpu_model import GpuModel

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """Time and energy of ``n`` pieces of work on a grid of ``c`` clocks, shape ``(c, n)`` [s], [J]."""

    time_s: Array
    energy_j: Array
    components_j: dict[str, Array]

    def at(self, clocks_mhz: Array, clock_mhz: Array) -> Curves:
        """At a clock of each piece, shape ``(n,)``, between the grid's steps."""
        upper = np.clip(np.searchsorted(clocks_mhz, clock_mhz), 1, len(clocks_mhz) - 1)
        share = (clock_mhz - clocks_mhz[upper - 1]) / (clocks_mhz[upper] - clocks_mhz[upper - 1])
        columns = np.arange(len(clock_mhz))

        def pick(table: Array) -> Array:
            return np.asarray((1.0 - share) * table[upper - 1, columns] + share * table[upper, columns])

        return Curves(pick(self.time_s), pick(self.energy_j), {c: pick(v) for c, v in self.components_j.items()})


@dataclass(frozen=True)
class Settled:
    """One repetition as a window sees it on average; shape ``(n,)`` [s], [J], [MHz]."""

    time_s: Array
    energy_j: Array
    clock_mhz: Array
    components_j: dict[str, Array]


def settle(
    curves: Curves,
    clocks_mhz: Array,
    limit_w: ArrayLike,
    ceiling_mhz: ArrayLike,
    gpu: GpuModel,
    settle_s: ArrayLike,
    window_s: ArrayLike,
) -> Settled:
    """Work at the clocks that the board gives it during a window.

    Parameters
    ----------
    curves
        The work at every clock of ``clocks_mhz``.
    limit_w, ceiling_mhz
        Power limit and highest clock, shape ``()`` or ``(n,)``.
    settle_s, window_s
        When the window begins after the start of the work, and how long it takes: a short one still sees the faster
        first phase, before the board's slow average meets the limit.
    """
    power = curves.energy_j / curves.time_s
    limit = np.asarray(limit_w, dtype=np.float64)
    slow = settle_clock_mhz(clocks_mhz, power, settled_power_w(limit, gpu), ceiling_mhz)
    fast = settle_clock_mhz(clocks_mhz, power, limit * gpu["governor.burst_share"], ceiling_mhz)
    early = burst_share_of_window(settle_s, window_s, gpu)
    settled, burst = curves.at(clocks_mhz, slow), curves.at(clocks_mhz, fast)
    # In a window the two phases share time, not work: rates average.
    time = 1.0 / (early / burst.time_s + (1.0 - early) / settled.time_s)
    part = early / burst.time_s * time
    mix = {c: part * burst.components_j[c] + (1.0 - part) * settled.components_j[c] for c in curves.components_j}
    energy = part * burst.energy_j + (1.0 - part) * settled.energy_j
    return Settled(time, energy, early * fast + (1.0 - early) * slow, mix)


def burst_share_of_window(settle_s: ArrayLike, window_s: ArrayLike, gpu: GpuModel) -> Array:
    """Share of a window that lies before the slow loop binds, ``governor.burst_s`` after the start."""
    left = gpu["governor.burst_s"] - np.asarray(settle_s, dtype=np.float64)
    return np.asarray(np.clip(left / np.maximum(np.asarray(window_s, dtype=np.float64), 1e-9), 0.0, 1.0))
