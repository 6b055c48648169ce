"""Reads the published tables; which form a file has, its columns tell."""

from __future__ import annotations

import csv
import io
from typing import Any

from joulecast.calibrate.public_times import llmcompass, simumax, vidur
from joulecast.calibrate.public_times.form import Line, Place
from joulecast.errors import DataError
from joulecast.files import reading_csv


def parse_table(text: str, file: str) -> list[tuple[dict[str, Any], int]]:
    """Contents of rows, each with its line number.

    Raises
    ------
    DataError
        Columns of no known form, or a broken line.
    """
    reader = csv.DictReader(io.StringIO(text))
    lines: list[tuple[Line, Place]] = []
    with reading_csv(file, DataError):
        columns = frozenset(reader.fieldnames or ())
        for line in reader:
            place = Place(file, reader.line_num)
            if None in line or None in line.values():
                raise DataError("more or fewer fields than columns", file=file, line=reader.line_num)
            lines.append((line, place))
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
