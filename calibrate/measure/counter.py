"""When an energy counter moved, and whether it can be believed.

Readings only bracket each step, but the steps of a counter are regular: between two readings it either moved or it did
not. A reading every 20 ms tells the time of one step to 20 ms, too coarse for a window of 2.5 s. Steps at ``t0 + k·T``
that all lie inside their brackets leave a small polygon of ``(t0, T)``; the polygon's centre is the estimate and its
extent the uncertainty. A counter without such a regular step is timed by the brackets alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.devices.protocol import Sample
from joulecast.calibrate.measure.faults import FaultError, Reason

#: How far single steps may be off a regular grid [s]; tried in turn.
_JITTERS_S = (0.0, 0.5e-3, 1e-3, 2e-3, 4e-3)
#: How far before a reading, in steps, the last step lies at most; a little more, as the step is not known yet.
_LATEST = 1.1
#: How far energies of steps at steady power are off whole numbers of the usual one.
_STEADY = 0.1
#: A counter that moved between more than this share of the readings is current at each.
_CURRENT = 0.9
#: Fewest steps that make a grid.
_LEAST_STEPS = 5
#: A counter that does not move for so long under way stands still [s].
STILL_S = 1.0
#: A step of the counter jumps if it is so many times as high, and as steep, as the median one; work and pauses of
#: pulses differ by less.
JUMP = 20.0
#: Steps from which on a median tells.
LEAST_MOVES = 6


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a counter between two times; shape (n,).

    Attributes
    ----------
    time_s
        When the counter moved [s].
    energy_j
        What it showed from then on [J].
    number
        How many steps the counter had made since the first, counting those that fell between two readings.
    sample
        Index of the first reading after the step.
    step_s
        Time from step to step [s]; of an irregular counter the mean.
    length_error_s
        Standard error of the time from the first to the last step [s].
    regular
        Whether the steps lie on a grid.
    current
        Whether the counter moves from reading to reading, and shows the energy of each reading's own time.
    """

    time_s: Array
    energy_j: Array
    number: Array
    sample: Int
    step_s: float
    length_error_s: float
    regular: bool
    current: bool = False

    def __len__(self) -> int:
        return len(self.time_s)


def counter_steps(samples: Sequence[Sample], start_s: float, end_s: float) -> Steps:
    """Steps that lie surely between two times.

    Parameters
    ----------
    samples
        Readings in order of time, all with ``energy_j``.
    start_s, end_s
        The work's beginning and end on the samples' clock [s].
    """
    time = np.array([s.time_s for s in samples], dtype=np.float64)
    energy = np.array([s.energy_j for s in samples], dtype=np.float64)
    after = np.flatnonzero(np.diff(energy) != 0.0) + 1
    after = after[(time[after - 1] >= start_s) & (time[after] <= end_s)]
    low, high = time[after - 1], time[after]
    if len(after) < 2:
        return Steps(high, energy[after], np.arange(len(after), dtype=np.float64), after, math.nan, math.nan, False)
    fast = len(after) > _CURRENT * (after[-1] - after[0])
    grid = _grid(low, high, energy[after], with_rhythm=not fast) if len(after) >= _LEAST_STEPS else None
    if grid is not None:
        when = grid.start_s + grid.step_s * grid.order
        return Steps(when, energy[after], grid.order, after, grid.step_s, grid.error_s, True)
    moved = high if fast else 0.5 * (low + high)
    # What a current counter shows is younger than the shortest times between two readings.
    late = np.quantile(high - low, 1.0 - _CURRENT) if fast else np.mean(high - low)
    error = float(late) * math.sqrt(2.0 / 12.0)
    step = float(moved[-1] - moved[0]) / (len(moved) - 1)
    return Steps(moved, energy[after], np.arange(len(after), dtype=np.float64), after, step, error, False, fast)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Regular steps: their numbers, the time of the first, their distance, and the error of first to last [s]."""

    order: Array
    start_s: float
    step_s: float
    error_s: float


def _grid(low: Array, high: Array, energy: Array, *, with_rhythm: bool) -> _Grid | None:
    """The grid on which steps lie, each within its bracket; ``None`` if they are irregular, or several grids do."""
    guesses = (_by_energy(energy), _by_rhythm(low, high) if with_rhythm else None)
    candidates = [order for order in guesses if order is not None]
    for jitter in _JITTERS_S:
        for order in candidates:
            grid = _grid_of(order, low, high, jitter)
            if grid is not None:
                told = _is_steady(energy, order) or not _may_have_missed(grid, low, high, jitter)
                return grid if told else None
    return None


def _grid_of(order: Array, low: Array, high: Array, jitter_s: float) -> _Grid | None:
    """The grid of steps with these numbers, if there is one."""
    # Where readings are rare a bracket holds several steps: what is read is the last of them.
    step = float(high[-1] - high[0]) / float(order[-1])
    corners = _polygon(order, np.maximum(low, high - _LATEST * step) - jitter_s, high + jitter_s)
    if not len(corners):
        return None
    start, step = (0.5 * (corners.min(axis=0) + corners.max(axis=0))).tolist()
    extent = float(np.ptp(corners[:, 1])) * float(order[-1])
    return _Grid(order, start, step, math.hypot(extent / math.sqrt(12.0), jitter_s))


def _is_steady(energy: Array, order: Array) -> bool:
    """Whether every step adds the same energy, so that it tells how many there were in a pause."""
    gained = np.diff(energy)
    return bool(np.all(np.abs(gained / np.median(gained) - np.diff(order)) <= _STEADY))


def _may_have_missed(grid: _Grid, low: Array, high: Array, jitter_s: float) -> bool:
    """Whether steps also lie on a grid with one more or fewer of them in a pause between readings.

    At steady power the energy of a pause tells how many there were, at uneven power nothing does.
    """
    pauses = np.flatnonzero(high - low > _LATEST * grid.step_s)
    later = (np.arange(len(low)) >= pauses[pauses > 0][:, None]).astype(np.float64)
    alone = np.zeros((len(pauses), len(low)))
    alone[np.arange(len(pauses)), pauses] = 1.0
    others = (grid.order + sign * change for change in (*later, *alone) for sign in (-1.0, 1.0))
    return any(np.all(np.diff(order) > 0.0) and _grid_of(order, low, high, jitter_s) is not None for order in others)


def _by_energy(energy: Array) -> Array | None:
    """Numbers of the steps where power is steady: each step adds the same energy, a missed one doubles it."""
    gained = np.diff(energy)
    steps = gained / np.median(gained)
    whole = np.rint(steps)
    if np.any(whole < 1.0) or np.any(np.abs(steps - whole) > 0.3):
        return None
    return np.concatenate([[0.0], np.cumsum(whole)])


def _by_rhythm(low: Array, high: Array) -> Array | None:
    """Numbers of the steps by the strongest rhythm in their times, whatever the power."""
    time = 0.5 * (low + high)
    usual = float(np.median(np.diff(high)))
    rates = np.arange(0.7 / usual, 1.4 / usual, 0.1 / float(time[-1] - time[0]))
    spectrum = np.exp(2j * np.pi * np.outer(rates, time)).mean(axis=1)
    best = int(np.argmax(np.abs(spectrum)))
    order = np.rint(rates[best] * time - np.angle(spectrum[best]) / (2.0 * math.pi))
    return order - order[0] if np.all(np.diff(order) > 0.0) else None


def _polygon(order: Array, low: Array, high: Array) -> Array:
    """Corners of the set of ``(t0, T)`` with ``low ≤ t0 + order·T ≤ high``; shape (corners, 2), none if it is empty."""
    number = np.concatenate([order, order])
    bound = np.concatenate([low, high])
    first, second = np.triu_indices(len(number), 1)
    apart = number[first] != number[second]
    first, second = first[apart], second[apart]
    step = (bound[second] - bound[first]) / (number[second] - number[first])
    start = bound[first] - number[first] * step
    inside = np.ones(len(step), dtype=np.bool_)
    for k, least, most in zip(order, low, high, strict=True):
        when = start + k * step
        inside &= (when >= least - 1e-9) & (when <= most + 1e-9)
    return np.stack([start[inside], step[inside]], axis=1)


def check_counter(samples: Sequence[Sample]) -> None:
    """Refuse a counter that gives no value, runs backward or stands still.

    Raises
    ------
    FaultError
        It does.
    """
    if not samples:
        raise FaultError(Reason.NO_READINGS, "the energy counter gives no value")
    energy = np.array([s.energy_j for s in samples], dtype=np.float64)
    change = np.diff(energy)
    back = np.flatnonzero(change < 0.0)
    if len(back):
        raise FaultError(
            Reason.COUNTER_BACKWARD,
            f"the energy counter ran backward by {-change[back[0]]:g} J",
            remedy="Update the driver, or measure with polled power.",
        )
    moved = np.concatenate([[0], np.flatnonzero(change) + 1, [len(samples)]])
    still_s = max(samples[b - 1].time_s - samples[a].time_s for a, b in pairwise(moved.tolist()))
    if still_s >= STILL_S:
        raise FaultError(
            Reason.COUNTER_STILL,
            f"the energy counter stood still for {still_s:.1f} s",
            remedy="Update the driver, or measure the other die of a card that has two.",
        )


def check_jumps(samples: Sequence[Sample]) -> None:
    """Refuse a counter that jumped between samples of work.

    Raises
    ------
    FaultError
        It did.
    """
    time, energy = np.array([(s.time_s, s.energy_j) for s in samples], dtype=np.float64).reshape(-1, 2).T
    moved = np.flatnonzero(np.diff(energy)) + 1
    if len(moved) < LEAST_MOVES:
        return
    gained = np.diff(energy[moved])
    rate = gained / np.diff(time[moved])
    steep = np.minimum(rate / np.median(rate), gained / np.median(gained))
    worst = int(np.argmax(steep))
    if steep[worst] > JUMP:
        raise FaultError(
            Reason.COUNTER_JUMPED,
            f"the energy counter jumped by {gained[worst]:g} J, others of its steps are of {np.median(gained):.3g} J",
            remedy="Where it does so in most windows, update the driver or take another card.",
        )
