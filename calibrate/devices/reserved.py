"""One calibration of a card at a time: two would measure each other's work."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulecast.calibrate.devices.protocol import Device
from joulecast.errors import DeviceError, InputError
from joulecast.files import lock


@contextmanager
def reserved(device: Device) -> Iterator[None]:
    """Keep other calibrations on this machine away from a card; the end of the process gives it back in any case.

    Containers that share the card but no folder for temporary files do not see each other so: the driver's list of
    processes and the power of a card at rest then tell (:func:`joulecast.calibrate.devices.checks.examine`).

    Raises
    ------
    DeviceError
        Another process calibrates the card.
    """
    if not device.shared:  # simulated, and known to this process alone
        yield
        return
    path = _lock_path(device)
    try:
        file = _opened(path)
    except OSError:  # no folder for temporary files: as where there are no locks
        yield
        return
    try:
        try:
            lock(file, path, "calibrates this card", "")
        except InputError as error:
            raise DeviceError(
                f"{error.message}: {device.facts.name} ({device.facts.locator})",
                key="reserved",
                remedy="Wait for its end, or take another card.",
            ) from None
        yield
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    """The file, whoever made it; no link is followed in a folder that everybody writes to."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)


def _lock_path(device: Device) -> Path:
    """A file for the card, by whatever word it was opened."""
    kind, _, place = device.facts.locator.partition(":")
    if kind == "sim":
        return Path(f"{place}.lock")
    return Path(tempfile.gettempdir()) / f"joulecast-{kind}-{re.sub(r'[^A-Za-z0-9]+', '-', device.identifier)}.lock"
