"""Optimizers beside AdamW: what they launch, move and keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.lora import Lora
from joulecast.model.kernels.operators import Streaming
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.training.optimizer import optimizer_step, state_bytes
from joulecast.model.training.other_optimizers import RULES
from joulecast.model.training.parameters import ParameterTensor, parameters_of_stage, trained
from joulecast.simulator.instructions.eager_launches import looped_launches
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.loss_and_optimizer import optimizer_assumptions
from joulecast.simulator.plan_file.plan import plan_from_dict

CONFIG = ModelConfig("tiny", 512, 4, 8, 4, 64, 1024, 4096)
RUN = Implementation(modules="transformers", drops_gradients=True)
MATRIX, VECTOR = ParameterTensor("down.weight", 6144 * 2048, columns=2048), ParameterTensor("norm.weight", 2048)


def stepped(*parameters: ParameterTensor, **options: Any) -> tuple[Launch, ...]:
    return optimizer_step(parameters, replace(RUN, **options), zeroed=False)


def moved(launches: tuple[Launch, ...]) -> float:
    """Bytes that kernels read and write."""
    kernels = [(x.operator, x.repeat) for x in launches]
    return sum(n * (k.bytes_read + k.bytes_written) for k, n in kernels if isinstance(k, Streaming))


def kept(parameter: ParameterTensor, **options: Any) -> float:
    return state_bytes(parameter, replace(RUN, **options))


@pytest.mark.parametrize(
    ("optimizer", "moments", "bytes_each"),
    [("adamw-8bit", 2, 2 * (1 + 4 / 256)), ("lion-8bit", 1, 1 + 4 / 256), ("adamw-32bit", 2, 8), ("lion-32bit", 1, 4)],
)
def test_bitsandbytes_steps_each_parameter_by_a_kernel(optimizer: str, moments: int, bytes_each: float) -> None:
    launches = stepped(MATRIX, MATRIX, VECTOR, optimizer=optimizer)
    assert sum(one.repeat for one in launches) == 3
    assert kept(MATRIX, optimizer=optimizer) == bytes_each * MATRIX.elements
    assert kept(VECTOR, optimizer=optimizer) == 4 * moments * VECTOR.elements  # too small for 8 bits
    # gradient and parameter are read, the parameter written; moments both
    assert moved(launches[:1]) == pytest.approx(2 * MATRIX.elements * (6 + 2 * bytes_each))


def test_moments_in_8_bits_have_a_scale_for_each_block_that_is_begun() -> None:
    assert kept(ParameterTensor("w", 4097), optimizer="adamw-8bit") == 2 * (4097 + 17 * 4)
    assert kept(ParameterTensor("w", 4096), optimizer="adamw-8bit") == 2 * (4096 + 16 * 4)
    assert kept(ParameterTensor("w", 4095), optimizer="adamw-8bit") == 8 * 4095


def test_the_trainer_keeps_moments_of_embeddings_in_fp32() -> None:
    table = ParameterTensor("embedding.weight", 4096 * 512, columns=512)
    assert kept(table, optimizer="adamw-8bit", wide_embedding_states=True) == 8 * table.elements
    assert kept(MATRIX, optimizer="adamw-8bit", wide_embedding_states=True) < 3 * MATRIX.elements
    (wide,) = stepped(table, optimizer="adamw-8bit", wide_embedding_states=True)
    (plain,) = stepped(table, optimizer="adamw-8bit")
    assert moved((wide,)) > 2 * moved((plain,))
    trainer = {"modules": "transformers", "training_loop": "trainer", "optimizer": "adamw-8bit"}
    assert implementation_of(plan_from_dict(plan(**trainer))).wide_embedding_states
    assert not implementation_of(plan_from_dict(plan(optimizer="adamw-8bit"))).wide_embedding_states


def test_the_gpu_waits_for_the_host_behind_each_parameter() -> None:
    waits = [
        implementation_of(plan_from_dict(plan(optimizer="adamw-8bit", host_launch_us=us))).step_wait_s
        for us in (20.0, 40.0)
    ]
    assert waits[1] == pytest.approx(2 * waits[0]) and waits[0] > 10e-6
    assert implementation_of(plan_from_dict(plan(host_launch_us=40.0))).step_wait_s == 0.0
    for one in stepped(MATRIX, VECTOR, optimizer="adamw-8bit", step_wait_s=3e-5):
        assert isinstance(one.operator, Streaming) and one.operator.late_s == 3e-5


def test_what_the_gpu_waited_for_is_not_launched_once_more() -> None:
    """The host's time for bitsandbytes' launches is in the kernels' own time already."""
    assert looped_launches(stepped(MATRIX, VECTOR, optimizer="adamw-8bit")) == 0
    assert looped_launches(stepped(MATRIX, VECTOR, optimizer="adafactor")) > 5


def test_adafactors_loop_is_late_whether_or_not_the_hosts_pace_is_stated() -> None:
    """Ten thousand small operators take its host longer than the GPU; graphs replay them."""
    tables = plan(optimizer="adafactor", modules="transformers")
    tables["workload"]["lora"] = {"rank": 8, "target_modules": "all-linear"}
    found = {
        us: jc.predict(tables, overrides=[*({f"implementation.{us}"} if us else ())]).time_s
        for us in ("", "host_launch_us=38.0", "host_launch_us=0", "cuda_graphs=true")
    }
    assert found[""] > found["host_launch_us=0"] + 0.05
    assert found["host_launch_us=38.0"] >= found[""]
    assert found["cuda_graphs=true"] == pytest.approx(found["host_launch_us=0"], abs=0.002)


def test_what_is_taken_for_granted_is_said() -> None:
    trainer = {"modules": "transformers", "training_loop": "trainer"}
    said = [plan_from_dict(plan(optimizer=name, **trainer)) for name in ("adamw-8bit", "lion-32bit", "adafactor")]
    first, second, third = (optimizer_assumptions(one) for one in said)
    assert "at each parameter, 95 us" in first[0] and "embeddings are in fp32" in first[1]
    assert len(second) == 1 and third == ()


def test_adafactor_keeps_rows_and_columns() -> None:
    assert kept(MATRIX, optimizer="adafactor") == 4 * (6144 + 2048 + 1)
    assert kept(VECTOR, optimizer="adafactor") == 4 * (2048 + 1)
    experts = ParameterTensor("experts.up.weight", 8 * 1024 * 512, columns=512, tensors=8)
    assert kept(experts, optimizer="adafactor") == 4 * (8 * (1024 + 512) + 1)


def test_adafactor_runs_in_fp32() -> None:
    """102 bytes are moved for a value in bf16, and 84 in fp32, whose gradient and parameter need no copies."""
    for dtype, each in (("bf16", 102), ("fp32", 84)):
        launches = stepped(MATRIX, optimizer="adafactor", dtype=dtype)
        large = tuple(one for one in launches if not one.operator.name.endswith(".small"))
        assert moved(large) == pytest.approx(each * MATRIX.elements, rel=0.01)


@pytest.mark.parametrize(("optimizer", "bytes_each", "state"), [("sgd", 6, 0), ("sgd-momentum", 16, 2)])
def test_sgd_takes_all_parameters_at_once(optimizer: str, bytes_each: int, state: int) -> None:
    launches = stepped(MATRIX, VECTOR, optimizer=optimizer)
    total = MATRIX.elements + VECTOR.elements
    assert moved(launches) == pytest.approx(bytes_each * total)
    assert kept(MATRIX, optimizer=optimizer) == state * MATRIX.elements
    assert sum(one.repeat for one in launches) == (3 if state else 1)
    one_by_one = stepped(MATRIX, VECTOR, optimizer=optimizer, gathered=True)
    assert moved(one_by_one) == pytest.approx(moved(launches))
    assert sum(one.repeat for one in one_by_one) == 2 * (3 if state else 1)


@pytest.mark.parametrize("optimizer", RULES)
def test_memory_holds_the_states_of_every_parameter(optimizer: str) -> None:
    for run in (replace(RUN, optimizer=optimizer), replace(RUN, optimizer=optimizer, lora=Lora(16, ("query", "down")))):
        parameters = trained(parameters_of_stage(CONFIG, run, CONFIG.layers, first=True, last=True))
        held = memory_footprint(CONFIG, run, 1, 64, PipelineRank(layers=(CONFIG.layers,)))
        assert held.optimizer == pytest.approx(sum(state_bytes(p, run) for p in parameters))


def test_adafactors_temporary_results_are_the_peak_of_a_short_sequence() -> None:
    rank = PipelineRank(layers=(CONFIG.layers,))
    held = memory_footprint(CONFIG, replace(RUN, optimizer="adafactor"), 1, 16, rank)
    parameters = trained(parameters_of_stage(CONFIG, RUN, CONFIG.layers, first=True, last=True))
    total, largest = sum(p.elements for p in parameters), max(p.elements for p in parameters)
    states = 2 * 2 * total + held.optimizer  # parameters and all gradients
    assert held.allocated_bytes == pytest.approx(states + 16 * largest + held.workspace)
    sgd = memory_footprint(CONFIG, replace(RUN, optimizer="sgd"), 1, 16, rank)
    assert sgd.allocated_bytes < held.allocated_bytes - 10 * largest


def plan(framework: str = "pytorch-eager", parallelism: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 2},
        "cluster": {"gpu": "h200-sxm", "gpus": 2},
        "parallelism": parallelism or {},
        "implementation": {"framework": framework, **keys},
    }


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (plan("megatron", optimizer="adafactor"), r"implementation\.optimizer.*adafactor is known in pytorch-eager"),
        (plan(parallelism={"fsdp": True}, optimizer="adamw-8bit"), r"implementation\.optimizer.*shards of FSDP.*adamw"),
        (plan(parallelism={"distributed_optimizer": True}, optimizer="sgd"), r"optimizer.*not a rank's share"),
        (plan(parallelism={"tensor_model_parallel_size": 2}, optimizer="lion-8bit"), r"optimizer.*tensor_model_par"),
        (plan(main_parameters=True, optimizer="adamw-32bit"), r"main_parameters.*adamw-32bit"),
        (plan(optimizer="adamw-8bits"), r"implementation\.optimizer"),
        (plan("megatron", optimizer="adamw-for-loop"), r"implementation\.optimizer.*known in pytorch-eager"),
        (plan(optimizer_precision="bf16", optimizer="adamw-32bit"), r"optimizer_precision.*types of their own"),
    ],
)
def test_what_is_not_known_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        plan_from_dict(tables)
    assert "\n" not in str(caught.value)


def test_sgd_steps_the_shards_of_fsdp() -> None:
    assert plan_from_dict(plan(parallelism={"fsdp": True}, optimizer="sgd-momentum")).parallelism.fsdp
