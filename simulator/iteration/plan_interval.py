"""The 90 % interval of one simulated plan; what goes into it is :mod:`joulecast.simulator.iteration.uncertainty`'s."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.power.uncertain_power import margin, power_changes
from joulecast.model.training.factors import EXPERTS_SD, HYBRIDS_SD, MUON_SD
from joulecast.model.uncertainty import FEW_DIRECTIONS, NINETY_PERCENT, deviations
from joulecast.simulator.instructions.clock_columns import in_columns
from joulecast.simulator.iteration.host_pace import HostChanges
from joulecast.simulator.iteration.stretch import stretches
from joulecast.simulator.iteration.uncertainty import Conditions, KernelAmounts, intervals, with_host

if TYPE_CHECKING:
    from joulecast.simulator.fluid.prepared import Prepared
    from joulecast.simulator.fluid.steady_state import SteadyState


@dataclass(frozen=True)
class Interval:
    """Factors on the forecast at 5 % and 95 %; ``demand`` is of the power without the board's limit."""

    time: tuple[float, float]
    energy: tuple[float, float]
    power: tuple[float, float]
    demand: tuple[float, float]


def interval(steady: SteadyState, description: GpuDescription, host: HostChanges | None, power_w: float) -> Interval:
    """Interval of a simulated plan, whose GPUs draw ``power_w`` in the mean, with what its host's pace leaves open."""
    found = intervals(_amounts(steady, description, power_w), conditions_of(steady.prepared, description))
    found = with_host(found, host, np.zeros(1, dtype=np.int64))
    factors = found.time, found.energy, found.power, found.demand
    return Interval(*((float(low), float(high)) for low, high in (of.T[0] for of in factors)))


def peak_ends(
    steady: SteadyState, description: GpuDescription, peak_w: float, demand: tuple[float, float]
) -> tuple[float, float]:
    """Factors at 5 % and 95 % on the highest power of a GPU over some milliseconds.

    What an instruction draws errs as the whole iteration's demand does, up to the instant limit of the board.

    Parameters
    ----------
    peak_w
        That power [W].
    demand
        Factors on the demand, as :class:`Interval` has them.
    """
    peak, share = np.array([peak_w]), description.governor.parameters["peak_share"]
    level = np.array([max(steady.prepared.power_limits_w) * share.number])
    low, high = np.abs(np.log(np.array(demand)))[:, None]
    beside = margin(peak, peak, level, np.array([share.sd / share.number]), 0.0)
    down, up = power_changes(low, high, beside, NINETY_PERCENT)
    return float(np.exp(-down[0])), float(np.exp(up[0]))


def conditions_of(prepared: Prepared, description: GpuDescription) -> Conditions:
    """Conditions of a plan's iterations."""
    plan = prepared.program.plan
    limits = dict(plan.power.component_limits_w) or None
    limit_w = float(np.mean(prepared.power_limits_w))
    precision, nodes = plan.workload.precision, plan.cluster.nodes
    model = plan.workload.model
    muon = MUON_SD * (plan.implementation.muon is not None)
    unlike = math.hypot(EXPERTS_SD * (model.experts is not None), HYBRIDS_SD * (model.mixers != ()), muon)
    return Conditions(prepared.gpu, description, limit_w, limits, prepared.locked, precision, plan.tp, nodes, unlike)


def _amounts(steady: SteadyState, description: GpuDescription, power_w: float) -> KernelAmounts:
    """Amounts of a simulated plan."""
    prepared = steady.prepared
    kernels, clocks = prepared.kernels[0], prepared.clocks_mhz
    shape = (len(kernels.operators), len(clocks))
    by_limit = {id(own): (own.times, np.zeros(shape)) for own in prepared.kernels}
    ranks = zip(prepared.kernels, prepared.tables, prepared.columns, strict=True)
    for rank, (own, table, columns) in enumerate(ranks):
        runs = by_limit[id(own)][1]
        runs += np.einsum("tc,tk->kc", in_columns(steady.executed(rank), columns), table.counts)
    runs, time, energy = (
        sum(of) for of in zip(*((n, n * t.time_s.T, n * t.energy_j.T) for t, n in by_limit.values()), strict=True)
    )
    clock = float((time * clocks).sum() / time.sum())
    runs, time, energy = (each.sum(1)[None] for each in (runs, time, energy))
    spent = [_spent_s(steady, rank) for rank in range(len(prepared.tables))]
    stretch = _stretch(prepared, spent, deviations(description, FEW_DIRECTIONS))
    busy = sum(float(of.sum()) for of in spent)
    waits = sum(float(of[steady.warm_up :].sum()) for of in steady.result.wait_s)
    waiting = np.array([waits / (waits + busy)])
    clocks_mhz, power = np.array([clock]), np.array([power_w])
    return KernelAmounts(kernels.operators, kernels.costs, runs, time, energy, clocks_mhz, stretch, waiting, power)


def _spent_s(steady: SteadyState, rank: int) -> Array:
    """Time of a rank in each type of instruction at each clock, shape ``(types, clocks)`` [s]."""
    prepared = steady.prepared
    return in_columns(steady.executed(rank) * prepared.tables[rank].duration_s, prepared.columns[rank])


def _stretch(prepared: Prepared, spent_s: Sequence[Array], varied: Sequence[Mapping[str, float]]) -> Array:
    """``stretch`` of a simulated plan's :class:`KernelAmounts`, shape ``(directions, 1)``.

    Where clocks stand still, the mean over all ranks at their clocks; else of the busiest rank at its mean clock.
    """
    if prepared.locked:
        used = [np.flatnonzero(spent.sum(0)) for spent in spent_s]
        total = sum(
            np.einsum("ktm,tm->k", stretches(prepared, rank, columns, varied), spent[:, columns])
            for rank, (columns, spent) in enumerate(zip(used, spent_s, strict=True))
        )
        return np.asarray(total / sum(spent.sum() for spent in spent_s))[:, None]
    rank = int(np.argmax([spent.sum() for spent in spent_s]))
    spent = spent_s[rank]
    mean = round(float(np.average(np.arange(spent.shape[1]), weights=spent.sum(0))))
    change = stretches(prepared, rank, np.array([mean]), varied)[..., 0]
    return np.asarray(np.average(change, axis=1, weights=spent.sum(1))[:, None])
