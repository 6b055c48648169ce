"""Loads made of kernels: back to back, with pauses, in turn, or between large products that set the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.calibrate.microbenchmarks.engine import (
    BATCH_S,
    IN_FLIGHT,
    Batch,
    Engine,
    keep_busy,
    keep_filled,
    launches_for,
    warm_up,
)
from joulecast.calibrate.microbenchmarks.kernel import Kernel

#: Groups of a kernel between large products last about so long, the products between them :data:`COMPANY_S` [s].
GROUP_S, COMPANY_S = 0.003, 0.012
#: Products in a burst of a duty cycle.
DUTY_PRODUCTS = 10
#: Shortest pause that is slept; the schedule makes up for what is left out [s].
SHORTEST_PAUSE_S = 2e-4


def prepare_batch(engine: Engine, kernel: Kernel, time_s: float = BATCH_S) -> Batch:
    """Warm a kernel up and prepare a batch of it of about ``time_s``."""
    return engine.batch(kernel.once, launches_for(time_s, warm_up(engine, kernel.once)), capture=kernel.capture)


@dataclass
class BackToBack:
    """One kernel, or one sequence of kernels, again and again."""

    engine: Engine
    batch: Batch

    def run(self, duration_s: float) -> tuple[int, float]:
        """Launches, and seconds from first to last."""
        return keep_busy(self.engine, self.batch, duration_s)


@dataclass
class Chain:
    """Batches that follow each other ``count`` times: a batch whose launches are whole sequences."""

    batches: Sequence[Batch]
    count: int = 1

    def launch(self) -> None:
        """Put all of them on the card's queue."""
        for _ in range(self.count):
            for batch in self.batches:
                batch.launch()


@dataclass
class Bursts:
    """A kernel for a while, then nothing, so that the card is busy a given share of the time.

    Pauses follow from the busy time so far, so that errors of single pauses do not add up.

    Attributes
    ----------
    batch
        The shortest burst.
    busy_s
        Length of a burst; it is made of whole batches, at least one.
    share
        Busy time in all time, above 0.
    per_repetition
        Launches that count as one repetition.
    batch_s
        Time of a batch as last seen, 0 while unknown [s].
    """

    engine: Engine
    batch: Batch
    busy_s: float
    share: float
    per_repetition: int = 1
    batch_s: float = 0.0

    def run(self, duration_s: float) -> tuple[int, float]:
        """Repetitions, and the seconds that the card was busy with them."""
        begin, busy, launches = self.engine.now(), 0.0, 0
        while not launches or self.engine.now() - begin < duration_s:
            count, seconds = self._burst()
            launches, busy = launches + count, busy + seconds
            wait = begin + busy / self.share - self.engine.now()
            if wait > SHORTEST_PAUSE_S:
                self.engine.sleep(wait)
        return launches // self.per_repetition, busy

    def _burst(self) -> tuple[int, float]:
        """As many batches as fill the time at the last burst's speed."""
        wanted = round(self.busy_s / self.batch_s) if self.batch_s else 1
        count, seconds = keep_filled(self.engine, self.batch, lambda launched: launched < wanted)
        self.batch_s = seconds * self.batch.count / count
        return count, seconds


@dataclass
class Idle:
    """Nothing at all, or one tiny kernel now and then that keeps the card from lowering its clock.

    Attributes
    ----------
    ping
        The tiny kernel, ``None`` for nothing.
    every_s
        Time between two of them.
    """

    engine: Engine
    ping: Batch | None = None
    every_s: float = 0.02

    def run(self, duration_s: float) -> tuple[int, float]:
        """One repetition, and the time that passed."""
        begin = self.engine.now()
        while self.ping is not None and (left := begin + duration_s - self.engine.now()) > 0:
            self.ping.launch()
            self.engine.wait(self.engine.mark())
            self.engine.sleep(min(self.every_s, left))
        if self.ping is None:
            self.engine.sleep(duration_s)
        return 1, self.engine.now() - begin


@dataclass
class Beside:
    """Groups of a kernel between large products, which bring the board to another clock; only the groups are timed.

    Attributes
    ----------
    group
        Launches of the kernel.
    company
        The products; ``None`` leaves a pause of the same length, so that the clock stays at its highest.
    """

    engine: Engine
    group: Batch
    company: Batch | None
    _open: deque[tuple[Any, Any]] = field(default_factory=deque)

    def run(self, duration_s: float) -> tuple[int, float]:
        """Launches of the kernel, and the seconds that they took."""
        begin, launches, busy = self.engine.now(), 0, 0.0
        self._open.clear()
        while not launches or self.engine.now() - begin < duration_s:
            self._between()
            first = self.engine.mark()
            self.group.launch()
            self._open.append((first, self.engine.mark()))
            launches += self.group.count
            if len(self._open) >= IN_FLIGHT:
                busy += self._finished()
        while self._open:
            busy += self._finished()
        return launches, busy

    def _between(self) -> None:
        if self.company is not None:
            self.company.launch()
            return
        if self._open:
            self.engine.wait(self._open[-1][1])
        self.engine.sleep(COMPANY_S)
        self.engine.head_start()

    def _finished(self) -> float:
        first, last = self._open.popleft()
        self.engine.wait(last)
        return self.engine.elapsed_s(first, last)
