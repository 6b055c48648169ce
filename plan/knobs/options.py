"""The ways to run one kind of instruction: time, energy and knobs, and the convex hull that the exact front uses.

While a stage does not compute, it waits and draws its waiting power. An option that takes longer therefore saves
waiting: what it really costs is ``c = energy - P_wait · time``. Options are compared by time and ``c``, never by
energy: a low clock whose energy is above that of a faster one may still be right where a stage would wait anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import GuardError, InputError

#: Time is counted in whole quanta, rounded up, so that no plan is faster on paper than it is [s].
TIME_QUANTUM_S = 1e-6
#: Relative excess over a whole quantum that is rounding of binary numbers, not time.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run an instruction.

    Attributes
    ----------
    time_s, energy_j
        Of one execution on all GPUs of the stage together.
    clock_mhz
        SM clock.
    knobs
        Whatever else was chosen, as (name, value); carried through to the plan.
    """

    time_s: float
    energy_j: float
    clock_mhz: float
    knobs: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, eq=False)
class OptionSet:
    """Options of one kind of instruction.

    Attributes
    ----------
    options
        First the ``worth`` options that no other one beats in time and cost, fastest first: time rises and cost falls
        strictly. Then the others, which only serve where instructions must share a choice. In all ``m``.
    time_s, cost_j
        Time and ``energy - P_wait · time``, shape ``(m,)``.
    quanta
        Time in quanta, rounded up, shape ``(m,)``.
    hull
        Indices of the options on the lower convex hull of quantised time and cost, fastest first, shape ``(h,)``.
    """

    name: str
    options: tuple[Option, ...]
    worth: int
    time_s: Array
    cost_j: Array
    quanta: Int
    hull: Int

    def near_hull(self, excess: float) -> Int:
        """Indices of options worth choosing whose cost is above the hull by at most this share of their energy."""
        time, cost = self.time_s[: self.worth], self.cost_j[: self.worth]
        above = cost - np.interp(time, self.time_s[self.hull], self.cost_j[self.hull])
        energy = np.array([option.energy_j for option in self.options[: self.worth]])
        return np.flatnonzero(above <= excess * energy)


def make_options(options: Sequence[Option], wait_power_w: float, name: str = "instruction") -> OptionSet:
    """Sort out what is worth choosing, and find its hull.

    Parameters
    ----------
    options
        All ways to run the instruction, in any order.
    wait_power_w
        Power of all GPUs of the stage while they wait [W].
    name
        For errors.

    Raises
    ------
    InputError
        No option, or one whose time or energy is not a positive number.
    """
    if not options:
        raise InputError(f"{name} has no option", remedy="Give at least one time and energy.")
    for option in options:
        if not (0.0 < option.time_s < np.inf and 0.0 < option.energy_j < np.inf):
            raise InputError(
                f"{name} takes {option.time_s:g} s and {option.energy_j:g} J at {option.clock_mhz:g} MHz",
                remedy="Times and energies must be positive.",
            )
    ordered = sorted(options, key=lambda o: (o.time_s, o.energy_j))
    kept: list[Option] = []
    beaten: list[Option] = []
    least = np.inf
    for option in ordered:
        cost = option.energy_j - wait_power_w * option.time_s
        (kept if cost < least else beaten).append(option)
        least = min(least, cost)
    worth, every = len(kept), (*kept, *beaten)
    time = np.array([o.time_s for o in every])
    cost_j = np.array([o.energy_j for o in every]) - wait_power_w * time
    whole = quanta(time)
    return OptionSet(name, every, worth, time, cost_j, whole, lower_hull(whole[:worth], cost_j[:worth]))


def quanta(time_s: Array) -> Int:
    """Time in whole quanta, rounded up.

    >>> quanta(np.array([1e-6, 1.5e-6, 0.07]))
    array([    1,     2, 70000])
    """
    exact = np.asarray(time_s, dtype=np.float64) / TIME_QUANTUM_S
    return np.asarray(np.ceil(exact * (1.0 - _ROUNDING)), dtype=np.int64)


def lower_hull(time: Int, cost_j: Array) -> Int:
    """Corners of the lower convex hull of points whose cost falls strictly with time.

    Times may be equal after rounding up; of these the cheapest, the last one, counts. Slopes along the hull fall
    strictly in magnitude.

    Returns
    -------
    hull
        Indices of the corners, fastest first.
    """
    last = np.append(np.flatnonzero(np.diff(time) > 0), len(time) - 1)
    corners: list[int] = []
    for i in last.tolist():
        while len(corners) > 1 and _is_above(time, cost_j, corners[-2], corners[-1], i):
            corners.pop()
        corners.append(i)
    return np.array(corners, dtype=np.int64)


def _is_above(time: Int, cost: Array, a: int, b: int, c: int) -> bool:
    """Whether the corner ``b`` lies on or above the line from ``a`` to ``c``."""
    return bool((cost[a] - cost[b]) * (time[c] - time[b]) <= (cost[b] - cost[c]) * (time[b] - time[a]))


def integer_slopes(sets: Sequence[OptionSet], count: Sequence[int]) -> tuple[list[tuple[Int, Int]], float]:
    """Hulls with slopes that are whole numbers of one power quantum, strictly decreasing from fast to slow.

    Two slopes of a hull that are equal after rounding would make two corners one, and the flow's capacities empty:
    the corner between them is left out.

    Parameters
    ----------
    sets
        Kinds of instructions.
    count
        How many instructions of each kind there are.

    Returns
    -------
    hulls
        Of each kind: the option indices of the corners from the slowest to the fastest, shape ``(h,)``, and the slopes
        between them, shape ``(h - 1,)``, positive and strictly rising [power quanta].
    quantum_w
        The power quantum: 1 nW, or the next power of ten at which no sum of slopes overflows [W].
    """
    quantum = 1e-9
    steepest = sum(n * _steepest_w(s) for s, n in zip(sets, count, strict=True))
    while steepest / quantum > 2.0**60:
        quantum *= 10.0
    return [_with_slopes(s, quantum) for s in sets], quantum


def _steepest_w(options: OptionSet) -> float:
    cost = options.cost_j[options.hull]
    if len(cost) < 2:
        return 0.0
    time = options.quanta[options.hull]
    return float((cost[0] - cost[1]) / ((time[1] - time[0]) * TIME_QUANTUM_S))


def _with_slopes(options: OptionSet, quantum_w: float) -> tuple[Int, Int]:
    corners = options.hull[::-1].tolist()
    kept, slopes = [corners[0]], [0]
    for corner in corners[1:]:
        slope = _slope(options, kept[-1], corner, quantum_w)
        while slope <= slopes[-1] and len(kept) > 1:
            kept.pop()
            slopes.pop()
            slope = _slope(options, kept[-1], corner, quantum_w)
        if slope > slopes[-1]:
            kept.append(corner)
            slopes.append(slope)
        else:  # as cheap as the slowest option, but faster
            kept[-1] = corner
    indices, steps = np.array(kept, dtype=np.int64), np.array(slopes[1:], dtype=np.int64)
    if (np.diff(steps, prepend=0) <= 0).any():
        raise GuardError(f"the hull of {options.name} is not strictly convex: {slopes}")
    return indices, steps


def _slope(options: OptionSet, slow: int, fast: int, quantum_w: float) -> int:
    gain = float(options.cost_j[fast] - options.cost_j[slow])
    return round(gain / (int(options.quanta[slow] - options.quanta[fast]) * TIME_QUANTUM_S) / quantum_w)
