"""Reads the published tables; which form a file has, its columns tell."""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.public_times import llmcompass, simumax, vidur
from joulecast.calibrate.public_times.form import Line, Place
from joulecast.errors import DataError
from joulecast.files import csv_table


def parse_table(text: str, file: str) -> list[tuple[dict[str, Any], int]]:
    """Contents of rows, each with its line number.

    Raises
    ------
    DataError
        Columns of no known form, or a broken line.
    """
    names, entries = csv_table(text, file, DataError)
    columns = frozenset(names)
    lines: list[tuple[Line, Place]] = [(cells, Place(file, number)) for number, cells in entries]
    if columns >= vidur.COLUMNS:
        found = vidur.contents(lines)
    elif columns >= simumax.COLUMNS:
        found = [simumax.content(line, place) for line, place in lines]
    elif columns >= llmcompass.COLUMNS:
        found = [llmcompass.content(line, place) for line, place in lines]
    else:
        raise DataError(
            f"unknown columns {', '.join(sorted(columns)) or 'none'}",
            file=file,
            line=1,
            remedy="Give JSON lines, or a table of Vidur's, LLMCompass's or SimuMax's form.",
        )
    return [(content, place.line) for content, (_, place) in zip(found, lines, strict=True)]
