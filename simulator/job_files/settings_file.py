"""A configuration of tables and keys, read key by key: types, places in the file, and keys that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.errors import InputError, UnknownNameError
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import misspelt, untold
from joulecast.simulator.job_files.shell_values import marks

#: ``${other.key}``, as OmegaConf has it, and most of them that lead from one to the next.
_LINK, MOST_LINKS = re.compile(r"\$\{([\w.]+)\}"), 8


@dataclass
class SettingsFile:
    """A configuration of tables.

    Attributes
    ----------
    file, text
        The file's name, and its text for line numbers.
    tables
        Its content.
    asked
        Dotted keys that somebody has asked for.
    lines
        Of dotted keys, where the reader of the file knows them; ``None``: they are looked for in the text.
    names
        What keys are called in this file, by what others call them.
    named
        How a file that the job's own file names is called in the plan; empty: it is the job's own.
    defaults
        Of the tool, in place of those that its reader has.
    over
        Settings that win over these, such as options of the command that names the file.
    """

    file: str
    text: str
    tables: Mapping[str, Any]
    asked: set[str] = field(default_factory=set)
    lines: Mapping[str, int] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    named: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    over: SettingsFile | None = None

    def value(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A key's value, or the default of the tool.

        Raises
        ------
        InputError
            It is of another type, or the script does not tell it.
        """
        self.know([key])
        if (over := self.last(key)) is not self:
            return over.value(self.own(key), kind, default)
        found = self.raw(key)
        if found is None:
            return self.defaults.get(self.own(key), default)
        if isinstance(found, str) and marks(found):
            message, remedy = untold(found)
            raise self.error(message, key, remedy)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
            words = " or ".join(_WORDS[one] for one in kinds)
            raise self.error(f"{found!r} is not {words}", key, f"Write {words}.")
        return found

    def on(self, key: str) -> bool:
        """Whether a switch is on."""
        return bool(self.value(key, bool, False))

    def left(self) -> list[str]:
        """Names of the tables and keys on the first level, without those that have been asked for."""
        over = [] if self.over is None else list(self.over.tables)
        return [key for key in dict.fromkeys([*over, *self.tables]) if key not in self.asked]

    def last(self, key: str) -> SettingsFile:
        """The settings that have the last word on a key."""
        return self.over if self.over is not None and self.over.given(self.own(key)) else self

    def first(self, keys: Sequence[str]) -> str:
        """The first of some names of one thing that the file has; else the first of all."""
        self.know(keys)
        return next((key for key in keys if self.given(key)), keys[0])

    def know(self, keys: Iterable[str]) -> None:
        """Count keys as asked for that change nothing, or that others say."""
        self.asked.update(map(self.own, keys))

    def own(self, key: str) -> str:
        """What the file calls a key."""
        return self.names.get(key, key)

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number of at least so much."""
        found: int | None = self.value(key, int, default)
        if found is not None and found is not default and found < least:
            raise self.error(f"{found} is below {least}", key, f"Use at least {least}.")
        return found

    def word(self, key: str, known: Collection[str], default: str) -> str:
        """One of some words."""
        found = str(self.value(key, str, default))
        if found not in known:
            error = UnknownNameError("value", found, known)
            raise self.error(error.message, key, error.remedy or "Use another value.")
        return found

    def given(self, key: str) -> bool:
        """Whether the file has a key."""
        return self.raw(key) is not None

    def raw(self, key: str) -> Any:
        """What stands at a dotted key; ``None`` for nothing."""
        own, found = self.own(key), None
        if (over := self.last(key)) is not self:
            return over.raw(own)
        for _ in range(MOST_LINKS):
            found = self.tables
            for name in own.split("."):
                found = found.get(name) if isinstance(found, Mapping) else None
            link = _LINK.fullmatch(found) if isinstance(found, str) else None
            if link is None:
                break
            own = link[1]
        return found

    def source(self, key: str) -> tuple[str, int | None]:
        """What a value was read from, and its line."""
        own = self.own(key)
        if (over := self.last(key)) is not self:
            return over.source(own)
        if not self.given(key):
            return f"default without {own}", None
        if self.named:  # lines of the plan are those of the job's own file
            return f"{self.named}{f':{line}' if (line := self.line(key)) else ''} {own}", None
        return own, self.line(key)

    def line(self, key: str) -> int | None:
        """The line of a key: the first that begins with its name, behind that of its table; else its table's."""
        key = self.own(key)
        if (over := self.last(key)) is not self:
            return over.line(key)
        if self.lines is not None:
            return self.lines.get(key)
        *tables, name = key.split(".")
        at = 0
        lines = self.text.splitlines()
        for table in tables:
            at = next((n for n, line in enumerate(lines[at:], at) if table in line), at)
        quoted = (name, f'"{name}"', f"'{name}'")
        found = next((n for n, line in enumerate(lines[at:], at + 1) if line.strip().startswith(quoted)), None)
        inline = tables and any(text in lines[at] for text in quoted) if lines else False
        return at + 1 if inline else found

    def error(self, message: str, key: str, remedy: str) -> InputError:
        """An error at a key."""
        if (over := self.last(key)) is not self:
            return over.error(message, self.own(key), remedy)
        return InputError(message, file=self.file, line=self.line(key), key=self.own(key), remedy=remedy)

    def rest(self, draft: Draft, passed_tables: Collection[str], known: Collection[str]) -> None:
        """Pass over tables and keys without effect, and tell those that are not known.

        Raises
        ------
        InputError
            A key that is spelt nearly like a known one of its table.
        """
        for table, values in self.tables.items():
            if table in passed_tables:
                draft.passed.append(table)
                continue
            keys = _leaves(values, table)
            for key in keys:
                if key in self.asked:
                    continue
                if key in known:
                    draft.passed.append(key)
                    continue
                self._unknown(key, known, draft)

    def _unknown(self, key: str, known: Collection[str], draft: Draft) -> None:
        table, _, name = key.rpartition(".")
        names = [other.rpartition(".")[2] for other in (*self.asked, *known) if other.rpartition(".")[0] == table]
        near = misspelt(name, names)
        if near is not None:
            raise self.error("there is no such key", key, f"Did you mean {near!r}?")
        draft.warn(f"{key} is not known, and what it does is not forecast")


class Matching(frozenset[str]):
    """Dotted keys that a pattern has."""

    def __new__(cls, _: re.Pattern[str]) -> Matching:
        """None that is listed."""
        return super().__new__(cls)

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._pattern.fullmatch(key) is not None


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def dotted(tables: Mapping[str, str]) -> frozenset[str]:
    """Dotted keys of some tables, whose names are written with spaces between them.

    >>> sorted(dotted({"optimizer": "lr eps"}))
    ['optimizer.eps', 'optimizer.lr']
    """
    return frozenset(f"{table}.{name}" for table, names in tables.items() for name in names.split())


def _leaves(value: Any, path: str) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, f"{path}.{name}")]
    return [path]
