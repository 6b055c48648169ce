"""Kernels of real plans: what waits for what, exact times, the energy of the forecast, and the guards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from memoised import simulate_memoised
from plan_evaluator import iteration_evaluator

from joulecast.errors import GuardError, InputError
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.instructions.kernel_segments import lay_out
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict
from joulecast.simulator.traces import kernel_timeline as module
from joulecast.simulator.traces.kernel_timeline import kernel_timeline

GEMM, REDUCE = Gemm(8, 8, 8), Collective("all_reduce", 8.0, 2)

LLAMA = {"model": "llama-3.1-8b", "layers": 8, "sequence_length": 2048, "global_batch_size": 8}
GPT = {"model": "gpt3-175b", "layers": 8, "sequence_length": 2048, "global_batch_size": 8}
SCHEDULES: dict[str, dict[str, Any]] = {
    "none": {"parallelism": {"tensor_model_parallel_size": 2}},
    "gpipe": {"parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}},
    "1f1b": {"parallelism": {"pipeline_model_parallel_size": 4}},
    "zb-h1": {"parallelism": {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2}},
    "interleaved-1f1b": {
        "parallelism": {
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 2,
            "sequence_parallel": True,
        }
    },
}


def plan(schedule: str = "1f1b", workload: dict[str, Any] = LLAMA, gpus: int = 4, **tables: dict[str, Any]) -> Plan:
    whole = {
        "workload": workload,
        "cluster": {"gpu": "h200-sxm-rows", "gpus": gpus},
        "schedule": {"name": schedule},
        **SCHEDULES[schedule],
        **tables,
    }
    return plan_from_dict(whole)


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm-rows"))


def waits(*launches: Launch) -> list[tuple[int, int, int]]:
    layout = lay_out(launches)
    return list(zip(layout.launch.tolist(), layout.stream.tolist(), layout.wait.tolist(), strict=True))


def test_compute_stands_still_for_a_synchronous_collective() -> None:
    assert waits(Launch(GEMM), Launch(REDUCE, "communication", waits=True), Launch(GEMM)) == [
        (0, 0, -1),
        (1, 1, 0),
        (2, 0, 1),
        (-2, 0, -1),
        (-1, 0, -1),
    ]


def test_compute_runs_beside_an_asynchronous_collective_until_it_asks_for_it() -> None:
    both = waits(Launch(GEMM), Launch(REDUCE, "communication"), Launch(GEMM), Launch(GEMM, waits=True, repeat=2))
    assert both == [(0, 0, -1), (1, 1, 0), (2, 0, -1), (3, 0, 1), (3, 0, -1), (-2, 0, -1), (-1, 0, -1)]


def test_outstanding_collectives_are_not_waited_for_before_the_end() -> None:
    reduce = Launch(REDUCE, "communication")
    assert waits(Launch(GEMM), reduce, reduce, Launch(GEMM, waits=True, outstanding=1)) == [
        (0, 0, -1),
        (1, 1, 0),
        (2, 1, -1),
        (3, 0, 1),
        (-2, 0, 2),
        (-1, 0, -1),
    ]


def test_an_instruction_begins_and_ends_on_the_compute_stream() -> None:
    assert waits(Launch(REDUCE, "communication", waits=True)) == [(-1, 0, -1), (0, 1, 0), (-2, 0, 1), (-1, 0, -1)]
    assert waits() == [(-1, 0, -1), (-2, 0, -1), (-1, 0, -1)]


CASES = [
    (workload, name, framework, reduce)
    for workload in (LLAMA, GPT)
    for name in SCHEDULES
    for framework, reduce in (("pytorch-eager", "after"), ("megatron", "overlapped"))
]


@pytest.mark.parametrize(("workload", "schedule", "framework", "reduce"), CASES)
def test_the_evaluator_finds_the_time_of_the_engine(
    gpu: GpuModel, workload: dict[str, Any], schedule: str, framework: str, reduce: str
) -> None:
    chosen = plan(
        schedule,
        workload,
        8,
        overlap={"grad_reduce": reduce},
        implementation={"framework": framework, "rotary": False},
    )
    evaluator = iteration_evaluator(chosen, gpu)
    for clock in (1980.0, 1200.0):
        timeline = kernel_timeline(chosen, gpu, clock_mhz=clock)
        index = int(np.flatnonzero(gpu.clocks_mhz == clock)[0])
        ranked = iteration_evaluator(chosen, gpu, wait_clock_mhz=clock)
        time, energy = ranked.evaluate(np.full((evaluator.instructions, 1), index, dtype=np.uint8))
        assert time[0] == timeline.result.time_ns == simulate_memoised(timeline.program).time_ns
        assert energy[0] * chosen.tp * chosen.dp == pytest.approx(timeline.energy_j, rel=1e-9)


@pytest.mark.parametrize("schedule", ["zb-h1", "interleaved-1f1b"])
def test_mixed_clocks_have_the_same_time_in_evaluator_and_engine(gpu: GpuModel, schedule: str) -> None:
    chosen = plan(schedule)
    prepared = module.prepare(chosen, gpu, governed=False)
    rng = np.random.default_rng(1)
    rows = [rng.integers(40, len(gpu.clocks_mhz), len(r.order)) for r in prepared.program.ranks]
    program, _ = module.kernel_program(prepared, rows, [60, 60])
    clocks, evaluator = np.concatenate(rows)[:, None].astype(np.uint8), iteration_evaluator(chosen, gpu)
    for backend in ("numpy", "numba"):
        if backend == "numba":
            pytest.importorskip("numba")
        assert evaluator.evaluate(clocks, backend=backend)[0] == simulate(program).time_ns


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b-4xh200", "llama-3.1-70b-8xh200", "llama-3.2-3b-4xh200-ddp", "gpt3-175b-64xa100"]
)
def test_the_kernels_of_a_forecast_take_its_time_and_energy(examples: Any, name: str) -> None:
    chosen = load_plan(examples / f"{name}.toml")
    whole, kernels = forecast(chosen), kernel_timeline(chosen)
    assert kernels.time_s == pytest.approx(whole.time_s, rel=0.01)
    assert kernels.energy_j == pytest.approx(whole.energy_j, rel=0.01)


def test_a_timeline_of_a_forecast_is_one_call(examples: Any) -> None:
    chosen = load_plan(examples / "llama-3.1-8b-4xh200.toml")
    assert forecast(chosen).timeline().result.time_ns == kernel_timeline(chosen).result.time_ns


def test_locked_clocks_are_exact(gpu: GpuModel) -> None:
    locked = plan("1f1b", power={"clock_mhz": [1200, 1290, 1350, 1410]})
    by_plan, by_hand = kernel_timeline(locked, gpu), kernel_timeline(plan(), gpu, clock_mhz=[1200, 1290, 1350, 1410])
    assert by_plan.result.time_ns == by_hand.result.time_ns
    assert by_plan.energy_j == pytest.approx(by_hand.energy_j, rel=1e-12)
    whole = forecast(locked)
    assert by_plan.time_s == pytest.approx(whole.time_s, rel=2e-3)
    assert [r.clock_mhz for r in whole.ranks] == [1200, 1290, 1350, 1410]


def test_a_clock_that_the_gpu_lacks(gpu: GpuModel) -> None:
    with pytest.raises(InputError, match=r"1231 MHz is not a clock of h200-sxm-rows.*1230"):
        kernel_timeline(plan(), gpu, clock_mhz=1231)


def test_names_and_components(gpu: GpuModel) -> None:
    line = kernel_timeline(plan(), gpu, clock_mhz=1500).timelines[0]
    assert {"qkv", "norm1"} <= set(line.names)
    assert "tensor" in line.components
    assert np.all(line.end_ns > line.start_ns)
    assert 0 < line.energy_by_component_j()["tensor"] < line.energy_j


def test_guards_act_on_every_call(gpu: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*args: Any) -> Any:
        program, shares = original(*args)
        return program, 2 * shares

    original = module.kernel_program
    monkeypatch.setattr(module, "kernel_program", twice)
    with pytest.raises(GuardError, match="SMs used to 200 %"):
        kernel_timeline(plan(), gpu, clock_mhz=1500)


def test_a_kernel_moved_by_a_nanosecond_is_seen(gpu: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def early(program: Any, **options: Any) -> Any:
        result = simulate(program, **options)
        kernels = result.kernels[1]
        moved = replace(kernels, start_ns=kernels.start_ns - (np.arange(len(kernels.start_ns)) == 50))
        return replace(result, kernels=(result.kernels[0], moved, *result.kernels[2:]))

    monkeypatch.setattr(module, "run", early)
    with pytest.raises(GuardError, match="rank 1"):
        kernel_timeline(plan(), gpu, clock_mhz=1500)
