"""Writes recordings: each line is on the disk before the next measurement begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.measure.recording import FILE_NAME, Card, Failed, recording_of, recording_text, rounded
from joulecast.calibrate.measure.records import SCHEMA, dump_record, is_first_line_torn, json_object, parse_records
from joulecast.calibrate.rows.measured import Row, is_measured, row_of
from joulecast.errors import DataError, InputError
from joulecast.files import lock, sync_folder, write_all

#: Facts that may differ between two sittings at the same card.
_PASSING_FACTS = frozenset({"may_set_clocks", "may_set_power_limit"})


class Recorder:
    """Writes a recording, or goes on with one.

    Parameters
    ----------
    folder
        Made if it is missing.
    card
        What is measured on; the time of its start is filled in if it is empty.

    Attributes
    ----------
    recording
        All that the file holds, kept up to date.
    resumed
        Whether it held something before.

    Raises
    ------
    DataError
        The folder holds a recording of another card, with other software or of another schema, or something else.
    InputError
        The folder cannot be written, or another process records into it.
    """

    def __init__(self, folder: str | Path, card: Card) -> None:
        self.path = Path(folder) / FILE_NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            lock(self._file, self.path, "records into this file", "Wait for its end, or choose another folder.")
            self._open(card)
        except BaseException:
            self.close()
            raise

    def _open(self, card: Card) -> None:
        """Read and repair what the file holds already; a new file gets its first line."""
        text = recording_text(self.path)
        self.resumed = not is_first_line_torn(text)
        if not self.resumed:
            os.ftruncate(self._file, 0)
            started = replace(card, started=card.started or _now())
            text = dump_record("card", {"schema": SCHEMA, **asdict(started)})
            self._write(text)
            sync_folder(self.path.parent)
        records = parse_records(text, str(self.path))
        self.recording = recording_of(records, str(self.path))
        _check_same(self.recording.card, card, str(self.path))
        if records.torn:
            os.ftruncate(self._file, records.whole_bytes)
        elif not text.endswith("\n"):
            self._write("\n")
        self._lines = records.lines[-1][0]

    def append_row(self, row: Mapping[str, Any]) -> Row:
        """Write a measured row.

        Parameters
        ----------
        row
            Fields of a measured row, with a name; what was measured is rounded to seven digits.

        Returns
        -------
        Row
            As it will be read again.

        Raises
        ------
        DataError
            A value that no row can have, or no name.
        InputError
            The file cannot be written.
        """
        content = {key: rounded(value) if is_measured(key) else value for key, value in row.items()}
        line = dump_record("row", content)
        if not isinstance(row.get("name"), str):
            raise DataError("a row of a recording needs a name", file=str(self.path), key="name")
        parsed = json_object(line, str(self.path), self._lines + 1)
        del parsed["record"]
        found = row_of(parsed, str(self.path), self._lines + 1)
        self._append(line)
        self.recording.rows.append(found)
        return found

    def append_failure(self, failure: Failed) -> None:
        """Write that a microbenchmark gave no row, and why."""
        self._append(dump_record("failure", asdict(failure)))
        self.recording.failures.append(failure)

    def end(self, **summary: Any) -> None:
        """Write that the measurement came to its end."""
        self._append(dump_record("end", {"ended": _now(), **rounded(summary)}))

    def _append(self, line: str) -> None:
        self._write(line)
        self._lines += 1

    def _write(self, text: str) -> None:
        """Write and wait until it is on the disk; after a failure the file is as before."""
        before = os.fstat(self._file).st_size
        try:
            write_all(self._file, text.encode())
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        """Let go of the file; what was written stays usable and can be continued."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(sep="T", timespec="seconds")


def unwritable(path: str | Path, error: OSError) -> InputError:
    """A file that what was measured cannot be written to."""
    return InputError(
        f"cannot be written: {error.strerror}", file=str(path), remedy="Choose a folder that is yours and has room."
    )


def _check_same(found: Card, card: Card, file: str) -> None:
    """Rows of two cards, or of two versions of the software, do not belong together."""
    facts = [field.name for field in fields(CardFacts) if field.name not in _PASSING_FACTS]
    pairs = [(key, getattr(found.facts, key), getattr(card.facts, key)) for key in facts]
    pairs += [(key, found.versions.get(key), card.versions.get(key)) for key in {**found.versions, **card.versions}]
    for key, before, now in pairs:
        if before != now:
            raise DataError(
                f"recorded with {key} {before!r}, but here it is {now!r}",
                file=file,
                line=1,
                key=key,
                remedy="Choose another folder with --record: rows of two cards or of two versions do not belong "
                "together.",
            )
