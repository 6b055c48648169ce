"""Sections that several pages have: the plan, what is assumed, and where the numbers of a GPU come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from joulecast.reports.html import bullets, folded, pairs, table
from joulecast.reports.numbers import Unit, interval
from joulecast.reports.page import Figure, Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan


def with_interval(label: str, value: float, low: float | None, high: float | None, unit: Unit) -> Figure:
    """A number with its 90 % interval, drawn within 20 % to either side of it or as far as it reaches."""
    if low is None or high is None:
        return Figure(label, unit.text(value))
    reach = max(0.2, (high - value) / value, (value - low) / value)
    places = tuple(0.5 + 0.5 * (x / value - 1.0) / reach for x in (low, value, high))
    note = f"90 %: {interval(low, high, unit)}"
    return Figure(label, unit.text(value), note, (places[0], places[1], places[2]))


def figure_of(source: object, key: str, label: str, unit: Unit) -> Figure:
    """A field with its 90 % interval, whose ends are fields called after it, or entries of a table."""
    get: Callable[[str], Any] = source.get if isinstance(source, Mapping) else partial(getattr, source)
    return with_interval(label, get(key), get(f"{key}_p05"), get(f"{key}_p95"), unit)


def sentence(note: str) -> str:
    """A note with a capital and a full stop; names with figures or dots stay as they are written.

    Examples
    --------
    >>> sentence("tensor-parallel ranks behave alike"), sentence("h100-sxm is derived")
    ('Tensor-parallel ranks behave alike.', 'h100-sxm is derived.')
    """
    is_word = note.partition(" ")[0].replace("-", "").isalpha()
    return (note[:1].upper() + note[1:] if is_word else note) + "."


def assumptions(notes: Iterable[str]) -> Section:
    """What a result takes for granted."""
    return Section("What this takes for granted", bullets(map(sentence, notes)))


def provenance(gpu: GpuDescription) -> Section:
    """Every number of a GPU's description with its uncertainty and source."""
    rows = gpu.rows()
    counts = Counter(row.status for row in rows)
    parts = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    about = f"<p>{len(rows)} numbers, of which {parts}.</p>"
    notes = [("derived", gpu.derivation)] if gpu.derivation else []
    tables: dict[str, list[str]] = {}
    for name, part in gpu.tables.items():
        tables.setdefault(part.provenance, []).append(name)
    notes += [(", ".join(names), text) for text, names in tables.items() if text]
    lines = [
        {
            "table": row.table,
            "name": row.name,
            "value": f"{_words(row.value)} {row.unit}".strip(),
            "standard deviation": None if isinstance(row.value, str | bool) or not row.sd else row.sd,
            "how": row.status,
            "source": row.source,
        }
        for row in rows
    ]
    every = folded("Every number, its uncertainty and its source", table(lines, name="these numbers"))
    return Section(f"Where the numbers of {gpu.name} come from", about + pairs(notes) + every)


def plan_section(plan: Plan) -> Section:
    """The plan in full."""
    groups = []
    for group in fields(plan):
        value = getattr(plan, group.name)
        if is_dataclass(value):
            lines = list(_lines(value))
            groups += [f"<h3>{group.name}</h3>{pairs(lines)}"] if lines else []
    return Section("The plan", folded("Everything that the plan sets", "".join(groups)))


def _lines(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of what is set, those of a part of a table below each other."""
    for field in fields(group):
        value = getattr(group, field.name)
        if value is None or value in ((), ""):
            continue
        if name := getattr(value, "name", None):
            yield before + field.name, name
        elif is_dataclass(value):
            yield from _lines(value, f"{before}{field.name}.")
        elif isinstance(value, tuple) and all(isinstance(pair, tuple) for pair in value):
            yield from ((f"{before}{field.name}.{key}".rstrip("."), _words(one)) for key, one in value)
        else:
            yield before + field.name, value if isinstance(value, int | float) else _words(value)


def _words(value: Any) -> str:
    """A value, and what it consists of, in words."""
    if isinstance(value, tuple):
        return ", ".join(map(_words, value))
    if is_dataclass(value):
        return ", ".join(f"{field.name} {_words(getattr(value, field.name))}" for field in fields(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
