"""How a rank advances from tick to tick at its governor's clocks; see :mod:`joulecast.simulator.fluid.simulation`.

A rank only needs the others for its inputs, and an input that was sent says when it arrives: ranks advance one after
the other, as far as they can. The instant of every end and every arrival is exact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

import numpy as np

from joulecast.simulator.fluid.program import FluidProgram

_LEAST_LEFT = 1e-15  # rounding must not make what runs look like what has not started


class Governor(Protocol):
    """What decides on one board's clock."""

    def step(self, power_w: float) -> int:
        """Clock index for the next tick, from the last tick's mean power [W]."""


class Mail:
    """Outputs on their way, of all iterations: flat instruction + iteration × instructions."""

    def __init__(self, program: FluidProgram, iterations: int) -> None:
        self.size = sum(len(row) for row in program.types)
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
        self.types, self.first = program.types[rank], sum(len(row) for row in program.types[:rank])
        self.duration_of: list[list[float]] = program.duration_s[rank].tolist()  # by type, then clock
        self.power_of: list[list[float]] = program.power_w[rank].tolist()
        self.wait_power_at: list[float] = program.wait_power_w[rank].tolist()
        self.iteration, self.position, self.end = 0, 0, tick_s
        self.now = self.energy = self.total = 0.0
        self.done = False
        self.power_w: list[float] = []  # of every tick that is over, as the clocks
        self.clocks: list[int] = []
        self.starts: list[float] = []
        self.finishes: list[float] = []
        self.ended_at: list[float] = []
        self.energy_at: list[float] = []
        self.executed_rows: list[dict[int, list[float]]] = []
        self.wait_rows: list[list[float]] = []
        self.clock = clock
        self._clear()

    def _clear(self) -> None:
        """Begin an iteration's counts."""
        types = len(self.duration_of)
        self.executed: dict[int, list[float]] = defaultdict(lambda: [0.0] * types)  # by clock, of those that it met
        self.wait = [0.0] * len(self.wait_power_at)

    def _wait_until(self, time: float) -> None:
        span = time - self.now
        self.wait[self.clock] += span
        self.energy += span * self.wait_power_at[self.clock]
        self.now = time

    def _end_tick(self) -> None:
        """Begin the next tick, at the clock that the governor gives for this one's mean power."""
        energy, self.energy = self.energy, 0.0
        self.total += energy
        power = energy / self.tick_s
        self.power_w.append(power)
        self.clocks.append(self.clock)
        self.clock = self.governor.step(power)
        self.end = (len(self.power_w) + 1) * self.tick_s

    def run(self) -> None:
        """Advance, tick after tick, until an input is needed that nobody has sent yet, or all is done."""
        types, first, has_input = self.types, self.first, self.mail.has_input
        while not self.done:
            position = self.position
            instruction = first + position
            if has_input[instruction] and not self._receive(instruction):
                return
            self.starts.append(self.now)
            self._execute(types[position])
            self._send(instruction)
            self.position = position + 1
            if self.position == len(types):
                self._end_iteration()

    def _receive(self, instruction: int) -> bool:
        """Wait for what an instruction needs, if it was sent."""
        mail = self.mail
        instruction += self.iteration * mail.size
        if mail.missing[instruction]:
            return False
        arrival = mail.arrival[instruction]
        while arrival > self.now:
            if arrival < self.end:
                self._wait_until(arrival)
            else:
                self._wait_until(self.end)
                self._end_tick()
        return True

    def _execute(self, kind: int) -> None:
        """Execute a type of instruction; its ticks end as :meth:`_end_tick` ends them, here without calls."""
        durations, powers, executed = self.duration_of[kind], self.power_of[kind], self.executed
        now, end, energy, clock, left = self.now, self.end, self.energy, self.clock, 1.0
        duration = durations[clock]
        needed, span = duration, end - now
        if needed > span:
            step, tick_s = self.governor.step, self.tick_s
            keep_power, keep_clock = self.power_w.append, self.clocks.append
            total, ticks = self.total, len(self.power_w)
            while needed > span:
                share = span / duration
                left -= share
                if left < _LEAST_LEFT:
                    left = _LEAST_LEFT
                executed[clock][kind] += share
                energy += span * powers[clock]
                total += energy
                power, energy = energy / tick_s, 0.0
                keep_power(power)
                keep_clock(clock)
                clock = step(power)
                ticks += 1
                now, end = end, (ticks + 1) * tick_s
                duration = durations[clock]
                needed, span = left * duration, end - now
            self.total = total
        executed[clock][kind] += left
        self.now, self.end, self.energy, self.clock = now + needed, end, energy + needed * powers[clock], clock

    def _send(self, instruction: int) -> None:
        """Finish an instruction: send what others need of it."""
        self.finishes.append(self.now)
        mail = self.mail
        first = self.iteration * mail.size
        for target, delay in mail.outputs[instruction]:
            to = target + first
            mail.missing[to] -= 1
            mail.arrival[to] = max(mail.arrival[to], self.now + delay)
            mail.sent += 1

    def _end_iteration(self) -> None:
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
