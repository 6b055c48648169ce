"""90 % intervals of a forecast: uncertain parameters, and what the model's form gets wrong.

The discrepancy of a kernel is the same every time it runs, and independent between kernels of different shape; so an
iteration's relative variance is the sum over distinct kernels of (share·σ_family)², plus what is common to all: the
spread between cards of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.model.description import GpuDescription
from joulecast.model.uncertainty import NINETY_PERCENT, discrepancy
from joulecast.simulator.clock_columns import in_columns

if TYPE_CHECKING:
    from joulecast.simulator.fluid import FluidResult
    from joulecast.simulator.forecast import Prepared

Array = NDArray[np.float64]

#: What the composition adds to its kernels: gaps, launch order, boundaries between phases.
COMPOSITION = 0.012


@dataclass(frozen=True)
class Interval:
    """Factors on the forecast at 5 % and 95 %."""

    time: tuple[float, float]
    energy: tuple[float, float]


def interval(prepared: Prepared, description: GpuDescription, result: FluidResult, first: int) -> Interval:
    """Interval of a simulated plan."""
    times, energies = _shares(prepared, result, first)
    family = prepared.kernels.costs.family
    common = prepared.gpu["governor.card_spread"]
    found = []
    for shares, quantity in ((times, "time"), (energies, "energy")):
        own = float(np.sum((shares * discrepancy(description, quantity)[family]) ** 2))
        found.append(float(np.sqrt(own + common**2 + COMPOSITION**2)) * NINETY_PERCENT)
    return Interval(*((float(np.exp(-s)), float(np.exp(s))) for s in found))


def _shares(prepared: Prepared, result: FluidResult, first: int) -> tuple[Array, Array]:
    """Share of each distinct kernel in the busiest rank's time and in all ranks' energy, shape ``(kernels,)``."""
    times = prepared.kernels.times
    time = np.zeros(len(prepared.kernels.operators))
    energy = time.copy()
    for table, executed, columns in zip(prepared.tables, result.executed, prepared.columns, strict=True):
        runs = np.einsum("tc,tk->kc", in_columns(executed[first:].sum(0), columns), table.counts)
        time = time + (runs * times.time_s.T).sum(1)
        energy = energy + (runs * times.energy_j.T).sum(1)
    return time / time.sum(), energy / energy.sum()
