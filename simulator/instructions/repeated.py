"""Forecasts of launches on both streams that repeat back to back, on one GPU of a group that works in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.forecasts import Forecast, changes_among
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import Lowering
from joulecast.model.kernels.operators import Operator
from joulecast.model.power.component_power import check_limits, under_limits
from joulecast.model.power.governor import tensor_clock_mhz
from joulecast.model.power.kernel_power import COMPONENTS
from joulecast.model.power.limits import group_lag, group_limit_share
from joulecast.model.power.settled import Curves, settle
from joulecast.model.predict import coarse_clocks
from joulecast.model.repeated_work import forecast_of
from joulecast.model.uncertainty import (
    FEW_DIRECTIONS,
    composed_spreads,
    deviations,
)
from joulecast.simulator.instructions.tables import (
    InstructionTable,
    Kernels,
    distinct_operators,
    instruction_table,
    kernels_at,
)

#: GPUs in step beyond which a group that repeats the same work draws no less power at its limits: on recorded layers
#: beside all-reduces groups of four draw 694 W each (15 rows), pairs 692 W (22 rows). What larger groups lose was seen
#: over whole iterations, whose phases differ; groups of eight at repeated work were not measured.
MOST_LOSING = 2


@dataclass(frozen=True)
class Conditions:
    """Under what launches repeat.

    Attributes
    ----------
    in_step
        GPUs that wait for each other at every communication; 1 for none.
    clock_mhz
        Locked SM clock, kept as far as the limit allows; by default the board chooses.
    power_limit_w
        Of each board; by default the card's own.
    settle_s, window_s
        When the measurement begins after the start, and how long it takes.
    component_limits_w
        Limits of parts of the package, by their names in :mod:`joulecast.model.power.component_power`.
    """

    in_step: int = 1
    clock_mhz: float | None = None
    power_limit_w: float | None = None
    settle_s: float = 10.0
    window_s: float = 10.0
    component_limits_w: Mapping[str, float] | None = None


def predict_repeated(programs: Sequence[Sequence[Launch]], gpu: GpuModel, conditions: Conditions) -> Forecast:
    """Time, energy, power and clock of one repetition of each of ``n`` programs, on one of the GPUs.

    Raises
    ------
    InputError
        The description lacks what a kernel needs, a part that the GPU does not have, or a limit that it cannot meet.
    """
    check_limits(conditions.component_limits_w or {}, gpu)
    clocks = gpu.clocks_mhz
    operators = distinct_operators([programs])
    lowering = Lowering(operators, gpu.device)
    own = lowering(gpu)
    kernels, table = _tabulate(programs, operators, own, clocks, gpu, conditions)
    forecast = _settled(kernels, table, gpu, conditions)
    if gpu.description is None:
        return forecast
    few = coarse_clocks(clocks)
    varied = [gpu.with_values(values) for values in deviations(gpu.description, FEW_DIRECTIONS)]
    lowered = [(gpu, own), *((one, lowering(one)) for one in varied)]
    found = [
        _settled(*_tabulate(programs, operators, costs, few, one, conditions), one, conditions)
        for one, costs in lowered
    ]
    changes = changes_among(found)
    forms = _form_spreads(kernels, table, forecast, gpu.description)
    return forecast.spread(changes, forms, conditions.window_s)


def _tabulate(
    programs: Sequence[Sequence[Launch]],
    operators: tuple[Operator, ...],
    costs: Costs,
    clocks: Array,
    gpu: GpuModel,
    conditions: Conditions,
) -> tuple[Kernels, InstructionTable]:
    peak_w = _limit_w(gpu, conditions) * gpu["governor.peak_share"]
    kernels = kernels_at(operators, costs, clocks, gpu, peak_w)
    lag = group_lag(clocks, conditions.in_step, conditions.in_step, gpu) if conditions.in_step > 1 else None
    return kernels, instruction_table(programs, kernels, gpu, lag)


def _limit_w(gpu: GpuModel, conditions: Conditions) -> float:
    return gpu.own_limit_w(conditions.power_limit_w)


def _settled(kernels: Kernels, table: InstructionTable, gpu: GpuModel, conditions: Conditions) -> Forecast:
    parts = {c: table.components_j[..., i].T for i, c in enumerate(COMPONENTS)}
    curves = Curves(table.duration_s.T, table.energy_j.T, parts)
    dense = table.counts @ (kernels.costs.core_cycles * kernels.costs.tensor_use)
    ceiling = tensor_clock_mhz(dense / (table.duration_s[:, -1] * kernels.clocks_mhz[-1] * 1e6), gpu)
    if conditions.clock_mhz is not None:
        ceiling = np.minimum(ceiling, conditions.clock_mhz)
    highest: Array | float = np.inf
    if conditions.component_limits_w:
        curves, highest = under_limits(curves, kernels.clocks_mhz, conditions.component_limits_w, gpu)
    limit = _limit_w(gpu, conditions) * group_limit_share(min(conditions.in_step, MOST_LOSING), gpu)
    window = conditions.settle_s, conditions.window_s
    return forecast_of(settle(curves, kernels.clocks_mhz, limit, ceiling, gpu, *window, highest))


def _form_spreads(
    kernels: Kernels, table: InstructionTable, forecast: Forecast, description: GpuDescription
) -> tuple[Array, Array, Array]:
    """Relative standard deviation of time, energy and power from what kernels' forms get wrong, of shape ``(n,)``."""
    amounts = []
    owner, kernel = np.nonzero(table.counts)
    costs = kernels.costs.take(kernel)
    for values in (kernels.times.time_s, kernels.times.energy_j):
        pairs = zip(forecast.clock_mhz[owner], kernel, strict=True)
        each = [np.interp(clock, kernels.clocks_mhz, values[:, k]) for clock, k in pairs]
        amounts.append(np.array(each) * table.counts[owner, kernel])
    return composed_spreads(amounts, owner, costs, description, len(forecast.time_s))
