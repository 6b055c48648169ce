"""Speed and memory of a forecast: from the shell, within a program, and kernel by kernel.

Absolute figures are printed beside their targets, which hold for one core of a machine like CI's. Asserted are memory
and ratios to work of the same kind on the same machine, so that a slow or busy machine fails nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from memoised import simulate_memoised
from plan_evaluator import iteration_evaluator
from pytest_benchmark.fixture import BenchmarkFixture

import joulecast as jc
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.closed_form.evaluator import Backend, blocked
from joulecast.simulator.events.engine import simulate as run_engine
from joulecast.simulator.events.segment_program import Program
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.plan_file.plan import Plan, load_plan
from joulecast.simulator.traces.kernel_timeline import kernel_program, kernel_timeline, timeline_at

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PLAN = EXAMPLES / "llama-3.1-8b-4xh200.toml"
GPT3 = EXAMPLES / "gpt3-175b-64xa100.toml"
COLD_S, WARM_S, LARGE_S = 0.7, 0.030, 1.0
TIMELINE_S_PER_200K, MEMOISED_S = 0.6, 0.020
PEAK_BYTES = 300e6
CHILD = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - start, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def report(name: str, value: str, target: str) -> None:
    print(f"\n{name}: {value} (target {target})")


def best_s(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def child(*command: str | Path) -> tuple[float, float]:
    """Seconds and peak memory in bytes of a command, measured by a process that does nothing else."""
    whole = [sys.executable, "-c", CHILD, *map(str, command)]
    out = subprocess.run(whole, check=True, capture_output=True, text=True).stdout.split()
    return float(out[0]), float(out[1])


def predict_command(plan: Path) -> list[str | Path]:
    return [Path(sys.executable).with_name("joulecast"), "predict", plan, "--json"]


def test_cold_from_the_shell(benchmark: BenchmarkFixture) -> None:
    command = predict_command(PLAN)
    child(*command)  # byte code is written once
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)
    both = [(child(*command)[0], child(sys.executable, "-c", "import numpy")[0]) for _ in range(7)]
    cold, numpy = (sorted(column) for column in zip(*both, strict=True))
    report(
        "joulecast predict, cold",
        f"{cold[0]:.2f} s best, {median(cold):.2f} s median, {cold[0] / numpy[0]:.1f} times importing numpy",
        f"{COLD_S} s",
    )
    assert cold[0] <= 6.0 * numpy[0]


@pytest.mark.parametrize("plan", [PLAN, GPT3], ids=["8b", "175b"])
def test_peak_memory(plan: Path) -> None:
    peak = child(*predict_command(plan))[1]
    report(f"peak memory, {plan.stem}", f"{peak / 1e6:.0f} MB", f"{PEAK_BYTES / 1e6:.0f} MB")
    assert peak <= PEAK_BYTES


def test_warm(benchmark: BenchmarkFixture) -> None:
    jc.predict(PLAN)
    benchmark(jc.predict, PLAN)
    report("jc.predict, warm", f"{1e3 * best_s(lambda: jc.predict(PLAN), 10):.1f} ms", f"{1e3 * WARM_S:.0f} ms")


def test_large_plan(benchmark: BenchmarkFixture) -> None:
    jc.predict(GPT3)
    benchmark.pedantic(jc.predict, (GPT3,), rounds=5)
    seconds = best_s(lambda: jc.predict(GPT3))
    report("jc.predict of GPT-3 175B, PP 8, 64 micro-batches", f"{seconds:.2f} s", f"{LARGE_S} s")
    assert seconds <= 60 * best_s(lambda: jc.predict(PLAN))


@cache
def gpt3() -> tuple[Plan, Prepared, list[np.ndarray], list[int]]:
    plan = load_plan(GPT3)
    prepared = prepare(plan, gpu_model(load_gpu(plan.cluster.gpu)), governed=False)
    clock = len(prepared.clocks_mhz) - 1
    return plan, prepared, [np.full(len(r.order), clock) for r in prepared.program.ranks], [clock] * plan.pp


def gpt3_program() -> Program:
    _, prepared, clocks, base = gpt3()
    return kernel_program(prepared, clocks, base)[0]


def test_kernel_timeline(benchmark: BenchmarkFixture) -> None:
    _, prepared, clocks, base = gpt3()
    result = benchmark.pedantic(timeline_at, (prepared, clocks, base), rounds=3)
    engine = best_s(lambda: run_engine(gpt3_program(), kernels=True))
    whole = best_s(lambda: timeline_at(prepared, clocks, base))
    kernels = result.program.kernels
    report(
        f"kernel timeline of GPT-3 175B, {kernels} kernels",
        f"engine {engine:.2f} s, {engine * 2e5 / kernels:.2f} s per 200,000; with power and guards {whole:.2f} s",
        f"{TIMELINE_S_PER_200K} s per 200,000",
    )
    assert kernels > 200_000
    assert whole <= 6 * engine


def test_memoised_timeline(benchmark: BenchmarkFixture) -> None:
    program = gpt3_program()
    exact = run_engine(program)
    assert benchmark(lambda: simulate_memoised(gpt3_program())).time_ns == exact.time_ns
    program = gpt3_program()
    fresh = best_s(lambda: simulate_memoised(gpt3_program())) - best_s(gpt3_program)
    full = best_s(lambda: run_engine(program, kernels=True))
    report(
        "the same memoised",
        f"{1e3 * fresh:.1f} ms, {full / max(fresh, 1e-6):.0f} times the engine",
        f"{1e3 * MEMOISED_S} ms",
    )
    assert full >= 5 * fresh


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_evaluator_of_a_plan(benchmark: BenchmarkFixture, backend: Backend) -> None:
    plan = gpt3()[0]
    evaluator = iteration_evaluator(plan)
    rng = np.random.default_rng(0)
    clocks = len(gpt3()[1].clocks_mhz)
    plans = blocked(rng.integers(clocks // 2, clocks, (evaluator.instructions, 256 * 16), dtype=np.uint8))
    evaluator.evaluate(plans[:1], backend=backend)
    benchmark(lambda: evaluator.evaluate(plans, backend=backend))
    speed = 256 * len(plans) / best_s(lambda: evaluator.evaluate(plans, backend=backend))
    name = f"evaluator of GPT-3 175B, {backend}, {evaluator.instructions} instructions"
    report(name, f"{speed / 1e6:.3f} million plans/s", "1 million" if backend == "numba" else "none")


def test_kernel_timeline_of_the_example(benchmark: BenchmarkFixture) -> None:
    plan = load_plan(PLAN)
    benchmark(kernel_timeline, plan)
    report("kernel timeline of the 8B example", f"{1e3 * best_s(lambda: kernel_timeline(plan)):.0f} ms", "none")
