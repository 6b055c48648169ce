"""Polls a card's power as fast as it answers, from a process of its own.

Run as ``python -m joulecast.calibrate.power_profile.poller LOCATOR PERIOD``, it polls between the lines ``start`` and
``stop`` on its input, answers ``stop`` with one line of JSON, and ends with its input. Profiles need denser polls than
measuring energy does, and last minutes only, so that a poll may cost more of a core here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from joulecast.calibrate.devices.protocol import Device, Sample
from joulecast.calibrate.power_profile.protocol import Channel
from joulecast.errors import DeviceError, JoulecastError, MeasurementError

#: Mean time between two polls.
PERIOD_S = 0.004
#: How long the process may take to start and to answer.
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 60.0, 30.0
_GOLDEN = 0.6180339887498949


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
        self._locator, self._unread = locator, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "joulecast.calibrate.power_profile.poller", locator, str(period_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is the measuring process's to handle
        )
        try:
            self._answer(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Begin to poll, and wait until it has."""
        self._say(b"start\n")
        self._answer(ANSWER_TIMEOUT_S)

    def stop(self) -> tuple[Channel, ...]:
        """End polling; what was read since the start."""
        self._say(b"stop\n")
        return channels_of(self._answer(ANSWER_TIMEOUT_S)["columns"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _say(self, line: bytes) -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            raise MeasurementError("the poller is closed", key=self._locator)
        with contextlib.suppress(BrokenPipeError):  # the answer, or its lack, tells why
            pipe.write(line)
            pipe.flush()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        pipe = self._process.stdout
        end = time.monotonic() + timeout_s
        while pipe is not None and b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0.0 or not select.select([pipe], [], [], left)[0]:
                raise DeviceError(f"the driver has not answered for {timeout_s:g} s", key=self._locator)
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                self._process.wait()
                self._errors.seek(0)
                last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise DeviceError(f"the polling process ended: {''.join(last) or 'killed'}", key=self._locator)
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DeviceError(f"polling failed: {answer['error']}", key=self._locator)
        return answer


class Columns:
    """Samples as columns, for JSON and for channels."""

    def __init__(self) -> None:
        self.columns: dict[str, list[list[float]]] = {}

    def add(self, sample: Sample) -> None:
        """Keep a sample's power and energies."""
        found = {"power": sample.power_w, "energy": sample.energy_j, **sample.components_j}
        for name, value in found.items():
            if value is not None:
                times, values = self.columns.setdefault(name, [[], []])
                times.append(sample.time_s)
                values.append(value)


def channels_of(columns: dict[str, list[list[float]]]) -> tuple[Channel, ...]:
    """Columns as channels; everything but ``power`` is an accumulated energy."""
    return tuple(
        Channel(name, "power" if name == "power" else "energy", np.array(times), np.array(values))
        for name, (times, values) in columns.items()
    )


def serve(device: Device, period_s: float, answers: int) -> None:
    """Poll as the lines of the standard input say, until it ends; ``answers`` is where the answers go."""
    polling, count, due, unread, columns = False, 0, 0.0, b"", Columns()
    _say({"ready": True}, answers)
    while True:
        wait = max(due - time.monotonic(), 0.0) if polling else None
        if not select.select([0], [], [], wait)[0]:
            columns.add(device.sample())
            count += 1
            # Irregular polls bracket a sensor's regular moves from all sides.
            due = time.monotonic() + period_s * (0.5 + (count * _GOLDEN) % 1.0)
            continue
        piece = os.read(0, 1 << 12)
        if not piece:
            return
        *lines, unread = (unread + piece).split(b"\n")
        for line in lines:
            polling = line == b"start"
            if polling:
                columns, due = Columns(), time.monotonic()
                _say({"started": True}, answers)
            else:
                _say({"columns": columns.columns}, answers)


def _say(answer: dict[str, Any], to: int) -> None:
    data = memoryview(json.dumps(answer).encode() + b"\n")
    while data:
        data = data[os.write(to, data) :]


def main(arguments: list[str]) -> None:
    """Open the card and serve."""
    from joulecast.calibrate.devices import open_device

    locator, period_s = arguments
    answers = os.dup(1)
    os.dup2(2, 1)  # what a vendor's binding prints is no answer
    try:
        device = open_device(locator)
        try:
            serve(device, float(period_s), answers)
        finally:
            device.close()
    except JoulecastError as error:
        _say({"error": str(error)}, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
