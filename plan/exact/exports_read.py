"""Reads what other programs and :mod:`joulecast.plan.exact.exports` write; nothing in a file is ever evaluated."""

from __future__ import annotations

import ast
from pathlib import Path

from joulecast.errors import InputError

#: Largest solution file that is read [B]; one of 64 ranks and 1024 micro-batches has 4 MB.
LARGEST_BYTES = 256 * 2**20


def read_zeus_solution(path: str | Path) -> list[list[tuple[str, int]]]:
    """Instructions and clocks [MHz] of a file ``freqs_pipeline_%05d.py``; 0 leaves the clock as it is.

    Raises
    ------
    InputError
        The file is missing, is not a literal, or is not a list of lists of (instruction, whole MHz); names the line
        where there is one.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InputError("larger than any solution", file=str(file), remedy="Give a file freqs_pipeline_….py.")
        tree = ast.parse(file.read_text(encoding="utf-8"), mode="eval")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", file=str(file), remedy="Check the path.") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _not_a_solution(file, getattr(error, "msg", str(error)), getattr(error, "lineno", None)) from None
    if not isinstance(tree.body, ast.List):
        raise _not_a_solution(file, "it is not a list", tree.body.lineno)
    return [_rank(node, file) for node in tree.body.elts]


def _rank(node: ast.expr, file: Path) -> list[tuple[str, int]]:
    if not isinstance(node, ast.List):
        raise _not_a_solution(file, "a rank is not a list", node.lineno)
    return [_entry(entry, file) for entry in node.elts]


def _entry(node: ast.expr, file: Path) -> tuple[str, int]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _not_a_solution(file, "an entry is not a literal", node.lineno) from None
    good = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)
    if not good or type(value[1]) is not int or value[1] < 0:
        raise _not_a_solution(file, f"{value!r} is not (instruction, whole MHz)", node.lineno)
    return value[0], value[1]


def _not_a_solution(file: Path, why: str, line: int | None) -> InputError:
    return InputError(
        f"not a frequency solution: {why}",
        file=str(file),
        line=line,
        remedy="A literal list is expected, with a list of (instruction, MHz) for each rank.",
    )
