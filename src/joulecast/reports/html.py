"""Pieces of HTML: tables, lists, and what a reader unfolds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

from joulecast.reports.numbers import spaced

#: Lines of a table, each by the names of its columns.
Rows: TypeAlias = Sequence[Mapping[str, Any]]
#: Columns above which a table may be wider than the text.
MANY = 12
#: An interval of whole numbers, as commands print it.
ENDS = re.compile(r"(\d+) to (\d+)")


def table(rows: Rows, *, name: str = "") -> str:
    """A table of rows; columns of numbers are aligned to the right. With a ``name`` it can be searched."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    right = {h for h in heads if all(isinstance(row.get(h), int | float | None) for row in rows)}
    kind = {h: " class=n" if h in right else "" for h in heads}
    head = "".join(f"<th scope=col{kind[h]}>{escape(h)}</th>" for h in heads)
    lines = ["".join(f"<td{kind[h]}>{_cell(row.get(h))}</td>" for h in heads) for row in rows]
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    inner = f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody>"
    shape = '"wide many"' if len(heads) > MANY else "wide"
    whole = f"<div class={shape} tabindex=0 role=group aria-label=table><table>{inner}</table></div>"
    return _searched(name, whole) if name else whole


def _searched(name: str, html: str) -> str:
    search = (
        f"<label class=search>Search {escape(name)} <input type=search data-filter></label><span data-count></span>"
    )
    return f"<div data-searched>{search}{html}</div>"


def pairs(items: Iterable[tuple[str, Any]]) -> str:
    """Names and values below each other."""
    return f"<dl>{''.join(f'<dt>{escape(n)}</dt><dd>{_cell(v)}</dd>' for n, v in items)}</dl>"


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def folded(summary: str, html: str) -> str:
    """HTML that a reader unfolds; print shows what is unfolded."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return spaced(value, len(str(abs(value))))
    if isinstance(value, float):
        return spaced(value)
    if ends := ENDS.fullmatch(str(value)):
        return " to ".join(spaced(int(end), len(end)) for end in ends.groups())
    return escape(str(value))
