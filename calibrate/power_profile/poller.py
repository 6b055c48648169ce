"""Polls a card's power as fast as it answers, from a process of its own.

Run as ``python -m joulecast.calibrate.power_profile.poller LOCATOR PERIOD``, it polls between the lines ``start`` and
``stop`` on its input, answers ``stop`` with one line of JSON, and ends with its input. Profiles need denser polls than
measuring energy does, and last minutes only, so that a poll may cost more of a core here.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from joulecast.calibrate.devices.card_process import CardProcess, irregular, serve_card
from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.power_profile.protocol import Channel

#: Mean time between two polls.
PERIOD_S = 0.004
#: How long the process may take to answer [s].
ANSWER_TIMEOUT_S = 30.0
#: The driver's history is fetched so often; it keeps a few seconds.
FETCH_S = 0.5


class Poller:
    """A polling process.

    Parameters
    ----------
    locator
        Of the card, as :func:`joulecast.calibrate.devices.open_device` takes it.
    period_s
        Mean time between two polls.

    Raises
    ------
    DeviceError
        The process cannot open the card.
    """

    def __init__(self, locator: str, period_s: float = PERIOD_S) -> None:
        self._process = CardProcess("joulecast.calibrate.power_profile.poller", locator, period_s)
        self._process.first_answer()

    def start(self) -> None:
        """Begin to poll, and wait until it has."""
        self._process.say("start")
        self._process.answer(ANSWER_TIMEOUT_S)

    def stop(self) -> tuple[Channel, ...]:
        """End polling; what was read since the start."""
        self._process.say("stop")
        return channels_of(self._process.answer(ANSWER_TIMEOUT_S)["columns"])

    def close(self) -> None:
        """End the process."""
        self._process.close()


class CardLog:
    """What a card's sensors said since now, as columns: for JSON, and for channels.

    The power that the driver writes down by itself carries its own times and is fetched now and then, before the driver
    forgets it.
    """

    def __init__(self, device: Device) -> None:
        self.columns: dict[str, list[list[float]]] = {}
        self._device = device
        self._known_s = self._fetched_s = device.now()

    def read(self) -> None:
        """Poll power and energies once."""
        sample = self._device.sample()
        found = {"power": sample.power_w, "energy": sample.energy_j, **sample.components_j}
        for name, value in found.items():
            if value is not None:
                self._add(name, sample.time_s, value)
        if sample.time_s - self._fetched_s > FETCH_S:
            self.fetch()

    def fetch(self) -> None:
        """Take what the driver wrote down since the last time."""
        self._fetched_s = self._device.now()
        for reading in self._device.power_history(self._known_s):
            self._add("history", reading.time_s, reading.power_w)
            self._known_s = reading.time_s

    def _add(self, name: str, time_s: float, value: float) -> None:
        times, values = self.columns.setdefault(name, [[], []])
        times.append(time_s)
        values.append(value)


def channels_of(columns: dict[str, list[list[float]]]) -> tuple[Channel, ...]:
    """Columns as channels; everything but powers is an accumulated energy, and only the history tells its times."""
    return tuple(
        Channel(
            name,
            "power" if name in ("power", "history") else "energy",
            np.array(times),
            np.array(values),
            fresh=name == "history",
        )
        for name, (times, values) in columns.items()
    )


class PolledCard:
    """A card as the polling process reads it; see :class:`joulecast.calibrate.devices.card_process.Reader`."""

    def __init__(self, device: Device, period_s: float) -> None:
        self._device, self._period_s = device, period_s
        self._polling, self._count, self._due_s, self._log = False, 0, 0.0, CardLog(device)

    def first_answer(self) -> dict[str, Any]:
        """That the card is open."""
        return {"ready": True}

    def obey(self, command: str) -> dict[str, Any]:
        """Begin, or end and tell what was read."""
        self._polling = command == "start"
        if not self._polling:
            self._log.fetch()
            return {"columns": self._log.columns}
        self._log, self._due_s = CardLog(self._device), time.monotonic()
        return {"started": True}

    def wait_s(self) -> float | None:
        """How long until the next poll; ``None`` while stopped."""
        return max(self._due_s - time.monotonic(), 0.0) if self._polling else None

    def read(self) -> None:
        """Poll, and choose the time of the next: irregular polls bracket a sensor's regular moves from all sides."""
        self._log.read()
        self._count += 1
        self._due_s = time.monotonic() + self._period_s * irregular(self._count)


if __name__ == "__main__":
    serve_card(PolledCard, sys.argv[1:])
