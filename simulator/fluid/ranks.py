"""How a rank advances from tick to tick at its governor's clocks; see :mod:`joulecast.simulator.fluid.simulation`.

A rank only needs the others for its inputs, and an input that was sent says when it arrives: ranks advance one after
the other, as far as they can. The instant of every end and every arrival is exact.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from joulecast.simulator.fluid.program import FluidProgram

_LEAST_LEFT = 1e-15  # rounding must not make a running phase look like one that has not started


class Governor(Protocol):
    """What decides on one board's clock."""

    def step(self, power_w: float) -> int:
        """Clock index for the next tick, from the last tick's mean power [W]."""


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
        self.sent = 0


class Rank:
    """One rank's progress; ``run`` is the inner loop of the simulation."""

    def __init__(
        self,
        program: FluidProgram,
        rank: int,
        mail: Mail,
        iterations: int,
        governor: Governor,
        clock: int,
        tick_s: float,
    ) -> None:
        self.mail, self.iterations, self.governor, self.tick_s = mail, iterations, governor, tick_s
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
        self.iteration, self.position, self.end = 0, 0, tick_s
        self.now = self.left = self.energy = self.total = 0.0  # left: share of the running phase; 0 before its start
        self.done = False
        self.power_w: list[float] = []  # of every tick that is over, as the clocks
        self.clocks: list[int] = []
        self.starts: list[float] = []
        self.finishes: list[float] = []
        self.ended_at: list[float] = []
        self.energy_at: list[float] = []
        self.executed_rows: list[list[list[float]]] = []
        self.wait_rows: list[list[float]] = []
        self.clock = clock
        self._clear()

    def _clear(self) -> None:
        """Begin an iteration's counts."""
        self.executed = [[0.0] * self.n_types for _ in self.wait_power_at]
        self.wait = [0.0] * len(self.wait_power_at)
        self._set_clock(self.clock)

    def _set_clock(self, clock: int) -> None:
        """Change the clock, at the start of a tick."""
        self.clock = clock
        self.duration, self.power = self.duration_at[clock], self.power_at[clock]
        self.executed_now, self.wait_power = self.executed[clock], self.wait_power_at[clock]

    def _wait_until(self, time: float) -> None:
        span = time - self.now
        self.wait[self.clock] += span
        self.energy += span * self.wait_power
        self.now = time

    def _end_tick(self) -> None:
        """Begin the next tick, at the clock that the governor gives for this one's mean power."""
        energy, self.energy = self.energy, 0.0
        self.total += energy
        power = energy / self.tick_s
        self.power_w.append(power)
        self.clocks.append(self.clock)
        clock = self.governor.step(power)
        if clock != self.clock:
            self._set_clock(clock)
        self.end = (len(self.power_w) + 1) * self.tick_s

    def run(self) -> None:
        """Advance, tick after tick, until an input is needed that nobody has sent yet, or all is done."""
        mail = self.mail
        while not self.done:
            position = self.position
            if not self.left:
                need = self.needs[position]
                if need >= 0:
                    need += self.iteration * mail.size
                    if mail.missing[need]:
                        return
                    arrival = mail.arrival[need]
                    if arrival > self.now:
                        if arrival >= self.end:
                            self._wait_until(self.end)
                            self._end_tick()
                            continue
                        self._wait_until(arrival)
                self.left = 1.0
                if self.begins[position]:
                    self.starts.append(self.now)
            kind = self.types[position]
            duration, left = self.duration[kind], self.left
            span = self.end - self.now
            needed = left * duration
            if needed > span:
                share = span / duration
                self.left = max(left - share, _LEAST_LEFT)
                self.executed_now[kind] += share
                self.energy += span * self.power[kind]
                self.now = self.end
                self._end_tick()
            else:
                self.executed_now[kind] += left
                self.energy += needed * self.power[kind]
                self.now += needed
                self.left = 0.0
                self._next_phase()

    def _next_phase(self) -> None:
        """Finish a phase, with its instruction and iteration where it is their last."""
        flat = self.ends[self.position]
        if flat >= 0:
            self.finishes.append(self.now)
            mail = self.mail
            for target, delay in mail.outputs[flat]:
                to = target + self.iteration * mail.size
                mail.missing[to] -= 1
                mail.arrival[to] = max(mail.arrival[to], self.now + delay)
                mail.sent += 1
        self.position += 1
        if self.position < len(self.types):
            return
        self.position = 0
        self.iteration += 1
        self.ended_at.append(self.now)
        self.energy_at.append(self.total + self.energy)
        self.executed_rows.append(self.executed)
        self.wait_rows.append(self.wait)
        self._clear()
        self.done = self.iteration == self.iterations

    def wait_for_others(self, ticks: int) -> None:
        """Wait, when all is done, until so many ticks are over."""
        while len(self.power_w) < ticks:
            if self.now < self.end:
                self._wait_until(self.end)
            self._end_tick()
