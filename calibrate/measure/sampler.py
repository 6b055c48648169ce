"""Reads a card while it works: about fifty times a second, or less where the driver writes down power by itself.

:class:`ProcessSampler` reads from a process of its own, so that neither the work's launches nor a driver call that
blocks for a second hold up the other. The process keeps its samples until it is asked for them: nothing wakes the
measuring process. Readings are not equally spaced: spread irregularly, they bracket a counter's regular steps from all
sides (see :mod:`joulecast.calibrate.measure.counter`), and the rate falls where a reading costs much of a core.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from joulecast.calibrate.devices.card_process import CardProcess
from joulecast.calibrate.devices.protocol import Device, PowerReading
from joulecast.calibrate.measure.collector import PERIOD_S, Collector, Read
from joulecast.calibrate.measure.sampling_process import unpacked

#: What the sampling process runs.
SAMPLING = "joulecast.calibrate.measure.sampling_process"
#: How long it may take to answer: a blocked driver call is waited for [s].
ANSWER_TIMEOUT_S = 20.0
#: Period of sampling over its mean, so that it is no part of a counter's step.
_OFF_BEAT = 0.955


class Sampler(Protocol):
    """Takes samples in the background."""

    @property
    def history_step_s(self) -> float | None:
        """Time between two readings of the card's power history [s]; ``None`` where it has none."""

    def start(self, *, dense_counter: bool = False) -> None:
        """Begin; forgets older samples.

        Parameters
        ----------
        dense_counter
            Read the energy counter in every sample, and no power history. So it is anyway where there is no history.
        """

    def take(self) -> Read:
        """What was read since the start or the last call."""

    def stop(self) -> Read:
        """End; what was read since the last call."""

    def close(self) -> None:
        """Let go of the card."""


class VirtualSampler:
    """Samples a card of virtual time: it asks the card to be called.

    Parameters
    ----------
    device
        A card with a method ``watch(period_s, callback)``, such as
        :class:`~joulecast.calibrate.devices.simulated.SimulatedCard`.
    """

    def __init__(self, device: Any) -> None:
        self._device, self._collector = device, Collector(device)
        self.history_step_s = self._collector.history_step_s
        self._end: Callable[[], None] | None = None

    def start(self, *, dense_counter: bool = False) -> None:
        """Begin; forgets older samples."""
        self._watch_no_more()
        self._collector.start(dense_counter=dense_counter)
        self._end = self._device.watch(_OFF_BEAT * self._collector.period_s, self._collector.read)

    def take(self) -> Read:
        """What was read since the start or the last call."""
        if self._end is not None:
            self._collector.finish()
        return self._collector.take()

    def stop(self) -> Read:
        """End; what was read since the last call."""
        if self._watch_no_more():
            self._collector.finish()
        return self.take()

    def _watch_no_more(self) -> bool:
        """Whether the card was watched until now."""
        if self._end is None:
            return False
        self._end()
        self._end = None
        return True

    def close(self) -> None:
        """Stop."""
        self._watch_no_more()


class ProcessSampler:
    """Samples a card from another process, which starts at once and waits.

    Parameters
    ----------
    locator
        Of the card, as :func:`joulecast.calibrate.devices.open_device` takes it.

    Attributes
    ----------
    history_step_s
        Time between two readings of the card's power history [s]; ``None`` where it has none.
    core_share
        Share of one core that sampling has cost since the last start, as last reported.

    Raises
    ------
    DeviceError
        The process cannot open the card.
    """

    def __init__(self, locator: str) -> None:
        self._process = CardProcess(SAMPLING, locator, PERIOD_S)
        self._asked = 0
        self.core_share = 0.0
        self.history_step_s: float | None = self._process.first_answer()["history_step_s"]

    def start(self, *, dense_counter: bool = False) -> None:
        """Begin; forgets older samples."""
        self._ask("start-dense" if dense_counter else "start")

    def take(self) -> Read:
        """What was read since the start or the last call."""
        return self._ask("take")

    def stop(self) -> Read:
        """End; what was read since the last call."""
        return self._ask("stop")

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _ask(self, command: str) -> Read:
        self._asked += 1
        self._process.say(f"{command} {self._asked}")
        answer = self._process.answer(ANSWER_TIMEOUT_S)
        while answer["to"] != self._asked:  # of a question whose asker was interrupted
            answer = self._process.answer(ANSWER_TIMEOUT_S)
        self.core_share = float(answer["core_share"])
        samples = [unpacked(values) for values in answer["samples"]]
        return samples, [PowerReading(*values) for values in answer["history"]]


class SamplerPool:
    """Makes one sampler per card and keeps it: a process takes longer to start than many benchmarks to run.

    Cards of virtual time are sampled in this process.
    """

    def __init__(self) -> None:
        self._samplers: dict[str, Sampler] = {}

    def __call__(self, device: Device) -> Sampler:
        """The card's sampler."""
        locator = device.facts.locator
        if locator not in self._samplers:
            self._samplers[locator] = ProcessSampler(locator) if device.realtime else VirtualSampler(device)
        return self._samplers[locator]

    @property
    def core_share(self) -> float:
        """The most that sampling a card has cost of one core; 0 in virtual time."""
        return max((getattr(sampler, "core_share", 0.0) for sampler in self._samplers.values()), default=0.0)

    def close(self) -> None:
        """Close all samplers."""
        while self._samplers:
            self._samplers.popitem()[1].close()

    def __enter__(self) -> SamplerPool:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
