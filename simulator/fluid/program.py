"""What every rank executes in one iteration at any clock: instructions, with a time and a power for each type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.simulator.schedules import Schedule


@dataclass(frozen=True, eq=False)
class FluidProgram:
    """What every rank executes in one iteration, at any clock.

    Attributes
    ----------
    types
        Per rank and instruction, in order: its type, a row of the tables.
    duration_s, power_w
        Per rank, of each type at each clock index, shape ``(types, clocks)`` [s], [W].
    wait_power_w
        Per rank, while it waits at each clock index, shape ``(clocks,)`` [W].
    source, target
        Flat indices of instructions, shape ``(e,)``: ``target`` needs the output of ``source``.
    delay_s
        Time from the source's end to arrival, shape ``(e,)`` [s].
    """

    types: tuple[tuple[int, ...], ...]
    duration_s: tuple[Array, ...]
    power_w: tuple[Array, ...]
    wait_power_w: tuple[Array, ...]
    source: Int
    target: Int
    delay_s: Array


def make_fluid_program(
    schedule: Schedule,
    types: Sequence[Sequence[int]],
    duration_s: Sequence[ArrayLike],
    power_w: Sequence[ArrayLike],
    wait_power_w: Sequence[ArrayLike],
    delay_s: ArrayLike = 0.0,
) -> FluidProgram:
    """Validated :class:`FluidProgram` of a schedule.

    ``delay_s`` is one number, or one per edge of ``schedule.edges`` [s] (edges within a rank cost nothing).
    """
    edges = schedule.edges
    delay = np.broadcast_to(np.asarray(delay_s, dtype=np.float64), edges.source.shape)
    order = tuple(tuple(row) for row in types)
    durations = tuple(np.atleast_2d(np.asarray(t, dtype=np.float64)) for t in duration_s)
    powers = tuple(np.atleast_2d(np.asarray(t, dtype=np.float64)) for t in power_w)
    waits = tuple(np.atleast_1d(np.asarray(t, dtype=np.float64)) for t in wait_power_w)
    if not len(order) == len(durations) == len(powers) == len(waits) == len(schedule.ranks):
        raise InputError(f"tables for {len(durations)} ranks, but the schedule has {len(schedule.ranks)}")
    for rank, row in enumerate(order):
        if len(row) != len(schedule.ranks[rank]):
            raise InputError(f"rank {rank} needs one type for every instruction of its schedule")
        shape = durations[rank].shape
        if powers[rank].shape != shape or waits[rank].shape != shape[1:] or max(row) >= shape[0]:
            raise InputError(f"rank {rank}: duration, power and waiting power do not fit together or lack a type")
        if not np.all(durations[rank] >= 0) or not np.any(durations[rank] > 0):
            raise InputError(f"rank {rank}: durations must not be negative nor all zero")
    delay = np.where(edges.source_rank == edges.target_rank, 0.0, delay)
    return FluidProgram(order, durations, powers, waits, edges.source, edges.target, delay)
