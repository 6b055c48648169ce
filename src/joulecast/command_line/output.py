"""How commands print: JSON, CSV, or a table for people; nothing but the answer goes to standard output."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeAlias

import typer

from joulecast.errors import InputError, UnknownNameError

SetOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of the plan.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON (wins over other formats).")]


def _check_report(path: Path | None) -> Path | None:
    """Refuse a report that could not be written, before the work is done."""
    if path is not None:
        from joulecast.reports.page import check_report

        check_report(path)
    return path


ReportOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        callback=_check_report,
        help="Also write a report: one file for any browser, offline too.",
    ),
]


def known_gpu(param: typer.CallbackParam, name: str | None) -> str | None:
    """Refuse a GPU that there is not, with the option that names it."""
    if name is not None:
        from joulecast.model.hardware.catalogue import load_gpu

        try:
            load_gpu(name)
        except UnknownNameError as error:
            raise InputError(error.message, key=param.opts[0], remedy=error.remedy) from None
    return name


CsvOption: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]

Rows: TypeAlias = Sequence[Mapping[str, Any]]


def print_json(value: Any) -> None:
    """Print a value as JSON; arrays become lists, and what is not a finite number becomes ``null``."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=not is_unicode(sys.stdout), allow_nan=False))


def is_unicode(stream: TextIO) -> bool:
    """Whether every letter can be written to a stream."""
    return (stream.encoding or "utf-8").lower().replace("_", "-").startswith(("utf-8", "utf8", "utf-16", "utf-32"))


def plain(value: Any) -> Any:
    """Nested dictionaries, lists, strings and numbers only.

    >>> plain({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy
        return plain(value.tolist())
    return str(value)


def print_csv(rows: Rows) -> None:
    """Print rows as CSV with a header; what is missing is empty."""
    names = _columns(rows)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if (v := plain(row.get(n))) is None else v for n in names])


def print_table(rows: Rows, columns: Sequence[str] | None = None, title: str | None = None) -> None:
    """Print rows for people: a drawn table on a terminal, aligned text elsewhere."""
    names = list(columns or _columns(rows))
    cells = [[number(row.get(n)) for n in names] for row in rows]
    right = [all(_is_number(row.get(n)) for row in rows) for n in names]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from joulecast.command_line.drawn_table import draw

        draw(names, cells, right, title)
    else:
        _print_aligned(names, cells, right, title)


def print_rows(rows: Rows, *, as_json: bool, as_csv: bool, columns: Sequence[str] | None = None) -> None:
    """Print rows in the form that was asked for; ``columns`` are those of the table for people."""
    if as_json:
        print_json(rows)
    elif as_csv:
        print_csv(rows)
    else:
        print_table(rows, columns)


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print ``name  value`` lines."""
    shown = [(name, number(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}".rstrip())


def print_assumed(notes: Iterable[str]) -> None:
    """Print what an answer takes for granted, a line each."""
    print("\nAssumed:")
    for note in notes:
        print(f"- {note}")


def number(value: Any, digits: int = 4) -> str:
    """A value for people: numbers with a few significant digits, nothing for ``None``.

    >>> number(1.0343515625), number(2625.18650379), number(3577133.2), number(48), number(None)
    ('1.034', '2625', '3577000', '48', '')

    What a plan's file writes is written as there.

    >>> number(True), number(["layernorm", "mlp"])
    ('true', '["layernorm", "mlp"]')
    """
    if value is None:
        return ""
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(plain(value), ensure_ascii=False)
    if isinstance(value, str | int):
        return str(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return ""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e7 else text


def between(low: float, high: float, digits: int = 4) -> str:
    """Both ends of an interval."""
    return f"{number(low, digits)} to {number(high, digits)}"


def ends_of(row: Mapping[str, Any], key: str, digits: int = 4) -> str:
    """Both ends of the interval of a row's entry.

    >>> ends_of({"time_s": 1.0, "time_s_p05": 0.9, "time_s_p95": 1.2}, "time_s")
    '0.9 to 1.2'
    """
    return between(row[f"{key}_p05"], row[f"{key}_p95"], digits)


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def progress(message: str) -> None:
    """Say on standard error what is going on."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal that work goes on, until it is done; elsewhere nothing is said.

    A thread draws it, so that the work does not have to report.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _is_number(value: Any) -> bool:
    return value is None or (
        not isinstance(value, str | bool) and (isinstance(value, int | float) or hasattr(value, "item"))
    )


def _print_aligned(names: Sequence[str], cells: list[list[str]], right: list[bool], title: str | None) -> None:
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    if title:
        print(title)
    for row in [list(names), *cells]:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print("  ".join(aligned).rstrip())
