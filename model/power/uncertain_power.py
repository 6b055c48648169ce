"""How sure a forecast of power is: what work would draw is uncertain, what a board holds it to hardly is.

A board draws ``P = min(D, L)``: the demand D of the work at its highest clock, or the level L at which the board holds
work that would draw more. Only D errs with kernels' forms and energies. As the minimum nowhere falls with D, the ends
of P's interval are the minimum at the ends of D's: far above the limit none of it is left, just below the limit only
the lower half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array

#: Relative standard deviation of the level at which a board holds its power, beside what is uncertain of its governor:
#: with it 90 % of the 281 rows of kernels lie inside that were left out of the H200's fit, five-fold, and whose demand
#: is forecast 15 % or more above that level. Windows of a second and more need 0.005 there, shorter ones, which see
#: less of the slow average, 0.021.
HELD_SD, HELD_SHORT_SD = 0.009, 0.021
#: Below this a window is short [s].
SHORT_S = 1.0
#: A power so far above that level is not held: the work draws more than the limit at the lowest clock too.
OVER = 1.02


@dataclass(frozen=True, eq=False)
class Margin:
    """Where ``n`` pieces of work are beside their board's limit, as logarithms of ratios; shape ``(n,)`` [1].

    Attributes
    ----------
    above
        By how much the demand is above the power: zero where no limit holds it.
    below
        By how much the power is below the level at which the board would hold it: zero where it does.
    held_sd
        Standard deviation of the logarithm of that level.
    """

    above: Array
    below: Array
    held_sd: Array


def margin(power_w: Array, demand_w: Array, held_w: Array, governor_sd: Array, window_s: ArrayLike = SHORT_S) -> Margin:
    """Where powers are beside the limit.

    Parameters
    ----------
    power_w, demand_w, held_w
        What work draws, would draw without a limit, and is held to, shape ``(n,)`` [W].
    governor_sd
        Relative standard deviation of the level by what is uncertain of the governor, shape ``(n,)`` [1].
    window_s
        How long the power is averaged, shape ``()`` or ``(n,)``; by default long [s].

    Examples
    --------
    >>> far = margin(np.array([690.0]), np.array([920.0]), np.array([690.0]), np.zeros(1))
    >>> float(far.below[0]), round(float(far.above[0]), 3)
    (0.0, 0.288)
    """
    lowest = power_w > OVER * held_w
    above = np.where(lowest, 0.0, np.maximum(np.log(demand_w / power_w), 0.0))
    below = np.where(lowest, np.inf, np.maximum(np.log(held_w / power_w), 0.0))
    held_sd = np.where(np.asarray(window_s) < SHORT_S, HELD_SHORT_SD, HELD_SD)
    return Margin(above, below, np.hypot(governor_sd, held_sd))


def power_changes(down: Array, up: Array, of: Margin, deviations: float) -> tuple[Array, Array]:
    """Half-widths of the logarithm of power downwards and upwards, from those of the demand; shape ``(n,)`` [1].

    ``min(D, L)`` at both ends of D's interval, and beside it the level's own ``deviations`` standard deviations.

    Examples
    --------
    >>> wide, level = np.array([0.2]), np.array([0.01])
    >>> held = Margin(np.array([0.3]), np.array([0.0]), level)
    >>> [round(float(end[0]), 4) for end in power_changes(wide, wide, held, 1.645)]
    [0.0164, 0.0164]
    >>> nearly = Margin(np.array([0.0]), np.array([0.05]), 0.0 * level)
    >>> [round(float(end[0]), 4) for end in power_changes(wide, wide, nearly, 1.645)]
    [0.2, 0.05]
    """
    level = deviations * of.held_sd
    lower, higher = np.maximum(down - of.above, 0.0), np.minimum(up + of.above, of.below)
    return np.hypot(lower, level), np.hypot(higher, level)
