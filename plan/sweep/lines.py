"""Files of lines that are appended as they come: what was written stays readable whatever happens.

Each line is one write; a torn last line, as a killed process, a full disk or a power cut leaves it, is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.files import is_full, lock, sync_folder, write_all

#: How often what was written is seen to the disk, which only a power cut asks for [s].
SYNC_S = 0.2


class Lines:
    """A file to which lines are appended.

    Raises
    ------
    InputError
        It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced_s = 0.0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error

    def lock(self, does: str, remedy: str) -> None:
        """Refuse the file if another process holds it; see :func:`joulecast.files.lock`."""
        lock(self._file.fileno(), self.path, does, remedy)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line, and see what was written to the disk now and then."""
        try:
            write_all(self._file.fileno(), (json.dumps(line, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if time.monotonic() - self._synced_s > SYNC_S:
            self._sync()

    def keep_name(self) -> None:
        """See a new file's name to the disk."""
        with contextlib.suppress(OSError):
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Close the file; it stays."""
        if not self._file.closed:
            self._sync()
            self._file.close()

    def _sync(self) -> None:
        with contextlib.suppress(OSError):  # not every kind of file can
            os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of a file, and the bytes that they take; what follows the last whole one is torn.

    Raises
    ------
    InputError
        A line in the middle is no row.
    """
    found: list[dict[str, Any]] = []
    whole = 0
    for number, raw in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise no_row(path, number)
        found.append(line)
        whole += len(raw)
    return found, whole


def begins_with(path: Path, header: Mapping[str, Any]) -> bool:
    """Whether the first line of a file that is there is this one."""
    try:
        with path.open("rb") as file:
            return bool(json.loads(file.readline()) == header)
    except (OSError, ValueError, RecursionError):
        return False


def no_row(path: Path, line: int) -> InputError:
    """The error of a line that is no row."""
    return InputError("not a row of a sweep", file=str(path), line=line, remedy="Remove the file.")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be written: {error.strerror}",
        file=str(path),
        remedy="What was written stays; make room and continue with --resume."
        if is_full(error)
        else "Choose a folder that exists and is yours.",
    )
