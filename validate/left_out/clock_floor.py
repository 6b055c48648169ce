"""How well each row of a sweep follows from all others, by a smoother that knows no physics.

Of workloads that differ in size alone, log time and log energy are taken for a smooth function of setting and size,
with a level of each workload's own and noise (kriging):

    cov(y_i, y_j) = L²·[same workload] + exp(−½·(ln s_i − ln s_j)²/ℓ²)·K_ij + n²·[i = j]

K is the likeness of their configurations. Length ℓ and noise n are those that err least, chosen in hindsight. A row's
neighbours on both sides are known, so this is about what the rows' own scatter leaves to any forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.clock_sweeps.likeness import likeness
from joulecast.calibrate.clock_sweeps.rows import SweepRow, WorkloadKey
from joulecast.validate.left_out.smoother import each_from_the_others
from joulecast.validate.scoring.result import Prediction

#: Candidates for length [ln(setting)] and noise [share of the smooth function's spread].
LENGTHS, NOISES = (0.2, 0.4, 0.8, 1.6), (0.01, 0.03, 0.1, 0.3, 1.0)
#: Spread of the workloads' levels, which are free [the same share].
LEVEL = 1e3
#: Fewest rows of alike workloads that say anything of each other.
FEWEST_ROWS = 4


def from_all_others(rows: Sequence[SweepRow]) -> dict[int, Prediction]:
    """Each usable row of one card from all others, by position; rows that stand nearly alone are absent."""
    groups: dict[WorkloadKey, list[int]] = {}
    for i, row in enumerate(rows):
        if not row.unusable:
            words = tuple(pair for pair in row.key if isinstance(pair[1], str))
            groups.setdefault(words, []).append(i)
    found: dict[int, Prediction] = {}
    for places in groups.values():
        mine = [rows[i] for i in places]
        apart = len({row.key for row in mine})
        if len(mine) < FEWEST_ROWS * apart:
            continue
        time = np.array([float(row.measured.time_s or 0.0) for row in mine])
        energy = np.array([float(row.measured.energy_j or 0.0) for row in mine])
        times, energies = (np.exp(_smoothed(mine, np.log(values))) for values in (time, energy))
        for i, time_s, energy_j in zip(places, times.tolist(), energies.tolist(), strict=True):
            found[i] = Prediction.of_work(time_s, energy_j)
    return found


def _smoothed(rows: Sequence[SweepRow], value: Array) -> Array:
    """Values of rows ``(n,)``, each from the others, by the smoother that errs least."""
    setting = np.log([row.setting for row in rows])
    keys = sorted({row.key for row in rows})
    place = [keys.index(row.key) for row in rows]
    alike = likeness([dict(key) for key in keys])[np.ix_(place, place)]
    level = LEVEL**2 * np.equal.outer(place, place)
    apart = np.subtract.outer(setting, setting) ** 2
    return each_from_the_others(
        value,
        (
            level + np.exp(-0.5 * apart / length**2) * alike + noise**2 * np.eye(len(rows))
            for length, noise in product(LENGTHS, NOISES)
        ),
    )
