"""Trivial rules beside forecasts of left-out clocks and limits.

Inside a workload's range and beyond it: the straight line through the two nearest settings of the same workload that
were not left out, and the nearest of them. Of a workload that is known at one setting: the mean curve of the others
through that point, and the point itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.calibrate.clock_sweeps.rows import SweepRow
from joulecast.validate.scoring.result import Prediction


def straight_line(own: Sequence[SweepRow], setting: float) -> Prediction:
    """Line through the neighbours of a setting, or through the two nearest beyond the range; two rows at least."""
    near = sorted(own, key=lambda row: row.setting)
    below = [row for row in near if row.setting < setting]
    above = [row for row in near if row.setting > setting]
    if not below:
        first, second = near[0], near[1]
    elif not above:
        first, second = near[-2], near[-1]
    else:
        first, second = below[-1], above[0]
    part = (setting - first.setting) / (second.setting - first.setting)

    def on_line(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + (b - a) * part

    return Prediction.of_work(
        on_line(first.measured.time_s, second.measured.time_s),
        on_line(first.measured.energy_j, second.measured.energy_j),
    )


def nearest_setting(own: Sequence[SweepRow], setting: float) -> Prediction:
    """The workload's row at the nearest setting; of equals the lower."""
    row = min(own, key=lambda row: (abs(row.setting - setting), row.setting))
    return Prediction.of_work(row.measured.time_s, row.measured.energy_j)


def mean_curve(reference: SweepRow, others: Sequence[SweepRow], setting: float) -> Prediction:
    """Geometric mean of the other workloads' change between two settings, applied to the reference row."""
    at = {(row.key, row.setting): row.measured for row in others}
    factors = []
    for (key, where), measured in at.items():
        start = at.get((key, reference.setting))
        if where != setting or start is None or key == reference.key:
            continue
        if measured.time_s and measured.energy_j and start.time_s and start.energy_j:
            factors.append((measured.time_s / start.time_s, measured.energy_j / start.energy_j))
    if not factors:
        return Prediction()
    time, energy = np.exp(np.mean(np.log(factors), axis=0)).tolist()
    return Prediction.of_work(
        reference.measured.time_s * time if reference.measured.time_s else None,
        reference.measured.energy_j * energy if reference.measured.energy_j else None,
    )
