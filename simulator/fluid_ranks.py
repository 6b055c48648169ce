"""How ranks advance within one tick of the governor, each at its own clock; see :mod:`joulecast.simulator.fluid`.

Within a tick a rank only needs the others for its inputs: ranks advance one after the other, in passes, until all have
reached the end of the tick. The instant of every end and every arrival is exact.
"""

from __future__ import annotations

import numpy as np

from joulecast.simulator.fluid_program import FluidProgram

_LEAST_LEFT = 1e-15  # rounding must not make a running phase look like one that has not started


class Mail:
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


class Rank:
    """One rank's progress; ``run`` is the inner loop of the simulation."""

    def __init__(self, program: FluidProgram, rank: int, mail: Mail, iterations: int) -> None:
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


def advance(ranks: list[Rank], end: float, mail: Mail) -> None:
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
