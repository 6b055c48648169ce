"""Compute and communication of one instruction beside each other: how long every kernel takes, and when it runs.

While both streams are busy, kernels slow each other as :mod:`joulecast.model.power.contention` says; alone, each runs
at full speed.

A communication on an idle stream first waits for an event of the compute stream. By then the compute kernel behind that
event has filled the SMs, so that the communication's blocks only start when that kernel ends. This was recorded on
H200: an all-gather issued just before a large matrix product gains nothing from it, while an all-reduce issued before a
norm runs beside all that follows the norm. Megatron has one hardware queue for both streams
(``CUDA_DEVICE_MAX_CONNECTIONS=1``): what is launched first starts first. Such communication is called ``prompt``.
Nor does any wait that finds as many SMs as it has blocks, because compute kernels leave them free all the time
(``free_sms``); these then take longer by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Bool
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.contention import (
    Alone,
    communication_drag,
    compute_drag,
    fewer_sms_drag,
    memory_share,
    sm_loss,
)
from joulecast.simulator.events.guards import check_beside

#: Shares of a kernel below this are rounding.
_NOTHING = 1e-12


def is_overlapped(launches: Sequence[Launch]) -> bool:
    """Whether a communication runs beside compute."""
    return any(launch.stream == "communication" and not launch.waits for launch in launches)


def contended(launches: Sequence[Launch], kernels: Alone, gpu: GpuModel) -> Array:
    """Time of one kernel of every launch beside the other stream's kernels, shape ``(launches, c)``.

    Parameters
    ----------
    kernels
        One kernel of every launch alone, at ``c`` clocks.
    """
    walk = _Walk(launches, kernels, gpu)
    taken = np.empty_like(kernels.time)
    for i, launch in enumerate(launches):
        if launch.stream == "communication":
            walk.issue(i)
            if launch.waits:
                walk.wait_for(len(walk.communications) - 1)
            continue
        if launch.waits:
            walk.wait_for(len(walk.communications) - 1 - launch.outstanding)
        taken[i] = walk.compute(i) / launch.repeat
    walk.wait_for(len(walk.communications) - 1)
    for i, duration in walk.durations():
        taken[i] = duration / launches[i].repeat
    return taken


def follow(launches: Sequence[Launch], taken: Array) -> tuple[Array, Array]:
    """Length of an instruction from its kernels' times, and how much of it no compute runs, each of shape ``(c,)``.

    Exact for whole numbers: the sum of what the engine executes kernel by kernel.
    """
    compute = np.zeros(taken.shape[1])
    communication, busy = compute, compute
    ends: list[Array] = []
    for launch, one in zip(launches, taken, strict=True):
        if launch.stream == "communication":
            communication = np.maximum(compute, communication) + one * launch.repeat
            ends.append(communication)
            compute = communication if launch.waits else compute
            continue
        if launch.waits and len(ends) > launch.outstanding:
            compute = np.maximum(compute, ends[len(ends) - 1 - launch.outstanding])
        compute = compute + one * launch.repeat
        busy = busy + one * launch.repeat
    total = np.maximum(compute, communication)
    return total, total - busy


@dataclass(eq=False)
class _Communication:
    """A communication under way: the share of it that is left, and whether its blocks wait for the SMs, per clock."""

    launch: int
    left: Array
    held: Bool
    begin: Array
    end: Array


class _Walk:
    """Both streams over time at ``c`` clocks."""

    def __init__(self, launches: Sequence[Launch], kernels: Alone, gpu: GpuModel) -> None:
        self.launches, self.kernels, self.gpu = launches, kernels, gpu
        self.now = np.zeros(kernels.time.shape[1])
        self.communications: list[_Communication] = []
        self.first = 0  # the first communication that is not done at every clock
        self._drags: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._fewer: dict[int, Array] = {}
        self.free_sms = max((launch.free_sms for launch in launches), default=0)

    def issue(self, i: int) -> None:
        """Issue a communication; if the stream is idle its blocks come behind the next compute kernel's."""
        idle = np.ones(len(self.now), dtype=bool)
        for earlier in self.communications[self.first :]:
            idle &= earlier.left <= _NOTHING
            if not idle.any():
                break
        # A copy engine waits for no SM.
        idle &= blocks_of(self.launches[i].operator, self.gpu) > self.free_sms and not self.launches[i].prompt
        endless = np.full_like(self.now, np.inf)
        self.communications.append(_Communication(i, np.ones_like(self.now), idle, self.now, endless))

    def compute(self, i: int) -> Array:
        """Run a compute launch; the time that it took."""
        begin, left = self.now, np.ones_like(self.now)
        whole = self._whole(i)
        blocked = np.zeros(len(left), dtype=bool)
        for one in self.communications[self.first :]:
            if blocked.all():  # what queues behind never found the stream idle, so that it holds nothing either
                break
            compute, drag = self._beside(i, one.launch)
            needed = one.left * self._work(one.launch) * drag
            blocked |= one.held & (one.left > _NOTHING)
            span = np.where(blocked, 0.0, np.minimum(needed, left * whole * compute))
            self._progress(one, span, drag)
            left = np.maximum(left - np.divide(span, whole * compute, out=np.zeros_like(span), where=whole > 0), 0.0)
            blocked |= one.left > _NOTHING
            one.held[:] = False
        self.now = self.now + left * whole
        self._retire()
        return np.asarray(self.now - begin)

    def wait_for(self, number: int) -> None:
        """Let the compute stream wait for a communication and all before it."""
        for one in self.communications[self.first : max(number + 1, 0)]:
            self._progress(one, one.left * self._work(one.launch), 1.0)
        self._retire()

    def durations(self) -> list[tuple[int, Array]]:
        """Launch and time of every communication, from when it could start on."""
        found, before = [], np.zeros_like(self.now)
        for one in self.communications:
            found.append((one.launch, one.end - np.maximum(one.begin, before)))
            before = one.end
        return found

    def _whole(self, i: int) -> Array:
        """Time of a compute launch with nothing beside it."""
        time = np.asarray(self.kernels.time[i] * self.launches[i].repeat)
        return time * self._on_fewer(i) if self.launches[i].free_sms else time

    def _on_fewer(self, i: int) -> Array:
        """How much longer compute launch ``i`` takes on the SMs that it does not leave free."""
        key = id(self.launches[i].operator)
        if key not in self._fewer:
            self._fewer[key] = fewer_sms_drag(self.kernels, i, self.launches[i].free_sms, self.gpu)
        return self._fewer[key]

    def _work(self, launch: int) -> Array:
        return np.asarray(self.kernels.time[launch] * self.launches[launch].repeat)

    def _progress(self, one: _Communication, span: Array, drag: Array | float) -> None:
        """Let a time pass in which a communication runs, ``drag`` times as long as alone."""
        work = self._work(one.launch) * drag
        one.left = one.left - np.divide(span, work, out=np.ones_like(span), where=work > 0)
        one.left[one.left < _NOTHING] = 0.0
        self.now = self.now + span
        one.end = np.where(np.isinf(one.end) & (one.left <= _NOTHING), self.now, one.end)

    def _retire(self) -> None:
        while self.first < len(self.communications) and not np.isinf(self.communications[self.first].end).any():
            self.first += 1

    def _beside(self, i: int, communication: int) -> tuple[Array, Array]:
        """How much longer compute launch ``i`` and a communication take beside each other."""
        operators = self.launches[i].operator, self.launches[communication].operator
        key = id(operators[0]), id(operators[1])
        if key not in self._drags:
            ctas, free = blocks_of(operators[1], self.gpu), self.launches[i].free_sms
            compute = compute_drag(self.kernels, i, communication, max(ctas, free), self.gpu)
            slower = communication_drag(self.kernels, communication, i, self.gpu)
            used = memory_share(self.kernels, i, compute, communication, slower)
            check_beside(used, operators[0].name, operators[1].name)
            self._drags[key] = np.maximum(compute / self._on_fewer(i), 1.0) if free else compute, slower
        return self._drags[key]


def blocks_of(operator: Operator, gpu: GpuModel) -> float:
    """Thread blocks of a communication, one an SM; none of what is no collective or moved by copy engines."""
    if not isinstance(operator, Collective) or operator.copy_engine:
        return 0.0
    return float(operator.ctas or gpu["collective.default_ctas"])


def drag_beside(ctas: ArrayLike, gpu: GpuModel) -> Array:
    """Relative extra time of compute all of which has ``ctas`` thread blocks of communication beside it, one an SM."""
    return sm_loss(ctas, gpu) - 1.0


def lost_beside(ctas: ArrayLike, gpu: GpuModel) -> Array:
    """Compute that does not get done beside a communication of ``ctas`` thread blocks, over the latter's time [1]."""
    return 1.0 - 1.0 / sm_loss(ctas, gpu)
