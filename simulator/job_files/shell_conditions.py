"""Conditions of a script, as far as its own text decides them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from joulecast.files import is_whole
from joulecast.simulator.job_files.shell_tokens import Array, Operator, Word
from joulecast.simulator.job_files.shell_values import Variables, arithmetic, as_unset

#: Commands that are conditions.
TESTS = ("[", "[[", "test")
_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def condition(words: Sequence[Word | Array | Operator], variables: Variables) -> bool | None:
    """Whether a condition holds; variables that the script does not set count as unset. ``None``: a run decides it."""
    first = words[0]
    if isinstance(first, Word) and first.text.startswith("(("):
        value = as_unset(arithmetic(first.text[2:-2], variables, first.line), variables, first.line)
        return None if value is None else value not in ("", "0")
    parts: list[str | None] = []
    line = first.line
    for word in words[1:]:
        if isinstance(word, Operator):
            parts.append(word.text)
        elif isinstance(word, Word):
            text = variables.text(word.text, word.line)
            parts.append(as_unset(text, variables, line))
    if parts and parts[-1] in ("]", "]]"):
        parts.pop()
    return _joined(parts, ("||", "-o"), decides=True)


def _joined(parts: list[str | None], joints: tuple[str, ...], *, decides: bool) -> bool | None:
    """Alternatives, or what must hold together: one that decides is enough."""
    found = [
        _joined(piece, ("&&", "-a"), decides=False) if decides else _one(piece) for piece in _pieces(parts, joints)
    ]
    if decides in found:
        return decides
    return None if None in found else not decides


def _pieces(parts: list[str | None], joints: tuple[str, ...]) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    for part in parts:
        if part in joints:
            pieces.append([])
        else:
            pieces[-1].append(part)
    return pieces


def _one(parts: list[str | None]) -> bool | None:
    parts = [part for part in parts if part not in ("(", ")")]
    if parts and parts[0] == "!":
        inner = _one(parts[1:])
        return None if inner is None else not inner
    if len(parts) == 1:
        return None if parts[0] is None else parts[0] != ""
    if len(parts) == 2:
        kind, value = parts
        if value is None or kind not in ("-n", "-z", "-v"):
            return None
        return (value != "") == (kind == "-n")
    if len(parts) != 3 or parts[0] is None or parts[2] is None:
        return None
    left, kind, right = parts[0], parts[1], parts[2]
    if kind in ("==", "=", "!="):
        return fnmatch.fnmatchcase(left, right) == (kind != "!=")
    if kind in _NUMBERS and all(is_whole((side or "0").removeprefix("-")) for side in (left, right)):
        return bool(_NUMBERS[kind](int(left or 0), int(right or 0)))
    return None
