"""Runs of real kernels through PyTorch, timed by the card's own clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from joulecast.calibrate.microbenchmarks.engine import Batch, Engine, engine_for, warm_up
from joulecast.calibrate.microbenchmarks.kernel import Bench as Buffers
from joulecast.calibrate.microbenchmarks.kernel import Kernel
from joulecast.calibrate.microbenchmarks.loads import kernel_of
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_backend import in_words, load_torch, missing_needs, refuse_missing
from joulecast.calibrate.power_profile.poller import Poller
from joulecast.calibrate.power_profile.protocol import ClockRead, Run, Series
from joulecast.errors import MeasurementError

#: Executions at the start of a run that are marked one by one.
MARKED_PASSES = 12
#: Later marks stand about so far apart.
MARK_EVERY_S = 2e-3
#: Reads of the GPU's clock before each run.
READS = 4
#: Time that the card and its sensors get before the first and after the last run.
BEFORE_S, AFTER_S = 0.3, 0.5


class EventClock:
    """The GPU's own time, which marks in the engine's queue carry: differences of CUDA events.

    Differences of events are single-precision milliseconds; adding up short ones keeps them exact over long series.

    Parameters
    ----------
    engine
        Its marks are events.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reference = engine.mark()
        engine.wait(self._reference)
        self._reference_s = 0.0

    def read(self) -> ClockRead:
        """Read the GPU's time once: record an event on the idle queue and ask until it has happened."""
        before = time.monotonic()
        event = self._engine.mark()
        while not event.query():
            pass
        after = time.monotonic()
        self._reference_s += self._engine.elapsed_s(self._reference, event)
        self._reference = event
        return ClockRead(before, after, self._reference_s)

    def times(self, marks: Sequence[Any]) -> list[float]:
        """GPU times of marks, once all have been reached [s]; the reference is at most one run old."""
        return [self._reference_s + self._engine.elapsed_s(self._reference, mark) for mark in marks]


class HostClock:
    """CPU tensors: the host's time is the card's.

    Parameters
    ----------
    engine
        Its marks are times.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self) -> ClockRead:
        """Read it."""
        before = time.monotonic()
        now = self._engine.mark()
        return ClockRead(before, time.monotonic(), now)

    def times(self, marks: Sequence[float]) -> list[float]:
        """The marks themselves."""
        return list(marks)


class TorchBench:
    """Launches microbenchmarks in turn on a PyTorch device and logs power meanwhile.

    Parameters
    ----------
    benchmarks
        Kernels of one pass, in order; each must be a single kernel's row.
    device
        PyTorch device, such as ``cuda:0`` or ``cpu``.
    log
        Logs the card's power.
    power_limit_w
        The card's power limit, where it tells one [W].

    Raises
    ------
    MeasurementError
        PyTorch, the device or what a benchmark needs is missing.
    """

    def __init__(
        self, benchmarks: Sequence[Microbenchmark], device: str, log: Poller, power_limit_w: float | None = None
    ) -> None:
        self.power_limit_w = power_limit_w
        self._torch = torch = load_torch()
        self._device, self._log = torch.device(device), log
        self.kernels = tuple(benchmark.name for benchmark in benchmarks)
        if self._device.type != "cpu" and not torch.cuda.is_available():
            raise MeasurementError(f"PyTorch does not see {device}", remedy="Install a build for this GPU's driver.")
        for benchmark in benchmarks:
            refuse_missing(benchmark.name, missing_needs(torch, self._device, benchmark.needs))
        self._engine = engine_for(torch, self._device)
        self._kernels: list[Kernel] = []
        self._times: list[float] = []
        for benchmark in benchmarks:
            with in_words(torch, benchmark.name), self._engine.preparing():
                kernel = kernel_of(Buffers(torch, self._device, benchmark.row, benchmark.name))
                self._kernels.append(kernel)
                self._times.append(warm_up(self._engine, kernel.once))
        on_cpu = self._device.type == "cpu"
        self._clock: HostClock | EventClock = HostClock(self._engine) if on_cpu else EventClock(self._engine)
        self._single = [self._batch([kernel], 1) for kernel in self._kernels]
        self._chunk_passes = max(round(MARK_EVERY_S / sum(self._times)), 1)
        self._chunk = self._batch(self._kernels, self._chunk_passes)

    def now_s(self) -> float:
        """The machine's time [s]."""
        return time.monotonic()

    def series(self, passes: int, delays_s: Sequence[float]) -> Series:
        """One run after each delay."""
        runs: list[Run] = []
        reads: list[ClockRead] = []
        collecting = gc.isenabled()
        gc.disable()  # a collection would hold the launches up
        self._log.start()
        try:
            time.sleep(BEFORE_S)
            for delay in delays_s:
                time.sleep(delay)
                reads.extend(self._clock.read() for _ in range(READS))
                with in_words(self._torch, ", ".join(self.kernels)):
                    runs.append(self._run(passes))
            time.sleep(AFTER_S)
            reads.extend(self._clock.read() for _ in range(READS))
        finally:
            if collecting:
                gc.enable()
            channels = self._log.stop()
        return Series(passes, tuple(runs), tuple(reads), channels)

    def close(self) -> None:
        """Free the buffers and let go of the card."""
        self._kernels, self._single = [], []
        del self._chunk
        self._engine.release()
        self._log.close()

    def _batch(self, kernels: Sequence[Kernel], passes: int) -> Batch:
        once: Callable[[], Any] = kernels[0].once
        if len(kernels) > 1:

            def once() -> None:
                for kernel in kernels:
                    kernel.once()

        return self._engine.batch(once, passes, capture=all(kernel.capture for kernel in kernels))

    def _run(self, passes: int) -> Run:
        """Launch a run and read its marks.

        The first passes are marked after each kernel, later ones after each chunk; what does not fill a chunk at the
        end goes kernel by kernel, too.
        """
        mark, kernels = self._engine.mark, len(self._kernels)
        steps, marks = [0], []
        self._engine.head_start()
        marks.append(mark())

        def one_by_one(count: int) -> None:
            for _ in range(count):
                for single in self._single:
                    single.launch()
                    marks.append(mark())
                    steps.append(steps[-1] + 1)

        first = min(passes, MARKED_PASSES)
        one_by_one(first)
        chunks, rest = divmod(passes - first, self._chunk_passes)
        for _ in range(chunks):
            self._chunk.launch()
            marks.append(mark())
            steps.append(steps[-1] + self._chunk_passes * kernels)
        one_by_one(rest)
        self._engine.wait(marks[-1])
        return Run(np.array(steps, dtype=float), np.array(self._clock.times(marks)))
