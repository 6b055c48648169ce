"""A process that reads a card beside the one that works on it: how the two talk.

The child is a module run as ``python -m MODULE LOCATOR PERIOD``. Commands come as lines on its standard input, each
answer is one line of JSON; a line with the key ``error`` tells why it ended. It ends with its input, or at ``end``.
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
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any, Protocol

from joulecast.calibrate.devices.protocol import Device
from joulecast.errors import DeviceError, JoulecastError, MeasurementError
from joulecast.files import write_all

#: How long the process may take to start [s].
START_TIMEOUT_S = 60.0
#: The line after which the child ends.
END = "end"
#: How long the process may take to end by itself [s].
END_TIMEOUT_S = 2.0
#: Steps of the golden ratio fall everywhere between 0 and 1, and never into a rhythm.
_GOLDEN = 0.6180339887498949


def irregular(count: int) -> float:
    """What the n-th time between two readings is of the mean one: from half to one and a half, in no rhythm.

    Readings that are spread so bracket a sensor's regular moves from all sides.

    >>> [round(irregular(n), 2) for n in range(4)]
    [0.5, 1.12, 0.74, 1.35]
    """
    return 0.5 + (count * _GOLDEN) % 1.0


class CardProcess:
    """The parent's side.

    Parameters
    ----------
    module
        What the child runs.
    locator
        Of the card, as :func:`joulecast.calibrate.devices.open_device` takes it.
    period_s
        Mean time between two readings [s].

    Attributes
    ----------
    pid
        Of the child.
    """

    def __init__(self, module: str, locator: str, period_s: float) -> None:
        self._locator, self._unread = locator, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, locator, str(period_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is the measuring process's to handle
        )
        self.pid = self._process.pid

    def first_answer(self) -> dict[str, Any]:
        """What the child says when it has opened the card; without that it is closed.

        Raises
        ------
        DeviceError
            The process cannot open the card.
        """
        try:
            return self.answer(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def say(self, line: str) -> None:
        """Send a line.

        Raises
        ------
        MeasurementError
            The process was closed.
        """
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            raise MeasurementError("the process that reads the card is closed", key=self._locator)
        with contextlib.suppress(BrokenPipeError):  # the answer, or its lack, tells why
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The child's next answer.

        Raises
        ------
        DeviceError
            None came in time, the child ended, or it failed.
        """
        pipe = self._process.stdout
        end = time.monotonic() + timeout_s
        while pipe is not None and b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0.0 or not wait([pipe.fileno()], left):
                raise DeviceError(
                    f"the driver has not answered for {timeout_s:g} s",
                    key=self._locator,
                    remedy="Look at the system's log for errors of the card.",
                )
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                raise self._died()
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DeviceError(f"reading the card failed: {answer['error']}", key=self._locator)
        return answer

    def _died(self) -> DeviceError:
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return DeviceError(f"the process that reads the card ended: {''.join(last) or 'killed'}", key=self._locator)

    def close(self) -> None:
        """End the process; by a word, as processes that were forked meanwhile hold its input open."""
        with contextlib.suppress(MeasurementError, OSError):
            self.say(END)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Reader(Protocol):
    """The child's side: what it does between its commands, and at each of them."""

    def first_answer(self) -> Mapping[str, Any]:
        """What the parent is told at the start."""

    def obey(self, command: str) -> Mapping[str, Any]:
        """Carry out a command; its answer."""

    def wait_s(self) -> float | None:
        """How long until the next reading; ``None`` while stopped."""

    def read(self) -> None:
        """Read the card, and choose the time of the next reading."""


def serve_card(make: Callable[[Device, float], Reader], arguments: list[str]) -> None:
    """Open the card that the arguments name, and read it as the lines of the standard input say, until it ends."""
    from joulecast.calibrate.devices import open_device

    locator, period_s = arguments
    answers = os.dup(1)
    os.dup2(2, 1)  # what a vendor's binding prints is no answer
    try:
        device = open_device(locator)
        try:
            serve(make(device, float(period_s)), answers)
        finally:
            device.close()
    except JoulecastError as error:
        _write({"error": str(error)}, answers)


def serve(reader: Reader, answers: int) -> None:
    """Read as the lines of the standard input say, until it ends; ``answers`` is the file that the answers go to."""
    unread = b""
    _write(reader.first_answer(), answers)
    while True:
        if not select.select([0], [], [], reader.wait_s())[0]:
            reader.read()
            continue
        piece = os.read(0, 1 << 12)
        if not piece:
            return
        *commands, unread = (unread + piece).split(b"\n")
        for command in commands:
            if command == END.encode():
                return
            _write(reader.obey(command.decode()), answers)


def _write(answer: Mapping[str, Any], to: int) -> None:
    write_all(to, json.dumps(answer).encode() + b"\n")
