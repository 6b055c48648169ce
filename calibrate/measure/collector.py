"""What is read of a card, and how often: all of it densely, or cheaply where the driver writes power down by itself.

Reading an energy counter may keep a core busy for milliseconds, many times what all other readings cost. Where a card
has a power history, the counter is only needed to hold the history against it: it is read when somebody takes what
was collected. Pulsed work needs it densely all the same: a history that is not synchronous to the pulses is off.
"""

from __future__ import annotations

from typing import TypeAlias

from joulecast.calibrate.devices.protocol import Device, PowerReading, Sample

#: Samples, and the card's power history beside them.
Read: TypeAlias = tuple[list[Sample], list[PowerReading]]

#: Mean time between two samples, with the counter and without it [s].
PERIOD_S, CHEAP_PERIOD_S = 0.02, 0.06
#: Time after which the history is read again, well before the driver forgets it [s].
HISTORY_PERIOD_S = 0.8
#: Least time between two readings of the counter beside a history [s].
COUNTER_PERIOD_S = 1.5


class Collector:
    """Reads a card whenever it is told to, and keeps what it read until it is taken.

    Parameters
    ----------
    device
        The card.

    Attributes
    ----------
    history_step_s
        Time between two readings of its power history [s]; ``None`` without one.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.history_step_s = device, device.history_step_s
        self._cheap = False
        self._samples: list[Sample] = []
        self._readings: list[PowerReading] = []
        self._since_s = self._asked_s = self._counted_s = 0.0

    @property
    def period_s(self) -> float:
        """Mean time between two samples [s]."""
        return CHEAP_PERIOD_S if self._cheap else PERIOD_S

    def start(self, *, dense_counter: bool) -> None:
        """Begin; forgets what was read before."""
        self._cheap = self.history_step_s is not None and not dense_counter
        self._samples, self._readings = [], []
        if self._cheap:
            self._since_s = self._asked_s = self._device.now()
            self._counted_s = float("-inf")

    def read(self) -> None:
        """Take a sample."""
        if not self._cheap:
            self._samples.append(self._device.sample())
            return
        self._samples.append(self._device.sample(counter=False))
        if self._samples[-1].time_s >= self._asked_s + HISTORY_PERIOD_S:
            self._read_history()

    def finish(self) -> None:
        """Bring the history up to date, and look at the counter unless that was done a moment ago."""
        if not self._cheap:
            return
        now = self._device.now()
        if now >= self._counted_s + COUNTER_PERIOD_S:
            self._samples.append(self._device.sample())
            self._counted_s = self._samples[-1].time_s
        if self.history_step_s is not None and now >= self._asked_s + self.history_step_s:
            self._read_history()

    def take(self) -> Read:
        """What was read since the last call."""
        found = self._samples, self._readings
        self._samples, self._readings = [], []
        return found

    def _read_history(self) -> None:
        self._asked_s = self._device.now()
        new = self._device.power_history(self._since_s)
        if new:
            self._since_s = new[-1].time_s
            self._readings += new
