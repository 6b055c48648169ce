"""Loops of a script: what they go through, as far as its own text says it."""

from __future__ import annotations

import re

from joulecast.simulator.job_files.shell_syntax import Loop
from joulecast.simulator.job_files.shell_tokens import Word
from joulecast.simulator.job_files.shell_values import Spot, Variables, marks

_RANGE = re.compile(r"\{(-?\d{1,4})\.\.(-?\d{1,4})\}")
_LIST = re.compile(r"\{([\w.,-]+)\}")
#: Letters that stand for names of files, which are not looked up.
_PATTERN = re.compile(r"[*?\[]")


def is_over_arguments(loop: Loop) -> bool:
    """Whether a loop goes through what the script or function is called with."""
    head = " ".join(getattr(token, "text", "") for token in loop.head)
    if head.startswith("for (("):
        return False
    bare = head.split()[:1] == ["for"] and " in " not in f"{head} "
    return "$#" in head or "$@" in head or head.startswith("while getopts ") or bare


def options(loop: Loop, words: tuple[Spot, ...]) -> tuple[str, list[tuple[str, Spot]]] | None:
    """Of ``while getopts "a:b" NAME`` the variable's name, and each option's letter with its value; else ``None``."""
    head = [getattr(token, "text", "").strip("\"'") for token in loop.head]
    if head[:2] != ["while", "getopts"] or len(head) < 4:
        return None
    found, left = [], list(words)
    while left and left[0].text.startswith("-") and left[0].text not in ("-", "--"):
        word = left.pop(0)
        letter, value = word.text[1], word.text[2:]
        if not value and f"{letter}:" in head[2] and left:
            value = left.pop(0).text
        found.append((letter, Spot(value, word.line)))
    return head[3], found


def turns(loop: Loop, variables: Variables) -> tuple[str, list[Spot] | None]:
    """The variable that a loop sets, empty for none, and its words in turn; ``None``: only a run knows them."""
    words = [token for token in loop.head if isinstance(token, Word)]
    if len(words) < 3 or words[0].text != "for" or words[2].text != "in":
        return "", None
    found: list[Spot] = []
    for word in words[3:]:
        if _PATTERN.search(word.text.replace("[@]", "").replace("[*]", "")):
            return words[1].text, None
        found += _braces(word) or variables.words(word.text, word.line)
    known = not any(marks(spot.text) for spot in found)
    return words[1].text, found if known else None


def _braces(word: Word) -> list[Spot]:
    """Words that ``{1..4}`` or ``{a,b}`` stands for; none of another word."""
    if ends := _RANGE.fullmatch(word.text):
        first, last = int(ends[1]), int(ends[2])
        step = 1 if last >= first else -1
        return [Spot(str(number), word.line) for number in range(first, last + step, step)]
    listed = _LIST.fullmatch(word.text)
    return [Spot(text, word.line) for text in listed[1].split(",")] if listed and "," in listed[1] else []
