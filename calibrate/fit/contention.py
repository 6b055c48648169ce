"""Fits the table ``contention`` to work whose communication runs beside its computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.overlap import OVERLAP_OPS, is_steady, launches_of
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.simulator.instructions.overlap import is_overlapped
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated

#: Relative noise of the time of overlapped work, in long windows and in short ones [1].
NOISE, SHORT_NOISE = 0.02, 0.03


def fit_contention(rows: Sequence[Row], gpu: GpuModel, priors: Mapping[str, Prior]) -> tuple[GpuModel, Solution | None]:
    """Fit how kernels and collectives slow each other; all other tables are fitted before.

    Rows count where something runs beside something else: those with long windows, or the short ones if there are no
    others. Their clocks are not read: boards in step wander around the mean that was observed.
    """
    gpu = gpu.with_values({name: p.start for name, p in priors.items()})
    groups = _overlapped(rows, steady=True) or _overlapped(rows, steady=False)
    if not groups:
        return gpu, None
    noise = NOISE if any(is_steady(row.configuration) for group in groups.values() for row, _ in group) else SHORT_NOISE
    bare = replace(gpu, description=None)
    measured = np.array([row.measured.time_s for group in groups.values() for row, _ in group], dtype=np.float64)

    def residuals(values: Mapping[str, float]) -> Array:
        changed = bare.with_values(values)
        forecast = [predict_repeated([p for _, p in group], changed, under) for under, group in groups.items()]
        return np.asarray(np.log(np.concatenate([f.time_s for f in forecast]) / measured) / noise)

    solution = solve(residuals, priors, list(priors))
    return gpu.with_values(solution.as_dict()), solution


def _overlapped(rows: Sequence[Row], *, steady: bool) -> dict[Conditions, list[tuple[Row, tuple[Launch, ...]]]]:
    """Timed rows where something runs beside something else, by the conditions that they were measured under."""
    groups: dict[Conditions, list[tuple[Row, tuple[Launch, ...]]]] = {}
    for row in rows:
        if row.op in OVERLAP_OPS and is_steady(row.configuration) == steady and row.measured.time_s is not None:
            launches = launches_of(row.configuration)
            if is_overlapped(launches):
                conditions = Conditions(row.gpus, settle_s=row.settle_s, window_s=row.window_s)
                groups.setdefault(conditions, []).append((row, launches))
    return groups
