"""How the time of one GPU passes, by the intervals of its timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.simulator.events.segments import COMMUNICATION
from joulecast.simulator.events.timeline import Timeline, covered_ns
from joulecast.simulator.instructions.kernel_segments import MARKER


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of an iteration on one GPU.

    Attributes
    ----------
    compute_s
        At least one kernel computes.
    exposed_communication_s
        Nothing computes, but the GPU communicates or waits for the others of its group within a collective.
    overlapped_communication_s
        Communication beside compute.
    waiting_s
        Nothing runs.
    """

    compute_s: float
    exposed_communication_s: float
    overlapped_communication_s: float
    waiting_s: float


def breakdown(timeline: Timeline) -> Breakdown:
    """Parts of a timeline of kernels; compute, exposed communication and waiting add up to its length."""
    waits = np.array([name == MARKER for name in timeline.names], dtype=bool)[timeline.name]
    communicates = (timeline.stream == COMMUNICATION) | waits
    compute, communication = (
        covered_ns(timeline.start_ns[at], timeline.end_ns[at]) for at in (~communicates, communicates)
    )
    exposed = timeline.busy_ns - compute
    waiting = timeline.finish_ns - timeline.begin_ns - timeline.busy_ns
    return Breakdown(*(1e-9 * part for part in (compute, exposed, communication - exposed, waiting)))
