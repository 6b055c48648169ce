"""Rows of workers on disk: every process appends those that it makes to a file of its own beside the sweep's.

Such a part begins with the line with which the sweep's own file begins. A worker that does not see that file, on a
machine with other disks, keeps nothing: its rows are written when they arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

from joulecast.plan.sweep.lines import Lines, begins_with
from joulecast.plan.sweep.rows import Checked, Row


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sweep keeps its rows: its file, the first line of this, and what tells this run from others."""

    path: str
    header: Mapping[str, Any]
    run: str


def line_of(made: Checked | Row) -> Mapping[str, Any]:
    """A line of what a sweep makes."""
    if isinstance(made, Checked):
        covered = [made.combinations.start, made.combinations.stop]
        return {"combinations": covered, "illegal": made.illegal, "plans": made.plans}
    return made


def make_apart(
    place: Place | None, work: Callable[..., Iterable[Checked | Row]], *job: Any
) -> tuple[bool, list[Checked | Row]]:
    """What a job makes, in a worker that keeps each as soon as it is made; and whether it did."""
    part = None if place is None else _part(place)
    found = []
    for made in work(*job):
        if part is not None:
            part.append(line_of(made))
        found.append(made)
    return part is not None, found


def parts_of(path: Path, header: Mapping[str, Any]) -> list[Path]:
    """Parts of a sweep; those that begin otherwise are another one's."""
    return [part for part in _all_parts(path) if begins_with(part, header)]


def remove_parts(path: Path, header: Mapping[str, Any]) -> None:
    """Remove parts of a sweep, and what a worker left that was killed before its first line was whole."""
    for part in _all_parts(path):
        with suppress(OSError):  # a worker may have it open where that matters
            if begins_with(part, header) or b"\n" not in part.read_bytes():
                part.unlink()


def _all_parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(path.name)}-*.part"))


#: Part of the run that this thread has worked for last: a thread writes into a file of its own.
_own = threading.local()


def _part(place: Place) -> Lines | None:
    """The file of this thread; none where the sweep's is not in sight."""
    if getattr(_own, "run", None) != place.run:
        if (earlier := getattr(_own, "part", None)) is not None:
            earlier.close()
        _own.part = _new_part(place)
        _own.run = place.run
    part: Lines | None = _own.part
    return part


def _new_part(place: Place) -> Lines | None:
    path = Path(place.path)
    if not begins_with(path, place.header):
        return None
    part = Lines(path.with_name(f"{path.name}-{uuid4().hex}.part"))
    part.append(place.header)
    part.keep_name()
    return part
