"""Compute and communication of one instruction beside each other: how long every kernel takes and when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.launches import Launch
from joulecast.model.operators import Collective

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Overlap:
    """Launches of one instruction on both streams at ``c`` clocks, in the unit of the times given.

    Attributes
    ----------
    kernel
        Of one kernel of every launch, slowed by what runs beside it, shape ``(launches, c)``.
    total
        From the instruction's start to the end of both streams, shape ``(c,)``.
    exposed
        Of it the part in which no compute runs, shape ``(c,)``.
    """

    kernel: Array
    total: Array
    exposed: Array


def is_overlapped(launches: Sequence[Launch]) -> bool:
    """Whether a communication runs beside compute."""
    return any(launch.stream == "communication" and not launch.waits for launch in launches)


def overlap(launches: Sequence[Launch], time: Array, gpu: GpuModel, *, whole: bool = False) -> Overlap:
    """Follow both streams of an instruction.

    A collective beside compute takes ``contention.communication_slowdown`` times as long; compute is slowed by the SMs
    that the collective holds for as long as it lasts.

    Parameters
    ----------
    time
        Of one kernel of every launch alone, shape ``(launches, c)``.
    whole
        Round every kernel to a whole unit.
    """
    slow, drag = gpu["contention.communication_slowdown"], _drag(launches, gpu)
    compute = np.zeros(time.shape[1])
    speech, busy = compute.copy(), compute.copy()
    kernel = np.empty_like(time)
    ends: list[Array] = []
    for i, launch in enumerate(launches):
        speaks = launch.stream == "communication"
        if speaks:
            one = time[i] * (1.0 if launch.waits else slow)
            kernel[i] = np.rint(one) if whole else one
            speech = np.maximum(compute, speech) + kernel[i] * launch.repeat
            ends.append(speech)
            compute = speech if launch.waits else compute
            continue
        if launch.waits and len(ends) > launch.outstanding:
            compute = np.maximum(compute, ends[len(ends) - 1 - launch.outstanding])
        beside = np.maximum(speech - compute, 0.0)
        one = time[i] + np.minimum(time[i] * drag, beside * drag / (1.0 + drag) / launch.repeat)
        kernel[i] = np.rint(one) if whole else one
        compute = compute + kernel[i] * launch.repeat
        busy = busy + kernel[i] * launch.repeat
    total = np.maximum(compute, speech)
    return Overlap(kernel, total, total - busy)


def _drag(launches: Sequence[Launch], gpu: GpuModel) -> float:
    """By how much longer compute takes beside the instruction's collectives."""
    default = gpu["collective.default_ctas"]
    beside = [
        launch.operator.ctas or default
        for launch in launches
        if launch.stream == "communication" and not launch.waits and isinstance(launch.operator, Collective)
    ]
    share = 1.0 - max(beside, default=0.0) / gpu.sm_count
    return float(share ** -gpu["contention.compute_slowdown"]) - 1.0
