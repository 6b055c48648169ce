"""Which batch size to run a recurring job with, learnt while it recurs: Thompson sampling over Gaussian beliefs.

The cost of a run (see :mod:`joulecast.plan.limits.power_limits`) scatters by a factor, so beliefs are about its
logarithm. Of batch size b, m_b ~ N(μ_b, s_b²) is the logarithm of its usual cost; a run costs exp(m_b + ε) with ε ~
N(0, σ²). A forecast is where the belief starts, with the forecast's own uncertainty as s_b. Each time, a cost is drawn
for every batch size from its belief and the cheapest draw is run. A run that costs more than a multiple of the best
usual cost is stopped; it tells that its cost is above that, and no more:

    belief after a finished run    1/s² → 1/s² + 1/σ²,  μ → mean weighted by precision
    belief after a stopped one     N(μ, s²) · Φ((m − ln c)/σ), replaced by the Gaussian of the same mean and variance

with α = (μ − ln c)/√(s² + σ²) and r = φ(α)/Φ(α):  μ → μ + s²·r/√(s² + σ²),  s² → s²·(1 − s²·r·(r + α)/(s² + σ²)).
The scatter σ is learnt from repeated runs, as an inverse-gamma belief around its first guess. Zeus (You et al.,
NSDI'23) samples in the same way from beliefs that start flat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulecast.errors import InputError

#: A run is stopped at this multiple of the best usual cost, as in Zeus.
STOP_AT = 2.0
#: Relative scatter of equal runs, before any was seen, and how many runs this guess is worth.
SCATTER, SCATTER_RUNS = 0.1, 4.0
#: Relative uncertainty of a forecast cost where none is given: mostly that of the epochs to the target.
FORECAST_SD = 0.3


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of one batch size.

    Attributes
    ----------
    mean, sd
        Of the logarithm of its usual cost.
    runs, stopped
        Finished runs, and runs that were stopped.
    sum_squares
        Squared deviations of the finished runs' logarithms from their mean.
    average
        Mean of the finished runs' logarithms.
    """

    mean: float
    sd: float
    runs: int = 0
    stopped: int = 0
    sum_squares: float = 0.0
    average: float = 0.0

    @property
    def cost(self) -> float:
        """Usual cost, the median of what is believed."""
        return math.exp(self.mean)


@dataclass(frozen=True)
class BatchSizeSampler:
    """Beliefs about all batch sizes; every change makes a new one.

    Attributes
    ----------
    beliefs
        By batch size.
    stop_at
        Multiple of the best usual cost at which a run is stopped; infinite for never.
    """

    beliefs: Mapping[int, Belief]
    stop_at: float = STOP_AT

    @property
    def scatter(self) -> float:
        """Relative scatter σ of equal runs, as now believed."""
        squares = sum(b.sum_squares for b in self.beliefs.values())
        repeats = sum(max(b.runs - 1, 0) for b in self.beliefs.values())
        return math.sqrt((SCATTER_RUNS * SCATTER**2 + squares) / (SCATTER_RUNS + repeats))

    def choose(self, random: np.random.Generator) -> int:
        """Batch size of the next run."""
        drawn = {size: b.mean + b.sd * random.standard_normal() for size, b in self.beliefs.items()}
        return min(drawn, key=lambda size: (drawn[size], size))

    def best(self) -> int:
        """Batch size that is believed to be the cheapest."""
        return min(self.beliefs, key=lambda size: (self.beliefs[size].mean, size))

    def stop_cost(self, batch_size: int) -> float:
        """Cost at which a run with this batch size is to be stopped.

        A multiple of the cheapest usual cost among batch sizes that have finished a run, or, before any has, of the
        cost that this very batch size may have at most.
        """
        finished = [b.cost for b in self.beliefs.values() if b.runs]
        if finished:
            return self.stop_at * min(finished)
        own = self.beliefs[batch_size]
        return self.stop_at * math.exp(own.mean + 2.0 * own.sd)

    def finished(self, batch_size: int, cost: float) -> BatchSizeSampler:
        """After a run that reached its target at this cost."""
        log = math.log(_positive(cost))
        old = self.beliefs[batch_size]
        runs = old.runs + 1
        average = old.average + (log - old.average) / runs
        squares = old.sum_squares + (log - old.average) * (log - average) if old.runs else 0.0
        counted = replace(old, runs=runs, average=average, sum_squares=squares)
        scatter = replace(self, beliefs={**self.beliefs, batch_size: counted}).scatter
        precision = old.sd**-2 + scatter**-2
        mean = (old.mean * old.sd**-2 + log * scatter**-2) / precision
        return self._with(batch_size, replace(counted, mean=mean, sd=precision**-0.5))

    def stopped(self, batch_size: int, cost: float) -> BatchSizeSampler:
        """After a run that was stopped at this cost."""
        old = self.beliefs[batch_size]
        spread = math.hypot(old.sd, self.scatter)
        alpha = (old.mean - math.log(_positive(cost))) / spread
        hazard = _hazard(alpha)
        share = (old.sd / spread) ** 2
        mean = old.mean + old.sd * (old.sd / spread) * hazard
        variance = old.sd**2 * max(1.0 - share * hazard * (hazard + alpha), 1e-6)
        return self._with(batch_size, replace(old, mean=mean, sd=math.sqrt(variance), stopped=old.stopped + 1))

    def _with(self, batch_size: int, belief: Belief) -> BatchSizeSampler:
        return replace(self, beliefs={**self.beliefs, batch_size: belief})


def make_sampler(
    forecasts: Mapping[int, float],
    relative_sd: float | Mapping[int, float] = FORECAST_SD,
    *,
    stop_at: float = STOP_AT,
) -> BatchSizeSampler:
    """Beliefs that start at forecast costs.

    Parameters
    ----------
    forecasts
        Cost to the target by batch size, in any one unit.
    relative_sd
        Relative standard deviation of the forecasts: one number, or one for each batch size.
    stop_at
        See :class:`BatchSizeSampler`.

    Raises
    ------
    InputError
        No batch size, or a cost or deviation that is not positive.
    """
    if not forecasts:
        raise InputError("no batch size to choose from", remedy="Give at least one forecast.")
    if not stop_at > 1.0:
        raise InputError(f"runs stopped at {stop_at:g} times the best cost", remedy="Give more than 1.")
    beliefs = {}
    for size, cost in forecasts.items():
        sd = relative_sd[size] if isinstance(relative_sd, Mapping) else relative_sd
        beliefs[size] = Belief(math.log(_positive(cost)), math.sqrt(math.log1p(_positive(sd) ** 2)))
    return BatchSizeSampler(beliefs, stop_at)


def _positive(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"a cost or deviation of {value:g}", remedy="Costs and deviations are positive numbers.")
    return value


def _hazard(alpha: float) -> float:
    """``φ(α)/Φ(α)``, by its asymptote where Φ would vanish."""
    if alpha < -30.0:
        return -alpha - 1.0 / alpha
    cumulative = 0.5 * math.erfc(-alpha / math.sqrt(2.0))
    return math.exp(-0.5 * alpha**2) / math.sqrt(2.0 * math.pi) / cumulative
