"""Speed and memory of a forecast, from the shell and within a program."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

PLAN = Path(__file__).resolve().parents[1] / "examples" / "llama-3.1-8b-4xh200.toml"
COLD_S = 0.7
WARM_S = 0.030
PEAK_BYTES = 300e6


def test_cold_from_the_shell(benchmark: BenchmarkFixture) -> None:
    command = [Path(sys.executable).with_name("joulecast"), "predict", PLAN, "--json"]

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    run()  # byte code is written once
    benchmark.pedantic(run, rounds=5)
    assert benchmark.stats["min"] <= COLD_S


def test_warm(benchmark: BenchmarkFixture) -> None:
    import joulecast as jc

    jc.predict(PLAN)
    benchmark(jc.predict, PLAN)
    assert benchmark.stats["min"] <= WARM_S


def test_peak_memory() -> None:
    code = (
        "import resource, sys, joulecast as jc\n"
        f"jc.predict({str(PLAN)!r})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    peak = int(done.stdout)
    print(
        f"\npeak memory {peak / 1e6:.0f} MB, {time.perf_counter() - started:.2f} s (target {PEAK_BYTES / 1e6:.0f} MB)"
    )
    assert peak <= PEAK_BYTES
