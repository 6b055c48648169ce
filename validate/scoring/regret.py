"""What it costs to choose by forecast: measured options of one problem, of which the forecast picks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.validate.scoring.metrics import as_array
from joulecast.validate.scoring.result import ScoredRow

#: Quantities to choose by, and their words.
CHOSEN_BY = {"time_s": "time", "energy_j": "energy"}


def regret(said: Array, measured: Array) -> float:
    """Measured value of the option that is said to be the least, over that of the best one, less 1.

    Parameters
    ----------
    said, measured
        Of every option, shape ``(n,)``; options without a measured value are NaN and not to be chosen.

    >>> round(regret(np.array([1.0, 1.1]), np.array([1.02, 1.0])), 3)
    0.02
    """
    known = np.isfinite(measured) & np.isfinite(said)
    return float(measured[np.argmin(np.where(known, said, np.inf))] / measured[known].min() - 1.0)


def by_energy(said: Array, clocks_mhz: Array, equal: float) -> Array:
    """Places in the order of forecast energy, least first, shape ``(n,)``: of equal ones that of the highest clock.

    Where a board's limit holds options that take the same time, their energies are the limit times that time. The one
    that runs at the highest clock under it would need least without it, and does on a card that stays below.

    Parameters
    ----------
    said, clocks_mhz
        Energy and clock of every option, shape ``(n,)``; an energy of NaN has no place.
    equal
        Energies that exceed the least one by at most this share are equal to it [1].

    >>> by_energy(np.array([1.0, 1.001, 1.1]), np.array([1800.0, 1900.0, 1980.0]), 0.004)
    array([1., 0., 2.])
    """
    alike = said <= np.nanmin(said) * (1.0 + equal)
    order = np.lexsort((said, np.where(alike, -clocks_mhz, 0.0), ~alike))
    return np.where(np.isnan(said), np.nan, np.argsort(order).astype(np.float64))


def problems(rows: Sequence[ScoredRow], key: Callable[[ScoredRow], object]) -> list[list[ScoredRow]]:
    """Rows that are options of the same problem, where there are at least two; a key of ``None`` is of no problem."""
    found: dict[str, list[ScoredRow]] = {}
    for row in rows:
        which = key(row)
        if which is not None:  # by its text: a file may have a list where a name is expected
            found.setdefault(repr(which), []).append(row)
    return [options for options in found.values() if len(options) > 1]


def measured(options: Sequence[ScoredRow], quantity: str) -> Array:
    """A measured quantity of every option, NaN where it was not measured, shape ``(n,)``."""
    return as_array([getattr(row.measured, quantity) for row in options])


def forecast(options: Sequence[ScoredRow], quantity: str) -> Array:
    """A forecast quantity of every option, shape ``(n,)``."""
    return as_array([getattr(row.prediction, quantity) for row in options])


def line(quantity: str, chosen_by: str, regrets: Sequence[float]) -> dict[str, Any]:
    """One line of a report of regrets [%]."""
    return {
        "quantity": CHOSEN_BY[quantity],
        "chosen by": chosen_by,
        "problems": len(regrets),
        "mean_regret_percent": round(100.0 * float(np.mean(regrets)), 3),
        "worst_regret_percent": round(100.0 * float(np.max(regrets)), 3),
    }
