"""Speed of the simulator: absolute figures are printed, ratios between its engines are asserted.

Run with ``pytest benchmarks/bench_simulator.py``; targets hold for one core of a machine like CI's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from memoised import simulate_memoised
from pytest_benchmark.fixture import BenchmarkFixture

from joulecast.simulator.closed_form.evaluator import Backend, Evaluator, blocked, make_evaluator
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import Program, make_program
from joulecast.simulator.events.segments import Segment, make_segment
from joulecast.simulator.fluid.program import FluidProgram, make_fluid_program
from joulecast.simulator.fluid.simulation import simulate_fluid
from joulecast.simulator.schedules import build_schedule

ENGINE_S = 0.6
MEMOISED_S = 0.020
FLUID_S = 0.015
TICK_S = 5e-3
PLANS_PER_S = {512: 2.0e6, 2048: 0.5e6}

STAGES, MICROBATCHES, LAYERS = 8, 64, 12
KINDS = {"forward": 0, "backward": 1, "optimizer": 2}


def best_s(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def report(name: str, value: str, target: str) -> None:
    print(f"\n{name}: {value} (target {target})")


def layers(stage: int, scale: float) -> Segment:
    """Kernels of a stage's layers: twice a layer seven kernels and the all-reduce that the next kernel waits for."""
    duration: list[int] = []
    stream: list[int] = []
    wait: list[int] = []
    for half in range(2 * LAYERS):
        for k in range(7):
            duration.append(int(scale * (100_000 + 7_000 * k + 500 * stage)))
            stream.append(0)
            wait.append(len(duration) - 2 if half and not k else -1)
        duration.append(int(scale * 80_000))
        stream.append(1)
        wait.append(len(duration) - 2)
    return make_segment([*duration, 1000], stream=[*stream, 0], wait=[*wait, len(duration) - 1])


def gpt3_175b() -> Program:
    schedule = build_schedule("1f1b", STAGES, MICROBATCHES)
    segments = [s for r in range(STAGES) for s in (layers(r, 1.0), layers(r, 2.0), make_segment([5_000_000]))]
    order = [[3 * r + KINDS[i.kind] for i in row] for r, row in enumerate(schedule.ranks)]
    return make_program(schedule, segments, order, 5_000)


def test_engine(benchmark: BenchmarkFixture) -> None:
    result = benchmark(lambda: simulate(gpt3_175b(), kernels=True))
    kernels = sum(len(k.start_ns) for k in result.kernels)
    seconds = best_s(lambda: simulate(gpt3_175b(), kernels=True))
    report(f"SimPy engine, {kernels} kernels", f"{seconds:.3f} s", f"{ENGINE_S} s")
    assert 190_000 < kernels < 210_000


def test_memoised(benchmark: BenchmarkFixture) -> None:
    exact = simulate(gpt3_175b())
    result = benchmark(lambda: simulate_memoised(gpt3_175b()))
    assert result.time_ns == exact.time_ns
    quick, full = best_s(lambda: simulate_memoised(gpt3_175b())), best_s(lambda: simulate(gpt3_175b(), kernels=True))
    report("memoised segments", f"{1e3 * quick:.1f} ms, {full / quick:.0f} times the engine", f"{1e3 * MEMOISED_S} ms")
    assert full / quick > 5


def evaluator(instructions: int, rng: np.random.Generator) -> Evaluator:
    schedule = build_schedule("1f1b", STAGES, instructions // (2 * STAGES), tail=())
    types = [[2 * r + KINDS[i.kind] for i in row] for r, row in enumerate(schedule.ranks)]
    shape = (2 * STAGES, 80)
    return make_evaluator(schedule, types, rng.integers(10**6, 10**8, shape), rng.random(shape), 80.0, 5_000)


@cache
def plans(instructions: int) -> tuple[Evaluator, np.ndarray]:
    rng = np.random.default_rng(0)
    clocks = rng.integers(0, 80, (instructions, 2**25 // instructions), dtype=np.uint8)
    return evaluator(instructions, rng), blocked(clocks)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("instructions", [512, 2048])
def test_evaluator(benchmark: BenchmarkFixture, instructions: int, backend: Backend) -> None:
    ev, blocks = plans(instructions)
    blocks = blocks if backend == "numba" else blocks[:8]
    ev.evaluate(blocks[:1], backend=backend)
    benchmark(lambda: ev.evaluate(blocks, backend=backend))
    speed = blocks.shape[0] * blocks.shape[2] / best_s(lambda: ev.evaluate(blocks, backend=backend))
    target = f"{PLANS_PER_S[instructions] / 1e6} million" if backend == "numba" else "none"
    report(f"evaluator, {backend}, {instructions} instructions", f"{speed / 1e6:.3f} million plans/s", target)


@pytest.mark.parametrize("instructions", [512, 2048])
def test_numba_beats_numpy(instructions: int) -> None:
    ev, blocks = plans(instructions)
    few = blocks[:16]
    compiled, vectorised = ev.evaluate(few, backend="numba"), ev.evaluate(few)
    assert np.array_equal(compiled[0], vectorised[0])
    np.testing.assert_allclose(compiled[1], vectorised[1], rtol=1e-12)
    ratio = best_s(lambda: ev.evaluate(few)) / best_s(lambda: ev.evaluate(few, backend="numba"))
    report(f"numba ÷ NumPy, {instructions} instructions", f"{ratio:.1f}", "> 4")
    assert ratio > 4


class Stepping:
    """A governor that follows a slow average of power with one clock step a tick."""

    def __init__(self) -> None:
        self.clock, self.mean = 30, 600.0

    def step(self, power_w: float) -> int:
        self.mean += TICK_S * (power_w - self.mean)
        self.clock += -1 if self.mean > 600 and self.clock else self.clock < 47
        return self.clock


def fluid_program() -> FluidProgram:
    schedule = build_schedule("1f1b", 4, 10)
    clock = np.linspace(1275, 1980, 48)
    duration = np.array([[0.025], [0.05], [0.02]]) * 1600 / clock
    power = np.array([[650.0], [640.0], [400.0]]) * (clock / 1600) ** 2
    order = [[KINDS[i.kind] for i in row] for row in schedule.ranks]
    return make_fluid_program(schedule, order, [duration] * 4, [power] * 4, [np.full(48, 165.0)] * 4, 1e-4)


def test_fluid(benchmark: BenchmarkFixture) -> None:
    program = fluid_program()

    def run() -> object:
        return simulate_fluid(program, [Stepping() for _ in range(4)], [30] * 4, iterations=5, tick_s=TICK_S)

    benchmark(run)
    report("five iterations of four ranks under a governor", f"{1e3 * best_s(run):.1f} ms", f"{1e3 * FLUID_S} ms")
