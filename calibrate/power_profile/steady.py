"""When execution times have settled, and when power has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.power_profile.protocol import Array, Run

#: Execution times that differ by less count as equal.
EQUAL_TIME = 0.01
#: Powers that differ by less, or by less than twice their standard error, count as equal.
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
    """

    passes: int
    power_w: float
    standard_error_w: float

    def equals(self, other: EndPower) -> bool:
        """Whether the two cannot be told apart."""
        error = math.hypot(self.standard_error_w, other.standard_error_w)
        return abs(self.power_w - other.power_w) <= max(EQUAL_POWER * other.power_w, 2.0 * error)


@dataclass(frozen=True, slots=True)
class SteadyPower:
    """Outcome of the search for steady power.

    Attributes
    ----------
    passes
        Executions after which the power no longer moves.
    settled
        Whether it came to rest within the longest run allowed.
    trials
        Every length tried, in order.
    """

    passes: int
    settled: bool
    trials: tuple[EndPower, ...]


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
    measure: Callable[[int], EndPower], start: int, least: int, most: int, enough: int
) -> SteadyPower:
    """Double the executions of a run until its end draws the same power, then halve back to the fewest that do.

    Doubling ends once two doublings in a row change nothing and the runs are long enough: a slow change shows little
    over a short time.

    Parameters
    ----------
    measure
        Takes runs of so many passes and gives the power at their end.
    start
        Passes to begin with.
    least, most
        Fewest and most passes to try.
    enough
        Passes of a run that is long enough to trust.
    """
    trials = [measure(start)]
    while 2 * trials[-1].passes <= most:
        trials.append(measure(2 * trials[-1].passes))
        last = trials[-3:]
        if len(last) == 3 and last[-1].passes >= enough and all(trial.equals(last[-1]) for trial in last):
            break
    target = trials[-1]
    away = [trial.passes for trial in trials[:-1] if not trial.equals(target)]
    low = max(away, default=0)
    high = min(trial.passes for trial in trials if trial.passes > low)
    if high == target.passes:
        return SteadyPower(high, False, tuple(trials))
    while low == 0 and high // 2 >= least:  # the first length was already long enough
        trials.append(measure(high // 2))
        if trials[-1].equals(target):
            high //= 2
        else:
            low = high // 2
    while low and high > low + 1 and high > CLOSE * low:
        middle = round(math.sqrt(low * high))
        if middle in (low, high):
            break
        trials.append(measure(middle))
        if trials[-1].equals(target):
            high = middle
        else:
            low = middle
    return SteadyPower(high, True, tuple(trials))
