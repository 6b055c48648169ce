"""Memory of one GPU over an iteration: activations come with a forward and go with its backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.model.memory.footprint import MemoryFootprint
from joulecast.simulator.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, Instruction


def memory_over_time(
    footprint: MemoryFootprint, steps: Sequence[Instruction], start_s: Array, end_s: Array
) -> tuple[Array, Array]:
    """Allocated memory, as steps that end with the iteration.

    Activations of a micro-batch are counted from the start of its forward to the end of its last backward; everything
    else is counted at its peak all the time, so that the highest step is the footprint's peak.

    Parameters
    ----------
    steps
        Instructions of the rank in order of execution.
    start_s, end_s
        When each runs, shape ``(n,)`` [s].

    Returns
    -------
    time_s, bytes
        Start of each step and the memory from there on, shape ``(m,)``.
    """
    rows = [
        (part, start, end)
        for step, start, end in zip(steps, start_s.tolist(), end_s.tolist(), strict=True)
        for part in step.parts
    ]
    changes = [(0.0, 0), *((start, 1) for part, start, _ in rows if part.kind == FORWARD)]
    changes += [(end, -1) for part, _, end in rows if part.kind in (BACKWARD, BACKWARD_WEIGHT)]
    changes.sort()
    time = np.array([at for at, _ in changes])
    held = np.cumsum([change for _, change in changes])
    share = held / max(int(held.max(initial=0)), 1)
    return time, footprint.allocated_bytes - footprint.activations * (1.0 - share)
