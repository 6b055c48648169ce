"""Instruction counts of six tasks against the last release: ``python benchmarks/counts.py [--write]``.

Counted are executed lines of Python and calls into compiled code, of the second run of a task in a process of its own
with fixed hashing. Unlike seconds, they are the same on a busy machine and nearly the same on another. They do not see
how long compiled code takes: the benchmarks in seconds show that. More than 20 % above the last release fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import joulecast as jc

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "counts.json"
#: Share above the last release that fails.
ALLOWED = 0.20


def kernel() -> object:
    return jc.gpu("h200-sxm").predict(jc.Gemm(m=8192, n=8192, k=8192))


def small() -> object:
    return jc.predict(ROOT / "examples" / "llama-3.1-8b-4xh200.toml")


def large() -> object:
    return jc.predict(ROOT / "examples" / "gpt3-175b-64xa100.toml")


def timeline() -> object:
    from joulecast.simulator.plan_file.plan import load_plan
    from joulecast.simulator.traces.kernel_timeline import kernel_timeline

    return kernel_timeline(load_plan(ROOT / "examples" / "llama-3.1-8b-4xh200.toml"))


def sweep() -> object:
    from joulecast.plan.sweep import rows

    rows._FORECASTERS.clear()
    return jc.sweep(ROOT / "examples" / "sweep-llama-8b-power.toml")


def fit() -> object:
    from joulecast.calibrate.descriptions.describe import fit_model
    from joulecast.calibrate.descriptions.from_rows import facts_of
    from joulecast.calibrate.rows.measured import recorded_rows

    return fit_model(recorded_rows(files_=("kernels_steady.jsonl",))[:20], facts_of("h200-sxm"))


TASKS: dict[str, Callable[[], object]] = {
    "kernel": kernel,
    "forecast of 4 GPUs": small,
    "forecast of 64 GPUs": large,
    "kernel timeline": timeline,
    "sweep": sweep,
    "fit of 20 rows": fit,
}


def counted(task: Callable[[], object]) -> int:
    """Lines of Python and calls into compiled code of a task that has run before.

    >>> counted(lambda: sum([1, 2, 3]))
    2
    """
    task()
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    sys.settrace(line)
    sys.setprofile(call)
    try:
        task()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    return count - 1  # the call that ends the counting


def in_own_process(name: str) -> int:
    """The count of a task in a new process."""
    command = [sys.executable, __file__, "--task", name]
    fixed = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=fixed).stdout)


def regressions(counts: dict[str, int], stored: dict[str, int]) -> list[str]:
    """Tasks that need more than 20 % more than the last release.

    >>> regressions({"a": 121, "b": 119, "c": 5}, {"a": 100, "b": 100})
    ['a']
    """
    return [name for name, count in counts.items() if name in stored and count > (1 + ALLOWED) * stored[name]]


def main() -> int:
    """Count, compare, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="these are the release's counts from now on")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task:
        print(counted(TASKS[asked.task]))
        return 0
    counts = {name: in_own_process(name) for name in TASKS}
    if asked.write:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        STORED.write_text(
            json.dumps({"release": jc.__version__, "python": python, "counts": counts}, indent=1) + "\n",
            encoding="utf-8",
        )
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    for name, count in counts.items():
        before = stored["counts"].get(name)
        change = "" if before is None else f", {100.0 * (count / before - 1.0):+.1f} % against {stored['release']}"
        print(f"{name}: {count} instructions of Python{change}")
    worse = regressions(counts, stored["counts"])
    if worse:
        print(f"more than {100 * ALLOWED:.0f} % above the last release: {', '.join(worse)}", file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
