"""Rows of a sweep on disk, one line each, appended as they come: what was written stays readable whatever happens.

The first line says which space the rows belong to. A batch begins with a line that says which combinations it covers
and names the plans whose rows follow, so that of a batch that was cut off only the missing rows are evaluated again.
Each row is one write; a torn last line, as a killed process, a full disk or a power cut leaves it, is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from joulecast.errors import InputError
from joulecast.files import is_full, lock
from joulecast.plan.sweep.rows import SIMULATED, Checked, Row

#: Version of the lines' form.
VERSION = 4
#: How often what was written is seen to the disk, which only a power cut asks for [s].
SYNC_S = 0.2


@dataclass(slots=True)
class Done:
    """What a journal holds: rows by plan, in closed form and simulated, and batches that have begun."""

    rows: dict[int, Row] = field(default_factory=dict)
    simulated: dict[int, Row] = field(default_factory=dict)
    batches: list[Checked] = field(default_factory=list)


class Journal:
    """Append-only lines of one sweep; in memory alone where there is no file.

    Attributes
    ----------
    done
        What the file held, and what has been added.
    torn
        Whether the file ended in a torn line, which is gone.
    """

    def __init__(self, path: Path | None, header: dict[str, Any], *, resume: bool = False) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._synced_s = 0.0
        self.done = Done()
        self.torn = False
        header = {"joulecast_sweep": VERSION, **header}
        if path is None:
            return
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            self._begin(path, header, resume=resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, path: Path, header: dict[str, Any], *, resume: bool) -> None:
        """Take over what the file holds; a new one gets its first line."""
        if self._file is not None:
            lock(self._file.fileno(), path, "sweeps into this file", "Wait for its end, or choose another --out.")
        if path.stat().st_size:
            if not resume:
                raise InputError(
                    "an interrupted sweep left this file",
                    file=str(path),
                    remedy="Continue it with --resume, or remove it.",
                )
            self._read(path, header)
        if not path.stat().st_size:
            self._append(header)
            _keep_name(path)

    @property
    def is_kept(self) -> bool:
        """Whether there is a file, from which a sweep can go on."""
        return self._path is not None

    def missing(self, count: int) -> list[Sequence[int]]:
        """Which of ``count`` combinations still have to be evaluated: ranges of them, and rows of batches cut off."""
        found: list[Sequence[int]] = []
        begin = 0
        for batch in sorted(self.done.batches, key=lambda batch: batch.combinations.start):
            found += [range(begin, batch.combinations.start), [n for n in batch.plans if n not in self.done.rows]]
            begin = batch.combinations.stop
        return [run for run in (*found, range(begin, count)) if run]

    def add_checked(self, checked: Checked) -> None:
        """Keep which of some combinations fit, ahead of their rows."""
        covered = [checked.combinations.start, checked.combinations.stop]
        self._append({"combinations": covered, "illegal": checked.illegal, "plans": checked.plans})
        self.done.batches.append(checked)

    def add(self, row: Row) -> None:
        """Keep a row."""
        self._append(row)
        self._keep(row)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            self._sync()
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file, when its rows have been written elsewhere."""
        self.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Write a line, and see what was written to the disk now and then."""
        if self._file is None or self._path is None:
            return
        try:
            self._write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            raise _unwritable(self._path, error) from error
        if time.monotonic() - self._synced_s > SYNC_S:
            self._sync()

    def _sync(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # not every kind of file can
                os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def _write(self, data: bytes) -> None:
        """Write all of a line; a nearly full disk takes a part of it before it refuses the rest."""
        left = memoryview(data)
        while self._file is not None and left:
            left = left[self._file.write(left) :]

    def _read(self, path: Path, header: dict[str, Any]) -> None:
        lines, whole = read_lines(path)
        if lines and lines[0] != header:
            raise InputError(
                "this file belongs to another space or release",
                file=str(path),
                remedy="Give the same SPACE.toml, or another --out.",
            )
        for number, line in enumerate(lines[1:], start=2):
            try:
                self._take(line)
            except (KeyError, TypeError, ValueError):
                raise _no_row(path, number) from None
        self.torn = path.stat().st_size > whole
        os.truncate(path, whole)

    def _take(self, line: Row) -> None:
        if "combinations" in line:
            first, end = line["combinations"]
            self.done.batches.append(Checked(range(first, end), line["illegal"], tuple(line["plans"])))
        else:
            self._keep(line)

    def _keep(self, row: Row) -> None:
        (self.done.simulated if row["source"] == SIMULATED else self.done.rows)[row["plan"]] = row


def _keep_name(path: Path) -> None:
    """See a new file's name to the disk."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of a journal, and the bytes that they take; what follows the last whole one is torn.

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
            raise _no_row(path, number)
        found.append(line)
        whole += len(raw)
    return found, whole


def _no_row(path: Path, line: int) -> InputError:
    return InputError("not a row of a sweep", file=str(path), line=line, remedy="Remove the file.")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be written: {error.strerror}",
        file=str(path),
        remedy="What was written stays; make room and continue with --resume."
        if is_full(error)
        else "Choose a folder that exists and is yours.",
    )
