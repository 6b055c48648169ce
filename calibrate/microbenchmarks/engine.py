"""Keeps a card busy with many launches of small work, and measures on the card's own clock.

A kernel of a few microseconds ends before Python has launched the next one. On GPUs launches are therefore recorded
into CUDA graphs of about :data:`BATCH_S`, and at most :data:`IN_FLIGHT` of these wait on the card: enough that it never
runs dry, few enough that a run ends soon after its duration.
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

#: Length of one batch of launches [s].
BATCH_S = 0.010
#: Batches that wait on the card or run.
IN_FLIGHT = 2
#: Most launches in one graph; graphs of more nodes take long to build.
MOST_LAUNCHES = 4096
#: The card waits so many cycles before a clock starts, so that the work is queued when it does: about 50 µs.
HEAD_START_CYCLES = 100_000
#: A time is estimated from at least so long a run [s].
ESTIMATE_S = 0.002

Once = Callable[[], Any]


class Batch(Protocol):
    """Several launches, one after another."""

    count: int

    def launch(self) -> None:
        """Put them on the card's queue."""


class _LoopBatch:
    """Launches from Python."""

    def __init__(self, once: Once, count: int, context: Callable[[], Any]) -> None:
        self.count = count
        self._once, self._context = once, context

    def launch(self) -> None:
        with self._context():
            for _ in range(self.count):
                self._once()


class _GraphBatch:
    """Launches recorded into a CUDA graph."""

    def __init__(self, torch: Any, once: Once, count: int, stream: Any) -> None:
        self.count = count
        self._torch, self._stream = torch, stream
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            for _ in range(count):
                once()

    def launch(self) -> None:
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()


class Engine:
    """Queue of work with a clock, and the host's time; this one is of CPU tensors: a launch is over when it returns."""

    def now(self) -> float:
        """The host's time [s]."""
        return time.perf_counter()

    def sleep(self, duration_s: float) -> None:
        """Let the host wait."""
        time.sleep(duration_s)

    def batch(self, once: Once, count: int, *, capture: bool) -> Batch:
        """Prepare ``count`` times ``once``; ``capture`` says whether it may be recorded into a graph."""
        return _LoopBatch(once, count, self.preparing)

    def mark(self) -> Any:
        """A point in the queue."""
        return self.now()

    def head_start(self) -> None:
        """Hold the card for a moment, so that a resting card does not begin before its work is queued."""

    def wait(self, mark: Any) -> None:
        """Sleep until the card has reached the point."""

    def elapsed_s(self, first: Any, last: Any) -> float:
        """Time between two points that the card has reached [s]."""
        return float(last - first)

    def preparing(self) -> Any:
        """Context in which work is launched on this queue."""
        return nullcontext()

    def release(self) -> None:
        """Give memory back that no buffer holds any more."""


class CudaEngine(Engine):
    """A stream of a GPU, with CUDA events as its clock."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)

    def batch(self, once: Once, count: int, *, capture: bool) -> Batch:
        """Record the launches into a graph where that is possible."""
        if not capture:
            return super().batch(once, count, capture=False)
        with self._torch.cuda.device(self._device):
            return _GraphBatch(self._torch, once, count, self._stream)

    def mark(self) -> Any:
        """An event on the stream."""
        event = self._torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(self._stream)
        return event

    def head_start(self) -> None:
        """One thread counts cycles."""
        with self.preparing():
            self._torch.cuda._sleep(HEAD_START_CYCLES)

    def wait(self, mark: Any) -> None:
        """Block without spinning."""
        mark.synchronize()

    def elapsed_s(self, first: Any, last: Any) -> float:
        """Time between two events [s]."""
        return float(first.elapsed_time(last)) * 1e-3

    def preparing(self) -> Any:
        """Make the stream the current one."""
        return self._torch.cuda.stream(self._stream)

    def release(self) -> None:
        """Wait for the stream, and give cached memory back."""
        self._stream.synchronize()
        gc.collect()
        self._torch.cuda.empty_cache()


def engine_for(torch: Any, device: Any) -> Engine:
    """The engine of a PyTorch device."""
    return Engine() if device.type == "cpu" else CudaEngine(torch, device)


def warm_up(engine: Engine, once: Once) -> float:
    """Run a few times and estimate the time of one launch [s].

    Where Python launches more slowly than the card works, this is the launch's time.
    """
    with engine.preparing():
        once()
        once()
    engine.wait(engine.mark())
    count = 1
    while True:
        first = engine.mark()
        with engine.preparing():
            for _ in range(count):
                once()
        last = engine.mark()
        engine.wait(last)
        elapsed = engine.elapsed_s(first, last)
        if elapsed >= ESTIMATE_S or count >= MOST_LAUNCHES:
            return max(elapsed / count, 1e-9)
        count = min(MOST_LAUNCHES, max(2 * count, math.ceil(count * 1.2 * ESTIMATE_S / max(elapsed, 1e-7))))


def launches_for(time_s: float, once_s: float) -> int:
    """How many launches of ``once_s`` fill about ``time_s``: at least one, at most what a graph may hold."""
    return max(1, min(MOST_LAUNCHES, round(time_s / once_s)))


def keep_busy(engine: Engine, batch: Batch, duration_s: float) -> tuple[int, float]:
    """Launch a batch again and again for about ``duration_s``, and wait for the end.

    Returns
    -------
    tuple
        Launches, and the seconds from the first to the end of the last on the card's clock.
    """
    begin = engine.now()
    return keep_filled(engine, batch, lambda launched: engine.now() - begin < duration_s)


def keep_filled(engine: Engine, batch: Batch, more: Callable[[int], bool]) -> tuple[int, float]:
    """Launch a batch at least once, and again while ``more`` of the number of batches so far is true; wait for the end.

    Returns
    -------
    tuple
        Launches, and the seconds from the first to the end of the last on the card's clock.
    """
    engine.head_start()
    first = last = engine.mark()
    waiting: deque[Any] = deque()
    launched = 0
    while not launched or more(launched):
        batch.launch()
        launched += 1
        last = engine.mark()
        waiting.append(last)
        if len(waiting) >= IN_FLIGHT:
            engine.wait(waiting.popleft())
    engine.wait(last)
    return launched * batch.count, engine.elapsed_s(first, last)
