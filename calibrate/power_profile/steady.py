"""When execution times have settled, and when power has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.protocol import Run
from joulecast.errors import MeasurementError

#: Execution times that differ by less count as equal.
EQUAL_TIME = 0.01
#: Powers that differ by less count as equal, if that difference is known to half of this.
EQUAL_POWER = 0.02
#: The halving ends when the last two numbers of executions are this close.
CLOSE = 1.25


@dataclass(frozen=True, slots=True)
class EndPower:
    """Mean power of the second half of runs of one length.

    Attributes
    ----------
    passes
        Of each run.
    power_w, standard_error_w
        Over all runs.
    pass_s
        Duration of a pass of that half [s].
    """

    passes: int
    power_w: float
    standard_error_w: float
    pass_s: float = 0.0

    def equals(self, other: EndPower) -> bool:
        """Whether the two are the same power; what is known too badly to tell is not."""
        return (
            self._apart(other) <= EQUAL_POWER * other.power_w and self.error(other) <= EQUAL_POWER / 2 * other.power_w
        )

    def differs(self, other: EndPower) -> bool:
        """Whether the two are surely different powers."""
        return self._apart(other) > max(EQUAL_POWER * other.power_w, 2.0 * self.error(other))

    def error(self, other: EndPower) -> float:
        """Standard error of the difference [W]."""
        return math.hypot(self.standard_error_w, other.standard_error_w)

    def _apart(self, other: EndPower) -> float:
        return abs(self.power_w - other.power_w)


@dataclass(frozen=True, slots=True)
class SteadyPower:
    """Outcome of the search for steady power.

    Attributes
    ----------
    passes
        Executions after which the power no longer moves.
    settled
        Whether it surely came to rest within the longest run allowed.
    trials
        Every length tried, in order.
    """

    passes: int
    settled: bool
    trials: tuple[EndPower, ...]

    @property
    def longest(self) -> EndPower:
        """The end of the longest runs, which steady power is taken from."""
        return max(self.trials, key=lambda trial: trial.passes)


def pass_times(runs: Sequence[Run], kernels: int, passes: int) -> Array:
    """Shape (runs, passes): duration of each of the first passes [s]."""
    boundaries = np.arange(passes + 1.0) * kernels
    return np.array([np.diff(run.time_at(boundaries)) for run in runs])


def steady_execution(durations_s: Array) -> int:
    """Index of the first execution whose time no longer falls.

    Parameters
    ----------
    durations_s
        Shape (runs, executions), from the card at rest.

    Examples
    --------
    >>> steady_execution(np.array([[1.3, 1.1, 1.004, 1.0, 1.001, 1.05]]))
    2
    """
    typical = np.median(durations_s, axis=0)
    for index in range(len(typical) - 1):
        if typical[index] <= (1.0 + EQUAL_TIME) * float(typical[index + 1 :].min()):
            return index
    return len(typical) - 1


def find_steady_power(
    measure: Callable[[int], EndPower | None], start: int, least: int, most: int, enough: int
) -> SteadyPower:
    """Double the executions of a run until its end draws the same power, then halve back to the fewest that do.

    Doubling ends once two doublings in a row change nothing and the runs are long enough: a slow change shows little
    over a short time. Powers that are known too badly to be told apart do not count as equal. Where power goes up and
    down before it settles, a short run may end at the steady power by chance: then only doubled lengths count. Where
    the time ends before runs are long enough, equal powers prove nothing.

    Parameters
    ----------
    measure
        Takes runs of so many passes and gives the power at their end; ``None`` once there is no time left.
    start
        Passes to begin with.
    least, most
        Fewest and most passes to try.
    enough
        Passes of a run that is long enough to trust.

    Raises
    ------
    MeasurementError
        There is no time even for the first length.
    """
    first = measure(start)
    if first is None:
        raise MeasurementError("no time is left to look for steady power", remedy="Give a larger budget.")
    trials = _doubled(measure, first, most, enough)
    target = trials[-1]
    low = max((trial.passes for trial in trials[:-1] if not trial.equals(target)), default=0)
    high = min(trial.passes for trial in trials if trial.passes > low)
    out_of_time = target.passes < min(enough, most / CLOSE)
    if high == target.passes or out_of_time:
        return SteadyPower(target.passes, False, tuple(trials))
    closer = _halved(measure, trials, target, (low, high), least)
    return SteadyPower(closer if _one_way(trials) else high, True, tuple(trials))


def _doubled(measure: Callable[[int], EndPower | None], first: EndPower, most: int, enough: int) -> list[EndPower]:
    """Doubled lengths until the last three are equal, at last the longest that is allowed."""
    trials = [first]
    while trials[-1].passes < most / CLOSE:
        trial = measure(min(2 * trials[-1].passes, most))
        if trial is None:
            break
        trials.append(trial)
        last = trials[-3:]
        if len(last) == 3 and trial.passes >= enough and all(one.equals(trial) for one in last):
            break
    return trials


def _halved(
    measure: Callable[[int], EndPower | None],
    trials: list[EndPower],
    target: EndPower,
    bounds: tuple[int, int],
    least: int,
) -> int:
    """Fewest passes that end at the target, between a length that does not (0: none is known) and one that does."""
    low, high = bounds
    while high > low + 1 and high > CLOSE * low:
        # Without a length that is too short: the first was already long enough.
        middle = round(math.sqrt(low * high)) if low else high // 2
        if middle < least or middle in (low, high):
            break
        trial = measure(middle)
        if trial is None:
            break
        trials.append(trial)
        if trial.equals(target):
            high = middle
        else:
            low = middle
    return high


def _one_way(trials: Sequence[EndPower]) -> bool:
    """Whether power surely goes nowhere both up and down as runs get longer."""
    ordered = sorted(trials, key=lambda trial: trial.passes)
    signs = {
        math.copysign(1.0, b.power_w - a.power_w)
        for i, a in enumerate(ordered)
        for b in ordered[i + 1 :]
        if b.differs(a)
    }
    return len(signs) < 2
