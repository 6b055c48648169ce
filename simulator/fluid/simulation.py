"""Instructions under clocks that change while they run.

Time advances in ticks of the governors. Within a tick every rank's clock is fixed, and
:mod:`joulecast.simulator.fluid.ranks` finds the instant of every end and every arrival exactly; only the clocks move in
steps. Every board has a governor of its own, so a rank runs ahead of the others, tick after tick, until it lacks an
input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import GuardError, InputError
from joulecast.simulator.fluid.program import FluidProgram
from joulecast.simulator.fluid.ranks import Governor, Mail, Rank


@dataclass(frozen=True)
class FixedClock:
    """A governor that leaves its board's clock as it is."""

    clock_index: int

    def step(self, power_w: float) -> int:
        """The same clock again."""
        return self.clock_index


@dataclass(frozen=True, eq=False)
class FluidResult:
    """Iterations back to back under a governor.

    Attributes
    ----------
    iteration_end_s
        When each rank ended each iteration, shape ``(iterations, ranks)`` [s].
    energy_j
        Of each rank from its last iteration's end to this one's, shape ``(iterations, ranks)`` [J].
    executed
        Per rank, how many executions of each type (shares of one included) ran at each clock, shape
        ``(iterations, types, clocks)``: any ledger is a product with a table of energies.
    wait_s
        Per rank, time spent waiting at each clock, shape ``(iterations, clocks)`` [s].
    start_s, end_s
        Per rank, of each instruction, shape ``(iterations, instructions)`` [s].
    tick_s
        Length of a tick [s].
    power_w, clock_index
        Mean power and clock in each tick, shape ``(ticks, ranks)`` [W].
    """

    iteration_end_s: Array
    energy_j: Array
    executed: tuple[Array, ...]
    wait_s: tuple[Array, ...]
    start_s: tuple[Array, ...]
    end_s: tuple[Array, ...]
    tick_s: float
    power_w: Array
    clock_index: Int


def simulate_fluid(
    program: FluidProgram,
    governors: Sequence[Governor],
    clock_index: Sequence[int],
    *,
    iterations: int = 1,
    tick_s: float = 5e-3,
) -> FluidResult:
    """Simulate iterations back to back; a rank starts its next one after its own last instruction.

    Parameters
    ----------
    program
        What every rank executes.
    governors
        Of every rank, asked for a new clock at the end of every tick.
    clock_index
        Clock of every rank during the first tick.
    iterations
        How many iterations.
    tick_s
        Length of a tick [s].
    """
    if iterations < 1 or not tick_s > 0:
        raise InputError(f"{iterations} iterations in ticks of {tick_s} s")
    mail = Mail(program, iterations)
    ranks = [
        Rank(program, r, mail, iterations, governor, clock, tick_s)
        for r, (governor, clock) in enumerate(zip(governors, clock_index, strict=True))
    ]
    while not all(rank.done for rank in ranks):
        sent = mail.sent
        for rank in ranks:
            rank.run()
        if mail.sent == sent and not all(rank.done for rank in ranks):
            raise GuardError(f"rank {next(i for i, r in enumerate(ranks) if not r.done)} waits for ever")
    ticks = 1 + max(len(rank.power_w) for rank in ranks)
    for rank in ranks:
        rank.wait_for_others(ticks)
    return _result(ranks, tick_s)


def _executed(rank: Rank) -> Array:
    """Executions of a rank, shape ``(iterations, types, clocks)``."""
    out = np.zeros((rank.iterations, len(rank.wait_power_at), len(rank.duration_of)))
    for iteration, rows in enumerate(rank.executed_rows):
        out[iteration, list(rows)] = list(rows.values())
    return out.transpose(0, 2, 1)


def _result(ranks: list[Rank], tick_s: float) -> FluidResult:
    def shaped(values: list[float], rank: Rank) -> Array:
        return np.array(values).reshape(rank.iterations, -1)

    total = np.array([r.energy_at for r in ranks]).T
    return FluidResult(
        iteration_end_s=np.array([r.ended_at for r in ranks]).T,
        energy_j=np.diff(total, axis=0, prepend=0.0),
        executed=tuple(_executed(r) for r in ranks),
        wait_s=tuple(np.array(r.wait_rows) for r in ranks),
        start_s=tuple(shaped(r.starts, r) for r in ranks),
        end_s=tuple(shaped(r.finishes, r) for r in ranks),
        tick_s=tick_s,
        power_w=np.stack([r.power_w for r in ranks], axis=1),
        clock_index=np.stack([r.clocks for r in ranks], axis=1),
    )
