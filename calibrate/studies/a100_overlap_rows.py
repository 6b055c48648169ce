"""Measured layers with an all-reduce beside part of them: files ``attention_overlap_<clock>.csv`` of a folder.

The clock stands in the file's name: ``default_clock``, or a number with its unit, such as ``1200mhz``,
``1200MHz_clock`` or ``1.2ghz``. Columns: ``overlap_start``, ``overlap_end`` (both −1 without a window),
``comm_sm_number``, ``comm_block_size``, and for each repeat ``k`` the columns ``k:time (s)`` and
``k:total energy (J)``; others are not read. Empty cells were not measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.calibrate.rows.measured import mean_of_present
from joulecast.calibrate.studies.a100_overlap_physics import OPERATORS
from joulecast.errors import DataError
from joulecast.tables import Line, read_table

PATTERN = "attention_overlap_*.csv"
DEFAULT_CLOCK = "default_clock"
SETTINGS = ("overlap_start", "overlap_end", "comm_sm_number", "comm_block_size")
#: A clock in a file's name, and MHz in its unit.
_CLOCK = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)[ _-]?([mg])hz(?![a-z])", re.IGNORECASE)
_UNIT_MHZ = {"m": 1.0, "g": 1e3}
_REPEATED = re.compile(r"\d+:(time \(s\)|total energy \(J\))")
#: Threads of a block: whole warps, up to the most that CUDA allows.
_WARP, _MOST_THREADS = 32, 1024
#: Mean power of both GPUs beyond which the columns hold other units [W].
_PLAUSIBLE_W = (20.0, 2000.0)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One configuration.

    Attributes
    ----------
    clock_mhz
        SM clock that was asked for, ``None`` for the default.
    start, end, sms, threads
        The window, and SMs and threads of the communication kernel.
    time_s, energy_j
        Mean over the repeats, energy of all GPUs; ``None`` where not measured.
    file, line
        Where it stands.
    """

    clock_mhz: float | None
    start: int
    end: int
    sms: int
    threads: int
    time_s: float | None
    energy_j: float | None
    file: str
    line: int

    @property
    def window(self) -> tuple[int, int]:
        """First and last operator."""
        return self.start, self.end

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Everything that was set beside the clock."""
        return self.start, self.end, self.sms, self.threads

    @property
    def clock_name(self) -> str:
        """The clock in words."""
        return "default clock" if self.clock_mhz is None else f"{self.clock_mhz:g} MHz"

    @property
    def name(self) -> str:
        """Clock and configuration."""
        window = "no window" if self.start < 0 else f"window {self.start}-{self.end}"
        return f"{self.clock_name}, {window}, {self.sms} SMs x {self.threads}"


def read_layers(folder: str | Path, device: Mapping[str, float]) -> list[LayerRow]:
    """All rows of a folder, those at the default clock first.

    Parameters
    ----------
    device
        Facts of the card: a communication kernel must leave SMs, a clock must be one of the card's.

    Raises
    ------
    DataError
        No folder, no rows at the default clock, or a broken file; names file, line and column.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError("no such folder", file=str(root), remedy=f"Give the folder that holds {PATTERN}.")
    clocks = {path: _clock(path, device) for path in sorted(root.glob(PATTERN))}
    if None not in clocks.values():
        raise DataError(
            "no rows at the default clock",
            file=str(root),
            remedy=f"Put attention_overlap_{DEFAULT_CLOCK}.csv there: the layer is fitted to it.",
        )
    ordered = sorted(clocks.items(), key=lambda item: (item[1] is not None, item[1] or 0.0, item[0]))
    rows: list[LayerRow] = []
    seen: dict[tuple[object, ...], LayerRow] = {}
    for path, clock in ordered:
        for row in _read(path, clock, int(device["sm_count"])):
            before = seen.setdefault((clock, *row.key), row)
            if before is not row:
                raise DataError(
                    f"this configuration stands already in {before.file}:{before.line}",
                    file=row.file,
                    line=row.line,
                    remedy="Keep one of the two.",
                )
            rows.append(row)
    return rows


def _clock(path: Path, device: Mapping[str, float]) -> float | None:
    word = path.stem.removeprefix("attention_overlap_")
    if word == DEFAULT_CLOCK:
        return None
    found = _CLOCK.findall(word)
    if len(found) != 1:
        raise DataError(
            f"no clock in the name: {word!r}" if not found else f"several clocks in the name: {word!r}",
            file=str(path),
            remedy=f"Name it attention_overlap_{DEFAULT_CLOCK}.csv or, for instance, attention_overlap_1200mhz.csv.",
        )
    ((number, unit),) = found
    clock = round(float(number) * _UNIT_MHZ[unit.lower()], 3)
    low, high = device["min_clock_mhz"], device["max_clock_mhz"]
    if not low <= clock <= high:
        raise DataError(
            f"the card has no clock of {clock:g} MHz",
            file=str(path),
            remedy=f"It has {low:g} to {high:g} MHz; the nearest is {min(max(clock, low), high):g} MHz.",
        )
    return clock


def _read(path: Path, clock: float | None, sm_count: int) -> list[LayerRow]:
    table = read_table(path, wrong=DataError)
    repeats = _repeats(path, table.columns)
    rows = [_row(line, clock, repeats, sm_count) for line in table.lines]
    if not rows:
        raise DataError("no rows", file=str(path), remedy="Leave the file out.")
    return rows


def _repeats(path: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """Columns of time and of energy, one for each repeat."""
    missing = [name for name in SETTINGS if name not in columns]
    found: dict[str, list[str]] = {"time (s)": [], "total energy (J)": []}
    for name in columns:
        if _REPEATED.fullmatch(name):
            found[name.split(":", 1)[1]].append(name)
    missing += [f"0:{quantity}" for quantity, names in found.items() if not names]
    if missing:
        raise DataError(
            f"no column {missing[0]!r}",
            file=str(path),
            line=1,
            remedy=f"Needed: {', '.join(SETTINGS)} and, of each repeat k, 'k:time (s)' and 'k:total energy (J)'.",
        )
    return found


def _setting(line: Line, column: str) -> int:
    """A whole number, which may be −1."""
    text = line[column].strip()
    try:
        return int(text)
    except ValueError:
        raise line.error(f"{text!r} is no whole number", column, "Correct it.") from None


def _mean(line: Line, columns: Sequence[str]) -> float | None:
    """Mean over the repeats that were measured, ``None`` where none was."""
    remedy = "Correct it, or leave the cell empty."
    return mean_of_present([line.positive_if_any(column, remedy) for column in columns])


def _row(line: Line, clock: float | None, repeats: Mapping[str, Sequence[str]], sm_count: int) -> LayerRow:
    start, end, sms, threads = (_setting(line, name) for name in SETTINGS)
    last = len(OPERATORS) - 1
    if (start, end) != (-1, -1) and not 0 <= start <= end <= last:
        low = min(max(start, 0), last)
        raise line.error(
            f"the window {start} to {end} is not within the layer",
            "overlap_start" if not 0 <= start <= last else "overlap_end",
            f"Operators are 0 to {last}, −1 and −1 mean none; the nearest is {low} to {min(max(end, low), last)}.",
        )
    if not 1 <= sms < sm_count:
        nearest = min(max(sms, 1), sm_count - 1)
        raise line.error(
            f"{sms} SMs for communication", "comm_sm_number", f"The card has {sm_count}; the nearest is {nearest}."
        )
    if not _WARP <= threads <= _MOST_THREADS or threads % _WARP:
        nearest = min(max(round(threads / _WARP), 1) * _WARP, _MOST_THREADS)
        raise line.error(
            f"a block of {threads} threads",
            "comm_block_size",
            f"Blocks are warps of {_WARP}, up to {_MOST_THREADS}; the nearest is {nearest}.",
        )
    time, energy = _mean(line, repeats["time (s)"]), _mean(line, repeats["total energy (J)"])
    if time is not None and energy is not None and not _PLAUSIBLE_W[0] <= energy / time <= _PLAUSIBLE_W[1]:
        key = repeats["total energy (J)"][0]
        raise line.error(f"{energy / time:.3g} W is no power of two GPUs", key, "Times are in s, energies in J.")
    return LayerRow(clock, start, end, sms, threads, time, energy, line.file, line.number)
