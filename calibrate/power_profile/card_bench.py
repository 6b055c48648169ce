"""Runs on a simulated card, whose power, governor and sensors are those of :mod:`joulecast.calibrate.devices`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_loads import phases_of
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.power_profile.poller import CardLog, channels_of
from joulecast.calibrate.power_profile.protocol import ClockRead, Run, Series
from joulecast.errors import InputError

#: Time between polls of the card; no part of a sensor's step.
POLL_S = 0.00487
#: The card's own clock, against the virtual host's.
GPU_OFFSET_S, DRIFT, READ_DELAY_S = 1234.5, 23e-6, 9e-6
#: Executions that are marked one by one, and passes between later marks.
MARKED_PASSES, MARK_EVERY = 12, 8
#: Time that the sensors get after the last run.
AFTER_S = 0.5


class CardBench:
    """Launches microbenchmarks on a simulated card of virtual time.

    Parameters
    ----------
    benchmarks
        Kernels of one pass, in order.
    card
        Where they run.

    Raises
    ------
    InputError
        The card lives in the machine's time.
    MeasurementError
        A benchmark cannot run on this card.
    """

    def __init__(self, benchmarks: Sequence[Microbenchmark], card: SimulatedCard) -> None:
        if card.realtime:
            raise InputError("a simulated card in real time cannot be profiled", remedy="Use one of virtual time.")
        self._card = card
        self.kernels = tuple(benchmark.name for benchmark in benchmarks)
        self.power_limit_w = card.facts.power_limit_w
        self._works = [phases_of(benchmark.row, card.board)[0].work for benchmark in benchmarks]
        self._random = np.random.default_rng(0)

    def now_s(self) -> float:
        """The card's virtual time [s]."""
        return self._card.now()

    def series(self, passes: int, delays_s: Sequence[float]) -> Series:
        """One run after each delay."""
        card, log = self._card, CardLog(self._card)
        end = card.watch(POLL_S, log.read)
        runs: list[Run] = []
        reads: list[ClockRead] = []
        for delay in delays_s:
            card.sleep(delay)
            reads.extend(self._read() for _ in range(3))
            runs.append(self._run(passes))
        card.sleep(AFTER_S)
        reads.append(self._read())
        end()
        log.fetch()
        return Series(passes, tuple(runs), tuple(reads), channels_of(log.columns))

    def close(self) -> None:
        """Let go of the card."""
        self._card.close()

    def _gpu_time(self, host_s: float) -> float:
        return GPU_OFFSET_S + (1.0 + DRIFT) * host_s

    def _read(self) -> ClockRead:
        there, back = READ_DELAY_S / 2 + self._random.exponential(2e-6, 2)
        before = self._card.now()
        self._card.sleep(there + back)
        return ClockRead(before, self._card.now(), self._gpu_time(before + there))

    def _run(self, passes: int) -> Run:
        card, kernels = self._card, len(self._works)
        steps, times = [0], [self._gpu_time(card.now())]
        done = 0
        while done < passes:
            # Many repetitions of one kernel at once are the same load and are simulated faster.
            chunk = 1 if done < MARKED_PASSES or kernels > 1 else min(MARK_EVERY, passes - done)
            for work in self._works:
                card.execute(work, repetitions=chunk)
                if chunk == 1:
                    steps.append(steps[-1] + 1)
                    times.append(self._gpu_time(card.now()))
            done += chunk
            if chunk > 1:
                steps.append(done)
                times.append(self._gpu_time(card.now()))
        return Run(np.array(steps, dtype=float), np.array(times))
