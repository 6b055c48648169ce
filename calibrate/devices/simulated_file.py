"""The file of a simulated card: how processes share it.

``FILE`` holds what the card is and what is set on it, and is written by whoever sets something. ``FILE.load`` holds the
state at the last start or end of work and what has run since, and is written by the process that runs the work: any
other process can compute the present from it, as the board's laws have no randomness.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from joulecast.calibrate.devices.processes import lives
from joulecast.calibrate.devices.simulated_board import BoardState
from joulecast.calibrate.devices.simulated_sensors import Faults, Finite, Sensors
from joulecast.errors import InputError, did_you_mean
from joulecast.files import parse_json, read_text, write_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: How much of the past another process needs: the governor's slow average and the sensors' windows [s].
SHARED_PAST_S = 2.5
SCHEMA = "joulecast-simulated-card"


class CardFile(BaseModel):
    """What a simulated card is, and what is set on it.

    Attributes
    ----------
    gpu, truth
        Description and the true values that differ from it.
    realtime
        Whether its time is ``time.monotonic()``.
    start_s
        When it stood idle first.
    locked_clock_mhz, power_limit_w, set_at_s
        Settings, and when they were set on the card's clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_name: str = SCHEMA
    version: int = 1
    gpu: str = "h200-sxm"
    truth: dict[str, Finite] = {}
    sensors: Sensors = Sensors()
    faults: Faults = Faults()
    seed: int = 0
    realtime: bool = False
    start_s: float = 0.0
    locked_clock_mhz: tuple[float, float] | None = None
    power_limit_w: float | None = None
    set_at_s: float | None = None


def read_card_file(path: Path) -> CardFile:
    """Read the file of a simulated card.

    Raises
    ------
    InputError
        It is missing, or not such a file.
    """
    remedy = 'Write {"gpu": "h200-sxm"} into a file, or another name of the catalogue.'
    text = read_text(path, "JSON", absent="no such simulated card", missing=remedy)
    parse_json(text, str(path), remedy=remedy, once=True)  # says what is wrong with the text better
    try:
        found = CardFile.model_validate_json(text)
    except ValidationError as error:
        raise _not_a_card(error.errors()[0], str(path), remedy) from None
    if found.schema_name != SCHEMA or found.version != 1:
        raise InputError(f"not a simulated card of version 1: {found.schema_name} {found.version}", file=str(path))
    return found


def _not_a_card(first: ErrorDetails, file: str, remedy: str) -> InputError:
    """What is wrong with a file: a misspelt key with the nearest right one, or a value."""
    *inside, name = [str(part) for part in first["loc"]] or [""]
    key = ".".join([*inside, name]) or None
    if first["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return InputError(f"not a simulated card: {first['msg']}", file=file, key=key, remedy=remedy)
    own = {"sensors": Sensors, "faults": Faults}.get(inside[0]) if inside else None
    known = [f.name for f in fields(own)] if own else list(CardFile.model_fields)
    return InputError("not a simulated card: unknown key", file=file, key=key, remedy=did_you_mean(name, known, 2))


class SharedFiles:
    """The files of one simulated card as this process knows them; without a ``file`` the card lives here alone."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._seen: dict[Path, tuple[int, int] | None] = {}

    def changed_settings(self) -> CardFile | None:
        """What the card is set to, if another process has written it since it was last read or written here."""
        if self.file is None or (version := _version(self.file)) == self._seen.get(self.file):
            return None
        content = read_card_file(self.file)
        self._seen[self.file] = version
        return content

    def changed_load(self) -> tuple[BoardState, dict[str, Any] | None] | None:
        """State at the last change and the row that runs since, if another process has written them."""
        if self.file is None:
            return None
        path = load_path(self.file)
        if (version := _version(path)) == self._seen.get(path):
            return None
        self._seen[path] = version
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return BoardState(**found["state"]), found["row"] if _lives(found.get("pid")) else None

    def write_settings(self, content: CardFile) -> None:
        """Tell other processes what the card is set to."""
        if self.file is not None:
            write_text(self.file, content.model_dump_json(indent=1))
            self._seen[self.file] = _version(self.file)

    def write_load(self, state: BoardState, row: Mapping[str, Any] | None) -> None:
        """Tell other processes the state, with as much of its past as they need, and the row that runs from now on."""
        if self.file is None:
            return
        first = max(bisect_right(state.times_s, state.time_s - SHARED_PAST_S) - 1, 0)
        shared = replace(state, times_s=state.times_s[first:], energies_j=state.energies_j[first:])
        path = load_path(self.file)
        running = None if row is None else dict(row)
        write_text(path, json.dumps({"state": asdict(shared), "row": running, "pid": os.getpid()}))
        self._seen[path] = _version(path)


def load_path(path: Path) -> Path:
    """File of the state and the load beside the card's own."""
    return path.with_name(f"{path.name}.load")


def _lives(pid: int | None) -> bool:
    """Whether a process is there: the work of one that was killed has ended with it."""
    return pid is not None and lives(pid)  # a file of before it told has none


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
