"""90 % intervals of forecast iterations.

An interval has four parts, as independent standard deviations of the logarithm:

- parameters: the iteration's main kernels are forecast again at joint deviations of the GPU's parameters, back to back
  under the same power limit or clock (:mod:`joulecast.model.uncertainty`), with the uncertain contention and waits of
  :mod:`joulecast.simulator.iteration.stretch`;
- the form of the model, composed of the kernels' shares (:mod:`joulecast.model.uncertainty`);
- what published steps showed of frameworks, in place of the first two or beside them, and of GPUs of another vendor;
- the pace of the host (:mod:`joulecast.simulator.iteration.host_pace`).

Iterations of the same kernels, such as one plan at several clocks, err together, so that the ratio of two of them is
known far better than either. To read: :func:`interval` for one simulated plan, then :func:`intervals` for many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.derivation_supplement import VENDOR_LONGER
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.uncertain_power import Margin, margin, power_changes
from joulecast.model.predict import Changes, Mixes, parameter_changes
from joulecast.model.training.factors import EXPERTS_SD, HYBRIDS_SD, LONGER, MUON_SD, SPREAD, UNSEEN
from joulecast.model.uncertainty import (
    FEW_DIRECTIONS,
    NINETY_PERCENT,
    composed_power_spread,
    deviations,
    form_spreads,
    same_kernels,
    spread_of,
)
from joulecast.simulator.instructions.clock_columns import in_columns
from joulecast.simulator.iteration.host_pace import HostChanges
from joulecast.simulator.iteration.stretch import stretches

if TYPE_CHECKING:
    from joulecast.simulator.fluid.prepared import Prepared
    from joulecast.simulator.fluid.steady_state import SteadyState

Array = NDArray[np.float64]

#: Share of time and of energy whose kernels stand for all in the parameters' part.
MAIN_SHARE = 0.7
#: By how much iterations on a derived GPU answer to another clock otherwise than their kernels' forms say, in time and
#: in energy over the logarithm of the clocks' ratio [1]: 44 plans of published fronts on A100s (``validate fronts``),
#: root mean square without the three furthest [estimate with these plans in view]. A calibrated card's kernels were
#: measured at the clocks that its board picked.
CLOCK_RESPONSE_SD = 0.13


@dataclass(frozen=True)
class Interval:
    """Factors on the forecast at 5 % and 95 %; ``demand`` is of the power without the board's limit."""

    time: tuple[float, float]
    energy: tuple[float, float]
    power: tuple[float, float]
    demand: tuple[float, float]


@dataclass(frozen=True, eq=False)
class KernelAmounts:
    """What ``n`` iterations spend in each of ``m`` kernels.

    Attributes
    ----------
    operators, costs
        The kernels.
    runs, time_s, energy_j
        Of all ranks together, one GPU of each; shape ``(n, m)`` [1], [s], [J].
    clock_mhz
        Mean clock of each iteration, shape ``(n,)`` [MHz].
    stretch
        Change of the logarithm of each iteration's time at every joint deviation of the parameters, with the kernels
        as they are, shape ``(directions, n)``; see :mod:`joulecast.simulator.iteration.stretch` [1].
    waiting
        Share of the time that GPUs wait for others, shape ``(n,)``; ``None`` where clocks stand still [1].
    power_w
        Mean power of a GPU, shape ``(n,)``; ``None`` for that of the kernels back to back [W].
    """

    operators: Sequence[Operator]
    costs: Costs
    runs: Array
    time_s: Array
    energy_j: Array
    clock_mhz: Array
    stretch: Array
    waiting: Array | None = None
    power_w: Array | None = None

    def distinct(self) -> KernelAmounts:
        """The same with one entry for all kernels of the same work."""
        same = same_kernels(self.costs)
        first = np.unique(same, return_index=True)[1]
        kinds = np.zeros((len(same), len(first)))
        kinds[np.arange(len(same)), same] = 1.0
        runs, time, energy = (each @ kinds for each in (self.runs, self.time_s, self.energy_j))
        operators = [self.operators[i] for i in first.tolist()]
        costs = self.costs.take(first)
        return replace(self, operators=operators, costs=costs, runs=runs, time_s=time, energy_j=energy)


@dataclass(frozen=True)
class Conditions:
    """Under what iterations run: limits of board [W] and parts, whether clocks are locked, GPUs in step, and nodes.

    ``unlike`` is what steps of such a model differ by beyond those of the dense ones that published factors are fitted
    to, a standard deviation [log of time].
    """

    gpu: GpuModel
    description: GpuDescription
    power_limit_w: float
    component_limits_w: Mapping[str, float] | None
    locked: bool
    precision: str
    in_step: int = 1
    hosts: int = 1
    unlike: float = 0.0


@dataclass(frozen=True, eq=False)
class Intervals:
    """Factors at 5 % and 95 % on ``n`` forecasts, and on their ratios to others of them; shape ``(2, n)``.

    ``demand`` is that of power without the board's limit, ``margin`` where the powers are beside it.
    """

    time: Array
    energy: Array
    time_ratio: Array
    energy_ratio: Array
    demand: Array
    margin: Margin

    @property
    def power(self) -> Array:
        """Factors on power under the board's limit."""
        low, high = np.abs(np.log(self.demand))
        down, up = power_changes(low, high, self.margin, NINETY_PERCENT)
        return np.exp(np.stack([-down, up]))


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


def with_host(found: Intervals, host: HostChanges | None, against: NDArray[np.int64]) -> Intervals:
    """Intervals with what a host's pace leaves open; plans that are compared have one host."""
    if host is None:
        return found
    return replace(
        found,
        time=_wider(found.time, host.time),
        energy=_wider(found.energy, host.energy),
        time_ratio=_wider(found.time_ratio, host.time - host.time[:, against]),
        energy_ratio=_wider(found.energy_ratio, host.energy - host.energy[:, against]),
        demand=_wider(found.demand, host.energy - host.time),
    )


def _wider(factors: Array, changes: Array) -> Array:
    """Factors at both ends of intervals, with changes of the logarithm by something else; all of shape ``(2, n)``."""
    low, high = np.maximum(-changes.min(axis=0), 0.0), np.maximum(changes.max(axis=0), 0.0)
    ends = np.hypot(np.log(factors), (low, high))
    return np.asarray(np.exp(np.stack([-ends[0], ends[1]])))


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


def intervals(amounts: KernelAmounts, conditions: Conditions, against: NDArray[np.int64] | None = None) -> Intervals:
    """Intervals of ``n`` iterations, or parts of them, of the same kernels, and of their ratios.

    Both iterations of a ratio run on one card in one framework. What a deviation of the parameters changes alike in
    both cancels; a kernel's form errs alike in both, so that only the difference of its shares matters, and on a
    derived GPU by how much it answers to another clock (:data:`CLOCK_RESPONSE_SD`).

    Parameters
    ----------
    amounts
        What the iterations spend in each kernel.
    conditions
        Under which they run.
    against
        Number of the iteration that each is compared with, shape ``(n,)``; by default the first.
    """
    base = np.zeros(len(amounts.runs), dtype=np.int64) if against is None else against
    amounts = amounts.distinct()
    counted = [main_kernels(amounts.time_s, amounts.energy_j)]
    if len(amounts.runs) > 1:  # of ratios every kernel counts, as its share differs between clocks
        counted.append(amounts.runs > 0)
    own, *rest = _parameter_changes(amounts, counted, conditions)
    every = rest[-1] if rest else own
    alike = _works(amounts.operators)
    sd = CLOCK_RESPONSE_SD if conditions.description.derivation else 0.0
    response = sd * np.abs(np.log(amounts.clock_mhz / amounts.clock_mhz[base]))
    found = []
    for amount, quantity, change, of_all in (
        (amounts.time_s, "time", own.time, every.time),
        (amounts.energy_j, "energy", own.energy, every.energy),
    ):
        form, form_ratio = form_spreads(amount, base, alike, amounts.costs, conditions.description, quantity)
        ratio = np.hypot(np.hypot(form_ratio, response), spread_of(of_all - of_all[:, base]))
        found.append([spread * NINETY_PERCENT for spread in (np.hypot(form, spread_of(change)), ratio)])
    (time, time_ratio), (energy, energy_ratio) = found
    published = _as_published(time, conditions)
    kernels = NINETY_PERCENT * _demand_spread(amounts, own, conditions)
    # A time beyond what kernels leave open goes by at the energy that they need.
    longer, shorter = (np.sqrt(np.maximum(width**2 - time**2, 0.0)) for width in reversed(published))
    demand = np.hypot(kernels, longer), np.hypot(kernels, shorter)
    pairs = (published, (energy, energy), (time_ratio, time_ratio), (energy_ratio, energy_ratio), demand)
    of = [np.exp(np.stack([-low, high])) for low, high in pairs]
    return Intervals(of[0], of[1], of[2], of[3], of[4], _margin(amounts, own))


def _margin(amounts: KernelAmounts, changes: Changes) -> Margin:
    """Where the powers of iterations are beside the limit.

    An iteration draws less than its kernels back to back, so that the limit may hold these alone.
    """
    power = changes.power_w if amounts.power_w is None else amounts.power_w
    demand = power * changes.demand_w / changes.power_w
    found = margin(power, demand, changes.held_w, spread_of(changes.held))
    return replace(found, above=np.maximum(found.above - found.below, 0.0))


def _demand_spread(amounts: KernelAmounts, changes: Changes, conditions: Conditions) -> Array:
    """Relative standard deviation of the power that iterations would draw without a limit, shape ``(n,)`` [1]."""
    owner, kernel = np.nonzero(amounts.runs)
    each = amounts.time_s[owner, kernel], amounts.energy_j[owner, kernel]
    form = composed_power_spread(each, owner, amounts.costs.take(kernel), conditions.description, len(amounts.runs))
    return np.hypot(form, spread_of(changes.demand))


def _as_published(width: Array, conditions: Conditions) -> tuple[Array, Array]:
    """Half-widths of a time's interval downwards and upwards, with what published steps showed, shape ``(n,)`` [1]."""
    gpu = conditions.gpu
    known, unseen = gpu.get(f"kernel.{SPREAD}.{conditions.precision}", 0.0), gpu.get(f"kernel.{UNSEEN}", 0.0)
    if known > 0:  # seen in long runs, whatever the kernels' own uncertainty adds up to
        width = np.full_like(width, known * NINETY_PERCENT)
    else:
        width = np.hypot(width, unseen * NINETY_PERCENT)
    if known > 0 or unseen > 0:
        width = np.hypot(width, conditions.unlike * NINETY_PERCENT)
    tail = math.hypot(*(gpu.get(f"kernel.{name}", 0.0) for name in (LONGER, VENDOR_LONGER)))
    return width, np.hypot(width, tail * NINETY_PERCENT)


def _parameter_changes(
    amounts: KernelAmounts, counted: Sequence[NDArray[np.bool_]], conditions: Conditions
) -> list[Changes]:
    """Changes by the parameters of ``n`` iterations, by several choices of kernels.

    A choice says which kernels count in each of ``n`` iterations, shape ``(n, m)``.
    """
    runs = np.concatenate([np.where(which, amounts.runs, 0.0) for which in counted])
    some = np.flatnonzero(runs.any(axis=0))
    clock = np.tile(amounts.clock_mhz, len(counted)) if conditions.locked else None
    limits = conditions.power_limit_w, FEW_DIRECTIONS, conditions.component_limits_w
    stretch = np.tile(amounts.stretch, len(counted))
    waiting = None if amounts.waiting is None or conditions.locked else np.tile(amounts.waiting, len(counted))
    kernels = [amounts.operators[i] for i in some.tolist()]
    mixes = Mixes(kernels, runs[:, some].T, clock, stretch, waiting, conditions.in_step, conditions.hosts)
    return parameter_changes(mixes, conditions.gpu, *limits).split(len(counted))


def _works(operators: Sequence[Operator]) -> NDArray[np.int64]:
    """Which kernels do the same work, as numbers from 0, shape ``(m,)``: thread blocks do not change a collective's."""
    known: dict[Operator, int] = {}
    works = (replace(o, ctas=None, threads=None) if isinstance(o, Collective) else o for o in operators)
    return np.array([known.setdefault(work, len(known)) for work in works], dtype=np.int64)


def main_kernels(time_s: Array, energy_j: Array) -> NDArray[np.bool_]:
    """Kernels that stand for all in each iteration: the largest, until their shares are enough; shape ``(n, m)``."""
    shares = [amount / amount.sum(axis=1, keepdims=True) for amount in (time_s, energy_j)]
    share = np.maximum(*shares)
    order = np.argsort(-share, axis=1, kind="stable")
    largest = np.take_along_axis(share, order, axis=1)
    before = np.cumsum(largest, axis=1) - largest
    main = np.zeros(share.shape, dtype=bool)
    np.put_along_axis(main, order, before < MAIN_SHARE * share.sum(axis=1, keepdims=True), axis=1)
    return main


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
