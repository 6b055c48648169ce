"""Fits the table ``collective`` and the power of communication kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective
from joulecast.model.power.kernel_power import at_clock

#: Smaller messages are bound by the host's launches and do not show the link.
LEAST_BYTES = 8e6
#: Relative noise of a row's time and power, twice that of a settled kernel [assumed].
TIME_NOISE, POWER_NOISE = 0.03, 0.03


def collective_rows(rows: Sequence[Row]) -> list[tuple[Row, Collective]]:
    """Rows of collectives with a measured time."""
    found: list[tuple[Row, Collective]] = []
    for row in rows:
        work = operator_of(row.configuration)
        if len(work.operators) == 1 and isinstance(work.operators[0], Collective) and row.measured.time_s is not None:
            found.append((row, work.operators[0]))
    return found


def mean_power_w(row: Row) -> float:
    """Mean power of the GPUs that have one; NaN without any, and for rows of other cards.

    The same collectives drew 12 % less on the other host's cards; the description is of the first one's.
    """
    if row.configuration.get("card"):
        return float("nan")
    per_gpu = row.measured.raw.get("power_w_per_gpu") or []
    known = [float(p) for p in per_gpu if p is not None]
    return float(np.mean(known)) if known else float("nan")


def fit_collectives(
    rows: Sequence[Row], gpu: GpuModel, priors: Mapping[str, Prior]
) -> tuple[GpuModel, Solution | None]:
    """Fit link, thread blocks and latency, and what waiting and a byte on the link cost."""
    gpu = gpu.with_values({name: p.start for name, p in priors.items()})
    large = [(r, o) for r, o in collective_rows(rows) if o.bytes >= LEAST_BYTES]
    if not large:
        return gpu, None
    operators = [o for _, o in large]
    time = np.array([r.measured.time_s for r, _ in large], dtype=np.float64)
    power = np.array([mean_power_w(r) for r, _ in large])
    clock = np.array([r.measured.sm_clock_mhz or gpu.max_clock_mhz for r, _ in large], dtype=np.float64)
    known = np.isfinite(power)

    def residuals(values: Mapping[str, float]) -> Array:
        changed = gpu.with_values(values)
        times = at_clock(lower(operators, changed), clock, changed)
        slow = np.log(times.time_s / time) / TIME_NOISE
        hungry = np.log(times.power_w[known] / power[known]) / POWER_NOISE
        return np.concatenate([slow, hungry])

    solution = solve(residuals, priors, list(priors))
    return gpu.with_values(solution.as_dict()), solution
