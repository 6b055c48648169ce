"""Conservation laws that every simulation must keep; a breach is a defect of Joulecast and names the rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Int
from joulecast.errors import GuardError
from joulecast.simulator.events.segment_program import Program
from joulecast.simulator.events.segments import STREAMS
from joulecast.simulator.events.timeline import Timeline

if TYPE_CHECKING:
    from joulecast.simulator.events.engine import EngineResult, RankKernels

#: Relative rounding that sums of energies, and shares of a resource, may have.
ENERGY_TOLERANCE, SHARE_TOLERANCE = 1e-9, 1e-9


@contextmanager
def reported_with(plan: object) -> Iterator[None]:
    """Attach the plan to a breach of a law, so that its message is a report of the defect."""
    try:
        yield
    except GuardError as error:
        raise error if error.plan is not None else GuardError(error.message, plan) from error


def check_energy(timeline: Timeline, energy_j: float) -> None:
    """Energy is the integral of power over time, to 1e-9.

    Parameters
    ----------
    timeline
        Its power profile is integrated.
    energy_j
        What the ledger says [J].
    """
    integral = timeline.profile().energy_j
    if not abs(integral - energy_j) <= ENERGY_TOLERANCE * max(abs(integral), abs(energy_j)):
        raise GuardError(f"rank {timeline.rank}: {energy_j!r} J in the ledger, but ∫ power dt = {integral!r} J")


def check_streams(timeline: Timeline) -> None:
    """A stream runs one kernel at a time, and no kernel ends before it starts or outside the timeline."""
    if np.any(timeline.end_ns < timeline.start_ns) or np.any(timeline.start_ns < timeline.begin_ns):
        raise GuardError(f"rank {timeline.rank}: a kernel ends before it starts, or starts before the timeline")
    if np.any(timeline.end_ns > timeline.finish_ns):
        raise GuardError(f"rank {timeline.rank}: a kernel ends after the timeline")
    for stream in np.unique(timeline.stream):
        at = np.flatnonzero(timeline.stream == stream)
        at = at[np.lexsort((timeline.end_ns[at], timeline.start_ns[at]))]
        if np.any(timeline.start_ns[at[1:]] < timeline.end_ns[at[:-1]]):
            raise GuardError(f"rank {timeline.rank}: stream {int(stream)} is used by two kernels at once")


def check_shares(timeline: Timeline, share: ArrayLike, resources: Sequence[str]) -> None:
    """No resource is used above 100 %.

    Parameters
    ----------
    share
        Of each resource that each interval of the timeline uses while it runs, shape ``(n, k)`` [1].
    resources
        What the ``k`` are called, e.g. ``"SMs"``.
    """
    time, change = timeline.changes(np.asarray(share, dtype=np.float64))
    if not len(time):
        return
    for name, worst in zip(resources, np.cumsum(change, axis=0).max(axis=0).tolist(), strict=True):
        if worst > 1 + SHARE_TOLERANCE:
            raise GuardError(f"rank {timeline.rank}: {name} used to {100 * worst:.6g} %")


def check_beside(share: ArrayLike, kernel: str, beside: str) -> None:
    """Two kernels do not use the memory above 100 % while they run beside each other.

    Parameters
    ----------
    share
        Of the memory that both use together, at any number of clocks [1].
    """
    worst = float(np.max(share, initial=0.0))
    if not worst <= 1 + SHARE_TOLERANCE:
        raise GuardError(f"{kernel} beside {beside}: memory used to {100 * worst:.6g} %")


def check_causality(program: Program, result: EngineResult) -> None:
    """No kernel starts before its stream is free, what it waits for has ended, and its input has arrived.

    Needs a result with the times of kernels.
    """
    if len(result.kernels) != program.ranks:
        raise GuardError("causality can only be checked where the times of kernels were recorded")
    arrival = np.zeros(program.offsets[-1], dtype=np.int64)
    sent = [_outputs(program, rank, kernels) for rank, kernels in enumerate(result.kernels)]
    np.maximum.at(arrival, program.target, np.concatenate(sent)[program.source] + program.latency_ns)
    for rank, kernels in enumerate(result.kernels):
        for stream in range(STREAMS):
            at = kernels.stream == stream
            if np.any(kernels.start_ns[at][1:] < kernels.end_ns[at][:-1]):
                raise GuardError(f"rank {rank}: a kernel starts before its stream {stream} is free")
        _check_waits(program, rank, kernels, arrival[program.offsets[rank] : program.offsets[rank + 1]])


def _outputs(program: Program, rank: int, kernels: RankKernels) -> Int:
    output = np.array([program.segments[s].output_kernel for s in program.segment_of[rank]], dtype=np.int64)
    ends: Int = kernels.end_ns[kernels.first + output]
    return ends


def _check_waits(program: Program, rank: int, kernels: RankKernels, arrival: Int) -> None:
    order = np.array(program.segment_of[rank], dtype=np.int64)
    first = kernels.first
    for s in np.unique(order):
        segment, at = program.segments[s], np.flatnonzero(order == s)
        waits = np.flatnonzero(segment.wait >= 0)
        early = kernels.start_ns[first[at, None] + waits] < kernels.end_ns[first[at, None] + segment.wait[waits]]
        if np.any(early):
            raise GuardError(f"rank {rank}: a kernel starts before the kernel that it waits for has ended")
        if np.any(kernels.start_ns[first[at]] < arrival[at]):
            raise GuardError(f"rank {rank}: an instruction starts before its input has arrived")
