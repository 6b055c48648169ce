"""What could be measured, whose forecasts matter, and the clocks at which either is expected to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.rows.operators import KernelWork, operator_of
from joulecast.errors import InputError
from joulecast.model.forecasts import Forecast
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Operator
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

#: Clock of a kernel between products of these values, as a share of the highest; means of recorded rows.
COMPANIONS = {"randn": 0.77, "zeros": 0.92, "none": 1.0}
#: Settling and window of a measurement, where a configuration does not say [s].
SETTLE_S, WINDOW_S = 1.0, 2.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that could be measured.

    Attributes
    ----------
    name
        Unique.
    configuration
        Of the row that it would become; no measured value. ``clock_mhz`` and ``power_limit_w`` are what is set.
    stratum
        Kind of work.
    cost_s
        Seconds that measuring it takes.
    """

    name: str
    configuration: Mapping[str, Any]
    stratum: str
    cost_s: float

    @property
    def work(self) -> KernelWork:
        """What it repeats."""
        return operator_of(self.configuration)


@dataclass(frozen=True, slots=True)
class Reference:
    """A kernel whose forecast matters.

    Attributes
    ----------
    operator
        The kernel.
    clock_share
        Its clock, as a share of the highest; ``None`` leaves it to the card under its own limit.
    """

    operator: Operator
    clock_share: float | None = None


def usable(candidates: Sequence[Candidate], gpu: GpuModel) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Candidates that the fit can read on this card, and the others' names with the reason."""
    kept, dropped = [], []
    for candidate in candidates:
        work = candidate.work
        reason = work.reason
        if 0.0 < work.busy_share < 1.0 and candidate.configuration.get("op") != "pulse":
            reason = "the fit reads no duty cycles"
        if not reason:
            try:
                lower(work.operators, gpu)
            except InputError as error:
                reason = error.message
        if reason:
            dropped.append((candidate.name, reason))
        else:
            kept.append(candidate)
    return kept, dropped


def candidate_clocks_mhz(candidates: Sequence[Candidate], gpu: GpuModel) -> Array:
    """Clock at which each candidate is expected to run, shape ``(n,)`` [MHz]."""
    clocks = np.full(len(candidates), gpu.max_clock_mhz)
    alike: dict[tuple[Any, Any], list[int]] = {}
    for place, candidate in enumerate(candidates):
        companion = candidate.configuration.get("companion")
        if companion is not None:
            clocks[place] = COMPANIONS.get(companion, 1.0) * gpu.max_clock_mhz
        else:
            key = (candidate.configuration.get("clock_mhz"), candidate.configuration.get("power_limit_w"))
            alike.setdefault(key, []).append(place)
    for (clock, limit), places in alike.items():
        forecast = _forecast([candidates[i] for i in places], gpu, clock, limit)
        clocks[places] = forecast.clock_mhz
    return clocks


def _forecast(candidates: Sequence[Candidate], gpu: GpuModel, clock_mhz: Any, limit_w: Any) -> Forecast:
    return predict_work(
        [c.work for c in candidates],
        gpu,
        clock_mhz=clock_mhz,
        power_limit_w=limit_w,
        settle_s=np.array([seconds_of(c, "settle_s", SETTLE_S) for c in candidates]),
        window_s=np.array([seconds_of(c, "target_window_s", WINDOW_S) for c in candidates]),
    )


def seconds_of(candidate: Candidate, key: str, default: float) -> float:
    """A time that a configuration may leave to a default [s]."""
    value = candidate.configuration.get(key)
    return default if value is None else float(value)


def reference_clocks_mhz(reference: Sequence[Reference], gpu: GpuModel) -> Array:
    """Clock of each reference kernel, shape ``(k,)`` [MHz]."""
    chosen = predict_work([Work((kernel.operator,)) for kernel in reference], gpu).clock_mhz
    return np.array(
        [
            clock if kernel.clock_share is None else kernel.clock_share * gpu.max_clock_mhz
            for kernel, clock in zip(reference, chosen, strict=True)
        ]
    )
