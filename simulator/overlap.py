"""Compute and communication of one instruction beside each other: how long every kernel takes, and when it runs.

While both streams are busy, communication progresses more slowly by ``contention.communication_slowdown`` and compute
by the SMs that the collective holds; alone, each runs at full speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.launches import Launch
from joulecast.model.operators import Collective

Array = NDArray[np.float64]


def is_overlapped(launches: Sequence[Launch]) -> bool:
    """Whether a communication runs beside compute."""
    return any(launch.stream == "communication" and not launch.waits for launch in launches)


def contended(launches: Sequence[Launch], time: Array, gpu: GpuModel) -> Array:
    """Time of one kernel of every launch beside the other stream's kernels, shape ``(launches, c)``.

    Parameters
    ----------
    time
        Of one kernel of every launch alone, at ``c`` clocks.
    """
    walk = _Walk(time.shape[1], gpu["contention.communication_slowdown"], 1.0 + _drag(launches, gpu))
    taken = np.empty_like(time)
    spoken: list[int] = []
    for i, launch in enumerate(launches):
        if launch.stream == "communication":
            spoken.append(i)
            walk.speak(time[i] * launch.repeat)
            if launch.waits:
                walk.wait_for(len(spoken) - 1)
            continue
        if launch.waits and len(spoken) > launch.outstanding:
            walk.wait_for(len(spoken) - 1 - launch.outstanding)
        taken[i] = walk.compute(time[i] * launch.repeat) / launch.repeat
    if spoken:
        walk.wait_for(len(spoken) - 1)
    for i, duration in zip(spoken, walk.durations(), strict=True):
        taken[i] = duration / launches[i].repeat
    return taken


def follow(launches: Sequence[Launch], taken: Array) -> tuple[Array, Array]:
    """Length of an instruction from its kernels' times, and how much of it no compute runs, each of shape ``(c,)``.

    Exact for whole numbers: the sum of what the engine executes kernel by kernel.
    """
    compute = np.zeros(taken.shape[1])
    speech, busy = compute, compute
    ends: list[Array] = []
    for launch, one in zip(launches, taken, strict=True):
        if launch.stream == "communication":
            speech = np.maximum(compute, speech) + one * launch.repeat
            ends.append(speech)
            compute = speech if launch.waits else compute
            continue
        if launch.waits and len(ends) > launch.outstanding:
            compute = np.maximum(compute, ends[len(ends) - 1 - launch.outstanding])
        compute = compute + one * launch.repeat
        busy = busy + one * launch.repeat
    total = np.maximum(compute, speech)
    return total, total - busy


class _Walk:
    """Both streams over time at ``c`` clocks; communication is counted as work, the time that it takes alone."""

    def __init__(self, clocks: int, slow: float, drag: float) -> None:
        self.slow, self.drag = slow, drag
        self.now = np.zeros(clocks)
        self.done = np.zeros(clocks)
        self.issued = np.zeros(clocks)
        self.due: list[Array] = []  # communication work when each launch will be done
        self.begin: list[Array] = []
        self.end: list[Array] = []
        self.unfinished = 0  # the first launch that is not done at every clock

    def speak(self, work: Array) -> None:
        """Issue a communication."""
        self.issued = self.issued + work
        self.due.append(self.issued)
        self.begin.append(self.now)
        self.end.append(np.full_like(self.now, np.inf))

    def compute(self, work: Array) -> Array:
        """Run a kernel; the time that it took."""
        behind = (self.issued - self.done) * self.slow
        beside = np.minimum(behind, work * self.drag)
        alone = work - beside / self.drag
        self._progress(beside, self.slow)
        self.now = self.now + alone
        return np.asarray(beside + alone)

    def wait_for(self, launch: int) -> None:
        """Let the compute stream wait for a communication."""
        self._progress(np.maximum(self.due[launch] - self.done, 0.0), 1.0)

    def durations(self) -> list[Array]:
        """Time of every communication, from its start on."""
        found, before = [], np.zeros_like(self.now)
        for begin, end in zip(self.begin, self.end, strict=True):
            found.append(end - np.maximum(begin, before))
            before = end
        return found

    def _progress(self, span: Array, slow: float) -> None:
        """Let a time pass in which the communication stream is busy."""
        done = self.done + span / slow
        for i in range(self.unfinished, len(self.due)):
            due = self.due[i]
            finished = np.isinf(self.end[i]) & (done >= due * (1.0 - 1e-12))
            self.end[i] = np.where(finished, self.now + (due - self.done) * slow, self.end[i])
            if i == self.unfinished and not np.isinf(self.end[i]).any():
                self.unfinished += 1
        self.now, self.done = self.now + span, done


def _drag(launches: Sequence[Launch], gpu: GpuModel) -> float:
    """Share by which compute takes longer beside the instruction's collectives."""
    default = gpu["collective.default_ctas"]
    beside = [
        launch.operator.ctas or default
        for launch in launches
        if launch.stream == "communication" and not launch.waits and isinstance(launch.operator, Collective)
    ]
    return drag_beside(max(beside, default=0.0), gpu)


def drag_beside(ctas: float, gpu: GpuModel) -> float:
    """Relative extra time of compute while a communication kernel holds ``ctas`` thread blocks, one an SM."""
    share = 1.0 - ctas / gpu.sm_count
    return float(share ** -gpu["contention.compute_slowdown"]) - 1.0
