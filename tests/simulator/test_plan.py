"""PLAN.toml: a checked plan from good input, and one readable error from bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paths import EXAMPLES
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict

EXAMPLE = EXAMPLES / "llama-3.1-8b-4xh200.toml"


def tables(**changes: Any) -> dict[str, Any]:
    """A small valid plan with ``table__key=value`` changes."""
    plan: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 4},
        "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    }
    return changed(plan, changes)


def message_of(plan: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        plan_from_dict(plan, file="plan.toml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("plan.toml")
    assert caught.value.remedy
    return str(caught.value)


def test_measured_example_is_the_measured_iteration() -> None:
    plan = load_plan(EXAMPLE)
    assert (plan.tp, plan.pp, plan.vp, plan.dp, plan.microbatches) == (2, 2, 1, 1, 8)
    assert plan.parallelism.stage_layers == (16, 16)
    assert not plan.workload.model.rotary
    assert not plan.implementation.shard_head
    assert plan.implementation.attention_backend == "cudnn"
    assert plan.power.clock_mhz(0, "forward") is None
    assert plan.overlap.grad_bucket_bytes == 0.0


@pytest.mark.parametrize(
    "path", sorted(set(EXAMPLES.glob("*.toml")) - set(EXAMPLES.glob("sweep-*.toml"))), ids=lambda p: p.stem
)
def test_every_example_loads(path: Path) -> None:
    plan = load_plan(path)
    assert plan.tp * plan.pp * plan.dp == plan.cluster.gpus


def test_plan_is_frozen_and_hashable() -> None:
    first, second = load_plan(EXAMPLE), load_plan(EXAMPLE)
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(AttributeError):
        first.file = "other"  # type: ignore[misc]


def test_order_of_keys_does_not_matter() -> None:
    plan = tables()
    turned = {k: dict(reversed(v.items())) for k, v in reversed(plan.items())}
    assert plan_from_dict(plan) == plan_from_dict(turned)


def test_overrides_win_and_need_no_quotes() -> None:
    plan = load_plan(EXAMPLE, ["workload.global_batch_size=16", "schedule.name=gpipe", "power.power_limit_w = 500"])
    assert (plan.microbatches, plan.schedule.name, plan.power.power_limit_w) == (16, "gpipe", 500.0)


def test_power_limits_by_stage() -> None:
    by_stage = plan_from_dict(tables(power__power_limit_w=[600, 450])).power
    assert [by_stage.limit_w(stage) for stage in (0, 1)] == [600.0, 450.0]
    equal = plan_from_dict(tables(power__power_limit_w=[600, 600])).power
    assert equal.power_limit_w == equal.limit_w(1) == 600.0
    assert plan_from_dict(tables()).power.limit_w(1) is None


def test_data_parallel_size_is_what_is_left() -> None:
    plan = plan_from_dict(tables(parallelism__pipeline_model_parallel_size=1))
    assert plan.dp == 2
    assert plan.microbatches == 4


def test_inline_model_of_a_gpt_block() -> None:
    model = {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
        "vocab_size": 50304,
        "num_hidden_layers": 8,
        "gated_mlp": False,
        "bias": True,
        "norm": "layernorm",
        "activation": "gelu",
        "rotary": False,
    }
    got = plan_from_dict(tables(workload__model=model)).workload.model
    assert (got.kv_heads, got.head_dim, got.layers, got.up_width) == (16, 128, 8, 8192)
    assert got.mlp_bias and got.qkv_bias and got.norm_bias and not got.rotary


CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 32000,
    "dtype": None,
}


def test_a_config_may_stand_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    inline = plan_from_dict(tables(workload__model=CONFIG)).workload.model
    file = plan_from_dict(tables(workload__model=str(tmp_path / "config.json"))).workload.model
    assert inline == replace(file, name="inline")


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"model_type": "qwen33"}, "workload.model.model_type", "not known"),
        ({"model_type": 3}, "workload.model.model_type", "3"),
        ({"num_key_value_heads": 3}, "workload.model.num_key_value_heads", "not divisible by 3"),
        ({"hidden_size": "wide"}, "workload.model.hidden_size", "whole number"),
    ],
)
def test_errors_of_such_a_config_name_its_key(change: dict[str, object], key: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        plan_from_dict(tables(workload__model=CONFIG | change))
    assert found.value.key == key and found.value.remedy


def test_shortened_model() -> None:
    plan = plan_from_dict(tables(workload__layers=8))
    assert plan.workload.model.layers == 8
    assert plan.parallelism.stage_layers == (4, 4)


def test_virtual_stages_of_a_rank() -> None:
    plan = plan_from_dict(
        tables(schedule__name="interleaved-1F1B", parallelism__virtual_pipeline_model_parallel_size=2)
    )
    assert plan.stages_of_rank(1) == (1, 3)
    assert plan.parallelism.stage_layers == (8, 8, 8, 8)


def test_uneven_stages_by_list() -> None:
    plan = plan_from_dict(tables(parallelism__stage_layers=[17, 15]))
    assert plan.parallelism.stage_layers == (17, 15)


@pytest.mark.parametrize(("layers", "stages"), [(13, (6, 7)), (7, (3, 4)), (2, (1, 1)), (12, (6, 6))])
def test_balanced_stages_differ_by_one_layer_at_most(layers: int, stages: tuple[int, ...]) -> None:
    plan = plan_from_dict(tables(workload__layers=layers, parallelism__stage_layers="balanced"))
    assert sorted(plan.parallelism.stage_layers) == sorted(stages)


def test_balanced_stages_leave_the_fewer_layers_to_both_ends() -> None:
    many = {"parallelism__pipeline_model_parallel_size": 4, "cluster__gpus": 8}
    plan = plan_from_dict(tables(**many, workload__layers=30, parallelism__stage_layers="balanced"))
    assert plan.parallelism.stage_layers == (7, 8, 8, 7)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("balancd", ("[parallelism.stage_layers]", "Did you mean 'balanced'?")),
        (5, ("[parallelism.stage_layers]", "5 is not a list")),
        (["a", 2], ("[parallelism.stage_layers.0]", "not a whole number")),
    ],
)
def test_layers_of_stages_that_cannot_be_read(given: object, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        plan_from_dict(tables(parallelism__stage_layers=given))
    assert all(word in str(error.value) for word in words)


def test_fewer_layers_than_stages() -> None:
    with pytest.raises(InputError, match=r"1 layers are fewer than 2 stages\. Use at most 1 stages"):
        plan_from_dict(tables(workload__layers=1, parallelism__stage_layers="balanced"))


@pytest.mark.parametrize(
    ("spelling", "ours"),
    [
        ("1F1B", "1f1b"),
        ("GPipe", "gpipe"),
        ("interleaved-1F1B", "interleaved-1f1b"),
        ("ZB-H1", "zb-h1"),
        ("ZBV", "zb-v"),
    ],
)
def test_schedule_spellings_of_the_field(spelling: str, ours: str) -> None:
    changes: dict[str, Any] = {"schedule__name": spelling}
    if ours == "interleaved-1f1b":
        changes["parallelism__virtual_pipeline_model_parallel_size"] = 2
    assert plan_from_dict(tables(**changes)).schedule.name == ours


def test_sequence_parallel_needs_tensor_parallel() -> None:
    plan = plan_from_dict(tables(parallelism__tensor_model_parallel_size=1, parallelism__sequence_parallel=True))
    assert not plan.sequence_parallel


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (None, None)),
        ({"power__clock_mhz": 1410}, (1410.0, 1410.0)),
        ({"power__clock_mhz": [1410, 1980]}, (1410.0, 1980.0)),
        ({"power__clock_mhz": {"forward": 1410}}, (1410.0, 1410.0)),
        ({"power__clock_mhz": {"backward": 1410}}, (None, None)),
    ],
)
def test_clock_tables(changes: dict[str, Any], expected: tuple[float | None, float | None]) -> None:
    power = plan_from_dict(tables(**changes)).power
    assert (power.clock_mhz(0, "forward"), power.clock_mhz(1, "forward")) == expected


def test_defaults_follow_the_framework() -> None:
    eager = plan_from_dict(tables()).implementation
    mixed = plan_from_dict(tables(implementation__framework="megatron"))
    assert (eager.gradient_precision, eager.main_parameters) == ("bf16", False)
    assert (mixed.implementation.gradient_precision, mixed.implementation.main_parameters) == ("fp32", True)
    assert math.isinf(mixed.overlap.grad_bucket_bytes)
    assert plan_from_dict(tables(overlap__grad_reduce="overlapped")).overlap.grad_bucket_bytes == 25 * 2**20


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"workload__sequence_lenght": 1}, ["workload.sequence_lenght", "'sequence_length'"]),
    ({"workload__gpus": 4}, ["unknown key", "belongs in [cluster]"]),
    ({"workload__sequence_length": "long"}, ["workload.sequence_length", "whole number"]),
    ({"workload__sequence_length": 4096.5}, ["workload.sequence_length", "whole number"]),
    ({"workload__micro_batch_size": 0}, ["workload.micro_batch_size", "above 0"]),
    ({"workload__model": "lama-3.1-8b"}, ["workload.model", "llama-3.1-8b"]),
    ({"workload__model": {"hidden_size": 64}}, ["workload.model.", "missing"]),
    ({"workload__model": {"hidden_sise": 64}}, ["workload.model.hidden_sise", "'hidden_size'"]),
    ({"workload__model": 7}, ["workload.model"]),
    ({"workload__layers": 33}, ["workload.layers", "at most 32"]),
    ({"workload__precision": "bf17"}, ["workload.precision", "'bf16'"]),
    ({"cluster__gpu": "h200-smx"}, ["cluster.gpu", "h200-sxm"]),
    ({"cluster__gpus": 6}, ["cluster.gpus", "multiple of 4"]),
    ({"cluster__gpus": True}, ["cluster.gpus", "whole number"]),
    ({"parallelism__data_parallel_size": 2}, ["parallelism.data_parallel_size", "is 1"]),
    ({"parallelism__pipeline_model_parallel_size": 3, "cluster__gpus": 6}, ["32 layers", "3 stages", "stage_layers"]),
    ({"parallelism__stage_layers": [16, 15]}, ["parallelism.stage_layers", "add up to 32"]),
    (
        {"parallelism__tensor_model_parallel_size": 3, "cluster__gpus": 6},
        ["tensor_model_parallel_size", "32 attention heads"],
    ),
    (
        {"parallelism__tensor_model_parallel_size": 64, "cluster__gpus": 128},
        ["tensor_model_parallel_size", "32 attention heads"],
    ),
    ({"workload__micro_batch_size": 3}, ["workload.global_batch_size", "multiple of 3"]),
    ({"schedule__name": "1b1f"}, ["schedule.name", "1f1b"]),
    ({"schedule__name": "none"}, ["schedule.name", "loop"]),
    ({"schedule__name": "interleaved-1f1b"}, ["schedule.name", "virtual"]),
    ({"parallelism__virtual_pipeline_model_parallel_size": 2}, ["virtual_pipeline", "interleaved-1f1b"]),
    ({"schedule__name": "zb-v", "parallelism__virtual_pipeline_model_parallel_size": 3}, ["virtual_pipeline", "to 2"]),
    ({"schedule__name": "zb-v", "parallelism__pipeline_model_parallel_size": 1}, ["schedule.name", "1f1b"]),
    ({"schedule__recompute": "ful"}, ["schedule.recompute", "'full'"]),
    ({"power__clock_mhz": 1411}, ["power.clock_mhz", "nearest is 1410"]),
    ({"power__clock_mhz": 5000}, ["power.clock_mhz", "1980"]),
    ({"power__clock_mhz": [1410]}, ["power.clock_mhz", "2 pipeline stages"]),
    ({"power__clock_mhz": "fast"}, ["power.clock_mhz", "number"]),
    ({"power__clock_mhz": {"forwards": 1410}}, ["power.clock_mhz.forwards", "forward"]),
    ({"power__power_limit_w": 5}, ["power.power_limit_w", "700"]),
    ({"power__power_limit_w": -5}, ["power.power_limit_w", "above 0"]),
    ({"power__power_limit_w": [700]}, ["power.power_limit_w", "2 pipeline stages"]),
    ({"power__power_limit_w": [600, 800]}, ["power.power_limit_w", "800 W", "200 to 700"]),
    ({"power__power_limit_w": [600, "low"]}, ["power.power_limit_w.1", "'low' is not a number"]),
    ({"implementation__rotary": "yes"}, ["implementation.rotary", "true or false"]),
]


@pytest.mark.parametrize(("changes", "parts"), BAD, ids=[" ".join(c) for c, _ in BAD])
def test_bad_input_gives_one_readable_error(changes: dict[str, Any], parts: list[str]) -> None:
    text = message_of(tables(**changes))
    for part in parts:
        assert part in text


@pytest.mark.parametrize("clock", [100, 120, 9999])
def test_the_clock_that_is_told_is_one_that_the_card_has(clock: int) -> None:
    """Clocks go down from the highest in whole steps, which end above a B300's lowest."""
    text = message_of(tables(cluster__gpu="b300", power__clock_mhz=clock))
    nearest = float(text.rpartition("the nearest is ")[2].rstrip("."))
    assert plan_from_dict(tables(cluster__gpu="b300", power__clock_mhz=nearest)).power.clock_mhz() == nearest


def test_embedding_and_head_count_as_blocks_where_asked() -> None:
    """Llama-3.1-405B has 126 blocks, and 128 with embedding and head on 16 stages."""
    options: dict[str, Any] = {
        "workload__model": "llama-3.1-405b",
        "workload__global_batch_size": 16,
        "cluster__gpus": 16,
        "cluster__gpus_per_node": 8,
        "parallelism__tensor_model_parallel_size": 1,
        "parallelism__pipeline_model_parallel_size": 16,
        "parallelism__account_for_embedding_in_pipeline_split": True,
        "parallelism__account_for_loss_in_pipeline_split": True,
    }
    assert plan_from_dict(tables(**options)).parallelism.stage_layers == (7, *[8] * 14, 7)
    options["parallelism__account_for_loss_in_pipeline_split"] = False
    assert "127 blocks" in message_of(tables(**options))
    options["parallelism__stage_layers"] = [7, *[8] * 14, 7]
    assert "account_for_embedding" in message_of(tables(**options))


def test_missing_and_misspelt_tables() -> None:
    without = tables()
    del without["cluster"]
    assert "[cluster]" in message_of(without)
    assert "'parallelism'" in message_of(tables(paralelism__x=1))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[workload]\nmodel = \n")
    with pytest.raises(InputError, match=r"plan\.toml:2: not valid TOML"):
        load_plan(path)


def test_error_names_the_line_of_the_key(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("gpus = 4", "gpuz = 4")
    line = text[: text.index("gpuz")].count("\n") + 1
    with pytest.raises(InputError, match=rf"plan\.toml:{line} \[cluster\.gpuz\]: unknown key"):
        load_plan(write(tmp_path, text))


def test_a_wrong_override_is_named() -> None:
    with pytest.raises(InputError, match=r"--set.*\[cluster\.gpuz\]"):
        load_plan(EXAMPLE, ["cluster.gpuz=4"])
    with pytest.raises(InputError, match=r"table\.key=value"):
        load_plan(EXAMPLE, ["gpus"])


def test_what_an_override_brings_along_is_not_looked_for_in_the_file() -> None:
    wrong = 'overlap.window={attention=["qkv", "foo"]}'
    with pytest.raises(InputError, match=r"--set.*\[overlap\.window\.attention\]") as caught:
        load_plan(EXAMPLES / "llama-3.1-8b-4xh200-nanobatches.toml", [wrong])
    assert caught.value.line is None


def test_missing_file() -> None:
    with pytest.raises(InputError, match="no such file"):
        load_plan("nowhere.toml")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("cluster.gpu", "../h200-sxm"),
        ("cluster.node", "none.toml"),
        ("workload.model", "none/config.json"),
        ("network.name", "none.toml"),
        ("site.name", "none.toml"),
    ],
)
def test_a_missing_file_of_a_plan_is_told_with_its_key(key: str, name: str) -> None:
    with pytest.raises(
        InputError, match=rf"llama-3\.1-8b-4xh200\.toml.*\[{key}\]: {name}: no such file.*current folder"
    ):
        load_plan(EXAMPLE, [f"{key}={name}"])


def test_paths_are_relative_to_the_plan(tmp_path: Path) -> None:
    config = (
        '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,'
        ' "vocab_size": 100, "num_hidden_layers": 2}'
    )
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    text = EXAMPLE.read_text(encoding="utf-8").replace('"llama-3.1-8b"', '"config.json"')
    plan: Plan = load_plan(write(tmp_path, text))
    assert plan.workload.model.hidden == 64


def test_a_data_type_that_the_gpu_lacks_is_named_where_the_plan_sets_it() -> None:
    found = message_of(tables(cluster__gpu="v100-sxm2-32gb"))
    assert "[workload.precision]: v100-sxm2-32gb has no rate for matrix products in bf16. It has fp16" in found
