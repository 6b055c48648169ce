"""Time and power of workloads at a clock or under a power limit.

With x the clock and u the voltage, both as shares of the highest, and all times as shares of the time at x = 1:

    t_gpu(x) = (((1 − m)/x)^r + m^r)^(1/r)                     compute, and memory that no clock changes (roofline)
    t(x)     = (t_gpu^p + h^p)^(1/p)                            and the host's launches
    E(x)     = (P_idle + P_tree·x·u² + P_awake)·t + a·d·((1 − b)·u² + b)
    u(x)     = floor + (1 − floor)·max(0, (x − knee)/(1 − knee))^bend, times small deviations

The energy is that of idling, of the clock tree, of awake memory, of switching (C·V²) and of memory accesses (constant).
Work comes in phases of different activity a; each phase that would exceed the power limit runs at the clock x where
E(x)/t(x) meets the limit, or at the lowest clock where even that exceeds it. Between phases there may be idle gaps.

At locked clocks kernels or stages are timed, whose waits t − t_gpu are short: power goes on, and the board's loop
averages over them. Under limits whole epochs are timed, which wait for batches of data: the card idles so long that the
loop holds E/t_gpu of the busy time, and the waits draw what gaps draw.
The form of E is CMOS dynamic power C·V²·f on top of leakage; the curve u is the shape measured on an A100 (EnergAIzer
artifact).

All functions take, for ``n`` measured settings and ``k`` phases of work, ``setting``: locked clocks [shares of the
highest] or limits [W], shape ``(n,)``; ``card`` and ``work``: parameters of the card, shape ``(c,)``, and of each row's
workload, shape ``(n, w)``, in the order of :mod:`joulecast.calibrate.clock_sweeps.parameters`; ``given``: a
:class:`Setup`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.parameters import Kind

#: Steps of the search for the clock that meets a limit; each at least halves the bracket's error on average.
SETTLE_STEPS = 9


@dataclass(frozen=True, slots=True)
class Setup:
    """What is given rather than fitted.

    Attributes
    ----------
    kind
        Whether settings are clocks (shares of the highest) or limits [W].
    scale_w
        Power of which all powers are shares [W].
    waits_apart
        Whether waits for the host are too long for the board's loop to average over.
    grades
        Grades of heavy work, standard deviations from its typical activity; none where clocks are locked.
    heavy, light
        Weight of each phase in heavy and in light work, shape ``(k,)``.
    """

    kind: Kind
    scale_w: float
    waits_apart: bool
    grades: Array
    heavy: Array
    light: Array


def setup(kind: Kind, scale_w: float) -> Setup:
    """One phase where clocks are locked; light work and three grades of heavy work under limits."""
    one = np.ones(1)
    if kind == "clock":
        return Setup(kind, scale_w, False, np.zeros(0), one, one)
    grades, weights = np.polynomial.hermite_e.hermegauss(3)
    return Setup(kind, scale_w, True, grades, np.r_[0.0, weights / weights.sum()], np.r_[1.0, 0.0, 0.0, 0.0])


def activity(card: Array, given: Setup) -> Array:
    """Activity of each phase against that of the typical heavy one, shape ``(k,)``."""
    if not given.grades.size:
        return np.ones(1)
    spread = np.exp(card[p.SPREAD])
    heavy = np.exp(spread * given.grades - 0.5 * spread**2)
    return np.asarray(np.r_[share(card[p.LIGHT_ACTIVITY]), heavy])


def share(log_odds: Array) -> Array:
    """A share from its log-odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))


def soft(value: Array, scale: float) -> Array:
    """A positive number: the value itself where it is large against the scale, exponentially small below zero."""
    return np.asarray(scale * np.logaddexp(0.0, value / scale))


def squared_voltage(x: Array, card: Array) -> Array:
    """u² at clocks of any shape."""
    rise = np.clip((x - card[p.KNEE]) / (1.0 - card[p.KNEE]), 0.0, None)
    floor = card[p.FLOOR]
    smooth = floor + (1.0 - floor) * rise ** np.exp(card[p.BEND])
    return np.asarray((smooth * np.exp(np.interp(x, p.KNOTS, card[len(p.CARD) :]))) ** 2)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one unit of work in each phase, all of shape ``(n, k)``.

    Attributes
    ----------
    time, energy
        Time as a share of that at the highest clock, and energy (times W).
    """

    time: Array
    energy: Array


class Phases:
    """Costs of workloads ``(n, w)`` on a card: what the clock does not change is computed once."""

    def __init__(self, card: Array, work: Array, given: Setup) -> None:
        self._card, self._given = card, given
        memory, self._constant = share(work[:, p.MEMORY, None]), share(work[:, p.CONSTANT, None])
        self._roof, self._host = np.exp(card[p.ROOF_SHARPNESS]), np.exp(card[p.HOST_SHARPNESS])
        self._compute, self._memory = 1.0 - memory, memory**self._roof
        self._launches = np.exp(self._host * work[:, p.HOST, None])
        self._idle, self._tree = np.exp(card[p.IDLE]), np.exp(card[p.TREE])
        self._active = soft(work[:, p.ACTIVE, None], p.ACTIVE_SOFTNESS)
        self._dynamic = soft(work[:, p.DYNAMIC, None], p.SOFTNESS) * activity(card, given)

    def at(self, x: Array) -> Costs:
        """Time and energy at clocks, shape ``(n, k)``."""
        gpu = self._alone(x)
        time = self._with_launches(gpu)
        busy = gpu if self._given.waits_apart else time
        energy = self._energy(x, busy)
        return Costs(time, energy + (time - busy) * gap_power_w(self._card, self._given))

    def busy_time(self, x: Array) -> Array:
        """Of the time what the board's limit holds, shape ``(n, k)``; all of it unless waits are apart."""
        gpu = self._alone(x)
        return gpu if self._given.waits_apart else self._with_launches(gpu)

    def busy_power_w(self, x: Array) -> Array:
        """Power that the board's limit holds, shape ``(n, k)`` [W]."""
        busy = self.busy_time(x)
        return np.asarray(self._energy(x, busy) / busy)

    def _alone(self, x: Array) -> Array:
        """Time of the GPU, waits for the host left out."""
        return np.asarray(((self._compute / x) ** self._roof + self._memory) ** (1.0 / self._roof))

    def _with_launches(self, gpu: Array) -> Array:
        return np.asarray((gpu**self._host + self._launches) ** (1.0 / self._host))

    def _energy(self, x: Array, busy: Array) -> Array:
        square = squared_voltage(x, self._card)
        still = self._idle + self._tree * x * square + self._active
        moving = self._dynamic * ((1.0 - self._constant) * square + self._constant)
        return np.asarray(self._given.scale_w * (still * busy + moving))


@dataclass(frozen=True, slots=True)
class Settled:
    """Clock of every phase, shape ``(n, k)``, and whether a limit set it or it rests at the lowest clock."""

    x: Array
    held: Bool
    lowest: Bool


def settle(setting: Array, card: Array, work: Array, given: Setup) -> Settled:
    """Clock at which each phase runs; ``setting`` is the locked clock or the limit [W], shape ``(n,)``."""
    shape = (len(setting), len(given.heavy))
    high = np.broadcast_to(setting[:, None], shape) if given.kind == "clock" else np.ones(shape)
    limit = limit_w(setting, card, work, given)
    phases = Phases(card, work, given)

    def excess(x: Array) -> Array:
        return np.asarray(phases.busy_power_w(x) - limit)

    low = np.minimum(np.exp(card[p.LOWEST]), high)
    below, above = excess(low), excess(high)
    over = above > 0
    held, lowest = over & (below < 0), over & (below >= 0)
    x = np.where(lowest, low, high)
    if held.any():
        x = np.where(held, _root(excess, low, high, below, above), x)
    return Settled(x, held, lowest)


def limit_w(setting: Array, card: Array, work: Array, given: Setup) -> Array:
    """Power at which the board's loop holds each row's busy phases, shape ``(n, 1)`` [W]."""
    stated = np.full(len(setting), given.scale_w) if given.kind == "clock" else setting
    return np.asarray((stated * np.exp(card[p.LIMIT] + work[:, p.SETTLED]))[:, None])


def _root(excess: Callable[[Array], Array], low: Array, high: Array, below: Array, above: Array) -> Array:
    """Zero of an increasing function between two clocks: regula falsi with Illinois' halving."""
    side = np.zeros(low.shape)
    x = high
    for _ in range(SETTLE_STEPS):
        span = np.where(above == below, 1.0, above - below)
        x = low + (high - low) * np.clip(-below / span, 0.02, 0.98)
        value = excess(x)
        up = value > 0
        below = np.where(up, np.where(side == 1, 0.5 * below, below), value)
        above = np.where(up, value, np.where(side == -1, 0.5 * above, above))
        high, low = np.where(up, x, high), np.where(up, low, x)
        side = np.where(up, 1, -1)
    return x


def respond(setting: Array, card: Array, work: Array, given: Setup) -> Array:
    """Logarithms of time [s] and mean power [W], shape ``(n, 2)``."""
    x = settle(setting, card, work, given).x
    return combine(Phases(card, work, given).at(x), card, work, given)


def combine(costs: Costs, card: Array, work: Array, given: Setup) -> Array:
    """Logarithms of time and power of all phases, by their weights, and gaps, shape ``(n, 2)``."""
    light = share(work[:, p.LIGHT, None])
    weight = light * given.light + (1.0 - light) * given.heavy
    gap = np.exp(work[:, p.GAP])
    whole = (costs.time * weight).sum(1) + gap
    joule = (costs.energy * weight).sum(1) + gap * gap_power_w(card, given)
    return np.stack([work[:, p.TIME] + np.log(whole), np.log(joule / whole)], 1)


def gap_power_w(card: Array, given: Setup) -> float:
    """Power of an idle gap, and of a wait that counts as one, at the highest clock [W]."""
    return float(given.scale_w * (np.exp(card[p.IDLE]) + np.exp(card[p.TREE])))
