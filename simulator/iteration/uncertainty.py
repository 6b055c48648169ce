"""90 % intervals of forecast iterations.

An interval has four parts, as independent standard deviations of the logarithm:

- parameters: the iteration's main kernels are forecast again at joint deviations of the GPU's parameters, back to back
  under the same power limit or clock (:mod:`joulecast.model.uncertainty`), with the uncertain contention and waits of
  :mod:`joulecast.simulator.iteration.stretch`;
- the form of the model, composed of the kernels' shares (:mod:`joulecast.model.uncertainty`);
- what published steps showed of frameworks, in place of the first two or beside them, and of GPUs of another vendor;
- the pace of the host (:mod:`joulecast.simulator.iteration.host_pace`).

Iterations of the same kernels, such as one plan at several clocks, err together, so that the ratio of two of them is
known far better than either. :mod:`joulecast.simulator.iteration.plan_interval` has the interval of one simulated plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.model.forecasts import Changes
from joulecast.model.hardware.derivation_supplement import VENDOR_LONGER
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.uncertain_power import Margin, margin, power_changes
from joulecast.model.predict import Mixes, parameter_changes
from joulecast.model.training.factors import LONGER, SPREAD, UNSEEN
from joulecast.model.uncertainty import (
    FEW_DIRECTIONS,
    NINETY_PERCENT,
    composed_power_spread,
    form_spreads,
    same_kernels,
    spread_of,
)
from joulecast.simulator.iteration.host_pace import HostChanges

#: Share of time and of energy whose kernels stand for all in the parameters' part.
MAIN_SHARE = 0.7
#: By how much iterations on a derived GPU answer to another clock otherwise than their kernels' forms say, in time and
#: in energy over the logarithm of the clocks' ratio [1]: 44 plans of published fronts on A100s (``validate fronts``),
#: root mean square without the three furthest [estimate with these plans in view]. A calibrated card's kernels were
#: measured at the clocks that its board picked.
CLOCK_RESPONSE_SD = 0.13


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

    @property
    def consistent(self) -> Intervals:
        """The same with energies at most as uncertain as time and power make them, whose product they are."""
        low, high = self.time * self.power
        return replace(self, energy=np.clip(self.energy, low, high))


def with_host(found: Intervals, host: HostChanges | None, against: Int) -> Intervals:
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
    ).consistent


def _wider(factors: Array, changes: Array) -> Array:
    """Factors at both ends of intervals, with changes of the logarithm by something else; all of shape ``(2, n)``."""
    low, high = np.maximum(-changes.min(axis=0), 0.0), np.maximum(changes.max(axis=0), 0.0)
    ends = np.hypot(np.log(factors), (low, high))
    return np.asarray(np.exp(np.stack([-ends[0], ends[1]])))


def intervals(amounts: KernelAmounts, conditions: Conditions, against: Int | None = None) -> Intervals:
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
    return Intervals(of[0], of[1], of[2], of[3], of[4], _margin(amounts, own)).consistent


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


def _parameter_changes(amounts: KernelAmounts, counted: Sequence[Bool], conditions: Conditions) -> list[Changes]:
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


def _works(operators: Sequence[Operator]) -> Int:
    """Which kernels do the same work, as numbers from 0, shape ``(m,)``: thread blocks do not change a collective's."""
    known: dict[Operator, int] = {}
    works = (replace(o, ctas=None, threads=None) if isinstance(o, Collective) else o for o in operators)
    return np.array([known.setdefault(work, len(known)) for work in works], dtype=np.int64)


def main_kernels(time_s: Array, energy_j: Array) -> Bool:
    """Kernels that stand for all in each iteration: the largest, until their shares are enough; shape ``(n, m)``."""
    shares = [amount / amount.sum(axis=1, keepdims=True) for amount in (time_s, energy_j)]
    share = np.maximum(*shares)
    order = np.argsort(-share, axis=1, kind="stable")
    largest = np.take_along_axis(share, order, axis=1)
    before = np.cumsum(largest, axis=1) - largest
    main = np.zeros(share.shape, dtype=bool)
    np.put_along_axis(main, order, before < MAIN_SHARE * share.sum(axis=1, keepdims=True), axis=1)
    return main
