"""Runs every microbenchmark of one card for a moment and tells what works and how fast.

python -m joulecast.calibrate.microbenchmarks.smoke --device cuda:0 --out smoke.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.calibrate.microbenchmarks.catalogue import single_gpu
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner
from joulecast.errors import JoulecastError, MeasurementError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status is the number of failures, at most 100."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="as PyTorch writes it")
    parser.add_argument("--out", type=Path, help="JSON lines, one per microbenchmark, appended as they come")
    parser.add_argument("--seconds", type=float, default=0.15, help="how long each one runs")
    parser.add_argument("--limit", type=float, default=170.0, help="stop before so many seconds have passed")
    parser.add_argument("--only", default="", help="names that contain this word")
    options = parser.parse_args(arguments)
    try:
        runner = TorchRunner(options.device)
    except JoulecastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    chosen = [b for b in single_gpu(memory_bytes=runner.memory_bytes) if options.only in b.name]
    return _run(runner, chosen, options)


def _run(runner: TorchRunner, chosen: Sequence[Microbenchmark], options: argparse.Namespace) -> int:
    begin, failures, done = time.perf_counter(), 0, 0
    for benchmark in chosen:
        if time.perf_counter() - begin > options.limit:
            break
        result = measure(runner, benchmark, options.seconds)
        done += 1
        failures += "failure" in result
        sys.stdout.write(line_of(result) + "\n")
        sys.stdout.flush()
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    spent = time.perf_counter() - begin
    sys.stdout.write(f"{done} of {len(chosen)} in {spent:.0f} s, {failures} failed\n")
    for benchmark in chosen[done:]:
        sys.stdout.write(f"not run: {benchmark.name}\n")
    return min(failures, 100)


def measure(runner: TorchRunner, benchmark: Microbenchmark, duration_s: float) -> dict[str, Any]:
    """Prepare and run one microbenchmark: repetitions, seconds, rate, and what went wrong."""
    begin = time.perf_counter()
    result: dict[str, Any] = {"name": benchmark.name, "stratum": benchmark.stratum}
    try:
        load = runner.prepare(benchmark)
        result |= load.row
        result["measured_prepare_s"] = round(time.perf_counter() - begin, 4)
        try:
            count, seconds = load.run(duration_s)
        finally:
            load.close()
    except MeasurementError as error:
        return {**benchmark.row, **result, "failure": str(error)}
    result |= {"measured_repetitions": count, "measured_busy_s": seconds, "time_s": seconds / max(count, 1)}
    result["measured_total_s"] = round(time.perf_counter() - begin, 4)
    return result


def line_of(result: Mapping[str, Any]) -> str:
    """One line for people: name, microseconds, TFLOP/s or TB/s, or the failure."""
    name = f"{result['name']:<58}"
    if "failure" in result:
        return f"{name} FAILED {result['failure']}"
    time_s = float(result["time_s"])
    rate = ""
    if result.get("flops"):
        rate = f"{result['flops'] / time_s * 1e-12:9.2f} TFLOP/s"
    elif result.get("bytes"):
        rate = f"{result['bytes'] / time_s * 1e-12:9.3f} TB/s"
    return f"{name} {time_s * 1e6:11.2f} µs {rate:<18} prepared in {result['measured_prepare_s']:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
