"""The passing of time on a simulated board: what runs, and who wants to be called meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulecast.calibrate.devices.simulated_board import SAME_TIME_S, Board
from joulecast.calibrate.devices.simulated_loads import Player
from joulecast.calibrate.devices.simulated_work import SimulatedWork


@dataclass(slots=True)
class _Watch:
    """Somebody who wants to be called at times."""

    period_s: float
    callback: Callable[[], object]
    due_s: float


class Time:
    """Advances a board under its load and calls watches when they are due.

    Attributes
    ----------
    board
        The board.
    player
        Its load; ``None`` while it idles.
    calling
        Whether a watch is being called: time stands still for it.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.player: Player | None = None
        self.calling = False
        self._watches: list[_Watch] = []
        self._blocked_s = 0.0

    @property
    def now_s(self) -> float:
        """The board's time [s]."""
        return self.board.state.time_s

    def watch(self, period_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call somebody every so often; returns what ends it."""
        watch = _Watch(period_s, callback, self.now_s + period_s)
        self._watches.append(watch)

        def end() -> None:
            self._watches.remove(watch)

        return end

    def block(self, duration_s: float) -> None:
        """Let time pass for a reading; inside a call it makes the watch that reads miss its turns instead."""
        if self.calling:
            self._blocked_s += duration_s
        else:
            self.advance(self.now_s + duration_s)

    def advance(self, until_s: float) -> None:
        """Let time pass."""
        while self.now_s < until_s - SAME_TIME_S:
            upto = min(until_s, self._next_due())
            if self.player is None:
                self.board.run(self.board.idle, upto)
            else:
                self.player.play(self.board, upto)
            self._call()

    def rest(self, duration_s: float) -> None:
        """Idle for long, without computing every step: the board is as cold as it becomes."""
        self.advance(self.now_s + 1.0)
        state = self.board.state
        power = self.board.power_between(state.time_s - 0.1, state.time_s)
        state.times_s.append(state.time_s + duration_s)
        state.energies_j.append(state.energy_j + duration_s * power)
        state.groups_j[0] += duration_s * power  # all that an idle card draws is static or the clock tree's
        state.time_s, state.energy_j = state.times_s[-1], state.energies_j[-1]

    def execute(self, work: SimulatedWork, repetitions: float) -> tuple[float, float]:
        """Run work so often; start and end [s]."""
        start, left = self.now_s, repetitions
        while left > 1e-9:
            left -= self.board.run(work, self._next_due(), left)
            self._call()
        self.board.work = self.board.idle
        return start, self.now_s

    def _next_due(self) -> float:
        return min((watch.due_s for watch in self._watches), default=float("inf"))

    def _call(self) -> None:
        now = self.now_s
        for watch in list(self._watches):
            if watch.due_s > now + SAME_TIME_S:
                continue
            watch.due_s += watch.period_s
            self.calling, self._blocked_s = True, 0.0
            try:
                watch.callback()
            finally:
                self.calling = False
            while watch.due_s < now + self._blocked_s:
                watch.due_s += watch.period_s
