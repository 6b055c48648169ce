"""Chooses what to measure: some of every kind of work first, then what lowers the forecasts' variance most per second.

This is a greedy Bayesian I-optimal design (Chaloner and Verdinelli 1995, "Bayesian experimental design: a review"): it
minimises the mean variance of the forecasts of reference kernels, not the volume of the parameters' uncertainty
(D-optimal), which spends its time on parameters that no forecast needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.sessions.belief import Belief, Uncertainty
from joulecast.calibrate.sessions.candidates import Candidate
from joulecast.calibrate.sessions.information import linearise
from joulecast.calibrate.sessions.reference import reference_kernels
from joulecast.model.hardware.gpu_model import GpuModel

#: A kind of work is seen early only if it gains at least this share of what the best candidate gains per second.
LEAST_RATE = 0.03


@dataclass(frozen=True)
class Choice:
    """What to measure, in order.

    Attributes
    ----------
    order
        The chosen candidates; every beginning of it is a choice of its own.
    cost_s
        Seconds that they take together.
    before, after
        Uncertainty of the reference forecasts without these rows, and expected with them.
    """

    order: tuple[Candidate, ...]
    cost_s: float
    before: Uncertainty
    after: Uncertainty


class Design:
    """A choice among candidates, linearised around a state of knowledge.

    Parameters
    ----------
    candidates
        Usable ones (see :func:`joulecast.calibrate.sessions.candidates.usable`).
    gpu
        The priors' values, or a fit so far.
    priors
        Of the card.
    done
        Names of candidates that have been measured.
    known
        L of what is known from elsewhere, with cov(z) = L·Lᵀ in the priors' units; by default the priors.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        gpu: GpuModel,
        priors: DevicePriors,
        *,
        done: Collection[str] = (),
        known: Array | None = None,
    ) -> None:
        self._candidates = tuple(candidates)
        kernels = reference_kernels(candidates, gpu)
        shown, forecasts = linearise(candidates, list(kernels), gpu, priors)
        if known is not None:
            shown, forecasts = replace(shown, slopes=shown.slopes @ known), forecasts @ known
        self._belief = Belief(shown, forecasts, np.array(list(kernels.values())))
        self._open = [True] * len(self._candidates)
        self._strata = {c.stratum for c in candidates}
        self._take(*(place for place, c in enumerate(candidates) if c.name in done))

    @property
    def left(self) -> int:
        """How many candidates have neither been measured nor chosen."""
        return sum(self._open)

    def uncertainty(self) -> Uncertainty:
        """Of the reference forecasts, given what has been measured and chosen."""
        return self._belief.uncertainty()

    def choose(self, budget_s: float = float("inf"), count: int | None = None) -> Choice:
        """Choose as much as a budget allows.

        Parameters
        ----------
        budget_s
            Seconds of measuring.
        count
            At most so many.
        """
        before, spent = self.uncertainty(), 0.0
        order: list[Candidate] = []
        while count is None or len(order) < count:
            place = self._next(budget_s - spent)
            if place is None:
                break
            self._take(place)
            order.append(self._candidates[place])
            spent += self._candidates[place].cost_s
        return Choice(tuple(order), spent, before, self.uncertainty())

    def _next(self, left_s: float) -> int | None:
        """The candidate that gains most per second, of kinds not yet seen as long as one of them gains enough."""
        gains = self._belief.gains()
        rates = {
            place: gains[place] / candidate.cost_s
            for place, candidate in enumerate(self._candidates)
            if self._open[place] and candidate.cost_s <= left_s
        }
        enough = LEAST_RATE * max(rates.values(), default=0.0)
        fresh = [i for i, rate in rates.items() if self._candidates[i].stratum in self._strata and rate > enough]
        return max(fresh or rates, key=lambda i: (rates[i], -i), default=None)

    def _take(self, *places: int) -> None:
        self._belief.observe(*places)
        for place in places:
            self._open[place] = False
            self._strata.discard(self._candidates[place].stratum)
