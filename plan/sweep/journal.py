"""Rows of a sweep on disk, one line each, appended as they come: what was written stays readable whatever happens.

The first line says which space the rows belong to. A line of a batch follows its last row. A torn last line, as a
killed process or a full disk leaves it, is ignored and written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from joulecast.errors import InputError
from joulecast.plan.sweep.rows import SIMULATED, Batch, Row

#: Version of the lines' form.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a batch: combinations that are illegal, plans that do not fit, and the least memory that these need."""

    illegal: int
    unfit: int
    least_bytes: float


@dataclass(slots=True)
class Done:
    """What a journal holds: rows by plan, in closed form and simulated, and the batches that are complete."""

    rows: dict[int, Row] = field(default_factory=dict)
    simulated: dict[int, Row] = field(default_factory=dict)
    batches: dict[int, Counts] = field(default_factory=dict)


class Journal:
    """Append-only lines of one sweep; in memory alone where there is no file."""

    def __init__(self, path: Path | None, header: dict[str, Any], *, resume: bool = False) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.done = Done()
        header = {"joulecast_sweep": VERSION, **header}
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            if not resume:
                raise InputError(
                    "an interrupted sweep left this file",
                    file=str(path),
                    remedy="Continue it with --resume, or remove it.",
                )
            self._read(path, header)
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise _unwritable(path, error) from error
        if not path.stat().st_size:
            self._append([header])

    def add_batch(self, number: int, batch: Batch) -> None:
        """Keep the rows of a batch that has been evaluated."""
        fresh = [row for row in batch.rows if row["plan"] not in self.done.rows]
        counts = Counts(batch.illegal, batch.unfit, batch.least_bytes)
        self._append([*fresh, {"batch": number, **asdict(counts)}])
        self.done.rows.update({row["plan"]: row for row in fresh})
        self.done.batches[number] = counts

    def add_simulated(self, row: Row) -> None:
        """Keep a simulated row."""
        self._append([row])
        self.done.simulated[row["plan"]] = row

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file, when its rows have been written elsewhere."""
        self.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        if self._file is None or self._path is None:
            return
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            self._write(text.encode())
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
            self._file.flush()

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
            except (KeyError, TypeError):
                raise _no_row(path, number) from None
        os.truncate(path, whole)

    def _take(self, line: Row) -> None:
        if "batch" in line:
            self.done.batches[line["batch"]] = Counts(line["illegal"], line["unfit"], line["least_bytes"])
        elif line["source"] == SIMULATED:
            self.done.simulated[line["plan"]] = line
        else:
            self.done.rows[line["plan"]] = line


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
        remedy="What was written stays; make room and continue with --resume.",
    )
