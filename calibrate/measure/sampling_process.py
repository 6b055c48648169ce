"""The process that samples a card: see :mod:`joulecast.calibrate.measure.sampler`.

Run as ``python -m joulecast.calibrate.measure.sampling_process LOCATOR PERIOD``, it takes the commands ``start``,
``start-dense``, ``take``, ``stop`` on its input, each with a number, and answers with one line of JSON; it ends with
its input.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from typing import Any

from joulecast.calibrate.devices.card_process import irregular, serve_card
from joulecast.calibrate.devices.protocol import Device, Sample
from joulecast.calibrate.measure.collector import Collector

#: Share of one core that sampling may cost; the rate falls until it holds.
CORE_SHARE = 0.008
#: The longest time between two samples that the share may force [s]: a counter's steps must stay in sight.
LONGEST_PERIOD_S = 0.1

_NAMES = tuple(field.name for field in fields(Sample))
_REASONS = _NAMES.index("reasons")


def unpacked(values: list[Any]) -> Sample:
    """A sample from JSON, as the process writes it."""
    values[_REASONS] = tuple(values[_REASONS])
    return Sample(*values)


class SampledCard:
    """A card as the sampling process reads it; see :class:`joulecast.calibrate.devices.card_process.Reader`."""

    def __init__(self, device: Device, period_s: float) -> None:
        self._collector, self._least_s = Collector(device), period_s
        self._running = False
        self._count = 0
        self._begin_s = self._begin_cpu_s = self._next_s = 0.0

    def first_answer(self) -> dict[str, Any]:
        """Time between two readings of the card's power history [s]; ``None`` where it has none."""
        return {"history_step_s": self._collector.history_step_s}

    def obey(self, line: str) -> dict[str, Any]:
        """Carry out a command with its number; its answer."""
        command, number = line.split()
        if command in ("start", "start-dense"):
            self._collector.start(dense_counter=command == "start-dense")
            self._count, self._running = 0, True
            self._begin_s = self._next_s = time.monotonic()
            self._begin_cpu_s = time.process_time()
        elif self._running:
            self._collector.finish()
            self._running = command != "stop"
        samples, readings = self._collector.take()
        return {
            "to": int(number),
            "samples": [[getattr(sample, name) for name in _NAMES] for sample in samples],
            "history": [(reading.time_s, reading.power_w) for reading in readings],
            "core_share": self._core_share(),
        }

    def _core_share(self) -> float:
        spent = time.monotonic() - self._begin_s
        return (time.process_time() - self._begin_cpu_s) / spent if spent > 0.0 else 0.0

    def wait_s(self) -> float | None:
        """How long until the next sample; ``None`` while stopped."""
        return max(self._next_s - time.monotonic(), 0.0) if self._running else None

    def read(self) -> None:
        """Take a sample, and choose the time of the next."""
        self._collector.read()
        self._count += 1
        cost_s = (time.process_time() - self._begin_cpu_s) / self._count
        least = max(self._least_s, self._collector.period_s)
        period = min(max(least, cost_s / CORE_SHARE), max(LONGEST_PERIOD_S, least))
        self._next_s = time.monotonic() + period * irregular(self._count)


if __name__ == "__main__":
    serve_card(SampledCard, sys.argv[1:])
