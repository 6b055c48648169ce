"""Keys of a plan that runs the modules of transformers or torchtitan."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tables import merged

from joulecast.errors import InputError
from joulecast.model.training.step import layer_forward
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import plan_from_dict

GPT = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 50304,
    "num_hidden_layers": 2,
    "gated_mlp": False,
    "bias": True,
    "norm": "layernorm",
    "activation": "gelu_new",
    "rotary": False,
    "learned_positions": 1024,
    "joint_projections": True,
}


def plan(model: Any = "llama-3.2-1b", **tables: Any) -> dict[str, Any]:
    workload = {"model": model, "sequence_length": 1024, "global_batch_size": 4}
    return merged({"workload": workload, "cluster": {"gpu": "h200-sxm", "gpus": 1}}, tables)


FP8, ROWWISE = {"precision": "fp8"}, {"precision": "fp8", "fp8_recipe": "rowwise"}
SPLIT = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
TITAN: dict[str, Any] = {"implementation": {"modules": "torchtitan", "compile": True}}
WIDE_TITAN = {"modules": "torchtitan", "parameter_precision": "fp32"}


def test_modules_and_dropout_reach_the_kernels() -> None:
    run = {"modules": "transformers", "dropout": 0.1}
    read = plan_from_dict(plan(GPT, implementation=run))
    assert implementation_of(read).modules == "transformers"
    assert implementation_of(read).dropout == 0.1
    model = read.workload.model
    assert (model.activation, model.gelu_formula, model.joint_projections) == ("gelu", True, True)
    assert model.learned_positions == 1024


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"implementation": {"modules": "transformer"}}, "implementation.modules", "transformers"),
        ({"implementation": {"modules": "transformers", "framework": "megatron"}}, "implementation.modules", "eager"),
        ({"implementation": {"dropout": 0.1, "framework": "megatron"}}, "implementation.dropout", "unfused"),
        ({"implementation": {"dropout": 0.1}}, "implementation.dropout", "transformers"),
        ({"implementation": {"dropout": 0.1, "modules": "torchtitan"}}, "implementation.dropout", "no dropout"),
        ({"implementation": {"dropout": 0.1, "modules": "transformers"}}, "implementation.dropout", "positions"),
        ({"implementation": {"dropout": 1.0}}, "implementation.dropout", "less than 1"),
        ({"workload": {"precision": "fp8"}, "implementation": {"modules": "transformers"}}, "modules", "FP8"),
        ({"workload": {"precision": "fp8"}, "implementation": WIDE_TITAN}, "modules", "torch.autocast"),
        ({"workload": ROWWISE, "parallelism": SPLIT, **TITAN}, "workload.fp8_recipe", "tensorwise"),
        ({"workload": FP8, "parallelism": SPLIT | {"sequence_parallel": False}, **TITAN}, "sequence_parallel", "true"),
        ({"workload": FP8, "parallelism": SPLIT}, "workload.precision", "megatron"),
        ({"overlap": {"nanobatches": 2}, "implementation": {"modules": "torchtitan"}}, "modules", "nano-batches"),
        (
            {"implementation": {"modules": "transformers", "compile": True, "attention_backend": "flash-attention-2"}},
            "implementation.modules",
            "cuDNN",
        ),
    ],
)
def test_what_is_not_known_is_refused(tables: dict[str, Any], key: str, words: str) -> None:
    given = plan(**tables)
    if "workload" in tables:
        given["workload"] = {**plan()["workload"], **tables["workload"]}
    if "parallelism" in tables:
        given["cluster"]["gpus"] = 2
    if "overlap" in tables:
        given["workload"]["micro_batch_size"] = 2
    with pytest.raises(InputError) as caught:
        plan_from_dict(given)
    assert key in str(caught.value)
    assert words in str(caught.value)


def test_autocast_is_known_in_users_modules_alone() -> None:
    wide = {"parameter_precision": "fp32"}
    assert implementation_of(plan_from_dict(plan(implementation={"modules": "torchtitan", **wide}))).autocast
    with pytest.raises(InputError, match="parameter_precision"):
        plan_from_dict(plan(implementation=wide))


@pytest.mark.parametrize(
    ("modules", "more", "message"),
    [
        ("torchtitan", {}, "Mixture of Experts"),
        ("transformers", {"parameter_precision": "fp32"}, "Mixture of Experts"),
        ("transformers", {"moe_row_operator": "index_add", "moe_permute_fusion": False}, "other operators on rows"),
    ],
)
def test_experts_are_refused_where_they_are_not_known(modules: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_from_dict(plan("mixtral-8x7b", implementation={"modules": modules, **more}))
    split = plan("mixtral-8x7b", implementation={"modules": "transformers"})
    split["cluster"]["gpus"] = 2
    split["parallelism"] = {"expert_model_parallel_size": 2}
    with pytest.raises(InputError, match="experts split over GPUs"):
        plan_from_dict(split)


@pytest.mark.parametrize("modules", ["transformers", "torchtitan"])
@pytest.mark.parametrize("compiled", [False, True])
def test_closed_form_meets_the_events(modules: str, compiled: bool) -> None:
    read = plan_from_dict(plan(implementation={"modules": modules, "compile": compiled}))
    closed = closed_form([read])
    # As close as test_closed_form asks of plans at the board's limit.
    assert closed.time_s[0] == pytest.approx(forecast(read).time_s, rel=5e-3)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_torchtitan_in_fp8_is_faster_than_in_bf16_and_closed_form_meets_the_events(ranks: int, compiled: bool) -> None:
    given = plan("llama-3.1-8b", implementation={"modules": "torchtitan", "compile": compiled})
    given["workload"] |= {"sequence_length": 8192, "layers": 4}
    given["cluster"]["gpus"] = 2 * ranks
    given["parallelism"] = {"fsdp": True, "tensor_model_parallel_size": ranks, "sequence_parallel": ranks > 1}
    wide, narrow = plan_from_dict(given), plan_from_dict(given | {"workload": given["workload"] | FP8})
    closed = closed_form([narrow, wide])
    assert closed.time_s[0] == pytest.approx(forecast(narrow).time_s, rel=0.02)
    assert (closed.time_s[0] < closed.time_s[1]) == compiled


def test_shared_experts_run_beside_the_routed_ones_of_one_gpu() -> None:
    """All rows of the experts are one GPU's: the busiest has no more than its share unless the plan says so."""
    tables: dict[str, Any] = {"implementation": {"modules": "transformers"}}
    read = plan_from_dict(plan("glm-4.5-air", **tables, workload={"layers": 2}))
    assert read.workload.expert_load == 1.0
    assert plan_from_dict(plan("glm-4.5-air", workload={"layers": 2})).workload.expert_load == 1.1
    launches = layer_forward(read.workload.model.kinds[-1], implementation_of(read), 1, 1024)
    named = [one.operator.name for one in launches]
    assert named.index("unpermute.round") < named.index("shared_gating") < named.index("shared.add")
    assert forecast(read).time_s > 0.0
