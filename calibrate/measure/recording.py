"""A recording: everything that was measured on one card, in one file that only grows and replays anywhere.

The file ``recording.jsonl`` of a folder holds a line for the card, a line for every measured row or failure, and a line
at the end. A line is on the disk before the next measurement begins, so that a killed process loses none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.measure.records import Records, parse_records
from joulecast.calibrate.rows.measured import Row, row_of
from joulecast.errors import DataError
from joulecast.files import read_text

FILE_NAME = "recording.jsonl"
#: Significant digits of what was measured; what was set is kept as it is. Measurements repeat to three or four.
DIGITS = 7


@dataclass(frozen=True, slots=True)
class Card:
    """The first line of a recording.

    Attributes
    ----------
    facts
        What the card says about itself.
    versions
        Of the software that ran on it: ``joulecast``, ``torch``, ``cuda``, ``cudnn``, ``nccl``, ``triton``.
    started
        When, in UTC.
    how
        How it was measured: settings of the protocol, passive or active.
    """

    facts: CardFacts
    versions: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    how: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A microbenchmark that gave no row.

    Attributes
    ----------
    name
        Of the microbenchmark.
    reason
        One word, of :class:`joulecast.calibrate.measure.faults.Reason`.
    detail
        What happened, for people.
    """

    name: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that was read.

    Attributes
    ----------
    card
        What was measured on.
    rows
        As the fit reads them, in the order of measurement.
    failures
        What could not be measured, in the same order.
    complete
        Whether the measurement came to its end.
    warnings
        What is wrong with the file, although it is usable.
    file
        Where it stands.
    """

    card: Card
    rows: list[Row]
    failures: list[Failed]
    complete: bool
    warnings: list[str]
    file: str

    @property
    def done(self) -> frozenset[str]:
        """Names of the microbenchmarks that have a row."""
        return frozenset(row.name for row in self.rows)


def read_recording(folder: str | Path) -> Recording:
    """Read a recording.

    Parameters
    ----------
    folder
        The folder, or the file in it.

    Raises
    ------
    DataError
        No recording there, another version of the format, or a broken line; names file and line.
    """
    path = _file_of(folder)
    return recording_of(parse_records(recording_text(path), str(path)), str(path))


def software_versions(*, with_torch: bool = True) -> dict[str, str]:
    """Versions of what runs microbenchmarks; what is not installed is left out.

    Parameters
    ----------
    with_torch
        Also import PyTorch and ask it for the versions of its libraries.
    """
    found: dict[str, str] = {}
    for package in ("joulecast", "torch", "triton") if with_torch else ("joulecast",):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if "torch" in found:
        found |= _library_versions()
    return found


def _library_versions() -> dict[str, str]:
    import torch

    found: dict[str, str] = {}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if getattr(torch.version, "hip", None):
        found["hip"] = str(torch.version.hip)
    if torch.backends.cudnn.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    if torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def rounded(value: Any) -> Any:
    """A measured value with :data:`DIGITS` significant digits; what is not a finite number becomes ``None``.

    >>> rounded({"a": [0.123456789, float("nan")], "b": 1234567891.0, "c": 7})
    {'a': [0.1234568, None], 'b': 1234568000.0, 'c': 7}
    """
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _file_of(folder: str | Path) -> Path:
    path = Path(folder)
    return path / FILE_NAME if path.is_dir() else path


def recording_text(path: Path) -> str:
    """Text of a recording, byte for byte as it stands there: a torn line is cut off at its place in bytes.

    Raises
    ------
    DataError
        There is none, or it cannot be read.
    """
    return read_text(
        path,
        "recording's",
        error=DataError,
        encoding="utf-8",
        absent="no recording here",
        missing="Give a folder that holds a recording.jsonl.",
    )


def recording_of(records: Records, file: str) -> Recording:
    """What the lines of a recording say.

    Raises
    ------
    DataError
        A value of the wrong kind; names file, line and key.
    """
    number, content = next(records.of("card"))
    rows = []
    for line, row in records.of("row"):
        if not isinstance(row.get("name"), str):
            raise DataError("a row without a name", file=file, line=line, key="name", remedy="Remove this line.")
        rows.append(row_of(row, file, line))
    failures = [_validated(Failed, failure, file, line) for line, failure in records.of("failure")]
    warning = records.warning(file)
    card = _validated(Card, content, file, number)
    return Recording(card, rows, failures, records.complete, [warning] if warning else [], file)


def _validated(kind: Any, content: Mapping[str, Any], file: str, line: int) -> Any:
    try:
        return TypeAdapter(kind).validate_python(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(first["msg"], file=file, line=line, key=key, remedy="Record again.") from None
