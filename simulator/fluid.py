"""Instructions under clocks that change while they run.

Time advances in ticks of the governor. Within a tick every rank's clock is fixed, so a rank only needs the others for
its inputs: ranks advance one after the other, in passes, until all have reached the end of the tick. The instant of
every end and every arrival is exact; only the clocks move in steps. (SimPy processes cost about the same here, because
nearly all steps are "still the same phase at the end of the tick"; passes need no rule for events at the same instant.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.errors import GuardError, InputError
from joulecast.simulator.schedules import Schedule

Float = NDArray[np.float64]
Int = NDArray[np.int64]

_LEAST_LEFT = 1e-15  # rounding must not make a running phase look like one that has not started


class Governor(Protocol):
    """What decides on the clocks."""

    def step(self, power_w: Sequence[float], dt_s: float) -> Sequence[int]:
        """Clock index of every rank for the next tick, from the last tick's mean power [W] and length [s]."""


@dataclass(frozen=True)
class FixedClocks:
    """A governor that leaves every clock as it is."""

    clock_index: tuple[int, ...]

    def step(self, power_w: Sequence[float], dt_s: float) -> Sequence[int]:
        """The same clocks again."""
        return self.clock_index


@dataclass(frozen=True, eq=False)
class FluidProgram:
    """What every rank executes in one iteration, at any clock.

    Attributes
    ----------
    phases
        Per rank and instruction, in order: the types of its phases, rows of the tables.
    duration_s, power_w
        Per rank, of each phase type at each clock index, shape ``(types, clocks)`` [s], [W].
    wait_power_w
        Per rank, while it waits at each clock index, shape ``(clocks,)`` [W].
    source, target
        Flat indices of instructions, shape ``(e,)``: ``target`` needs the output of ``source``.
    delay_s
        Time from the source's end to arrival, shape ``(e,)`` [s].
    """

    phases: tuple[tuple[tuple[int, ...], ...], ...]
    duration_s: tuple[Float, ...]
    power_w: tuple[Float, ...]
    wait_power_w: tuple[Float, ...]
    source: Int
    target: Int
    delay_s: Float


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
        Per rank, how many executions of each phase type (shares of one included) ran at each clock, shape
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

    iteration_end_s: Float
    energy_j: Float
    executed: tuple[Float, ...]
    wait_s: tuple[Float, ...]
    start_s: tuple[Float, ...]
    end_s: tuple[Float, ...]
    tick_s: float
    power_w: Float
    clock_index: Int


def make_fluid_program(
    schedule: Schedule,
    phases: Sequence[Sequence[Sequence[int] | int]],
    duration_s: Sequence[ArrayLike],
    power_w: Sequence[ArrayLike],
    wait_power_w: Sequence[ArrayLike],
    delay_s: ArrayLike = 0.0,
) -> FluidProgram:
    """Validated :class:`FluidProgram` of a schedule.

    ``phases[rank][instruction]`` is one type, or several in a row; ``delay_s`` is one number, or one per edge of
    ``schedule.edges`` [s] (edges within a rank cost nothing).
    """
    edges = schedule.edges
    delay = np.broadcast_to(np.asarray(delay_s, dtype=np.float64), edges.source.shape)
    order = tuple(tuple((i,) if isinstance(i, int) else tuple(int(t) for t in i) for i in row) for row in phases)
    durations = tuple(np.atleast_2d(np.asarray(t, dtype=np.float64)) for t in duration_s)
    powers = tuple(np.atleast_2d(np.asarray(t, dtype=np.float64)) for t in power_w)
    waits = tuple(np.atleast_1d(np.asarray(t, dtype=np.float64)) for t in wait_power_w)
    if not len(order) == len(durations) == len(powers) == len(waits) == len(schedule.ranks):
        raise InputError(f"tables for {len(durations)} ranks, but the schedule has {len(schedule.ranks)}")
    for rank, row in enumerate(order):
        if len(row) != len(schedule.ranks[rank]) or not all(row):
            raise InputError(f"rank {rank} needs at least one phase for every instruction of its schedule")
        shape = durations[rank].shape
        if powers[rank].shape != shape or waits[rank].shape != shape[1:] or max(map(max, row)) >= shape[0]:
            raise InputError(f"rank {rank}: duration, power and waiting power do not fit together or lack a type")
        if not np.all(durations[rank] >= 0) or not np.any(durations[rank] > 0):
            raise InputError(f"rank {rank}: durations must not be negative nor all zero")
    delay = np.where(edges.source_rank == edges.target_rank, 0.0, delay)
    return FluidProgram(order, durations, powers, waits, edges.source, edges.target, delay)


def simulate_fluid(
    program: FluidProgram,
    governor: Governor,
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
    governor
        Asked for new clocks at the end of every tick.
    clock_index
        Clock of every rank during the first tick.
    iterations
        How many iterations.
    tick_s
        Length of a tick [s].
    """
    if iterations < 1 or not tick_s > 0:
        raise InputError(f"{iterations} iterations in ticks of {tick_s} s")
    mail = _Mail(program, iterations)
    ranks = [_Rank(program, r, mail, iterations) for r in range(len(program.phases))]
    clocks = list(clock_index)
    power_rows: list[list[float]] = []
    clock_rows: list[list[int]] = []
    ticks = 0
    while mail.unfinished:
        for rank, clock in zip(ranks, clocks, strict=True):
            if clock != rank.clock:
                rank.set_clock(clock)
        clock_rows.append(clocks)
        ticks += 1
        _advance(ranks, ticks * tick_s, mail)
        power = [r.take_energy() / tick_s for r in ranks]
        power_rows.append(power)
        if mail.unfinished and all(r.blocked for r in ranks):
            raise GuardError(f"rank {next(i for i, r in enumerate(ranks) if not r.done)} waits for ever")
        clocks = list(governor.step(power, tick_s))
    return _result(ranks, tick_s, power_rows, clock_rows)


class _Mail:
    """Outputs on their way, of all iterations: flat instruction + iteration × instructions."""

    def __init__(self, program: FluidProgram, iterations: int) -> None:
        self.size = sum(len(row) for row in program.phases)
        missing = np.bincount(program.target, minlength=self.size)
        self.has_input: list[bool] = (missing > 0).tolist()
        self.missing: list[int] = np.tile(missing, iterations).tolist()
        self.arrival = [0.0] * (self.size * iterations)
        self.outputs: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for s, t, d in zip(program.source.tolist(), program.target.tolist(), program.delay_s.tolist(), strict=True):
            self.outputs[s].append((t, d))
        self.unfinished = len(program.phases)
        self.sent = False


class _Rank:
    """One rank's progress; ``run`` is the inner loop of the simulation."""

    def __init__(self, program: FluidProgram, rank: int, mail: _Mail, iterations: int) -> None:
        self.mail, self.iterations = mail, iterations
        first = sum(len(row) for row in program.phases[:rank])
        types: list[int] = []
        self.needs: list[int] = []  # flat instruction whose input the phase needs, −1 none
        self.ends: list[int] = []  # flat instruction that ends with the phase, −1 none
        self.begins: list[bool] = []
        for i, row in enumerate(program.phases[rank], start=first):
            types.extend(row)
            last = len(row) - 1
            self.needs += [i if mail.has_input[i] else -1] + [-1] * last
            self.ends += [-1] * last + [i]
            self.begins += [True] + [False] * last
        self.types = types
        self.duration_at: list[list[float]] = program.duration_s[rank].T.tolist()
        self.power_at: list[list[float]] = program.power_w[rank].T.tolist()
        self.wait_power_at: list[float] = program.wait_power_w[rank].tolist()
        self.n_types = program.duration_s[rank].shape[0]
        self.clock, self.iteration, self.position = -1, 0, 0
        self.now = self.left = self.energy = self.total = 0.0  # left: share of the running phase; 0 before its start
        self.done = self.blocked = False
        self.starts: list[float] = []
        self.finishes: list[float] = []
        self.ended_at: list[float] = []
        self.energy_at: list[float] = []
        self.executed_rows: list[list[list[float]]] = []
        self.wait_rows: list[list[float]] = []
        self._clear()

    def _clear(self) -> None:
        self.executed = [[0.0] * self.n_types for _ in self.wait_power_at]
        self.wait = [0.0] * len(self.wait_power_at)
        if self.clock >= 0:
            self.executed_now = self.executed[self.clock]

    def set_clock(self, clock: int) -> None:
        """Change the clock, at the start of a tick."""
        self.clock = clock
        self.duration, self.power = self.duration_at[clock], self.power_at[clock]
        self.executed_now, self.wait_power = self.executed[clock], self.wait_power_at[clock]

    def take_energy(self) -> float:
        """Energy since the last call [J]."""
        energy, self.energy = self.energy, 0.0
        self.total += energy
        return energy

    def wait_until(self, time: float) -> None:
        """Wait."""
        span = time - self.now
        self.wait[self.clock] += span
        self.energy += span * self.wait_power
        self.now = time

    def run(self, end: float) -> bool:
        """Advance to the end of the tick; whether an input that nobody has sent yet stopped it before."""
        while True:
            kind = self.types[self.position]
            duration = self.duration[kind]
            if not self.left:
                need = self.needs[self.position]
                if need >= 0:
                    need += self.iteration * self.mail.size
                    if self.mail.missing[need]:
                        return True
                    arrival = self.mail.arrival[need]
                    if arrival > self.now:
                        self.wait_until(arrival if arrival < end else end)
                        if arrival >= end:
                            return False
                self.left = 1.0
                if self.begins[self.position]:
                    self.starts.append(self.now)
            span = end - self.now
            needed = self.left * duration
            if needed > span:
                share = span / duration
                self.left = max(self.left - share, _LEAST_LEFT)
                self.executed_now[kind] += share
                self.energy += span * self.power[kind]
                self.now = end
                return False
            self.executed_now[kind] += self.left
            self.energy += needed * self.power[kind]
            self.now += needed
            self.left = 0.0
            if self.next_phase():
                return True

    def next_phase(self) -> bool:
        """Finish a phase, with its instruction and iteration where it is their last; whether nothing is left."""
        flat = self.ends[self.position]
        if flat >= 0:
            self.finishes.append(self.now)
            mail = self.mail
            for target, delay in mail.outputs[flat]:
                to = target + self.iteration * mail.size
                mail.missing[to] -= 1
                mail.arrival[to] = max(mail.arrival[to], self.now + delay)
                mail.sent = True
        self.position += 1
        if self.position < len(self.types):
            return False
        self.position = 0
        self.iteration += 1
        self.ended_at.append(self.now)
        self.energy_at.append(self.total + self.energy)
        self.executed_rows.append(self.executed)
        self.wait_rows.append(self.wait)
        self._clear()
        self.done = self.iteration == self.iterations
        self.mail.unfinished -= self.done
        return self.done


def _advance(ranks: list[_Rank], end: float, mail: _Mail) -> None:
    """Bring all ranks to the end of a tick; who still lacks an input then has waited for it."""
    pending = [r for r in ranks if not r.done]
    while True:
        mail.sent = False
        still = []
        for rank in pending:
            rank.blocked = rank.run(end)
            if rank.blocked and not rank.done:
                still.append(rank)
        pending = still
        if not (mail.sent and pending):
            break
    for rank in ranks:
        if rank.now < end:
            rank.wait_until(end)


def _result(ranks: list[_Rank], tick_s: float, power: list[list[float]], clocks: list[list[int]]) -> FluidResult:
    def shaped(values: list[float], rank: _Rank) -> Float:
        return np.array(values).reshape(rank.iterations, -1)

    total = np.array([r.energy_at for r in ranks]).T
    return FluidResult(
        iteration_end_s=np.array([r.ended_at for r in ranks]).T,
        energy_j=np.diff(total, axis=0, prepend=0.0),
        executed=tuple(np.array(r.executed_rows).transpose(0, 2, 1) for r in ranks),
        wait_s=tuple(np.array(r.wait_rows) for r in ranks),
        start_s=tuple(shaped(r.starts, r) for r in ranks),
        end_s=tuple(shaped(r.finishes, r) for r in ranks),
        tick_s=tick_s,
        power_w=np.array(power),
        clock_index=np.array(clocks, dtype=np.int64),
    )
