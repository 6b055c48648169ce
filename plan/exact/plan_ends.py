"""Ends of 90 % intervals of a plan or a part of it, as answers carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int

if TYPE_CHECKING:
    from joulecast.simulator.iteration.uncertainty import Intervals


@dataclass(frozen=True, slots=True)
class PlanInterval:
    """5 % and 95 % ends of time, energy and mean power, and of ratios of the first two to the fastest of the answer."""

    time_s_p05: float
    time_s_p95: float
    energy_j_p05: float
    energy_j_p95: float
    power_w_p05: float
    power_w_p95: float
    time_ratio_p05: float
    time_ratio_p95: float
    energy_ratio_p05: float
    energy_ratio_p95: float


def plan_ends(found: Intervals, time_s: Array, energy_j: Array, against: Int) -> tuple[PlanInterval, ...]:
    """Ends from factors.

    Parameters
    ----------
    time_s, energy_j
        What ``n`` plans take, shape ``(n,)`` [s], [J].
    against
        The plan with which each is compared, shape ``(n,)``.
    """
    ends = (
        *(time_s * found.time),
        *(energy_j * found.energy),
        *(energy_j / time_s * found.power),
        *(time_s / time_s[against] * found.time_ratio),
        *(energy_j / energy_j[against] * found.energy_ratio),
    )
    return tuple(PlanInterval(*row) for row in np.stack(ends, axis=1).tolist())
