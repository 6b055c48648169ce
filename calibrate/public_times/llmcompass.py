"""Matrix products of LLMCompass (Zhang et al., ISCA 2024): fp16, one at a time, the host waits for each."""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.public_times.form import measured_on
from joulecast.tables import Line

#: Columns by which the form is known.
COLUMNS = frozenset({"gpu", "M", "N", "K", "time_s"})
#: Runs before those that are timed, and those [estimate: a few to warm up, some tens on average].
RUNS = (5, 50)


def content(line: Line) -> dict[str, Any]:
    """The row of one line."""
    m, n, k = (line.whole(key) for key in ("M", "N", "K"))
    return {
        "name": f"{line['gpu']} {m}x{n}x{k}",
        "op": "gemm",
        "dtype": "fp16",
        "M": m,
        "N": n,
        "K": k,
        "timing": "waited",
        "runs_before": RUNS[0],
        "runs": RUNS[1],
        "time_s": line.positive("time_s"),
        **measured_on(line["gpu"]),
    }
