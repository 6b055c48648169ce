"""Plans whose adapters alone are trained."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

from joulecast.errors import InputError, NotYetError
from joulecast.model.framework.lora import Lora
from joulecast.model.memory.footprint import MemoryFootprint
from joulecast.plan.comparison.compare import differing_keys
from joulecast.plan.sweep.plan_text import plan_text
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

TABLES: dict[str, Any] = {
    "workload": {"model": "llama-3.2-1b", "layers": 4, "sequence_length": 1024, "global_batch_size": 4},
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
    "implementation": {"modules": "transformers"},
}
NF4 = {"base_precision": "nf4"}
PREPARED = {**NF4, "prepared": True}
ALL = {"target_modules": "all-linear"}


def plan(lora: dict[str, Any] | None, **tables: Any) -> Plan:
    found = merged(TABLES, tables)
    if lora is not None:
        found["workload"]["lora"] = lora
    return plan_from_dict(found)


def test_adapters_are_read_with_pefts_names_and_defaults() -> None:
    assert plan({}).workload.lora == Lora(8, ("query", "value"), 0.0, "fp32")
    read = plan({"rank": 16, "target_modules": ["up_proj", "o_proj"], "dropout": 0.1, "precision": "bf16"})
    assert read.workload.lora == implementation_of(read).lora == Lora(16, ("output", "up"), 0.1, "bf16")
    every = plan(ALL).workload.lora
    assert every is not None and every.targets == ("query", "key", "value", "output", "gate", "up", "down")
    joint = plan({"target_modules": ["qkv_proj", "gate_up_proj"]}, workload={"model": "phi-3-mini"}).workload.lora
    assert joint is not None and joint.targets == ("qkv", "up")
    neox = plan({"target_modules": ["query_key_value", "dense_4h_to_h"]}, workload={"model": "pythia-6.9b"})
    assert neox.workload.lora is not None and neox.workload.lora.targets == ("qkv", "down")
    run = read.implementation
    assert (run.parameter_precision, run.gradient_precision, run.optimizer_precision) == ("bf16", "bf16", "bf16")
    assert plan({}).implementation.optimizer_precision == "fp32"


@pytest.mark.parametrize(
    ("lora", "tables", "key", "words"),
    [
        ({"target_modules": ["q_proj", "c_attn"]}, {}, "workload.lora.target_modules", "all-linear"),
        ({"target_modules": []}, {}, "workload.lora.target_modules", "no linear layer"),
        ({"target_modules": 3}, {}, "workload.lora.target_modules", "3"),
        ({"r": 8}, {}, "workload.lora.r", "rank"),
        ({"rank": 0}, {}, "workload.lora.rank", "above 0"),
        ({"precision": "fp16"}, {}, "workload.lora.precision", "bf16"),
        ({"precision": "bf16"}, {"implementation": {"parameter_precision": "fp32"}}, "workload.lora.precision", "fp32"),
        ({}, {"implementation": {"main_parameters": True}}, "workload.lora.precision", "bf16"),
        ({"double_quantisation": True}, {}, "workload.lora.double_quantisation", "nf4"),
        ({"prepared": True}, {}, "workload.lora.prepared", "nf4"),
        (PREPARED, {"implementation": {"attention_backend": "unfused"}}, "workload.lora.prepared", '"cudnn"'),
        (PREPARED, {"workload": {"model": "command-r7b"}}, "workload.lora.prepared", "another model"),
        (NF4, {"implementation": {"parameter_precision": "fp32"}}, "workload.lora.base_precision", "Leave"),
        (NF4, {"parallelism": {"fsdp": True}, "cluster": {"gpus": 2}}, "workload.lora.base_precision", "fsdp = false"),
        (NF4, {"implementation": {"modules": "torchtitan"}}, "workload.lora.base_precision", '"transformers"'),
    ],
)
def test_what_is_wrong_is_one_message(lora: dict[str, Any], tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        plan(lora, **tables)
    assert raised.value.key == key
    assert words in str(raised.value)


TWO = {"cluster": {"gpus": 2}}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"implementation": {"framework": "megatron", "modules": "joint"}}, "pytorch-eager"),
        ({"implementation": {"modules": "joint"}}, 'modules = "transformers"'),
        ({"implementation": {"compile": True}}, "compile = false"),
        ({"workload": {"model": "qwen3-30b-a3b"}}, "dense model"),
        ({"workload": {"model": "gpt2"}}, "gpt2"),
        ({"schedule": {"recompute": "selective"}, "implementation": {"attention_backend": "unfused"}}, "full"),
        ({"parallelism": {"tensor_model_parallel_size": 2}, **TWO}, "split the batch"),
        ({"parallelism": {"pipeline_model_parallel_size": 2}, **TWO}, "split the batch"),
    ],
)
def test_what_adapters_are_not_known_with_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(NotYetError) as raised:
        plan({**ALL}, **tables)
    assert raised.value.key == "workload.lora"
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("modules", "recompute", "without"),
    [("transformers", "none", 1), ("transformers", "full", 0), ("torchtitan", "none", 1), ("torchtitan", "full", 1)],
)
def test_the_first_layers_input_takes_a_gradient_for_transformers_checkpoints_alone(
    modules: str, recompute: str, without: int
) -> None:
    read = plan({"target_modules": ["q_proj"]}, implementation={"modules": modules}, schedule={"recompute": recompute})
    names = [launch.operator.name for launch in plan_program(read).ranks[0].types[1]]
    layers = TABLES["workload"]["layers"]
    assert names.count("down.dgrad") == layers
    for name in ("query.dgrad", "key.dgrad"):
        assert names.count(name) == layers - without
    rotated = [name for name in names if name.startswith("rotary.") and ".key." in name and ".grad" in name]
    assert {names.count(name) for name in rotated} == {layers - without}


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"schedule": {"recompute": "full"}},
        {"implementation": {"parameter_precision": "fp32"}},
        {"implementation": {"host_launch_us": 30.0}},
        {**TWO, "overlap": {"grad_reduce": "overlapped"}},
        {**TWO, "parallelism": {"distributed_optimizer": True}},
        {**TWO, "parallelism": {"fsdp": True}},
        {"workload": {"lora": {**NF4, **ALL, "double_quantisation": True}}, "schedule": {"recompute": "full"}},
        {"workload": {"lora": {**PREPARED, **ALL, "dropout": 0.1}}},
        {"workload": {"lora": PREPARED, "model": "gemma-2-2b"}, "schedule": {"recompute": "full"}},
        {"implementation": {"modules": "torchtitan"}, "schedule": {"recompute": "full"}},
        {"workload": {"layers": 12, "model": "gemma-2-2b"}},
    ],
    ids=str,
)
def test_sweeps_agree_with_simulation(tables: dict[str, Any]) -> None:
    lora = tables.get("workload", {}).get("lora", {"rank": 32, **ALL, "dropout": 0.05})
    one = plan(lora, **tables)
    ways_agree(one, time=5e-3, energy=5e-3)


def test_training_adapters_takes_less_than_training_all() -> None:
    all_of_it, adapters = forecast(plan(None)), forecast(plan({}))
    assert 0.6 * all_of_it.time_s < adapters.time_s < 0.85 * all_of_it.time_s
    assert adapters.energy_j < 0.85 * all_of_it.energy_j
    assert 0.5 * all_of_it.ranks[0].memory_bytes > adapters.ranks[0].memory_bytes
    assert adapters.model_flops_per_s < all_of_it.model_flops_per_s
    said = "212,992 of 506,169,344 parameters are trained, in fp32, which torch.autocast casts to bf16"
    assert any(said in one for one in adapters.assumptions)
    said = "were cast to fp32 by prepare_model_for_kbit_training"
    assert [any(said in one for one in forecast(plan(lora)).assumptions) for lora in (NF4, PREPARED)] == [False, True]


@pytest.mark.parametrize(
    "other",
    [{"rank": 64}, {"target_modules": ["q_proj"]}, {"dropout": 0.1}, {"precision": "bf16"}, NF4],
    ids=str,
)
def test_no_key_of_adapters_is_ignored_in_silence(other: dict[str, Any]) -> None:
    one, changed = (forecast(plan(lora)) for lora in ({}, other))
    assert one.time_s != changed.time_s
    assert one.ranks[0].memory_bytes != changed.ranks[0].memory_bytes


def test_a_space_offers_adapters_as_tables() -> None:
    tables = {name: dict(table) for name, table in TABLES.items()}
    tables["workload"]["lora"] = [{"rank": 8}, {"rank": 64, **ALL}]
    space = space_from_dict(tables)
    (offered,) = [values for key, values in space.axes if key == "workload.lora"]
    assert offered is not None
    read = [Plans(space).plan({"workload.lora": one}) for one in offered]
    assert [one.workload.lora and one.workload.lora.rank for one in read] == [8, 64]
    written = plan_text(space, {"plan": 1, "workload.lora": offered[1]})
    assert plan_from_dict(tomllib.loads(written)) == read[1]


def test_weights_in_4_bits_are_written_out_before_each_product() -> None:
    plain, small, double = (plan({"rank": 4, **how}) for how in ({}, NF4, NF4 | {"double_quantisation": True}))
    layers, model = TABLES["workload"]["layers"], plain.workload.model
    linear = model.layer_parameters() - 2 * model.hidden
    forward, backward = plan_program(small).ranks[0].types[:2]
    written = [one.operator for one in (*forward, *backward) if one.operator.name.endswith(".nf4")]
    # The first layer's input takes no gradient: neither its queries' and values' products backward, nor its keys'.
    assert len(written) == 7 * layers + 7 * (layers - 1) + 4
    assert sum(one.bytes_written for one in written[: 7 * layers]) == 2.0 * layers * linear  # type: ignore[union-attr]
    kept = [memory_of(one).parameters for one in (plain, small, double)]
    assert kept[0] - kept[1] == pytest.approx(layers * linear * (2 - 0.5 - 4 / 64))
    assert kept[0] - kept[2] == pytest.approx(layers * linear * (2 - 0.5 - 1 / 64 - 4 / 64 / 256))
    names = [one.operator.name for one in plan_program(double).ranks[0].types[0]]
    assert names.count("up.weight.absmax") == names.count("up.weight.offset") == layers
    assert "query.lora.widen" not in names and names.count("query.lora.clone") == layers


def test_a_prepared_model_keeps_in_fp32_what_is_not_in_4_bits() -> None:
    narrow, wide = (memory_of(plan({**ALL, **how}, schedule={"recompute": "full"})) for how in (NF4, PREPARED))
    model, tokens = plan({}).workload.model, TABLES["workload"]["sequence_length"]
    outside = model.vocab * model.hidden + (2 * model.layers + 1) * model.hidden
    assert wide.parameters - narrow.parameters == 2 * outside
    # Checkpoints, and a copy of the head's weight that autocast rounded.
    kept = 2 * (model.layers * tokens * model.hidden + model.vocab * model.hidden)
    assert wide.activations - narrow.activations == kept
    whole = [memory_of(plan({**ALL, **how})).activations for how in (NF4, PREPARED)]
    # Gate, its activation and up are wide; each adapter but attention's output has its own rounded input.
    layer = 2 * 3 * model.ffn + 2 * 3 * model.hidden
    assert whole[1] - whole[0] == model.layers * tokens * layer + 2 * model.vocab * model.hidden


def test_what_a_prepared_model_casts() -> None:
    """Around linear layers with and without an adapter, and nothing of what the first layer's input has no use for."""
    read = plan({**PREPARED, "target_modules": ["q_proj"]})
    forward, backward = ([one.operator.name for one in of] for of in plan_program(read).ranks[0].types[:2])
    layers = TABLES["workload"]["layers"]
    for name in ("query", "key", "value", "gate", "up", "down"):
        assert forward.count(f"{name}.round") == forward.count(f"{name}.result.widen") == layers
        last = layers - (name in ("query", "key", "value"))
        assert backward.count(f"{name}.dgrad.round") == backward.count(f"{name}.dgrad.widen") == last
    assert forward.count("query.lora.round") == backward.count("query.lora.result.grad.round") == layers
    assert "output.round" not in forward and forward.count("attention.value.round") == layers


def memory_of(one: Plan) -> MemoryFootprint:
    return footprint_of(one, 0)


def test_replicas_sum_the_adapters_gradients_alone() -> None:
    tail = plan_program(plan({}, **TWO)).ranks[0].types[-1]
    sent = sum(one.operator.bytes for one in tail if one.stream == "communication")  # type: ignore[union-attr]
    assert sent == 4 * 4 * 8 * (2048 + 2048 + 2048 + 512)


def test_fsdp_gathers_all_parameters_and_reduces_the_adapters_gradients() -> None:
    sharded = plan({}, parallelism={"fsdp": True}, **TWO)
    forward, backward = plan_program(sharded).ranks[0].types[:2]
    moved = dict[str, float]()
    for one in backward:
        if one.stream == "communication":
            kind = one.operator.name.rpartition(".")[2]
            moved[kind] = moved.get(kind, 0.0) + one.operator.bytes / one.share  # type: ignore[union-attr]
    model = sharded.workload.model
    adapters = 8 * (2048 + 2048 + 2048 + 512)
    assert moved["reduce_scatter"] == pytest.approx(4 * model.layers * adapters)
    assert moved["all_gather"] == pytest.approx(2 * model.layers * (model.layer_parameters() + adapters))
    assert not any(".lora" in one.operator.name and one.operator.name.endswith(".round") for one in forward)


def test_plans_are_compared_by_the_keys_of_their_files() -> None:
    one, other = plan({}), plan({"rank": 64, "target_modules": ["o_proj"], "precision": "bf16"})
    found = differing_keys([one, other])
    assert found["workload.lora.target_modules"] == (["q_proj", "v_proj"], ["o_proj"])
    assert found["workload.lora.precision"] == ("fp32", "bf16")
    assert found["workload.lora.rank"] == (8, 64)
    assert "workload.lora" not in differing_keys([one, plan(None)])
