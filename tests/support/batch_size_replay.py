"""Replays of a recurring job: what choosing its batch size costs while learning, beside exhaustive search.

A run with batch size b and the power limit that is best for it takes ``epochs · time of an epoch``, with epochs drawn
from those that runs of this batch size needed. Policies see only what their own runs cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.plan.limits.batch_size import FORECAST_SD, STOP_AT, make_sampler
from joulecast.plan.limits.power_limits import JobPoint, choose

#: Relative deviation of flat beliefs, as good as unknown.
_FLAT_SD = 1e4


@dataclass(frozen=True, slots=True)
class Arm:
    """One batch size at one power limit.

    Attributes
    ----------
    batch_size, power_limit_w
        What is run.
    epoch_cost
        Cost of an epoch.
    epochs
        Epochs that runs needed; infinite for one that never reached the target.
    """

    batch_size: int
    power_limit_w: float
    epoch_cost: float
    epochs: tuple[float, ...]

    @property
    def usual_cost(self) -> float:
        """Mean cost to the target; infinite where a run may never end."""
        return self.epoch_cost * float(np.mean(self.epochs))


class Policy(Protocol):
    """Chooses what to run next and learns from what it cost."""

    def choose(self, random: np.random.Generator) -> Arm:
        """What to run next."""
        ...

    def stop_cost(self, arm: Arm) -> float:
        """Cost at which the run is to be stopped."""
        ...

    def learn(self, arm: Arm, cost: float, finished: bool) -> None:
        """What the run cost, and whether it reached its target."""
        ...


@dataclass(frozen=True)
class Replay:
    """Costs of a policy's runs.

    Attributes
    ----------
    cost
        Of each recurrence, with all runs that it took until one reached the target, shape ``(n,)``.
    best
        Usual cost of the best arm.
    batch_size
        Batch size with which each recurrence reached the target, shape ``(n,)``.
    """

    cost: Array
    best: float
    batch_size: Int

    @property
    def regret(self) -> Array:
        """Cumulative cost beyond that of always running the best arm, relative to one run of it, shape ``(n,)``."""
        return np.asarray(np.cumsum(self.cost / self.best - 1.0))


def best_arms(
    points: Sequence[JobPoint], epochs: Mapping[int, Sequence[float]], eta: float, power_w: float
) -> list[Arm]:
    """Of each batch size with known epochs its arm at the power limit of least cost.

    The cost to the target is that of an epoch times their number, so the best limit does not depend on the epochs.
    """
    arms = []
    for size in sorted({p.batch_size for p in points if p.batch_size is not None}):
        if epochs.get(size):
            point = choose([p for p in points if p.batch_size == size], eta, power_w)
            arms.append(Arm(size, point.power_limit_w, point.cost_j(eta, power_w), tuple(epochs[size])))
    return arms


def all_arms(
    points: Sequence[JobPoint], epochs: Mapping[int, Sequence[float]], eta: float, power_w: float
) -> list[Arm]:
    """Every batch size with known epochs at every power limit."""
    return [
        Arm(p.batch_size, p.power_limit_w, p.cost_j(eta, power_w), tuple(epochs[p.batch_size]))
        for p in points
        if p.batch_size is not None and epochs.get(p.batch_size)
    ]


def replay(policy: Policy, arms: Sequence[Arm], recurrences: int, seed: int = 0) -> Replay:
    """Run a recurring job under a policy.

    Parameters
    ----------
    arms
        All that may be run; they set the best usual cost.
    recurrences
        How often the job recurs. A run that is stopped is followed by another one, which counts as the same recurrence.
    seed
        Of the epochs that are drawn and of the policy's choices.
    """
    best = min(arm.usual_cost for arm in arms)
    if not math.isfinite(best):
        raise InputError("no batch size always reaches the target", remedy="Add one that does.")
    random = np.random.default_rng(seed)
    costs, sizes = [], []
    for _ in range(recurrences):
        spent, finished = 0.0, False
        while not finished:
            arm = policy.choose(random)
            full = arm.epoch_cost * float(random.choice(arm.epochs))
            stop = policy.stop_cost(arm)
            finished = full <= stop
            cost = full if finished else math.ceil(stop / arm.epoch_cost) * arm.epoch_cost  # stops after an epoch
            policy.learn(arm, cost, finished)
            spent += cost
        costs.append(spent)
        sizes.append(arm.batch_size)
    return Replay(np.array(costs), best, np.array(sizes))


class Thompson:
    """Thompson sampling over batch sizes, each at its best power limit, from forecast costs.

    Parameters
    ----------
    arms
        One for each batch size.
    forecasts
        Cost to the target by batch size.
    relative_sd
        Relative uncertainty of the forecasts.
    """

    def __init__(self, arms: Sequence[Arm], forecasts: Mapping[int, float], relative_sd: float = FORECAST_SD) -> None:
        self.arms = {arm.batch_size: arm for arm in arms}
        self.sampler = make_sampler({size: forecasts[size] for size in self.arms}, relative_sd)

    def choose(self, random: np.random.Generator) -> Arm:
        """A draw from the beliefs."""
        return self.arms[self.sampler.choose(random)]

    def stop_cost(self, arm: Arm) -> float:
        """That of the sampler."""
        return self.sampler.stop_cost(arm.batch_size)

    def learn(self, arm: Arm, cost: float, finished: bool) -> None:
        """Update the belief of the arm that ran."""
        update = self.sampler.finished if finished else self.sampler.stopped
        self.sampler = update(arm.batch_size, cost)


class ExploreFirst:
    """As Zeus: every batch size some times from the default outwards, without those that were stopped; then sampling.

    Beliefs start flat, so that they are those of the exploring runs.

    Parameters
    ----------
    arms
        One for each batch size.
    default
        Batch size to start from.
    rounds
        How often each batch size is tried.
    most_epochs
        Epochs after which a run is stopped before any has reached its target.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        default: int,
        *,
        rounds: int = 2,
        stop_at: float = STOP_AT,
        most_epochs: float = 100.0,
    ) -> None:
        self.arms = {arm.batch_size: arm for arm in arms}
        order = sorted(self.arms, key=lambda size: (abs(math.log(size / default)), size))
        self.waiting = order * rounds
        self.most_epochs = most_epochs
        guess = self.arms[order[0]].epoch_cost
        self.sampler = make_sampler(dict.fromkeys(self.arms, guess), _FLAT_SD, stop_at=stop_at)
        self.dropped: set[int] = set()

    def choose(self, random: np.random.Generator) -> Arm:
        """The next batch size to try, then a draw from the beliefs about those that were not dropped."""
        while self.waiting:
            if self.waiting[0] not in self.dropped:
                return self.arms[self.waiting[0]]
            self.waiting.pop(0)
        kept = {size: b for size, b in self.sampler.beliefs.items() if size not in self.dropped}
        return self.arms[replace(self.sampler, beliefs=kept or self.sampler.beliefs).choose(random)]

    def stop_cost(self, arm: Arm) -> float:
        """A multiple of the best cost so far, and in any case so many epochs."""
        limit = self.most_epochs * arm.epoch_cost
        return min(limit, self.sampler.stop_cost(arm.batch_size)) if self._has_finished else limit

    def learn(self, arm: Arm, cost: float, finished: bool) -> None:
        """Update the belief, or drop a batch size that was stopped while it was being tried."""
        if self.waiting:
            self.waiting.pop(0)
            if not finished:
                self.dropped.add(arm.batch_size)
        update = self.sampler.finished if finished else self.sampler.stopped
        self.sampler = update(arm.batch_size, cost)

    @property
    def _has_finished(self) -> bool:
        return any(b.runs for b in self.sampler.beliefs.values())


class Exhaustive:
    """Every arm once in random order, then the best seen; runs are stopped at ``stop_at`` times the best cost."""

    def __init__(self, arms: Sequence[Arm], stop_at: float = math.inf, most_epochs: float = 100.0) -> None:
        self.arms, self.stop_at, self.most_epochs = list(arms), stop_at, most_epochs
        self.order: list[int] | None = None
        self.seen: dict[int, float] = {}

    def choose(self, random: np.random.Generator) -> Arm:
        """The next arm that has not run, then the cheapest."""
        if self.order is None:
            self.order = random.permutation(len(self.arms)).tolist()
        if len(self.seen) < len(self.order):
            return self.arms[self.order[len(self.seen)]]
        return self.arms[min(self.seen, key=lambda i: self.seen[i])]

    def stop_cost(self, arm: Arm) -> float:
        """A multiple of the best cost seen, and in any case so many epochs."""
        finite = [c for c in self.seen.values() if math.isfinite(c)]
        limit = self.most_epochs * arm.epoch_cost
        return min(limit, self.stop_at * min(finite)) if finite else limit

    def learn(self, arm: Arm, cost: float, finished: bool) -> None:
        """Remember an arm's first cost."""
        place = self.arms.index(arm)
        self.seen.setdefault(place, cost if finished else math.inf)


class Fixed:
    """Always the same arm: the default batch size at the highest limit, or the best in hindsight."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def choose(self, random: np.random.Generator) -> Arm:
        """The arm."""
        return self.arm

    def stop_cost(self, arm: Arm) -> float:
        """Never."""
        return math.inf

    def learn(self, arm: Arm, cost: float, finished: bool) -> None:
        """Nothing."""
