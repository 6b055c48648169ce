"""The lines of a recording: one JSON object each, written one after the other, the last one perhaps torn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import DataError
from joulecast.files import whole_number

#: Version of the format; another one is not read.
SCHEMA = "joulecast-recording/1"
#: What a line can be, by its field ``record``.
KINDS = ("card", "row", "failure", "end")
#: Every recording begins with these characters, however little of it was written.
_START = '{"record": "card"'


@dataclass(frozen=True, slots=True)
class Records:
    """Lines of a recording.

    Attributes
    ----------
    lines
        Line number and content of every whole line, the card's first.
    torn
        What is left of a last line that was cut off while it was written; empty if none was.
    whole_bytes
        Length of the text up to the torn line.
    """

    lines: tuple[tuple[int, Mapping[str, Any]], ...]
    torn: str
    whole_bytes: int

    def of(self, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line number and content, without ``record``, of the lines of one kind."""
        for number, content in self.lines:
            if content["record"] == kind:
                yield number, {key: value for key, value in content.items() if key != "record"}

    @property
    def complete(self) -> bool:
        """Whether the measurement came to its end."""
        return bool(self.lines) and self.lines[-1][1]["record"] == "end" and not self.torn

    def warning(self, file: str) -> str:
        """What to tell about a torn line; empty without one."""
        if not self.torn:
            return ""
        number = self.lines[-1][0] + 1
        return f"{file}:{number}: the last line was cut off while it was written and is left out; the others are kept"


#: What some editors put before the first letter of a file.
_BOM = "\ufeff"


def is_recording(text: str) -> bool:
    """Whether a text begins like a recording; tables of rows do not."""
    return text.removeprefix(_BOM).startswith('{"record"')


def is_first_line_torn(text: str) -> bool:
    """Whether a text is no more than a piece of a recording's first line, so that nothing measured is in it."""
    return "\n" not in text and (_START.startswith(text) or text.startswith(_START))


def dump_record(kind: str, content: Mapping[str, Any]) -> str:
    """A line of a recording, with its end of line."""
    return json.dumps({"record": kind, **content}, allow_nan=False) + "\n"


def parse_records(text: str, file: str) -> Records:
    """Lines of the text of a recording.

    A last line that is not whole is what a killed process leaves: it is set aside. The same anywhere else is an error.

    Raises
    ------
    DataError
        Not a recording, another version of the format, or a broken line; names file and line.
    """
    lines: list[tuple[int, Mapping[str, Any]]] = []
    torn, whole = "", len(text)
    pieces = text.split("\n")
    for number, line in enumerate(pieces, start=1):
        if not line.strip():
            continue
        try:
            content = json_object(line.removeprefix(_BOM) if number == 1 else line, file, number)
        except DataError:
            if not lines or number < len(pieces):
                raise
            torn, whole = line, len(text) - len(line)
            break
        _check_kind(content, file, number, first=not lines)
        lines.append((number, content))
    if not lines:
        raise DataError("the file is empty", file=file, line=1, remedy="Record into this folder again.")
    return Records(tuple(lines), torn, len(text[:whole].encode()))


def _check_kind(content: Mapping[str, Any], file: str, number: int, *, first: bool) -> None:
    kind = content.get("record")
    if first:
        if kind != "card":
            raise DataError(
                "not a recording: its first line does not describe a card",
                file=file,
                line=number,
                key="record",
                remedy="Give a folder that was recorded by joulecast calibrate --record, or rows with --rows.",
            )
        schema = content.get("schema")
        if schema != SCHEMA:
            raise DataError(
                f"schema {schema!r} is not {SCHEMA!r}",
                file=file,
                line=number,
                key="schema",
                remedy="Read it with the version of Joulecast that wrote it, or record again.",
            )
    elif kind == "card":
        raise DataError(
            "a second card begins here",
            file=file,
            line=number,
            key="record",
            remedy="Keep one recording per folder: split the file before this line.",
        )
    elif kind not in KINDS:
        raise DataError(
            f"{kind!r} is not one of {', '.join(KINDS)}",
            file=file,
            line=number,
            key="record",
            remedy="Remove this line; the others stay usable.",
        )


def json_object(line: str, file: str, number: int) -> dict[str, Any]:
    """The object of a line of a JSON-lines file, with finite numbers only.

    Raises
    ------
    DataError
        Anything else; names file and line.
    """
    try:
        content = json.loads(line, parse_constant=_reject_constant, parse_float=_finite, parse_int=whole_number)
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(
            f"not a JSON object: {detail}", file=file, line=number, remedy="Repair or remove this line."
        ) from None
    if not isinstance(content, dict):
        raise DataError("not a JSON object", file=file, line=number, remedy="Each line must be one {…} object.")
    return content


def _reject_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value
