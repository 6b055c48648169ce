"""What a measurement window sees of work that repeats back to back under the board's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.governor import settle_clock_mhz, settled_power_w

#: Until when a board has answered a new load where the description does not say: recorded pulses, 25 to 60 ms [s].
ANSWER_S = 0.025
#: Stands for no limit in a mean over phases, of which some take no time [W].
UNLIMITED_W = 1e9


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
    """One repetition as a window sees it on average; shape ``(n,)`` [s], [J], [MHz].

    ``demand_w`` is what the work would draw at its highest clock without the board's limit, ``held_w`` the power at
    which the board holds work that would draw more [W].
    """

    time_s: Array
    energy_j: Array
    clock_mhz: Array
    components_j: dict[str, Array]
    demand_w: Array
    held_w: Array


def settle(
    curves: Curves,
    clocks_mhz: Array,
    limit_w: ArrayLike,
    ceiling_mhz: ArrayLike,
    gpu: GpuModel,
    settle_s: ArrayLike,
    window_s: ArrayLike,
    parts_mhz: ArrayLike = np.inf,
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
        first phases, before the board's fast loop answers and its slow average meets the limit.
    parts_mhz
        Highest clock that limits of parts of the package allow; they do not lower the demand of work that the board's
        own limit holds below it, shape ``()`` or ``(n,)``.
    """
    power = curves.energy_j / curves.time_s
    limit = np.asarray(limit_w, dtype=np.float64)
    early = burst_share_of_window(settle_s, window_s, gpu)
    first = share_of_window_before(gpu.get("transition.answer_s", ANSWER_S), settle_s, window_s)
    held = [(1.0 - early, settled_power_w(limit, gpu)), (early - first, limit * gpu["governor.burst_share"])]
    if first.any():
        held.append((first, limit * gpu["governor.peak_share"]))
    highest = np.minimum(ceiling_mhz, parts_mhz)
    phases = [(share, settle_clock_mhz(clocks_mhz, power, most_w, highest)) for share, most_w in held]
    clock = np.asarray(sum((share * clock for share, clock in phases), np.zeros(())))
    free = replace(curves, components_j={}).at(clocks_mhz, np.where(clock < highest, ceiling_mhz, highest))
    held_w = sum((share * np.minimum(most_w, UNLIMITED_W) for share, most_w in held), np.zeros(()))
    time, energy, mix = _mixed(curves, clocks_mhz, phases)
    return Settled(time, energy, clock, mix, free.energy_j / free.time_s, np.asarray(held_w))


def _mixed(
    curves: Curves, clocks_mhz: Array, phases: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array, dict[str, Array]]:
    """Mean time, energy and components over phases, each with its share of the window and its clock: rates average."""
    found = [(share, curves.at(clocks_mhz, clock)) for share, clock in phases]
    time = 1.0 / sum((share / at.time_s for share, at in found), np.zeros(()))
    parts = [(share / at.time_s * time, at) for share, at in found]

    def mean(values: Sequence[Array]) -> Array:
        return np.asarray(sum((part * v for (part, _), v in zip(parts, values, strict=True)), np.zeros(())))

    mix = {c: mean([at.components_j[c] for _, at in parts]) for c in curves.components_j}
    return time, mean([at.energy_j for _, at in parts]), mix


def burst_share_of_window(settle_s: ArrayLike, window_s: ArrayLike, gpu: GpuModel) -> Array:
    """Share of a window that lies before the slow loop binds, ``governor.burst_s`` after the start."""
    return share_of_window_before(gpu["governor.burst_s"], settle_s, window_s)


def share_of_window_before(end_s: float, settle_s: ArrayLike, window_s: ArrayLike) -> Array:
    """Share of a window that lies before ``end_s`` after the start of the load."""
    left = end_s - np.asarray(settle_s, dtype=np.float64)
    return np.asarray(np.clip(left / np.maximum(np.asarray(window_s, dtype=np.float64), 1e-9), 0.0, 1.0))
