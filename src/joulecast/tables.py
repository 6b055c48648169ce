"""Tables in files: CSV read line by line, with errors that name file, line and column; rows written."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.extras import require
from joulecast.files import read_text, write_text, write_whole


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table.

    Attributes
    ----------
    cells
        Text by column.
    file, number
        Where it stands.
    wrong
        Class of the errors about it.
    """

    cells: Mapping[str, str]
    file: str
    number: int
    wrong: type[InputError] = InputError

    def __getitem__(self, column: str) -> str:
        """The text of a cell."""
        return self.cells[column]

    def error(self, message: str, column: str | None = None, remedy: str = "Correct this line.") -> InputError:
        """An error at this line, to be raised."""
        return self.wrong(message, file=self.file, line=self.number, key=column, remedy=remedy)

    def positive(self, column: str, remedy: str = "Correct this value.") -> float:
        """The positive number that a cell holds.

        Raises
        ------
        InputError
            It holds none, or there is no such column.
        """
        text = self.cells.get(column, "")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0.0):
            raise self.error(f"{text!r} is not a positive number", column, remedy)
        return value

    def positive_if_any(self, column: str, remedy: str = "Correct this value.") -> float | None:
        """As :meth:`positive`, ``None`` of an empty cell."""
        return self.positive(column, remedy) if self.cells[column].strip() else None

    def whole(self, column: str) -> int:
        """The positive whole number that a cell holds, also where it is written as ``8.0``.

        Raises
        ------
        InputError
            It holds none, or there is no such column.
        """
        value = self.positive(column)
        if not value.is_integer():
            raise self.error(f"{self.cells[column]!r} is not a whole number", column, "Correct this value.")
        return int(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its file, its columns, and its lines, which are read as they are asked for."""

    file: str
    columns: tuple[str, ...]
    lines: Iterator[Line]


def read_table(
    path: str | Path,
    *,
    name: str = "",
    needed: Sequence[str] = (),
    wrong: type[InputError] = InputError,
) -> Table:
    """The table of a file.

    Parameters
    ----------
    path
        The file, or the folder in which it is called ``name``.
    needed
        Columns that it must have.
    wrong
        Class of the errors.

    Raises
    ------
    InputError
        The file cannot be read, is no table, or lacks a column; later, a line with too few or too many cells.
    """
    file = Path(path) / name if name and Path(path).is_dir() else Path(path)
    missing = f"Give a CSV file, or a folder with {name}." if name else "Check the path."
    return parse_table(read_text(file, "CSV", error=wrong, missing=missing), str(file), needed=needed, wrong=wrong)


def parse_table(text: str, file: str, *, needed: Sequence[str] = (), wrong: type[InputError]) -> Table:
    """The table of a text; see :func:`read_table`."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    with reading_csv(file, wrong):
        columns = tuple(reader.fieldnames or ())
    absent = [column for column in needed if column not in columns]
    if absent:
        raise wrong(f"no column {', '.join(absent)}", file=file, line=1, key=absent[0], remedy="Add it.")
    return Table(file, columns, _lines(reader, file, wrong))


def _lines(reader: csv.DictReader[str], file: str, wrong: type[InputError]) -> Iterator[Line]:
    with reading_csv(file, wrong):
        for cells in reader:
            line = Line(cells, file, reader.line_num, wrong)
            if None in cells or None in cells.values():
                raise line.error("not as many values as columns")
            yield line


@contextmanager
def reading_csv(file: str, wrong: type[InputError] = InputError) -> Iterator[None]:
    """Turn what the CSV reader refuses into one error with the file's name."""
    try:
        yield
    except csv.Error as cause:
        raise wrong(f"not valid CSV: {cause}", file=file, remedy="Give comma-separated text.") from None


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path, form: str) -> None:
    """Write rows whole or not at all; what a row lacks is empty, lists and tables in a cell are their JSON.

    Parameters
    ----------
    form
        ``csv``, ``parquet``, ``jsonl``, or ``json`` for a list of all rows.

    Raises
    ------
    InputError
        The file cannot be written, or pyarrow is missing.
    """
    if form == "parquet":
        require("pyarrow")
        import pyarrow
        import pyarrow.parquet

        names, cells = _cells(rows)
        columns = zip(*cells, strict=True) if cells else ([] for _ in names)
        table = pyarrow.table({name: list(column) for name, column in zip(names, columns, strict=True)})
        write_whole(path, lambda draft: pyarrow.parquet.write_table(table, draft))
    elif form == "csv":
        write_text(path, csv_text(rows))
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        write_text(path, "\n".join(lines) + "\n" if form == "jsonl" else "[\n" + ",\n".join(lines) + "\n]\n")


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a line of names.

    >>> csv_text([{"a": 1, "b": [1, 2]}, {"a": 2.5}])
    'a,b\\n1,"[1, 2]"\\n2.5,\\n'
    """
    names, cells = _cells(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(cells)
    return text.getvalue()


def _cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Names of all columns, and the cells of every row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = ([row.get(name) for name in names] for row in rows)
    return names, [[json.dumps(v) if isinstance(v, list | tuple | dict) else v for v in row] for row in values]
