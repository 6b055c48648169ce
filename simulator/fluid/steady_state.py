"""Iterations of a prepared plan, simulated back to back until the governors have settled, and what of them counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.power.governor import settle_clock_mhz, settled_power_w
from joulecast.model.power.limits import group_limit_share
from joulecast.simulator.fluid.governor import PowerGovernor
from joulecast.simulator.fluid.part_limits import index_below
from joulecast.simulator.fluid.prepared import Prepared
from joulecast.simulator.fluid.program import FluidProgram, make_fluid_program
from joulecast.simulator.fluid.ranks import Governor
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms, with_transfers_in_order
from joulecast.simulator.fluid.simulation import FixedClock, FluidResult, simulate_fluid
from joulecast.simulator.instructions.clock_columns import mean_power_w

#: Length of a governor's tick [s], and ticks of a short iteration.
TICK_S, TICKS_PER_ITERATION = 10e-3, 60
#: Most ticks of a long iteration: its phases last many ticks anyway.
MOST_TICKS = 10_000
#: Simulated time before the iterations that count, so that the loops have settled [s].
WARM_UP_S = 2.0
#: Time over which iterations are averaged [s].
WINDOW_S = 2.0
#: Most iterations simulated; an iteration of many seconds settles within itself.
MOST_ITERATIONS = 12


@dataclass(frozen=True, eq=False)
class SteadyState:
    """Iterations of a training loop, of which those count that follow the warm-up.

    Attributes
    ----------
    prepared
        The plan.
    result
        All simulated iterations.
    warm_up
        How many iterations do not count, at least one.
    """

    prepared: Prepared
    result: FluidResult
    warm_up: int

    @property
    def iterations(self) -> int:
        """How many iterations count."""
        return len(self.result.iteration_end_s) - self.warm_up

    @property
    def step_time_s(self) -> float:
        """Mean time of an iteration [s]."""
        ends = self.result.iteration_end_s.max(axis=1)
        return float((ends[-1] - ends[self.warm_up - 1]) / self.iterations)

    def executed(self, rank: int) -> Array:
        """Executions of each type of instruction at each clock in all iterations, shape ``(types, clocks)`` [1]."""
        return np.asarray(self.result.executed[rank][self.warm_up :].sum(0))

    def waited_s(self, rank: int) -> Array:
        """Time that a rank waited at each clock in all iterations, shape ``(clocks,)`` [s]."""
        return np.asarray(self.result.wait_s[rank][self.warm_up :].sum(0))

    def energy_j(self) -> Array:
        """Mean energy of a GPU of each rank in an iteration, shape ``(ranks,)`` [J]."""
        return np.asarray(self.result.energy_j[self.warm_up :].mean(axis=0))


def simulate(prepared: Prepared) -> SteadyState:
    """Simulate iterations back to back, until enough of them count."""
    fluid = fluid_program(prepared)
    start, governors, length, tick = _start(prepared)
    warm_up = min(MOST_ITERATIONS // 2, max(1, round(WARM_UP_S / length)))
    iterations = warm_up + min(MOST_ITERATIONS // 2, max(1, round(WINDOW_S / length)))
    return SteadyState(prepared, simulate_fluid(fluid, governors, start, iterations=iterations, tick_s=tick), warm_up)


def fluid_program(prepared: Prepared) -> FluidProgram:
    """What every rank executes in an iteration, and who waits for whom."""
    program = prepared.program
    durations = [table.duration_s for table in prepared.tables]
    powers = [mean_power_w(table) for table in prepared.tables]
    waits = [prepared.wait_power_w] * len(program.ranks)
    edges = program.schedule.edges
    delays = prepared.transfer_s[edges.link]
    fluid = make_fluid_program(program.schedule, [r.order for r in program.ranks], durations, powers, waits, delays)
    if transfers_wait_on_sms(program.plan):
        fluid = with_transfers_in_order(fluid, program.schedule, float(prepared.transfer_s.mean()))
    return fluid


def _start(prepared: Prepared) -> tuple[list[int], list[Governor], float, float]:
    """Clocks to start from, what moves each, and the rough length of an iteration and a tick."""
    plan, gpu, clocks = prepared.program.plan, prepared.gpu, prepared.clocks_mhz
    index, length = [], 0.0
    for rank, table, limit in zip(prepared.program.ranks, prepared.tables, prepared.power_limits_w, strict=True):
        order = np.array(rank.order)
        time, energy = table.duration_s[order].sum(0), table.energy_j[order].sum(0)
        clock = settle_clock_mhz(clocks, (energy / time)[:, None], settled_power_w(limit, gpu), gpu.max_clock_mhz)
        index.append(int(index_below(clocks, clock)[0]))
        length = max(length, float(time[index[-1]]))
    tick = max(min(TICK_S, length / TICKS_PER_ITERATION), length / MOST_TICKS)
    tops = [int(columns.max()) for columns in prepared.columns]
    if prepared.locked:
        return tops, [FixedClock(top) for top in tops], length, length / TICKS_PER_ITERATION
    start = [min(i, top) for i, top in zip(index, tops, strict=True)]
    reached = [limit * group_limit_share(plan.tp, gpu) for limit in prepared.power_limits_w]
    governors: list[Governor] = [PowerGovernor(gpu, *board, tick) for board in zip(reached, tops, start, strict=True)]
    return start, governors, length, tick
