"""Changes of a card's clocks and limits that are undone whatever happens.

A guardian, a small process of its own, knows the card's settings from before and waits. If this process says that it
has given them back, the guardian ends. If this process ends in any other way, which closes a pipe between the two, the
guardian gives them back: after an exception that nothing caught, Ctrl-C, SIGTERM or SIGKILL. If it is the guardian that
dies, this process gives them back at once, and changes nothing more. Where nothing was set, nothing is given back.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import wait
from typing import IO, Any

from pydantic import TypeAdapter

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.protocol import Device, Settings
from joulecast.errors import DeviceError, JoulecastError, PermissionDeniedError

#: What the guardian says when it watches; what it is told before anything is set, and when all is given back.
READY, ARMED, RESTORED = "ready", "armed", "restored"
#: How long the guardian may take to open the card, and to end [s].
PATIENCE_S = 60.0
#: How often the guardian looks whether this process still lives, beside waiting for the pipe [s]: a child of this
#: process that was forked while the pipe was open holds it open.
LOOK_S = 0.5
#: How often giving back is tried, and how long to wait in between [s].
ATTEMPTS, PAUSE_S = 5, 1.0


class BorrowedSettings:
    """Settings of a card that will be given back; made by :func:`borrowed_settings`.

    Attributes
    ----------
    own
        The card's settings from before.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.own = device, device.settings()
        self._lock = threading.Lock()
        self._armed = self._lost = self._over = False
        self._guardian: subprocess.Popen[bytes] | None = None
        if device.shared:
            self._guardian = _start(device.facts.locator, self.own)
            threading.Thread(target=self._watch, args=(self._guardian,), daemon=True).start()

    def apply(self, settings: Settings) -> None:
        """Set the card; ``None`` in the settings gives it back its own.

        Raises
        ------
        DeviceError
            The guardian has died, and the settings have been given back; or a value that the card refuses.
        PermissionDeniedError
            Without the privilege.
        """
        with self._lock:
            if self._lost:
                raise DeviceError(
                    "the process that guards the card's settings has died; they have been given back",
                    remedy="Start again, and do not end processes of joulecast one by one.",
                )
            self._arm()
            self._device.apply(settings)

    def give_back(self) -> None:
        """Restore the card's own settings and end the guardian; where the former fails, the guardian does it."""
        done = False
        try:
            with self._lock:
                self._over = True
                if self._armed and not self._lost:
                    self._device.apply(self.own)
                done = True
        finally:
            self._dismiss(done)

    def _arm(self) -> None:
        if not self._armed and self._guardian is not None and self._guardian.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the guardian has just died: _watch will restore
                self._guardian.stdin.write(f"{ARMED}\n".encode())
        self._armed = True

    def _dismiss(self, done: bool) -> None:
        guardian = self._guardian
        if guardian is None or guardian.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            if done:
                guardian.stdin.write(f"{RESTORED}\n".encode())
        guardian.stdin.close()
        try:
            guardian.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()
        if guardian.stdout is not None:
            guardian.stdout.close()

    def _watch(self, guardian: subprocess.Popen[bytes]) -> None:
        """Wait for the end of the guardian; if it comes too soon, restore over a handle of our own."""
        guardian.wait()
        with self._lock:
            if self._over:
                return
            self._lost = True
            if self._armed:
                _restore(self._device.facts.locator, self.own)


@contextlib.contextmanager
def borrowed_settings(device: Device) -> Iterator[BorrowedSettings]:
    """Change a card's settings for a while; they are given back on every way out.

    Nobody is asked here whether that is wanted.

    Raises
    ------
    PermissionDeniedError
        This user may set neither clocks nor the power limit.
    DeviceError
        The guardian cannot open the card.
    """
    facts = device.facts
    if not (facts.may_set_clocks or facts.may_set_power_limit):
        raise PermissionDeniedError(
            "this user may set neither clocks nor the power limit",
            key=facts.locator,
            remedy="Calibrate passively, or as administrator.",
        )
    borrowed = BorrowedSettings(device)
    try:
        yield borrowed
    finally:
        borrowed.give_back()


def _start(locator: str, own: Settings) -> subprocess.Popen[bytes]:
    """A guardian that watches.

    It is in a session of its own: Ctrl-C and signals to this process's group do not reach it.
    """
    guardian = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, locator, json.dumps(asdict(own)), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    answer = _first_line(guardian)
    if answer != READY:
        guardian.kill()
        guardian.communicate()
        raise DeviceError(
            f"the process that guards the card's settings does not start: {answer or 'no answer'}",
            key=locator,
            remedy="Nothing was changed. Calibrate passively.",
        )
    return guardian


def _first_line(guardian: subprocess.Popen[bytes]) -> str:
    if guardian.stdout is None or not wait([guardian.stdout.fileno()], PATIENCE_S):
        return ""
    return guardian.stdout.readline().decode().strip()


def _restore(locator: str, own: Settings) -> None:
    """Give a card its settings back, over a handle of its own; says on standard error if that cannot be done."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            device = open_device(locator)
            try:
                device.apply(own)
            finally:
                device.close()
        except JoulecastError as error:
            problem = str(error)
        else:
            return
    sys.stderr.write(f"joulecast: the settings of {locator} could not be given back: {problem}\n")


def guard(locator: str, own: Settings, orders: IO[bytes], parent: int) -> None:
    """Wait for the word that all is given back; on any other end of the parent, give it back."""
    open_device(locator).close()
    ended = False

    def end(number: int, frame: Any) -> None:
        # The machine shuts down, or somebody ends this process: while it still can, it gives back.
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    heard = b""
    while not ended and os.getppid() == parent and RESTORED not in heard.decode().split():
        if select.select([orders], [], [], LOOK_S)[0]:
            piece = os.read(orders.fileno(), 4096)
            heard += piece
            if not piece:
                break
    words = (heard + _unread(orders)).decode().split()
    if ARMED in words and RESTORED not in words:
        _restore(locator, own)


def _unread(orders: IO[bytes]) -> bytes:
    """What a parent said that was gone before anybody looked at the pipe."""
    found = b""
    while select.select([orders], [], [], 0.0)[0] and (piece := os.read(orders.fileno(), 4096)):
        found += piece
    return found


def main(arguments: Sequence[str]) -> None:
    """What the guardian's process runs: ``LOCATOR SETTINGS PARENT``."""
    locator, settings, parent = arguments
    own = TypeAdapter(Settings).validate_json(settings)
    try:
        guard(locator, own, sys.stdin.buffer, int(parent))
    except JoulecastError as error:
        sys.stdout.write(f"{' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
