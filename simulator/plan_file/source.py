"""Reading TOML input with readable errors: file, line, key, nearest right name and remedy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from joulecast.errors import InputError, did_you_mean
from joulecast.files import parse_toml, read_text

_SECTION = re.compile(r"^\s*\[{1,2}\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")
#: Tables that only a space of plans has.
SPACE_TABLES = ("constraints", "objective")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


@dataclass(frozen=True)
class Source:
    """Where input came from; builds errors that say where.

    Attributes
    ----------
    file
        Path as the user wrote it, ``None`` for input from a program.
    text
        Text of the file, for line numbers.
    overridden
        Keys that were set on the command line.
    """

    file: str | None = None
    text: str = ""
    overridden: frozenset[str] = frozenset()

    @property
    def folder(self) -> Path:
        """Folder against which relative paths in the input are meant."""
        return Path(self.file).parent if self.file else Path()

    def line_of(self, key: str) -> int | None:
        """Line of a dotted key, or of its table where the key itself is not written; ``None`` if neither is."""
        section, found_table = "", None
        for number, line in enumerate(self.text.splitlines(), start=1):
            if match := _SECTION.match(line):
                section = match[1].replace(" ", "")
                if key == section or key.startswith(section + "."):
                    found_table = number
            elif match := _KEY.match(line):
                here = f"{section}.{match[1]}" if section else match[1]
                if here.replace('"', "") in (key, key.rpartition(".")[0]):
                    return number
        return found_table

    def error(
        self,
        message: str,
        key: str | None = None,
        *,
        remedy: str | None = None,
        kind: type[InputError] = InputError,
    ) -> InputError:
        """An error at ``key`` of this input."""
        line = self.line_of(key) if key is not None and self.text else None
        if key is not None and self._is_overridden(key, line):
            return kind(message, file=f"{self.file or ''} (--set)".strip(), key=key, remedy=remedy)
        return kind(message, file=self.file, line=line, key=key, remedy=remedy)

    def _is_overridden(self, key: str, line: int | None) -> bool:
        """Whether what stands at ``key`` is not the file's; a table may be, whatever was set in it."""
        if any(key == one or key.startswith(f"{one}.") for one in self.overridden):
            return True
        in_file = line is not None and line != self.line_of(key.rpartition(".")[0])
        return not in_file and any(one.startswith(f"{key}.") for one in self.overridden)

    def refuse(
        self,
        problems: Iterable[Problem],
        key: str = "",
        *,
        what: str = "{}",
        remedy: str = "{}.",
        kind: type[InputError] = InputError,
    ) -> None:
        """Raise an error for the first problem that there is.

        Parameters
        ----------
        problems
            All there may be.
        key
            Of those that have none of their own.
        what, remedy
            Sentences around the problems' own words.

        Raises
        ------
        InputError
            There is one.
        """
        for wrong, problem, way, *own in problems:
            if wrong:
                raise self.error(what.format(problem), *own or (key,), remedy=remedy.format(way), kind=kind)


#: Whether something is wrong, what, the remedy, and where it differs from the others' the key.
Problem: TypeAlias = tuple[bool, str, str] | tuple[bool, str, str, str]


def read_toml(path: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Source]:
    """Tables of a TOML file with ``a.b=value`` overrides applied.

    Raises
    ------
    InputError
        If the file cannot be read, is not TOML, or an override is not of the form ``a.b=value``.
    """
    file = str(path)
    text = read_text(path, "TOML")
    tables, keys = apply_overrides(parse_toml(text, file), overrides)
    return tables, Source(file, text, keys)


def apply_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """Copy of ``tables`` with every ``a.b=value`` set, and the dotted keys that were set."""
    result: dict[str, Any] = plain(tables)
    keys = set()
    for override in overrides:
        key, equals, value = override.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            raise InputError(
                f"cannot read the override {override!r}",
                file="--set",
                remedy="Write it as table.key=value, for instance workload.micro_batch_size=2.",
            )
        table = result
        for name in names[:-1]:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                several = isinstance(inner, list)
                what = "stands for several tables" if several else "is not a table"
                remedy = "Change them in the file." if several else "Use the name of a table."
                raise InputError(f"{name!r} {what}", file="--set", key=key, remedy=remedy)
            table = inner
        table[names[-1]] = _toml_value(value.strip())
        keys.add(".".join(names))
    return result, frozenset(keys)


def plain(value: Any) -> Any:
    """A copy as a TOML file would have given it: what programs put into tables may be NumPy's, tuples and paths.

    >>> plain({"gpus": np.int64(8), "sizes": (1, 2), "model": Path("config.json")})
    {'gpus': 8, 'sizes': [1, 2], 'model': 'config.json'}
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _toml_value(text: str) -> Any:
    """A TOML value; what is not one is a plain text, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def explain(error: ValidationError, source: Source, tables: Mapping[str, type[BaseModel]]) -> InputError:
    """One readable error for a failed validation: a misspelt key first, often the cause of a missing one."""
    details = sorted(error.errors(include_url=False), key=_rank)
    first = details[0]
    location = _place(first)
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        if location[-1] in SPACE_TABLES:
            return source.error("this file is a space, not a plan", key, remedy="joulecast sweep goes through it.")
        return source.error("unknown key", key, remedy=right_name(location, tables))
    if first["type"] == "missing":
        model = tables.get(".".join(location[:-1]))
        about = model.model_fields[location[-1]].description if model and location[-1] in model.model_fields else None
        return source.error("this key is missing", key, remedy=f"Add it: {about}" if about else "Add this table.")
    if first["type"] == "model_type" and isinstance(first["input"], list):
        remedy = f"A plan has one [{key}]; joulecast sweep goes through several clusters."
        return source.error("several tables of one name", key, remedy=remedy)
    word = _wanted(first, details)
    return source.error(_what_is_wrong(first, word), key, remedy=_remedy(first, word))


_UNION_BRANCHES = {
    "str",
    "int",
    "InlineModel",
    "ConfigModel",
    "constrained-float",
    "list[constrained-float]",
    "list[int]",
    "list[str]",
    "literal['balanced']",
    "bool",
}


def _is_branch(part: str) -> bool:
    """Whether a part of a location names a branch of a union, such as a list of known words, and no key."""
    return part in _UNION_BRANCHES or part.startswith("list[literal[")


#: Errors of one branch of a union, and types of value, of which the other branch says better what is wrong.
_OTHER_BRANCH = {
    ("string_type", dict),
    ("float_type", list),
    ("list_type", str),
    ("literal_error", list),
    ("bool_type", list),
    ("int_type", list),
    ("string_type", list),
}


def _rank(detail: ErrorDetails) -> int:
    if (detail["type"], type(detail.get("input"))) in _OTHER_BRANCH:
        return 3
    return {"extra_forbidden": 0, "missing": 2}.get(detail["type"], 1)


def _wanted(first: ErrorDetails, details: Sequence[ErrorDetails]) -> str | None:
    """Words for the type that a value should have had, of all branches of a union; ``None``: its type is right."""
    if first["type"] not in _TYPE_WORDS:
        return None
    place = _place(first)
    types = [d["type"] for d in details if _place(d) == place and d["type"] in _TYPE_WORDS]
    *others, last = dict.fromkeys(word for one in types for word in _TYPE_WORDS[one].split(" or "))
    return f"{', '.join(others)} or {last}" if others else last


def _place(detail: ErrorDetails) -> list[str]:
    return [str(part) for part in detail["loc"] if not _is_branch(str(part))]


#: What other tools add to the name of what they count, which here stands in the plural.
_COUNT = re.compile(r"^(num|n|number_of)_|_(count|number)$")


def right_name(location: Sequence[str], tables: Mapping[str, type[BaseModel]], extra_names: Sequence[str] = ()) -> str:
    """Nearest right key of the table, else the table in which this key belongs, else all keys."""
    name, table = location[-1], ".".join(location[:-1])
    known = list(tables[table].model_fields) if table in tables else [t for t in tables if "." not in t]
    if table not in tables:
        known += list(extra_names)
    counted = _COUNT.sub("", name)
    if counted != name and (several := f"{counted.removesuffix('s')}s") in known:
        return f"Did you mean {several!r}?"
    homes = [f"[{t}]" for t, model in tables.items() if name in model.model_fields]
    return did_you_mean(name, known, 2, otherwise=f"It belongs in {' or '.join(homes)}." if homes else None)


def _what_is_wrong(detail: ErrorDetails, word: str | None) -> str:
    value = detail.get("input")
    if word is not None:
        return f"{_shown(value)} is not {word}"
    if detail["type"] == "literal_error":
        return f"{value!r} is not a known value"
    message = detail["msg"]
    return f"{_shown(value)}: {message[:1].lower()}{message[1:]}"


def _shown(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _remedy(detail: ErrorDetails, word: str | None) -> str:
    context, given = detail.get("ctx") or {}, detail.get("input")
    if detail["type"] == "int_type" and isinstance(given, float) and given.is_integer() and abs(given) < 2**63:
        return f"Write {given:.0f}, without a point or an exponent."
    if detail["type"] == "literal_error":
        known = re.findall(r"'([^']+)'|\b(True|False)\b", str(context.get("expected", "")))
        return did_you_mean(str(given), [text or truth.lower() for text, truth in known], 1)
    if "gt" in context:
        return f"Use a value above {context['gt']:.15g}."
    if "ge" in context:
        return f"Use a value of at least {context['ge']:.15g}."
    if "le" in context:
        return f"Use a value of at most {context['le']:.15g}."
    if "lt" in context:
        return f"Use a value below {context['lt']:.15g}."
    if word is not None:
        return f"Write {word}."
    return "Correct the value."
