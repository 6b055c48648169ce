"""Speed of fronts on measured stage profiles: processor time of one core, after compilation.

Run with ``pytest benchmarks/bench_front.py``. The profiles are looked for beside the repository, as in the tests; the
gaps to the lower bound are printed beside the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.parametric_flow import time_cost_curve
from joulecast.plan.exact.problem import FrontProblem, make_problem
from joulecast.plan.fronts.forecast_front import forecast_front
from joulecast.plan.fronts.profile_front import problem_from_profile
from joulecast.plan.knobs.options import Option
from joulecast.simulator.plan_file.plan import load_plan

ROOT = Path(__file__).resolve().parents[1]
A100, A40 = "stage_profile_gpt3-175b_a100-sxm.csv", "stage_profile_bloom_a40.csv"
WAIT_W = {A100: 83.64, A40: 70.4}
#: Whole exact front: stages of the profile, micro-batches and the longest time [s].
EXACT = [((0, 1, 2, 7), 8, 0.010), (tuple(range(8)), 32, 0.3), (tuple(range(8)), 128, 1.0)]
SIXTEEN_STAGES_S, FORECAST_S = 6.0, 5.0
#: Mean and worst distance of plans to the lower bound.
GAPS = {A100: (0.0025, 0.015), A40: (0.007, 0.025)}


def best_s(run: Callable[[], object], repeats: int = 3) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def problem_of(name: str, stages: Sequence[int], microbatches: int) -> FrontProblem:
    path = ROOT.parent / "shared" / "data" / "perseus_sosp24" / name
    if not path.is_file():
        pytest.skip(f"no measured profile {path}")
    return problem_from_profile(path, microbatches=microbatches, wait_power_w=WAIT_W[name], stages=stages)


def curve_of(problem: FrontProblem) -> object:
    return time_cost_curve(problem.dag, problem.sets, problem.kind)


@pytest.mark.parametrize(("stages", "microbatches", "limit_s"), EXACT)
def test_exact_front(stages: Sequence[int], microbatches: int, limit_s: float) -> None:
    problem = problem_of(A100, stages, microbatches)
    seconds = best_s(lambda: curve_of(problem))
    print(f"\nexact front PP{len(stages)} x {microbatches}: {seconds * 1e3:.1f} ms (target {limit_s * 1e3:g} ms)")
    assert seconds <= limit_s


def test_sixteen_different_stages() -> None:
    measured = problem_of(A100, tuple(range(8)) * 2, 64)
    ranks = len(measured.dag.ranks)
    options = []
    for k, options_of_kind in enumerate(measured.sets):
        scale = 1.0 + 0.013 * (k * ranks // len(measured.sets))
        options.append([Option(o.time_s * scale, o.energy_j * scale, o.clock_mhz) for o in options_of_kind.options])
    problem = make_problem(measured.dag, options, measured.kind.tolist(), WAIT_W[A100])
    seconds = best_s(lambda: curve_of(problem), 1)
    print(f"\nexact front of 16 different stages x 64: {seconds:.2f} s (target {SIXTEEN_STAGES_S:g} s)")
    assert seconds <= SIXTEEN_STAGES_S


@pytest.mark.parametrize("name", [A100, A40])
@pytest.mark.parametrize(("stages", "microbatches", "limit_s"), EXACT)
def test_discrete_plans(name: str, stages: Sequence[int], microbatches: int, limit_s: float) -> None:
    problem = problem_of(name, stages, microbatches)
    seconds = best_s(lambda: exact_front(problem), 1)
    gaps = np.array([p.gap for p in exact_front(problem).points])
    print(
        f"\n{name} PP{len(stages)} x {microbatches}: {len(gaps)} plans in {seconds:.2f} s, above the bound "
        f"{100 * gaps.mean():.3f} % on average (target {100 * GAPS[name][0]:g} %), "
        f"{100 * gaps.max():.3f} % at most (target {100 * GAPS[name][1]:g} %)"
    )
    assert gaps.mean() <= GAPS[name][0]
    assert gaps.max() <= GAPS[name][1]


@pytest.mark.parametrize("switch_s", [0.0, None], ids=["free", "as-described"])
def test_forecast_front(switch_s: float | None) -> None:
    settings = ["cluster.gpus=8", "parallelism.pipeline_model_parallel_size=4"]
    plan = load_plan(ROOT / "examples" / "llama-3.1-8b-4xh200.toml", settings)
    seconds = best_s(lambda: forecast_front(plan, switch_s=switch_s), 1)
    print(f"\nfront of Llama-3.1-8B TP2 PP4 on H200, forecasts included: {seconds:.2f} s (target {FORECAST_S:g} s)")
    assert seconds <= FORECAST_S
