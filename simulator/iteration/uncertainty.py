"""90 % intervals of a forecast iteration: uncertain parameters, and what the model's form gets wrong.

The parameters' part is that of the iteration's main kernels, run back to back under the same power limit or clock; the
form's part is composed of the kernels' shares, see :mod:`joulecast.model.uncertainty`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.predict import Work, parameter_spread
from joulecast.model.training.factors import LONGER, SPREAD, UNSEEN
from joulecast.model.uncertainty import FEW_DIRECTIONS, NINETY_PERCENT, composed_spread, same_kernels
from joulecast.simulator.instructions.clock_columns import in_columns

if TYPE_CHECKING:
    from joulecast.simulator.fluid.prepared import Prepared
    from joulecast.simulator.fluid.simulation import FluidResult

Array = NDArray[np.float64]

#: Share of time and of energy whose kernels stand for all in the parameters' part.
MAIN_SHARE = 0.7


@dataclass(frozen=True)
class Interval:
    """Factors on the forecast at 5 % and 95 %."""

    time: tuple[float, float]
    energy: tuple[float, float]


def interval(prepared: Prepared, description: GpuDescription, result: FluidResult, first: int) -> Interval:
    """Interval of a simulated plan."""
    runs, time, energy, clock = _kernel_totals(prepared, result, first)
    costs = prepared.kernels[0].costs
    owner = np.zeros(len(costs), dtype=np.int64)
    parameters = _parameter_spread(prepared, runs, time, energy, clock)
    found = []
    for amount, quantity, own in ((time, "time", parameters[0]), (energy, "energy", parameters[1])):
        form = float(composed_spread(amount, owner, costs, description, quantity)[0])
        found.append(float(np.hypot(form, own)) * NINETY_PERCENT)
    known = prepared.gpu.get(f"kernel.{SPREAD}.{prepared.program.plan.workload.precision}", 0.0)
    if known > 0:  # seen in long runs, whatever the kernels' own uncertainty adds up to
        found[0] = known * NINETY_PERCENT
    else:
        found[0] = float(np.hypot(found[0], prepared.gpu.get(f"kernel.{UNSEEN}", 0.0) * NINETY_PERCENT))
    longer = float(np.hypot(found[0], prepared.gpu.get(f"kernel.{LONGER}", 0.0) * NINETY_PERCENT))
    return Interval(*((float(np.exp(-s)), float(np.exp(up))) for s, up in zip(found, (longer, found[1]), strict=True)))


def _parameter_spread(
    prepared: Prepared, runs: Array, time: Array, energy: Array, clock_mhz: float
) -> tuple[float, float]:
    """Relative standard deviation of time and energy from the parameters, by the main kernels."""
    kernels = prepared.kernels[0]
    same = same_kernels(kernels.costs)
    share = np.maximum(np.bincount(same, time) / time.sum(), np.bincount(same, energy) / energy.sum())
    order = np.argsort(-share, kind="stable")
    main = order[: int(np.searchsorted(np.cumsum(share[order]), MAIN_SHARE * share.sum())) + 1]
    first = np.unique(same, return_index=True)[1]
    count = np.bincount(same, runs)
    work = Work(tuple(kernels.operators[first[kind]] for kind in main), tuple(float(count[kind]) for kind in main))
    locked = clock_mhz if prepared.still else None
    by_time, by_energy = parameter_spread(
        [work],
        prepared.gpu,
        locked,
        float(np.mean(prepared.limits_w)),
        directions=FEW_DIRECTIONS,
        component_limits_w=dict(prepared.program.plan.power.component_limits_w) or None,
    )
    return float(by_time[0]), float(by_energy[0])


def _kernel_totals(prepared: Prepared, result: FluidResult, first: int) -> tuple[Array, Array, Array, float]:
    """Runs, time and energy of each kernel over all ranks, shape ``(kernels,)``, and the mean clock [MHz]."""
    clocks, shape = prepared.clocks_mhz, (len(prepared.kernels[0].operators), len(prepared.clocks_mhz))
    by_limit = {id(kernels): (kernels.times, np.zeros(shape)) for kernels in prepared.kernels}
    ranks = zip(prepared.kernels, prepared.tables, result.executed, prepared.columns, strict=True)
    for kernels, table, executed, columns in ranks:
        runs = by_limit[id(kernels)][1]
        runs += np.einsum("tc,tk->kc", in_columns(executed[first:].sum(0), columns), table.counts)
    runs, time, energy = (
        sum(of) for of in zip(*((n, n * t.time_s.T, n * t.energy_j.T) for t, n in by_limit.values()), strict=True)
    )
    return runs.sum(1), time.sum(1), energy.sum(1), float((time * clocks).sum() / time.sum())
