"""Reads the published tables; which form a file has, its columns tell."""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.public_times import simumax, vidur
from joulecast.calibrate.public_times.form import measured_on
from joulecast.errors import DataError
from joulecast.tables import Line, parse_table

#: Columns by which LLMCompass's form is known.
LLMCOMPASS_COLUMNS = frozenset({"gpu", "M", "N", "K", "time_s"})
#: Runs before those that LLMCompass times, and those [estimate: a few to warm up, some tens on average].
LLMCOMPASS_RUNS = (5, 50)


def published_times(text: str, file: str) -> list[tuple[dict[str, Any], int]]:
    """Contents of rows, each with its line number.

    Raises
    ------
    DataError
        Columns of no known form, or a broken line.
    """
    table = parse_table(text, file, wrong=DataError)
    if not table.columns:
        raise DataError("the file is empty", file=file, remedy="Give JSON lines, or a table with a line of names.")
    lines = list(table.lines)
    if vidur.COLUMNS.issubset(table.columns):
        found = vidur.contents(lines)
    elif simumax.COLUMNS.issubset(table.columns):
        found = simumax.contents(lines)
    elif LLMCOMPASS_COLUMNS.issubset(table.columns):
        found = [_llmcompass(line) for line in lines]
    else:
        raise DataError(
            f"unknown columns {', '.join(sorted(table.columns))}",
            file=file,
            line=1,
            remedy="Give JSON lines, or a table of Vidur's, LLMCompass's or SimuMax's form.",
        )
    return [(content, line.number) for content, line in zip(found, lines, strict=True)]


def _llmcompass(line: Line) -> dict[str, Any]:
    """A product of LLMCompass (Zhang et al., ISCA 2024): fp16, one at a time, the host waits for each."""
    m, n, k = (line.whole(key) for key in ("M", "N", "K"))
    return {
        "name": f"{line['gpu']} {m}x{n}x{k}",
        "op": "gemm",
        "dtype": "fp16",
        "M": m,
        "N": n,
        "K": k,
        "timing": "waited",
        "runs_before": LLMCOMPASS_RUNS[0],
        "runs": LLMCOMPASS_RUNS[1],
        "time_s": line.positive("time_s"),
        **measured_on(line["gpu"]),
    }
