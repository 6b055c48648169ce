"""Fit of one card's sweep: rounds of Gauss–Newton between which noise and population are re-estimated from the rows.

The population's mean and spread of each workload parameter are those that make the rows most likely (expectation
maximisation with the posterior covariance), held to their prior beliefs by a few pseudo-workloads; the noise of each
workload is its residuals' spread, drawn towards that of all workloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array
from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.likeness import likeness
from joulecast.calibrate.clock_sweeps.newton import Beliefs, Estimate, Observed, robust_weight, search
from joulecast.calibrate.clock_sweeps.parameters import Belief, Kind
from joulecast.calibrate.clock_sweeps.physics import Setup, respond, setup
from joulecast.calibrate.clock_sweeps.slopes import respond_with_slopes

#: Iterations of each round. Sweeps of limits have many workloads and none that a longer search would tell apart.
ROUNDS: dict[Kind, tuple[int, ...]] = {"clock": (50, 15), "limit": (25, 10, 10)}
#: Noise assumed at first, and the least that is believed, of log time and log power.
FIRST_NOISE = 0.015
LEAST_NOISE = np.array([0.0015, 0.003])
#: Where a search begins that takes rows to have reached the board's limit (log share of the highest power).
REACHED_START = -0.02
#: Where a search begins that sees rows above their limit (by this share): a lowest clock that no row rests at pulls at
#: nothing (log share of the highest).
LOWEST_START, ABOVE_LIMIT = float(np.log(0.4)), 1.03
#: Rows of the typical workload by which a workload's own noise is held back, and pseudo-workloads of the population.
NOISE_ROWS, POPULATION_WORKLOADS = 5.0, 3.0


@dataclass(frozen=True, slots=True)
class SweepFit:
    """A fitted card and its workloads.

    Attributes
    ----------
    given, card, work
        Set-up, the card's parameters ``(c,)`` and the workloads' ``(W, w)``.
    covariance
        Posterior covariance of card and workload parameters, ``(c + W·w, …)``; zero where nothing was fitted.
    noise
        Standard deviation of log time and log power of one row of each workload, ``(W, 2)``.
    """

    given: Setup
    card: Array
    work: Array
    covariance: Array
    noise: Array

    def respond(self, setting: Array, workload: NDArray[np.intp]) -> Array:
        """Logarithms of time [s] and power [W] of workloads at settings, ``(n, 2)``."""
        return respond(setting, self.card, self.work[workload], self.given)

    def respond_with_covariance(self, setting: Array, workload: NDArray[np.intp]) -> tuple[Array, Array]:
        """As :meth:`respond`, and the covariance of the two by the parameters' uncertainty, ``(n, 2, 2)``."""
        response = respond_with_slopes(setting, self.card, self.work[workload], self.given)
        covariances = np.empty((len(setting), 2, 2))
        own = np.arange(p.WORK_SIZE)
        for i, who in enumerate(workload):
            slopes = np.concatenate([response.in_card[i], response.in_work[i]], axis=1)
            places = np.r_[np.arange(p.CARD_SIZE), p.CARD_SIZE + who * p.WORK_SIZE + own]
            covariances[i] = slopes @ self.covariance[np.ix_(places, places)] @ slopes.T
        return response.value, covariances


def fit_sweep(
    kind: Kind,
    observed: Observed,
    configurations: Sequence[Mapping[str, Any]],
    known: Mapping[str, Belief] | None,
) -> SweepFit:
    """Fit one card.

    Parameters
    ----------
    kind
        Whether settings are clocks (shares of the highest clock) or power limits [W].
    observed
        Its rows; workloads without rows stay at what the others suggest.
    configurations
        What is known of each workload beforehand.
    known
        Beliefs about the card in place of the general ones of :data:`~.parameters.CARD`; powers are shares of the
        highest power of the rows.
    """
    scale = highest_power_w(observed)
    given = setup(kind, scale)
    card_mean, card_precision = p.card_prior(kind, known)
    mean, spread = p.population_prior(kind)
    work = _start(observed, mean, scale)
    means = np.tile(mean, (observed.workloads, 1))
    means[:, p.TIME] = work[:, p.TIME]
    beliefs = Beliefs(
        card_mean,
        card_precision,
        np.asarray(np.linalg.inv(likeness(configurations)), dtype=np.float64),
        means,
        spread,
        np.full((observed.workloads, 2), FIRST_NOISE),
        p.free_workload_parameters(kind),
    )
    start = card_mean.copy()
    if kind == "limit" and bool(np.any(np.exp(observed.value[:, 1]) > ABOVE_LIMIT * observed.setting)):
        start[p.LOWEST] = LOWEST_START
    found = [_rounds(observed, given, beliefs, beliefs, Estimate(start, work))]
    if kind == "clock" and card_mean[p.LIMIT] > REACHED_START:
        # A limit that no row reaches pulls at nothing: a second search begins with rows that do reach it.
        reached = _reached(beliefs)
        found.append(_rounds(observed, given, reached, beliefs, Estimate(reached.card_mean, work)))
    return min(found, key=lambda one: one[1])[0]


def highest_power_w(observed: Observed) -> float:
    """Highest mean power of the rows [W], of which the card's powers are shares."""
    return float(np.exp(observed.value[:, 1].max()))


def _reached(beliefs: Beliefs) -> Beliefs:
    """As if the limit were known to be just below the highest power."""
    mean, precision = beliefs.card_mean.copy(), beliefs.card_precision.copy()
    mean[p.LIMIT], precision[p.LIMIT, p.LIMIT] = REACHED_START, p.REACHED_LIMIT_SD**-2
    return replace(beliefs, card_mean=mean, card_precision=precision)


def _rounds(observed: Observed, given: Setup, first: Beliefs, then: Beliefs, start: Estimate) -> tuple[SweepFit, float]:
    """Search in rounds, the first under other beliefs about the card; the fit and minus twice its log posterior."""
    first_mean, first_spread = then.mean[0].copy(), then.spread
    beliefs = first
    estimate, covariance = start, np.zeros((0, 0))
    for iterations in ROUNDS[given.kind]:
        estimate = search(observed, given, beliefs, estimate, iterations)
        covariance = np.zeros((len(estimate.kept),) * 2)
        covariance[np.ix_(estimate.kept, estimate.kept)] = np.linalg.inv(estimate.precision)
        value = respond(observed.setting, estimate.card, estimate.work[observed.workload], given)
        used = beliefs
        beliefs = replace(
            beliefs,
            card_mean=then.card_mean,
            card_precision=then.card_precision,
            noise=_noise(value - observed.value, observed, beliefs),
        )
        beliefs = _population(beliefs, estimate, covariance, first_mean, first_spread)
    score = estimate.cost + 2.0 * float(np.log(used.noise[observed.workload]).sum())
    return SweepFit(given, estimate.card, estimate.work, covariance, beliefs.noise), score


def _start(observed: Observed, mean: Array, scale: float) -> Array:
    """Workload parameters to begin from: the shortest time and the highest power of each."""
    work = np.tile(mean, (observed.workloads, 1))
    work[:, p.TIME] = np.median(observed.value[:, 0])
    for j in np.unique(observed.workload):
        rows = observed.value[observed.workload == j]
        work[j, p.TIME] = rows[:, 0].min() - 0.2
        work[j, p.DYNAMIC] = max(float(np.exp(rows[:, 1].max())) / scale - 0.15, 0.05)
    return work


def _noise(residual: Array, observed: Observed, beliefs: Beliefs) -> Array:
    """Standard deviations ``(W, 2)``: robust, drawn towards the median workload's, and for the parameters spent."""
    weight = robust_weight(residual / beliefs.noise[observed.workload])
    rows = np.bincount(observed.workload, minlength=observed.workloads)
    noise = np.empty_like(beliefs.noise)
    for k in range(2):
        typical = max(1.48 * float(np.median(np.abs(residual[:, k]))), LEAST_NOISE[k])
        squares = np.bincount(observed.workload, weight[:, k] * residual[:, k] ** 2, observed.workloads)
        noise[:, k] = np.sqrt((NOISE_ROWS * (1.2 * typical) ** 2 + 1.4 * squares) / (NOISE_ROWS + rows))
    return np.asarray(np.maximum(noise, LEAST_NOISE))


def _population(beliefs: Beliefs, estimate: Estimate, covariance: Array, mean: Array, spread: Array) -> Beliefs:
    """Mean and spread of each workload parameter that make the workloads' values most likely."""
    means, spreads = beliefs.mean.copy(), beliefs.spread.copy()
    count = len(means)
    total = beliefs.unlikeness.sum()
    first = p.CARD_SIZE + np.arange(count) * p.WORK_SIZE
    for k in range(p.WORK_SIZE):
        if k == p.TIME or not beliefs.free[k]:
            continue
        values = estimate.work[:, k]
        evidence = beliefs.unlikeness.sum(0) @ values / spreads[k] ** 2
        centre = (mean[k] / spread[k] ** 2 + evidence) / (1.0 / spread[k] ** 2 + total / spreads[k] ** 2)
        apart = values - centre
        joint = covariance[np.ix_(first + k, first + k)]
        squares = apart @ beliefs.unlikeness @ apart + np.trace(beliefs.unlikeness @ joint)
        means[:, k] = centre
        spreads[k] = np.sqrt((squares + POPULATION_WORKLOADS * (0.5 * spread[k]) ** 2) / (count + POPULATION_WORKLOADS))
    return replace(beliefs, mean=means, spread=spreads)
