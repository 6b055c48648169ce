"""Measured rows (JSON lines), split into what a prediction may read and what was measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from joulecast.calibrate.measure.records import is_recording, json_object, parse_records
from joulecast.calibrate.public_times.read import published_times
from joulecast.calibrate.rows.units import refuse_other_keys, refuse_other_units
from joulecast.errors import DataError
from joulecast.files import read_text
from joulecast.model.hardware.description import Parameter

#: Measured quantities; a prediction never reads them. Their ``_per_gpu`` lists and every ``measured_…`` belong to them.
MEASURED_FIELDS = frozenset(
    {"time_s", "energy_j", "power_w", "sm_clock_mhz", "gpu_temp_c", "power_cap_fraction", "peak_mem_bytes"}
)
#: Row field of how the temperature changed while a row was measured [K].
WARMING = "measured_temp_change_k"
#: Row field of the mean clock by the cycles that a card counted itself [MHz].
COUNTED_CLOCK = "measured_counted_clock_mhz"
#: Configuration of every kind of row that must be a number where it is given.
_NUMBERS = ("settle_s", "target_window_s")


class RecordingWarning(UserWarning):
    """A recording that is usable, but not whole."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was observed, ``None`` where it was not.

    Of several GPUs ``energy_j`` and ``power_w`` are sums (``None`` if any GPU's power is missing), ``sm_clock_mhz`` and
    ``temperature_c`` means over the GPUs that have one, and ``peak_mem_bytes`` is that of the fullest.
    ``temperature_change_k`` is from begin to end of the windows. ``counted_clock_mhz`` is the mean clock by the cycles
    that the SMs counted, of one GPU alone: kernels on tensor cores may run below the clock that the driver reports.
    """

    time_s: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    temperature_change_k: float | None = None
    peak_mem_bytes: float | None = None
    counted_clock_mhz: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured row.

    Attributes
    ----------
    name
        The row's ``name`` (or ``id``), else file and line.
    op
        Kind of work, a word of the data; empty where the row has none.
    configuration
        Everything that was set or is nominal: all that predictions may read.
    measured
        Everything that was observed.
    file, line
        Where the row stands.
    """

    name: str
    op: str
    configuration: Mapping[str, Any]
    measured: Measured
    file: str = ""
    line: int = 0

    @property
    def settle_s(self) -> float:
        """Nominal time under load before the window [s]."""
        return float(self.configuration.get("settle_s") or 0.0)

    @property
    def window_s(self) -> float:
        """Nominal length of the measurement window [s]."""
        return float(self.configuration.get("target_window_s") or 0.0)

    @property
    def is_set(self) -> bool:
        """Whether its clock or power limit was set; otherwise the card chose its clock under its own limit."""
        return any(self.configuration.get(key) for key in ("clock_mhz", "power_limit_w"))

    @property
    def gpus(self) -> int:
        """GPUs that the row measures together."""
        return int(self.configuration.get("gpus") or 1)


def is_measured(key: str) -> bool:
    """Whether a field holds an observation."""
    return key.removesuffix("_per_gpu") in MEASURED_FIELDS or key.startswith("measured_")


def read_rows(path: str | Path | Sequence[str | Path]) -> list[Row]:
    """Rows of a JSON-lines file or a published table, of all of a folder, or of several of either, in order.

    Of a folder the ``*.jsonl``; without any, the tables ``*.csv``.

    Raises
    ------
    DataError
        A broken line, naming file and line, or a path without any rows.
    """
    if isinstance(path, str | Path):
        return _read_path(Path(path))
    return [row for one in path for row in _read_path(Path(one))]


def of_card(rows: Sequence[Row], device: Mapping[str, Parameter]) -> list[Row]:
    """Rows that a card with these facts measured, or of which nobody says who did."""
    product = str(device["product"].value) if "product" in device else ""
    return [row for row in rows if product in row.configuration.get("products", (product,))]


def recorded_folder() -> Path:
    """Folder of the row sets and recordings that the package ships."""
    return Path(str(files("joulecast.calibrate"))) / "recorded"


def recorded_rows(files_: Sequence[str] | None = None) -> list[Row]:
    """The rows of H200s that the package ships for fitting; ``files_`` selects some of their files."""
    found = sorted((recorded_folder() / "h200_sxm").glob("*.jsonl"))
    chosen = (file for file in found if files_ is None or file.name in files_)
    return [row for file in chosen for row in parse_rows(file.read_text(encoding="utf-8"), file.name)]


def parse_rows(text: str, file: str) -> list[Row]:
    """Rows of the text of a JSON-lines file; of a recording, those that it recorded."""
    if is_recording(text):
        records = parse_records(text, file)
        if records.torn:
            warnings.warn(records.warning(file), RecordingWarning, stacklevel=2)
        return [row_of(content, file, number) for number, content in records.of("row")]
    return [
        row_of(json_object(line, file, number), file, number)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _read_path(path: Path) -> list[Row]:
    if not path.is_dir():
        return _read_file(path)
    if lines := sorted(path.glob("*.jsonl")):
        return [row for one in lines for row in _read_file(one)]
    below = sorted({str(one.parent) for one in path.glob("*/*.jsonl")})
    more = f" There are JSON lines in {' and '.join(below)}." if below else ""
    tables = sorted(path.glob("*.csv"))
    if not tables:
        remedy = f"Give a folder or file of JSON lines.{more}"
        raise DataError("no *.jsonl file in this folder", file=str(path), remedy=remedy)
    try:
        return [row for one in tables for row in _read_file(one)]
    except DataError as error:
        error.reword(error.message, error.key, f"{error.remedy or ''}{more}".strip() or None)
        raise


def _read_file(file: Path) -> list[Row]:
    text = read_text(file, "JSON-lines", error=DataError, absent="no such file or folder")
    if file.suffix == ".csv":
        return [row_of(content, str(file), line) for content, line in published_times(text, str(file))]
    return parse_rows(text, str(file))


def row_of(content: Mapping[str, Any], file: str, number: int) -> Row:
    """The row of one line's content.

    Raises
    ------
    DataError
        A value of the wrong kind; names file, line and key.
    """
    refuse_other_keys(file, number, content)
    for key in _NUMBERS:
        _number(content.get(key), key, file, number)
    gpus = _number(content.get("gpus"), "gpus", file, number)
    if gpus is not None and gpus < 1:
        problem = f"{content['gpus']!r} is not a number of GPUs"
        raise DataError(problem, file=file, line=number, key="gpus", remedy="Write 1 or more.")
    name = content.get("name", content.get("id"))
    return Row(
        name=str(name) if name is not None else f"{Path(file).name}:{number}",
        op=_operation(content),
        configuration={k: v for k, v in content.items() if not is_measured(k)},
        measured=_measured(content, file, number),
        file=file,
        line=number,
    )


def _operation(content: Mapping[str, Any]) -> str:
    if "op" not in content and {"case", "kernel"} <= content.keys():
        return "kernel_profile"
    return str(content.get("op") or "")


def _measured(content: Mapping[str, Any], file: str, number: int) -> Measured:
    raw = {k: v for k, v in content.items() if is_measured(k)}

    def observed(key: str) -> float | None:
        value = _number(raw.get(key), key, file, number)
        if value is not None and (value < 0 or (key in ("time_s", "sm_clock_mhz", COUNTED_CLOCK) and value == 0)):
            wrong = f"{value:g} is not positive"
            raise DataError(wrong, file=file, line=number, key=key, remedy="Write what was measured, or null.")
        return value

    def listed(key: str) -> list[float | None] | None:
        values = raw.get(f"{key}_per_gpu")
        if values is None:
            return None
        if not isinstance(values, list):
            raise DataError(f"{values!r} is not a list", file=file, line=number, key=f"{key}_per_gpu")
        return [_number(v, f"{key}_per_gpu", file, number) for v in values]

    power, clock, heat = listed("power_w"), listed("sm_clock_mhz"), listed("gpu_temp_c")
    memory, alone = listed("peak_mem_bytes"), (content.get("gpus") or 1) == 1
    measured = Measured(
        time_s=observed("time_s"),
        energy_j=observed("energy_j"),
        power_w=observed("power_w") if power is None else sum_or_none(power),
        sm_clock_mhz=observed("sm_clock_mhz") if clock is None else mean_of_present(clock),
        temperature_c=observed("gpu_temp_c") if heat is None else mean_of_present(heat),
        temperature_change_k=_number(raw.get(WARMING), WARMING, file, number),
        peak_mem_bytes=observed("peak_mem_bytes") if memory is None else largest_of_present(memory),
        counted_clock_mhz=observed(COUNTED_CLOCK) if alone else None,
        raw=raw,
    )
    refuse_other_units(
        file,
        number,
        time_s=measured.time_s,
        energy_j=measured.energy_j,
        power_w=measured.power_w,
        clock_mhz=measured.sm_clock_mhz,
        gpus=_number(content.get("gpus"), "gpus", file, number) or 1,
    )
    return measured


def _number(value: object, key: str, file: str, number: int) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{value!r} is not a number", file=file, line=number, key=key, remedy="Write a number or null.")
    return float(value)


def sum_or_none(values: Sequence[float | None]) -> float | None:
    """Sum over GPUs, ``None`` if any is missing."""
    present = [v for v in values if v is not None]
    return sum(present) if present and len(present) == len(values) else None


def largest_of_present(values: Sequence[float | None]) -> float | None:
    """Largest over the GPUs that have a value, ``None`` if none has."""
    return max((v for v in values if v is not None), default=None)


def mean_of_present(values: Sequence[float | None]) -> float | None:
    """Mean over the GPUs that have a value, ``None`` if none has."""
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None
