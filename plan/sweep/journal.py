"""Rows of a sweep on disk, one line each, appended as they come.

The first line says which space the rows belong to. A batch begins with a line that says which combinations it covers
and names the plans whose rows follow, so that of a batch that was cut off only the missing rows are evaluated again.
Workers keep what they make in parts of their own beside the file (:mod:`joulecast.plan.sweep.parts`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from joulecast.errors import InputError
from joulecast.plan.sweep.lines import Lines, no_row, read_lines
from joulecast.plan.sweep.parts import Place, line_of, parts_of, remove_parts
from joulecast.plan.sweep.rows import SIMULATED, Checked, Row

#: Version of the lines' form.
VERSION = 4


@dataclass(slots=True)
class Done:
    """What a journal holds: rows by plan, in closed form and simulated, and batches that have begun.

    Attributes
    ----------
    settled
        Combinations of which no row is to come any more.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    simulated: dict[int, Row] = field(default_factory=dict)
    batches: dict[int, Checked] = field(default_factory=dict)
    settled: int = 0

    def add(self, made: Checked | Row) -> None:
        """Take what was made; what is known already changes nothing."""
        if isinstance(made, Checked):
            new = self.batches.setdefault(made.combinations.start, made) is made
            self.settled += new * (len(made.combinations) - len(made.plans))
        elif made["source"] == SIMULATED:
            self.simulated[made["plan"]] = made
        else:
            self.settled += made["plan"] not in self.rows
            self.rows[made["plan"]] = made


class Journal:
    """Append-only lines of one sweep; in memory alone where there is no file.

    Attributes
    ----------
    done
        What the file held, and what has been added.
    torn
        Whether the file ended in a torn line, which is gone.
    was_there
        Whether the file held anything.
    """

    def __init__(self, path: Path | None, header: dict[str, Any], *, resume: bool = False) -> None:
        self._lines: Lines | None = None
        self._header = {"joulecast_sweep": VERSION, **header}
        self._run = uuid4().hex
        self.done = Done()
        self.torn = self.was_there = False
        if path is None:
            return
        self._lines = Lines(path)
        try:
            self._begin(self._lines, resume=resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, lines: Lines, *, resume: bool) -> None:
        """Take over what the file holds; a new one gets its first line."""
        path = lines.path
        lines.lock("sweeps into this file", "Wait for its end, or choose another --out.")
        if path.stat().st_size:
            if not resume:
                raise InputError(
                    "an interrupted sweep left this file",
                    file=str(path),
                    remedy="Continue it with --resume, or remove it.",
                )
            self.was_there = True
            self._read(path)
            self.take_parts()
        if not path.stat().st_size:
            lines.append(self._header)
            lines.keep_name()

    @property
    def place(self) -> Place | None:
        """Where the rows are kept, as workers are told it; none where there is no file."""
        return None if self._lines is None else Place(str(self._lines.path.absolute()), self._header, self._run)

    def missing(self, count: int) -> list[Sequence[int]]:
        """Which of ``count`` combinations still have to be evaluated: ranges of them, and rows of batches cut off."""
        found: list[Sequence[int]] = []
        begin = 0
        for first, batch in sorted(self.done.batches.items()):
            found += [range(begin, first), [n for n in batch.plans if n not in self.done.rows]]
            begin = max(begin, batch.combinations.stop)
        return [run for run in (*found, range(begin, count)) if run]

    def add(self, made: Checked | Row, *, kept: bool = False) -> None:
        """Take a row, or which of some combinations fit, ahead of their rows; ``kept``: a part has it."""
        if self._lines is not None and not kept:
            self._lines.append(line_of(made))
        self.done.add(made)

    def take_parts(self) -> None:
        """Take over what workers have kept."""
        if self._lines is not None:
            for part in parts_of(self._lines.path, self._header):
                self._take(part, read_lines(part)[0][1:])

    def close(self) -> None:
        """Close the file; it stays."""
        if self._lines is not None:
            self._lines.close()

    def remove(self) -> None:
        """Remove the file, when its rows have been written elsewhere."""
        self.close()
        if self._lines is not None:
            remove_parts(self._lines.path, self._header)
            self._lines.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        lines, whole = read_lines(path)
        if lines and lines[0] != self._header:
            raise InputError(
                "this file belongs to another space or release",
                file=str(path),
                remedy="Give the same SPACE.toml, or another --out.",
            )
        self._take(path, lines[1:])
        self.torn = path.stat().st_size > whole
        os.truncate(path, whole)

    def _take(self, path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        for number, line in enumerate(lines, start=2):
            try:
                self.done.add(_made_of(line))
            except (KeyError, TypeError, ValueError, OverflowError):
                raise no_row(path, number) from None


def _made_of(line: Mapping[str, Any]) -> Checked | Row:
    """The reverse of :func:`~joulecast.plan.sweep.parts.line_of`."""
    if "combinations" in line:
        first, end = line["combinations"]
        return Checked(range(first, end), line["illegal"], tuple(line["plans"]))
    return dict(line)
