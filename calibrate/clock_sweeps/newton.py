"""Penalised robust Gauss–Newton for one card and its workloads.

Minimises Σ ρ(r) + (c − μ_c)ᵀ P (c − μ_c) + Σ_k (θ_k − μ_k)ᵀ K⁻¹ (θ_k − μ_k)/τ_k² over the card's parameters c and the
workloads' θ, with residuals r in units of their noise and ρ(r) = (ν + 1)·ln(1 + r²/ν), Student's t: a row that a busy
host delayed counts little. Weights are those of iteratively reweighted least squares (Holland and Welsch 1977), damping
is Levenberg's and Marquardt's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array, Bool
from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.physics import Setup, respond
from joulecast.calibrate.clock_sweeps.slopes import respond_with_slopes

#: Degrees of freedom of Student's t, and of its side of times shorter than the fit: a busy host or card only delays.
NU, NU_FASTER = 4.0, 30.0
#: Longest step in one iteration: of a workload's parameters, and of a card's first parameters.
LONGEST_STEP, LONGEST_CARD_STEP = 1.0, 0.3
#: Levenberg–Marquardt damping (share of the diagonal), adapted after Nielsen (1999).
FIRST_DAMPING, LEAST_DAMPING, MOST_REFUSALS = 1e-2, 1e-6, 8
#: Relative gain below which a search ends.
TOLERANCE = 3e-4
#: Spread of ``log_time`` around its start: as good as free.
TIME_SD = 5.0


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows of one card, sorted by workload: settings ``(n,)``, log time and log power ``(n, 2)``, workload ``(n,)``."""

    setting: Array
    value: Array
    workload: NDArray[np.intp]
    workloads: int


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Priors: the card's mean and precision, K⁻¹, the population's means ``(W, w)`` and spreads ``(w,)``, noise."""

    card_mean: Array
    card_precision: Array
    unlikeness: Array
    mean: Array
    spread: Array
    noise: Array
    free: Bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Parameters and the curvature of the objective in those that are free (their posterior precision)."""

    card: Array
    work: Array
    precision: Array = field(default_factory=lambda: np.zeros((0, 0)))
    kept: Bool = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    cost: float = np.inf


def robust_weight(residual: Array) -> Array:
    """Weight of residuals of log time and log power ``(n, 2)``, fitted − measured in standard deviations."""
    nu = _freedom(residual)
    return np.asarray((nu + 1.0) / (nu + residual**2))


def _freedom(residual: Array) -> Array:
    nu = np.full(residual.shape, NU)
    nu[residual[:, 0] > 0, 0] = NU_FASTER
    return nu


def search(observed: Observed, given: Setup, beliefs: Beliefs, start: Estimate, iterations: int) -> Estimate:
    """Minimise from a start; ends at :data:`TOLERANCE` or after so many iterations."""
    damping = FIRST_DAMPING
    card, work = start.card, start.work
    cost = _cost(observed, given, beliefs, card, work)
    estimate = start
    for _ in range(iterations):
        precision, gradient, kept = _normal_equations(observed, given, beliefs, card, work)
        estimate = Estimate(card, work, precision, kept, cost)
        diagonal = np.diag(precision)
        growth = 4.0
        for _ in range(MOST_REFUSALS):
            step = np.zeros(len(kept))
            damped = precision.copy()
            damped[np.diag_indices_from(damped)] += damping * diagonal
            step[kept] = np.linalg.solve(damped, -gradient[kept])
            new_card, new_work = _advance(card, work, step)
            new_cost = _cost(observed, given, beliefs, new_card, new_work)
            if new_cost < cost:
                break
            damping, growth = damping * growth, 2.0 * growth
        else:
            return estimate
        expected = float(step[kept] @ (damping * diagonal * step[kept] - gradient[kept]))
        quality = min((cost - new_cost) / max(expected, 1e-300), 1.0)
        damping = max(damping * max(1.0 / 3.0, 1.0 - (2.0 * quality - 1.0) ** 3), LEAST_DAMPING)
        gain, cost = cost - new_cost, new_cost
        card, work = new_card, new_work
        estimate = replace(estimate, card=card, work=work, cost=cost)
        if gain < TOLERANCE * max(cost, 1.0):
            break
    return estimate


def _advance(card: Array, work: Array, step: Array) -> tuple[Array, Array]:
    """Parameters after a step, shortened so that nothing leaps out of the range where slopes mean anything."""
    by_work = step[p.CARD_SIZE :].reshape(work.shape)
    longest = max(
        np.abs(by_work[:, 1:]).max() / LONGEST_STEP, np.abs(step[: len(p.CARD)]).max() / LONGEST_CARD_STEP, 1.0
    )
    new_card = card + step[: p.CARD_SIZE] / longest
    new_card[p.KNEE] = np.clip(new_card[p.KNEE], 0.2, 0.95)
    new_card[p.FLOOR] = np.clip(new_card[p.FLOOR], 0.3, 0.98)
    return new_card, work + by_work / longest


def _residuals(observed: Observed, beliefs: Beliefs, value: Array) -> Array:
    return np.asarray((value - observed.value) / beliefs.noise[observed.workload])


def _prior(beliefs: Beliefs, card: Array, work: Array) -> tuple[Array, Array, float]:
    """Half slopes of the priors' terms in card and workloads, and the terms' sum."""
    apart = work - beliefs.mean
    in_card = beliefs.card_precision @ (card - beliefs.card_mean)
    in_work = (beliefs.unlikeness @ apart) / beliefs.spread**2
    in_work[:, p.TIME] = apart[:, p.TIME] / TIME_SD**2
    in_work[:, ~beliefs.free] = 0.0
    return in_card, in_work, float((card - beliefs.card_mean) @ in_card + (apart * in_work).sum())


def _cost(observed: Observed, given: Setup, beliefs: Beliefs, card: Array, work: Array) -> float:
    value = respond(observed.setting, card, work[observed.workload], given)
    residual = _residuals(observed, beliefs, value)
    nu = _freedom(residual)
    cost = float(((nu + 1.0) * np.log1p(residual**2 / nu)).sum()) + _prior(beliefs, card, work)[2]
    return cost if np.isfinite(cost) else np.inf


def _normal_equations(
    observed: Observed, given: Setup, beliefs: Beliefs, card: Array, work: Array
) -> tuple[Array, Array, Bool]:
    """Weighted normal matrix over the free parameters, gradient over all of them, and which are free."""
    who, count = observed.workload, observed.workloads
    response = respond_with_slopes(observed.setting, card, work[who], given)
    residual = _residuals(observed, beliefs, response.value)
    weight = robust_weight(residual)
    noise = beliefs.noise[who][..., None]
    in_card, in_work = response.in_card / noise, response.in_work / noise
    card_weighted, work_weighted = in_card * weight[..., None], in_work * weight[..., None]
    card_prior, work_prior, _ = _prior(beliefs, card, work)

    size = p.CARD_SIZE + count * p.WORK_SIZE
    matrix, gradient = np.zeros((size, size)), np.zeros(size)
    matrix[: p.CARD_SIZE, : p.CARD_SIZE] = np.einsum("nki,nkj->ij", card_weighted, in_card) + beliefs.card_precision
    gradient[: p.CARD_SIZE] = np.einsum("nki,nk->i", card_weighted, residual) + card_prior
    cross = _by_workload(np.einsum("nki,nkj->nij", work_weighted, in_card), who, count)
    own = _by_workload(np.einsum("nki,nkj->nij", work_weighted, in_work), who, count)
    pull = _by_workload(np.einsum("nki,nk->ni", work_weighted, residual), who, count)
    gradient[p.CARD_SIZE :] = (pull + work_prior).ravel()
    matrix[p.CARD_SIZE :, : p.CARD_SIZE] = cross.reshape(-1, p.CARD_SIZE)
    matrix[: p.CARD_SIZE, p.CARD_SIZE :] = matrix[p.CARD_SIZE :, : p.CARD_SIZE].T
    block = matrix[p.CARD_SIZE :, p.CARD_SIZE :].reshape(count, p.WORK_SIZE, count, p.WORK_SIZE)
    block[np.arange(count), :, np.arange(count), :] += own
    for k in range(p.WORK_SIZE):
        block[:, k, :, k] += np.eye(count) / TIME_SD**2 if k == p.TIME else beliefs.unlikeness / beliefs.spread[k] ** 2
    kept = np.r_[np.ones(p.CARD_SIZE, dtype=bool), np.tile(beliefs.free, count)]
    return matrix[np.ix_(kept, kept)], gradient, kept


def _by_workload(values: Array, who: NDArray[np.intp], count: int) -> Array:
    """Sums over each workload's rows, which stand together; shape ``(W, …)``."""
    sums = np.zeros((count, *values.shape[1:]))
    present, first = np.unique(who, return_index=True)
    sums[present] = np.add.reduceat(values, first, axis=0)
    return sums
