"""Tables that commands print, read again."""

from __future__ import annotations

import re


def table(text: str, first: str) -> list[dict[str, str]]:
    """Full rows below the line that begins with a heading, up to an empty line; two blanks keep cells apart."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if re.match(rf" *{re.escape(first)}(  |$)", line))
    head = re.split(r" {2,}", lines[start].strip())
    end = next((at for at, line in enumerate(lines) if at > start and not line.strip()), len(lines))
    rows = [re.split(r" {2,}", line.strip()) for line in lines[start + 1 : end]]
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


def pairs(text: str) -> dict[str, str]:
    """Lines of a name and its value."""
    split = (re.split(r" {2,}", line, maxsplit=1) for line in text.splitlines())
    return {found[0]: found[1] for found in split if len(found) == 2}


def numbers(text: str) -> list[float]:
    """Every number of a text, in its order."""
    return [float(word) for word in re.findall(r"\d+\.?\d*(?:e[-+]\d+)?", text)]
