"""What a forecast obeys: clocks by stage and instruction, limits, overlap, conservation, odd plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from joulecast.errors import DoesNotFitError, GuardError, NotYetError
from joulecast.model.catalogue import load_gpu
from joulecast.model.contention import Alone
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.launches import Launch
from joulecast.model.operators import Collective, Gemm
from joulecast.simulator import prepared as prepared_module
from joulecast.simulator.fluid import FixedClock
from joulecast.simulator.forecast import forecast
from joulecast.simulator.governor import PowerGovernor
from joulecast.simulator.iteration import Iteration
from joulecast.simulator.kernel_timeline import kernel_timeline
from joulecast.simulator.ledger_guards import check_iteration
from joulecast.simulator.overlap import contended, follow
from joulecast.simulator.plan import Plan, load_plan, plan_from_dict
from joulecast.simulator.plan_gpu import gpu_of
from joulecast.simulator.prepared import prepare, simulate
from joulecast.simulator.program import plan_program, stage_parameters


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm-rows"))


def plan(**tables: dict[str, Any]) -> Plan:
    whole: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 16},
        "cluster": {"gpu": "h200-sxm-rows", "gpus": 4},
        "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    }
    for name, table in tables.items():
        whole[name] = whole.get(name, {}) | table
    return plan_from_dict(whole)


def locked(clock: Any, **other: Any) -> Plan:
    return plan(power={"clock_mhz": clock, **other})


# Clocks


def test_clocks_by_instruction_act_without_a_common_one(gpu: GpuModel) -> None:
    both = forecast(locked({"forward": 1500, "backward": 1200, "optimizer": 1500}))
    only = {clock: forecast(locked(clock)) for clock in (1200, 1500)}
    assert only[1500].time_s < both.time_s < only[1200].time_s
    by = {name: iteration.energy_by_instruction_j for name, iteration in [("both", both), *only.items()]}
    assert by["both"]["forward"] == pytest.approx(by[1500]["forward"], rel=1e-9)
    assert by["both"]["backward"] == pytest.approx(by[1200]["backward"], rel=1e-9)


def test_instructions_without_a_clock_follow_the_governor(gpu: GpuModel) -> None:
    partly, free = forecast(locked({"backward": 900})), forecast(plan())
    assert partly.energy_by_instruction_j["forward"] == pytest.approx(free.energy_by_instruction_j["forward"], rel=0.02)
    assert partly.time_s > free.time_s


def test_clocks_by_stage(gpu: GpuModel) -> None:
    whole = forecast(locked([1500, 1200]))
    assert [rank.clock_mhz for rank in whole.ranks] == [1500, 1200]
    assert forecast(locked([1500, 1500])).time_s < whole.time_s


@pytest.mark.parametrize("clock", [345, 1230, 1410])
def test_every_step_of_the_clock_is_met(gpu: GpuModel, clock: int) -> None:
    prepared = prepare(locked(clock), gpu)
    index, governors, _, _ = prepared_module._start(prepared)
    assert all(isinstance(governor, FixedClock) for governor in governors)
    assert [gpu.clocks_mhz[i] for i in index] == [clock, clock]
    assert forecast(locked(clock)).clock_mhz == clock


def test_a_power_limit_holds_below_a_locked_clock(gpu: GpuModel) -> None:
    limited = forecast(locked(1980, power_limit_w=300.0))
    assert max(rank.power_w for rank in limited.ranks) < 302
    assert limited.time_s == pytest.approx(forecast(plan(power={"power_limit_w": 300.0})).time_s, rel=1e-3)
    assert limited.time_s > 1.1 * forecast(locked(1980)).time_s


def test_every_stage_keeps_its_own_limit(gpu: GpuModel) -> None:
    by_stage = forecast(plan(power={"power_limit_w": [300.0, 450.0]}))
    both = {limit: forecast(plan(power={"power_limit_w": limit})) for limit in (300.0, 450.0)}
    assert [rank.power_w < limit for rank, limit in zip(by_stage.ranks, (302, 452), strict=True)] == [True, True]
    assert by_stage.ranks[1].power_w > 1.02 * both[300.0].ranks[1].power_w
    assert both[450.0].time_s < by_stage.time_s <= both[300.0].time_s * 1.005


def test_a_stage_that_waits_takes_a_low_limit_without_slowing_the_others() -> None:
    uneven = plan(parallelism={"stage_layers": [4, 12]})
    free = forecast(uneven)
    spared = forecast(replace(uneven, power=replace(uneven.power, power_limit_w=(350.0, 700.0))))
    assert spared.ranks[0].power_w < free.ranks[0].power_w
    assert spared.energy_j < free.energy_j
    assert spared.time_s == pytest.approx(free.time_s, rel=0.01)


def test_kernels_keep_the_instant_limit_of_their_own_stage(gpu: GpuModel) -> None:
    low = gpu.with_values({"governor.peak_share": 1.0})
    prepared = prepare(plan(power={"power_limit_w": [300.0, 500.0]}), low)
    for table, limit in zip(prepared.tables, (300.0, 500.0), strict=True):
        assert limit * 0.95 < (table.energy_j / table.duration_s).max() <= limit * (1 + 1e-12)
    timeline = kernel_timeline(plan(power={"power_limit_w": [300.0, 500.0]}), low)
    assert timeline.timelines[0].profile().power_w.max() < 310 < timeline.timelines[1].profile().power_w.max()


def test_a_locked_clock_holds_below_the_governors(gpu: GpuModel) -> None:
    for top, start in ((50, 50), (109, 60)):
        governor = PowerGovernor(gpu, 700.0, top, start, 0.01)
        assert [governor.step(200.0) for _ in range(50)][-1] == top


# Ledger


def test_the_ledger_is_read_at_the_clock_that_the_instant_limit_allows(gpu: GpuModel) -> None:
    low = gpu.with_values({"governor.peak_share": 1.0})
    prepared = prepare(load_like_example(limit=400.0), low)
    result, first = simulate(prepared)
    for rank, table in enumerate(prepared.tables):
        executed = result.executed[rank][first:].sum(0)
        waited = result.wait_s[rank][first:].sum(0) @ prepared.wait_power_w
        assert (executed * table.energy_j).sum() + waited == pytest.approx(
            result.energy_j[first:, rank].sum(), rel=1e-12
        )
        power = table.energy_j[:, -1] / table.duration_s[:, -1]
        assert power.max() <= 400.0 * (1 + 1e-12)


def load_like_example(limit: float) -> Plan:
    return plan(power={"power_limit_w": limit})


def broken(change: Callable[[Iteration], Iteration]) -> None:
    chosen = plan()
    prepared = prepare(chosen, gpu_model(load_gpu("h200-sxm-rows")))
    result, first = simulate(prepared)
    check_iteration(change(forecast(chosen)), result, first, prepared.wait_power_w)


def first_rank(**values: Any) -> Callable[[Iteration], Iteration]:
    return lambda whole: replace(whole, ranks=(replace(whole.ranks[0], **values), *whole.ranks[1:]))


def test_guards_accept_a_sound_forecast_and_name_the_stage_of_a_broken_one() -> None:
    broken(lambda whole: whole)
    with pytest.raises(GuardError, match="all stages: energy"):
        broken(lambda whole: replace(whole, energy_j=whole.energy_j * (1 + 1e-8)))
    with pytest.raises(GuardError, match="stage 0: energy by component"):
        broken(first_rank(energy_by_component_j={"static": 1.0}))
    with pytest.raises(GuardError, match="stage 0: energy by instruction"):
        broken(first_rank(energy_by_instruction_j={"forward": 1.0}))
    with pytest.raises(GuardError, match="stage 0: parts of"):
        broken(first_rank(waiting_s=1.0))


def test_a_breach_is_reported_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def breach(*args: Any) -> None:
        raise GuardError("stage 0: a law does not hold")

    monkeypatch.setattr("joulecast.simulator.forecast.check_iteration", breach)
    with pytest.raises(GuardError, match="please report it with this plan: Plan") as found:
        forecast(plan())
    assert found.value.plan == plan()
    assert found.value.message == "stage 0: a law does not hold"
    assert repr(plan().workload) in str(found.value)


def test_guards_compare_with_the_power_over_the_ticks() -> None:
    prepared = prepare(plan(), gpu_model(load_gpu("h200-sxm-rows")))
    result, first = simulate(prepared)
    power = result.power_w.copy()
    power[3, 1] *= 1.001
    with pytest.raises(GuardError, match="stage 1: power over time"):
        check_iteration(forecast(plan()), replace(result, power_w=power), first, prepared.wait_power_w)


def test_guards_cost_less_than_a_millisecond(examples: Any, calls_of: Callable[[Callable[[], object]], int]) -> None:
    chosen = load_plan(examples / "gpt3-175b-64xa100.toml")
    prepared = prepare(chosen, gpu_model(gpu_of(chosen)))
    result, first = simulate(prepared)
    whole, waits = forecast(chosen), prepared.wait_power_w
    guarding = calls_of(lambda: check_iteration(whole, result, first, waits))
    assert guarding < 550
    assert guarding < 0.01 * calls_of(lambda: simulate(prepared))


# Overlap

GEMM = Launch(Gemm(8, 8, 8))


def reduce(waits: bool = False, ctas: int | None = None) -> Launch:
    return Launch(Collective("all_reduce", 8.0, 2, ctas=ctas), "communication", waits=waits)


def beside(times: object) -> Alone:
    """Kernels bound by the SMs alone, collectives by their blocks' copying."""
    time = np.asarray(times, dtype=np.float64)
    nothing = np.zeros_like(time)
    return Alone(time, nothing, time, nothing, nothing, nothing, nothing)


def drags(gpu: GpuModel, ctas: float | None = None) -> tuple[float, float]:
    """What a product loses to a collective of so many blocks, and the collective to the product."""
    lost = (ctas or gpu["collective.default_ctas"]) / gpu.sm_count
    return (1 - lost) ** -gpu["contention.compute_slowdown"], gpu["contention.cta_slowdown"]


def test_only_what_runs_beside_the_other_is_slowed(gpu: GpuModel) -> None:
    drag, slow = drags(gpu)
    launches = [GEMM, reduce(), GEMM, GEMM]
    taken = contended(launches, beside([[1.0], [100.0], [2.0], [1.0]]), gpu)[:, 0]
    assert taken[0] == 1.0
    assert taken[2] == 2.0  # it had filled the SMs before the collective's blocks came
    assert taken[3] == pytest.approx(drag)
    assert taken[1] == pytest.approx(2.0 + drag + 100 - drag / slow)
    taken = contended(launches, beside([[1.0], [1.0], [2.0], [100.0]]), gpu)[:, 0]
    assert taken[1] == pytest.approx(2.0 + slow)
    assert taken[3] == pytest.approx(slow + 100 - slow / drag)


def test_a_collective_issued_before_one_long_product_gains_nothing(gpu: GpuModel) -> None:
    launches = [reduce(), GEMM]
    total, _ = follow(launches, contended(launches, beside([[3.0], [5.0]]), gpu))
    assert total[0] == pytest.approx(8.0)


def test_memory_bound_kernels_slow_the_copying_of_blocks_but_not_the_link(gpu: GpuModel) -> None:
    times = np.array([[1.0], [100.0], [1.0], [1.0]])
    nothing, launches = np.zeros_like(times), [GEMM, reduce(), GEMM, GEMM]
    bound = np.array([[0.0], [0.0], [1.0], [1.0]])
    copying = contended(launches, Alone(times, nothing, times - bound, bound, nothing, nothing, nothing), gpu)[:, 0]
    on_link = np.array([[0.0], [100.0], [0.0], [0.0]])
    linked = contended(launches, Alone(times, nothing, times - bound - on_link, bound, on_link, nothing, nothing), gpu)[
        :, 0
    ]
    assert copying[3] == linked[3] == 1.0
    assert copying[1] == pytest.approx(101.0 + 1.0 - 1.0 / gpu["contention.cta_slowdown_memory"])
    assert linked[1] == pytest.approx(101.0)


def test_fewer_thread_blocks_slow_compute_less(gpu: GpuModel) -> None:
    times = beside([[1.0], [100.0], [1.0], [1.0]])
    few, many = (contended([GEMM, reduce(ctas=n), GEMM, GEMM], times, gpu)[3, 0] for n in (2, 32))
    assert 1.0 < few < many


def test_alone_both_streams_take_their_own_time(gpu: GpuModel) -> None:
    launches = [GEMM, reduce(waits=True), GEMM, reduce()]
    times = np.array([[3.0, 1.0], [5.0, 1.0], [7.0, 1.0], [11.0, 1.0]])
    taken = contended(launches, beside(times), gpu)
    np.testing.assert_allclose(taken, times)
    total, exposed = follow(launches, taken)
    np.testing.assert_allclose(total, [26.0, 4.0])
    np.testing.assert_allclose(exposed, [16.0, 2.0])


def test_several_collectives_in_flight_share_the_stream(gpu: GpuModel) -> None:
    launches = [GEMM, reduce(), reduce(), GEMM, replace(GEMM, waits=True, outstanding=1), replace(GEMM, waits=True)]
    times = beside([[1.0], [4.0], [4.0], [1.0], [1.0], [1.0]])
    total, _ = follow(launches, contended(launches, times, gpu))
    drag, slow = drags(gpu)
    # The first product runs alone, the second hides one of both collectives' last parts, the third runs alone again.
    assert total[0] == pytest.approx(1.0 + 1.0 + 8.0 + drag * (1 - 1 / slow) + 1.0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])
@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_every_gradient_is_in_one_bucket(schedule: str, framework: str) -> None:
    chosen = plan(
        cluster={"gpus": 8},
        schedule={"name": schedule},
        parallelism={"virtual_pipeline_model_parallel_size": 2 if "inter" in schedule else 1},
        overlap={"grad_reduce": "overlapped"},
        implementation={"framework": framework},
    )
    size = 4 if framework == "megatron" else 2
    for rank, program in enumerate(plan_program(chosen).ranks):
        reduced = sum(
            launch.operator.bytes
            for kind in program.order
            for launch in program.types[kind]
            if isinstance(launch.operator, Collective) and launch.operator.name.startswith("bucket")
        )
        reduced += sum(item.operator.bytes * item.buckets for item in program.behind)
        assert reduced == pytest.approx(size * sum(p.elements for p in stage_parameters(chosen, rank)))


def test_communication_across_nodes_is_communication() -> None:
    near = plan(cluster={"gpus": 8}, parallelism={"tensor_model_parallel_size": 2})
    far = plan(cluster={"gpus": 8, "gpus_per_node": 2}, parallelism={"tensor_model_parallel_size": 2})
    a, b = forecast(near), forecast(far)
    assert b.ranks[0].exposed_communication_s > 1.5 * a.ranks[0].exposed_communication_s
    assert b.ranks[0].compute_s == pytest.approx(a.ranks[0].compute_s, rel=0.02)


# Odd plans


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("layers", [[0, 8, 8, 0], [8, 0, 0, 8]])
def test_stages_without_layers(schedule: str, layers: list[int]) -> None:
    split = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4, "stage_layers": layers}
    whole = forecast(plan(schedule={"name": schedule}, parallelism=split))
    assert np.isfinite(whole.energy_j)


@pytest.mark.parametrize("schedule", ["none", "1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])
def test_one_stage_takes_the_same_time_with_every_schedule(schedule: str) -> None:
    split = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
    found, loop = (
        forecast(plan(cluster={"gpus": 2}, schedule={"name": name}, parallelism=split, power={"clock_mhz": 1200}))
        for name in (schedule, "none")
    )
    assert found.time_s == pytest.approx(loop.time_s, rel=1e-9)
    assert found.ranks[0].waiting_s == pytest.approx(0.0, abs=1e-9)


def test_a_tiny_iteration() -> None:
    tiny = plan(
        workload={"layers": 1, "sequence_length": 128, "global_batch_size": 1},
        cluster={"gpus": 1},
        parallelism={"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1},
    )
    assert 1e-4 < forecast(tiny).time_s < 1e-2


def test_a_long_iteration_takes_a_bounded_number_of_ticks(examples: Any) -> None:
    chosen = load_plan(examples / "gpt3-175b-64xa100.toml", ["workload.global_batch_size=1024"])
    result, _ = simulate(prepare(chosen, gpu_model(load_gpu(chosen.cluster.gpu))))
    assert len(result.power_w) < 3 * prepared_module.MOST_TICKS
    short = load_plan(examples / "gpt3-175b-64xa100.toml", ["workload.global_batch_size=128"])
    assert forecast(chosen).time_s == pytest.approx(8 * forecast(short).time_s, rel=0.08)


def test_more_simulated_iterations_find_the_same(monkeypatch: pytest.MonkeyPatch, examples: Any) -> None:
    usual = forecast(load_plan(examples / "llama-3.1-8b-4xh200.toml"))
    for name, value in (("WARM_UP_S", 10.0), ("WINDOW_S", 10.0), ("MOST_ITERATIONS", 60)):
        monkeypatch.setattr(prepared_module, name, value)
    longer = forecast(load_plan(examples / "llama-3.1-8b-4xh200.toml"))
    assert usual.time_s == pytest.approx(longer.time_s, rel=2e-3)
    assert usual.energy_j == pytest.approx(longer.energy_j, rel=2e-3)


# Options of the gradient reduction


def reductions(chosen: Plan) -> list[float]:
    program = plan_program(chosen).ranks[0]
    found = []
    for kind in program.order:
        for launch in program.types[kind]:
            operator = launch.operator
            if isinstance(operator, Collective) and operator.gpus == chosen.dp and "all_reduce" in operator.name:
                found += [operator.bytes] * launch.repeat
    for item in program.behind:
        found += [item.operator.bytes] * item.buckets
    return found


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("when", ["after", "overlapped"])
def test_the_plan_decides_on_buckets(framework: str, when: str) -> None:
    def chosen(**overlap: Any) -> list[float]:
        return reductions(
            plan(
                cluster={"gpus": 4},
                parallelism={"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1},
                overlap={"grad_reduce": when, **overlap},
                implementation={"framework": framework},
            )
        )

    usual, small, one = chosen(), chosen(grad_bucket_mb=8.0), chosen(grad_bucket_mb=1e6)
    assert sum(usual) == pytest.approx(sum(small)) == pytest.approx(sum(one))
    assert len(one) == (2 if (when, framework) == ("overlapped", "pytorch-eager") else 1)
    assert len(one) < len(small)
    if when == "overlapped":
        assert len(usual) < len(small)


def test_thread_blocks_hold_for_gradients_too() -> None:
    split = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    few, many = (forecast(plan(parallelism=split, overlap={"comm_ctas": ctas})) for ctas in (1, 16))
    assert few.ranks[0].exposed_communication_s > 3 * many.ranks[0].exposed_communication_s


@pytest.mark.parametrize(
    "option", [{"gradient_precision": "fp32"}, {"optimizer_precision": "fp32"}, {"main_parameters": True}]
)
def test_options_without_effect_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(NotYetError, match=next(iter(option))):
        plan(implementation=option)


def test_a_measured_row_is_forecast_even_where_its_memory_seems_too_large() -> None:
    plan = plan_from_dict(
        {
            "workload": {
                "model": "llama-3.1-70b",
                "sequence_length": 4096,
                "micro_batch_size": 1,
                "global_batch_size": 2,
            },
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"tensor_model_parallel_size": 2},
        }
    )
    with pytest.raises(DoesNotFitError):
        forecast(plan)
    assert forecast(plan, must_fit=False).ranks[0].memory_bytes > 150e9
