"""Runs microbenchmarks with PyTorch, on a GPU or, shrunk, on CPU tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from joulecast.calibrate.microbenchmarks.clock_counter import ClockCounter, clock_counter_for
from joulecast.calibrate.microbenchmarks.composite import BackToBack
from joulecast.calibrate.microbenchmarks.engine import Engine, engine_for
from joulecast.calibrate.microbenchmarks.kernel import Bench
from joulecast.calibrate.microbenchmarks.loads import Runs, build
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.shrink import shrink
from joulecast.calibrate.microbenchmarks.torch_backend import in_words, load_torch, missing_needs, refuse_missing
from joulecast.errors import MeasurementError


class TorchLoad:
    """A prepared microbenchmark on one device.

    Attributes
    ----------
    row
        What really runs: the benchmark's row, or the one to which it was shrunk.
    counted_clock_mhz
        Mean clock of the last run, by the cycles that the SMs counted [MHz]; ``None`` before the first, without a
        ``counter``, and of benchmarks with pauses or beside other work, whose clock is not that of one work.
    """

    def __init__(
        self,
        torch: Any,
        engine: Engine,
        runs: Runs,
        name: str,
        row: Mapping[str, Any],
        counter: ClockCounter | None,
    ) -> None:
        self._torch, self._engine, self._name, self.row = torch, engine, name, row
        self._runs: Runs | None = runs
        self._counter = counter if isinstance(runs, BackToBack) else None
        self.counted_clock_mhz: float | None = None

    def run(self, duration_s: float) -> tuple[int, float]:
        """Keep the device busy for about so long; wait for it to end.

        Of benchmarks with pauses the seconds are the busy ones, of those beside other work their own share.

        Raises
        ------
        MeasurementError
            The work failed, the load is closed, or the duration is not a positive number.
        """
        if self._runs is None:
            raise MeasurementError(f"{self._name}: it is closed")
        if not (math.isfinite(duration_s) and duration_s > 0):
            raise MeasurementError(f"{self._name}: a duration of {duration_s} s is not positive")
        self.counted_clock_mhz = None
        with in_words(self._torch, self._name):
            if self._counter is None:
                return self._runs.run(duration_s)
            with self._engine.preparing():
                self._counter.begin()
            done = self._runs.run(duration_s)
            with self._engine.preparing():
                self.counted_clock_mhz = self._counter.end()
            return done

    def close(self) -> None:
        """Free its memory."""
        if self._runs is None:
            return
        self._runs = None
        with in_words(self._torch, self._name):
            self._engine.release()


class TorchRunner:
    """Prepares microbenchmarks on one device.

    Parameters
    ----------
    device
        As PyTorch writes it: ``cuda:0``, ``cpu``.

    Raises
    ------
    MeasurementError
        PyTorch is missing, or it does not see the device.
    """

    def __init__(self, device: str) -> None:
        self._torch = load_torch()
        try:
            self._device = self._torch.device(device)
        except RuntimeError as error:
            raise MeasurementError(f"unknown device {device!r} ({error})", remedy="Give cuda:0 or cpu.") from None
        self._tiny = self._device.type == "cpu"
        if self._device.type != "cpu" and (self._device.index or 0) >= self._torch.cuda.device_count():
            raise MeasurementError(
                f"PyTorch does not see {device}",
                remedy="It needs a build of PyTorch for this GPU and its driver; check torch.cuda.is_available().",
            )
        # One stream for all: libraries keep a workspace for every stream that they have seen.
        self._engine = engine_for(self._torch, self._device)
        with self._engine.preparing():
            self._counter = clock_counter_for(self._torch, self._device)

    def missing(self, benchmark: Microbenchmark) -> tuple[str, ...]:
        """What the benchmark needs and this machine lacks."""
        return missing_needs(self._torch, self._device, benchmark.needs)

    def prepare(self, benchmark: Microbenchmark) -> TorchLoad:
        """Allocate and warm up.

        Raises
        ------
        MeasurementError
            It cannot run here: out of memory, data type or backend missing. The message says what is missing.
        """
        if benchmark.gpus > 1:
            raise MeasurementError(
                f"{benchmark.name}: it takes {benchmark.gpus} GPUs",
                remedy="Start joulecast.calibrate.microbenchmarks.distributed with torch.distributed.run.",
            )
        refuse_missing(benchmark.name, self.missing(benchmark))
        row = shrink(benchmark.row) if self._tiny else benchmark.row
        engine = self._engine
        try:
            with in_words(self._torch, benchmark.name):
                runs = build(Bench(self._torch, self._device, row, benchmark.name), engine)
        except MeasurementError:
            engine.release()
            raise
        return TorchLoad(self._torch, engine, runs, benchmark.name, row, self._counter)
