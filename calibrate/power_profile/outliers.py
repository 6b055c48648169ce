"""Power of the runs outside the golden bin."""

from __future__ import annotations

import numpy as np

from joulecast.arrays import Bool
from joulecast.calibrate.power_profile.bins import Plan, later_part
from joulecast.calibrate.power_profile.dataset import Dataset, golden_runs
from joulecast.calibrate.power_profile.result import OutlierGroup
from joulecast.errors import MeasurementError

#: Readings of steady power that a group needs at least.
FEWEST_READINGS = 4


def study_outliers(dataset: Dataset, plan: Plan) -> tuple[OutlierGroup, ...]:
    """Steady power of runs by execution time, the golden ones left out; the fullest bin first.

    Parameters
    ----------
    dataset
        All series.
    plan
        Where steady power begins, and what the sensor resolves.
    """
    execution = dataset.execution_s()
    left = ~dataset.golden()
    groups = []
    while left.any():
        group = np.zeros(len(left), dtype=bool)
        members = np.flatnonzero(left)
        group[members[golden_runs(execution[members], dataset.margin)]] = True
        left &= ~group
        power = _steady_power(dataset, group, plan)
        groups.append(OutlierGroup(int(group.sum()), float(execution[group].mean()), *power))
    return tuple(groups)


def _steady_power(dataset: Dataset, group: Bool, plan: Plan) -> tuple[float | None, float | None]:
    first = min(plan.ssp, plan.passes - 1)
    layout, weights = later_part(first, plan.passes, dataset.kernel_times(group), plan.wanted_s, plan.rest_s)
    try:
        rows, _, _ = dataset.equations(layout, group, dataset.whole)
        if int(np.sum(rows @ (weights > 0.0) > 0.2)) < FEWEST_READINGS:
            return None, None
        estimate = dataset.estimate(layout, group, dataset.whole)
    except MeasurementError:  # too few readings is an answer here, not a failure
        return None, None
    return estimate.mean(weights)
