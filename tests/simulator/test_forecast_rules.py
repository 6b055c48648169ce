"""What a forecast obeys: clocks by stage and instruction, limits, gradients, odd plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from plan_tables import changed, merged

from joulecast.errors import DoesNotFitError, InputError, NotYetError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Collective
from joulecast.model.training.factors import Generation
from joulecast.simulator.fluid import steady_state
from joulecast.simulator.fluid.governor import PowerGovernor
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.fluid.simulation import FixedClock
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict
from joulecast.simulator.traces.kernel_timeline import kernel_timeline


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm-rows"))


def plan(**tables: dict[str, Any]) -> Plan:
    usual: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 16},
        "cluster": {"gpu": "h200-sxm-rows", "gpus": 4},
        "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    }
    return plan_from_dict(merged(usual, tables))


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
    index, governors, _, _ = steady_state._start(prepared)
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
    steady = steady_state.simulate(prepared)
    for rank, table in enumerate(prepared.tables):
        waited = steady.waited_s(rank) @ prepared.wait_power_w
        assert (steady.executed(rank) * table.energy_j).sum() + waited == pytest.approx(
            steady.iterations * steady.energy_j()[rank], rel=1e-12
        )
        power = table.energy_j[:, -1] / table.duration_s[:, -1]
        assert power.max() <= 400.0 * (1 + 1e-12)


def load_like_example(limit: float) -> Plan:
    return plan(power={"power_limit_w": limit})


# Gradients


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
        reduced += sum(item.operator.bytes * item.buckets for item in program.overlapped)
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
    steady = steady_state.simulate(prepare(chosen, gpu_model(load_gpu(chosen.cluster.gpu))))
    assert len(steady.result.power_w) < 3 * steady_state.MOST_TICKS
    short = load_plan(examples / "gpt3-175b-64xa100.toml", ["workload.global_batch_size=128"])
    assert forecast(chosen).time_s == pytest.approx(8 * forecast(short).time_s, rel=0.08)


def test_more_simulated_iterations_find_the_same(monkeypatch: pytest.MonkeyPatch, examples: Any) -> None:
    usual = forecast(load_plan(examples / "llama-3.1-8b-4xh200.toml"))
    for name, value in (("WARM_UP_S", 10.0), ("WINDOW_S", 10.0), ("MOST_ITERATIONS", 60)):
        monkeypatch.setattr(steady_state, name, value)
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
    for item in program.overlapped:
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


@pytest.mark.parametrize("option", [{"gradient_precision": "fp32"}, {"optimizer_precision": "fp32"}])
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


def _too_large(**changes: Any) -> str:
    plan: dict[str, Any] = {
        "workload": {"model": "llama-3.1-70b", "sequence_length": 8192, "micro_batch_size": 1, "global_batch_size": 8},
        "cluster": {"gpu": "a100-sxm-40gb", "gpus": 8},
    }
    with pytest.raises(DoesNotFitError) as caught:
        forecast(plan_from_dict(changed(plan, changes)))
    return str(caught.value.remedy)


def test_a_plan_that_does_not_fit_names_only_what_it_can_still_change() -> None:
    plain = _too_large()
    assert "distributed_optimizer or fsdp" in plain and 'recompute = "full"' in plain
    sharded = _too_large(parallelism__fsdp=True, schedule__recompute="full")
    assert sharded == (
        "Raise tensor_model_parallel_size, pipeline_model_parallel_size or context_parallel_size or split states over "
        "more GPUs."
    )
    experts = _too_large(workload__model="mixtral-8x22b", parallelism__distributed_optimizer=True)
    assert "expert_model_parallel_size" in experts and "split states with fsdp" in experts
    assert "micro_batch_size" in _too_large(workload__micro_batch_size=2, workload__global_batch_size=16)


@pytest.mark.parametrize(
    ("sequence_length", "recompute", "modules"),
    [
        (8192, "selective", ["mlp"]),
        (12288, "full", None),
    ],
)
def test_the_least_recomputation_that_suffices_is_named(
    sequence_length: int, recompute: str, modules: list[str] | None
) -> None:
    plan: dict[str, Any] = {
        "workload__model": "llama-3.1-8b",
        "workload__sequence_length": sequence_length,
        "workload__global_batch_size": 16,
        "cluster__gpus": 16,
        "parallelism__distributed_optimizer": True,
        "parallelism__tensor_model_parallel_size": 2,
        "parallelism__sequence_parallel": True,
        "implementation__framework": "megatron",
    }
    with_modules = f" with recompute_modules = {json.dumps(modules)}" if modules else ""
    told = f'Set schedule.recompute = "{recompute}"{with_modules}, which suffices, or raise tensor_model'
    assert _too_large(**plan).startswith(told)
    enough: dict[str, Any] = {"workload": {"micro_batch_size": 1}, "cluster": {"gpu": "a100-sxm-40gb"}}
    followed: dict[str, Any] = {"schedule__recompute": recompute}
    followed |= {"schedule__recompute_modules": modules} if modules else {}
    assert forecast(plan_from_dict(changed(enough, {**plan, **followed}))).time_s > 0


def test_what_is_computed_again_beside_it_stays() -> None:
    plan: dict[str, Any] = {
        "workload__model": "mixtral-8x7b",
        "workload__layers": 12,
        "workload__global_batch_size": 16,
        "cluster__gpus": 16,
        "parallelism__expert_model_parallel_size": 8,
        "parallelism__distributed_optimizer": True,
        "implementation__framework": "megatron",
        "schedule__recompute": "selective",
        "schedule__recompute_modules": ["moe_act"],
    }
    assert 'with recompute_modules = ["layernorm", "moe"]' in _too_large(**plan)


@pytest.mark.parametrize(
    ("model", "backend", "modules", "idle"),
    [
        ("llama-3.1-8b", "cudnn", ["core_attn", "layernorm", "mlp"], {"core_attn", "layernorm"}),
        ("llama-3.1-8b", "unfused", ["core_attn"], set()),
        ("mixtral-8x7b", "cudnn", ["layernorm", "moe_act", "mlp", "shared_experts"], {"mlp", "shared_experts"}),
        ("deepseek-v3", "cudnn", ["mla_up_proj", "layernorm", "moe_act", "shared_experts", "mlp"], set()),
    ],
)
def test_what_is_computed_again_for_nothing_is_said(
    model: str, backend: str, modules: list[str], idle: set[str]
) -> None:
    plan = {
        "workload": {"model": model, "layers": 5, "sequence_length": 512, "global_batch_size": 1},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "schedule": {"recompute": "selective", "recompute_modules": modules},
        "implementation": {"framework": "megatron", "attention_backend": backend},
    }
    said = [
        one for one in forecast(plan_from_dict(plan), must_fit=False).assumptions if "again takes no less memory" in one
    ]
    assert {one.split()[1] for one in said} == idle


def test_sequences_beyond_what_a_model_is_made_for_are_said(tmp_path: Path) -> None:
    small = {
        "model_type": "mistral",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "vocab_size": 512,
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
        "sliding_window": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(small))

    def said(tokens: int) -> str:
        plan = {"workload": {"model": str(tmp_path), "sequence_length": tokens, "global_batch_size": 1},
                "cluster": {"gpu": "h200-sxm", "gpus": 1}}  # fmt: skip
        return " ".join(forecast(plan_from_dict(plan)).assumptions)

    assert "longer than the 2048" in said(4096) and "window of 1024 tokens skips blocks" in said(4096)
    assert "longer than" not in said(2048) and "window of 1024" in said(2048)
    assert "window" not in said(1024)


def test_a_generation_without_its_framework_is_refused_by_the_key_that_is_wrong() -> None:
    """Not by one that follows from it, which the plan does not have."""
    workload = {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 8}
    for generation in get_args(Generation):
        run = {"framework": "pytorch-eager", "generation": generation}
        plan = {"workload": workload, "cluster": {"gpu": "h200-sxm", "gpus": 8}, "implementation": run}
        with pytest.raises(InputError, match=r"\[implementation\.generation\]: these are generations of Megatron"):
            plan_from_dict(plan)


def test_a_generation_of_another_vendors_framework_is_said() -> None:
    def said(gpu: str, generation: str) -> str:
        workload = {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 8}
        run = {"framework": "megatron", "generation": generation}
        plan = {"workload": workload, "cluster": {"gpu": gpu, "gpus": 8}, "implementation": run}
        return " ".join(forecast(plan_from_dict(plan)).assumptions)

    for generation in ("nemo-2024", "megatron-bridge-2025"):
        assert f"{generation} is NVIDIA's: what AMD has in its place" in said("mi300x", generation)
        assert "is NVIDIA's" not in said("h200-sxm", generation)
    assert "is NVIDIA's" not in said("mi300x", "megatron-core")


def test_a_limit_that_no_clock_holds_is_said() -> None:
    def iteration(limit_w: float) -> Any:
        workload = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 4}
        split = {"tensor_model_parallel_size": 4}
        cluster = {"gpu": "gb200", "gpus": 4}
        power = {"power_limit_w": limit_w}
        return forecast(
            plan_from_dict({"workload": workload, "cluster": cluster, "parallelism": split, "power": power})
        )

    low, held = iteration(200.0), iteration(400.0)
    words = (
        f"leaves a GPU 200 W, which no clock holds with this work: a GPU of stage 0 draws {low.ranks[0].power_w:.0f} W"
    )
    assert low.ranks[0].power_w > 202.0 and words in " ".join(low.assumptions)
    assert held.ranks[0].power_w < 404.0 and "no clock holds" not in " ".join(held.assumptions)
