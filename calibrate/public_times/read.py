"""Reads the published tables; which form a file has, its columns tell."""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.public_times import llmcompass, simumax, vidur
from joulecast.errors import DataError
from joulecast.tables import parse_table


def published_times(text: str, file: str) -> list[tuple[dict[str, Any], int]]:
    """Contents of rows, each with its line number.

    Raises
    ------
    DataError
        Columns of no known form, or a broken line.
    """
    table = parse_table(text, file, wrong=DataError)
    lines = list(table.lines)
    if vidur.COLUMNS.issubset(table.columns):
        found = vidur.contents(lines)
    elif simumax.COLUMNS.issubset(table.columns):
        found = [simumax.content(line) for line in lines]
    elif llmcompass.COLUMNS.issubset(table.columns):
        found = [llmcompass.content(line) for line in lines]
    else:
        raise DataError(
            f"unknown columns {', '.join(sorted(table.columns)) or 'none'}",
            file=file,
            line=1,
            remedy="Give JSON lines, or a table of Vidur's, LLMCompass's or SimuMax's form.",
        )
    return [(content, line.number) for content, line in zip(found, lines, strict=True)]
