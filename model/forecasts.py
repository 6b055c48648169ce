"""What is forecast of work that repeats back to back, and how deviations of the parameters change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.model.power.uncertain_power import margin, power_changes
from joulecast.model.uncertainty import NINETY_PERCENT, changes, ends, spread_of

#: Fields of a forecast that tell its 90 % interval.
INTERVAL = ("time_s_p05", "time_s_p95", "energy_j_p05", "energy_j_p95", "power_w_p05", "power_w_p95")


@dataclass(frozen=True)
class Forecast:
    """Forecast of ``n`` pieces of work; arrays of shape ``(n,)``.

    ``time_s`` and ``energy_j`` are of one repetition, ``clock_mhz`` the mean SM clock, ``components_j`` the energy by
    component, ``demand_w`` the power without the board's limit and ``held_w`` the one at which the limit holds. The
    ends of the 90 % intervals are ``None`` for a GPU that is being fitted.
    """

    time_s: Array
    energy_j: Array
    power_w: Array
    clock_mhz: Array
    components_j: dict[str, Array]
    demand_w: Array
    held_w: Array
    time_s_p05: Array | None = None
    time_s_p95: Array | None = None
    energy_j_p05: Array | None = None
    energy_j_p95: Array | None = None
    power_w_p05: Array | None = None
    power_w_p95: Array | None = None

    def spread(self, changes: Changes, forms: tuple[Array, Array, Array], window_s: Array | float) -> Forecast:
        """The same with 90 % intervals, of power averaged over ``window_s``.

        Beside what parameters change, ``forms`` has what kernels' forms get wrong of time, energy and demand, as
        relative standard deviations of shape ``(n,)``.
        """
        time_sd, energy_sd, demand_sd = (
            np.hypot(spread_of(of), form)
            for of, form in zip((changes.time, changes.energy, changes.demand), forms, strict=True)
        )
        (low_time, high_time), (low_energy, high_energy) = ends(self.time_s, time_sd), ends(self.energy_j, energy_sd)
        wide = NINETY_PERCENT * demand_sd
        beside = margin(self.power_w, self.demand_w, self.held_w, spread_of(changes.held), window_s)
        down, up = power_changes(wide, wide, beside, NINETY_PERCENT)
        return replace(
            self,
            time_s_p05=low_time,
            time_s_p95=high_time,
            energy_j_p05=low_energy,
            energy_j_p95=high_energy,
            power_w_p05=self.power_w * np.exp(-down),
            power_w_p95=self.power_w * np.exp(up),
        )


@dataclass(frozen=True, eq=False)
class Changes:
    """Relative changes of forecasts of ``n`` pieces of work by joint deviations of the parameters.

    Attributes
    ----------
    time, energy, demand, held
        Of time, energy, power without the board's limit, and the power at which the limit holds, shape
        ``(directions, n)``; see :func:`joulecast.model.uncertainty.changes` [1].
    power_w, demand_w, held_w
        What the forecasts say without a deviation, shape ``(n,)`` [W].
    """

    time: Array
    energy: Array
    demand: Array
    held: Array
    power_w: Array
    demand_w: Array
    held_w: Array

    def split(self, count: int) -> list[Changes]:
        """Those of as many equal groups of pieces."""
        parts = (np.split(getattr(self, one.name), count, axis=-1) for one in fields(self))
        return [Changes(*columns) for columns in zip(*parts, strict=True)]


def changes_among(found: Sequence[Forecast]) -> Changes:
    """Changes from the first of some forecasts to the others, which have deviated parameters."""
    base, *moved = found
    time, energy, demand, held = (
        changes(getattr(base, name), np.array([getattr(one, name) for one in moved]))
        for name in ("time_s", "energy_j", "demand_w", "held_w")
    )
    return Changes(time, energy, demand, held, base.power_w, base.demand_w, base.held_w)
