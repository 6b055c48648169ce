"""Plans of models whose layers differ from Llama's and from each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ways_agree import ways_agree

from joulecast.errors import NotYetError
from joulecast.plan.fronts.joint_choice import joint_choice
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict


def plan(model: str, sequence: int = 4096, *, gpus: int = 1, batch: int = 4, **tables: dict[str, Any]) -> Plan:
    workload = {"model": model, "sequence_length": sequence, "global_batch_size": batch}
    given = {"workload": workload, "cluster": {"gpu": "h200-sxm", "gpus": gpus}}
    return plan_from_dict({**given, **tables})


def said(one: Plan) -> str:
    return " ".join(forecast(one).assumptions)


def pipeline(framework: str, **more: Any) -> Plan:
    """Gemma 3 on two stages of as many layers, of which one has 11 local ones and the other too."""
    return plan(
        "gemma-3-1b",
        gpus=2,
        parallelism={"pipeline_model_parallel_size": 2, **more},
        implementation={"framework": framework},
    )


def test_local_and_global_layers_take_turns() -> None:
    stages = [pipeline("pytorch-eager", stage_layers=[10, 16]).stage_models(stage) for stage in range(2)]
    assert [[(model.window, count) for model, count in stage] for stage in stages] == [
        [(512, 5), (0, 1), (512, 4)],
        [(512, 1), (0, 1), (512, 5), (0, 1), (512, 5), (0, 1), (512, 2)],
    ]


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_the_closed_form_knows_which_layers_a_stage_has(framework: str) -> None:
    for layers in ([13, 13], [6, 20]):
        one = pipeline(framework, stage_layers=layers)
        ways_agree(one, time=0.03, energy=0.03)


def test_windows_count_where_the_sequence_is_longer() -> None:
    assert "window" not in said(plan("gemma-2-2b", 4096))
    assert "window of 4096 tokens skips blocks" in said(plan("gemma-2-2b", 8192, batch=1))


def test_transformers_masks_are_kept_by_local_layers_alone() -> None:
    """With them keys and values are copied for each head, unless one of them is expanded for all."""
    users = {"implementation": {"modules": "transformers"}}
    for model, window, layers, repeated in (("gemma-3-1b", 512, 22, 0), ("gemma-3-4b", 1024, 29, 3 * 8 - (8 + 2 * 4))):
        short, long = (
            footprint_of(plan(model, sequence, batch=1, **users), 0).activations for sequence in (window - 1, window)
        )
        kept = layers * 2 * (window**2 + window * repeated * 256)
        assert long - short * window / (window - 1) == pytest.approx(kept, rel=1e-3)
    assert "computes the whole square and adds a mask" in said(plan("gemma-3-1b", 512, batch=1, **users))


def test_windows_as_long_as_sequences_leave_all_layers_alike() -> None:
    assert plan("gemma-3-1b", 512).workload.model.window_pattern == ()
    users = {"implementation": {"modules": "transformers"}}
    assert plan("gemma-3-1b", 512, **users).workload.model.others(0, 26) == (22,)
    with pytest.raises(NotYetError, match="take turns"):
        joint_choice(plan("gemma-3-1b", 1024))


def test_what_a_forecast_says_of_such_layers() -> None:
    users = {"implementation": {"modules": "transformers"}}
    assert "soft-capping of attention takes an estimated" in said(plan("gemma-2-2b", 1024))
    assert "leaves soft-capping of attention out" in said(plan("gemma-2-2b", 1024, **users))
    assert "heads of 256 is taken from heads of 128" in said(plan("gemma-2-2b", 1024))
    assert "heads' sinks" in said(plan("gpt-oss-20b", 1024, gpus=4, parallelism={"fsdp": True}))


def test_what_a_forecast_says_of_gpt_oss_in_megatron() -> None:
    """Its windows, sinks and biased experts, whose kernels fused products leave out."""

    def of(**options: Any) -> Plan:
        run = {"framework": "megatron", **options}
        workload = {"model": "gpt-oss-20b", "sequence_length": 4096, "global_batch_size": 8}
        tables = {"cluster": {"gpu": "b200", "gpus": 8}, "parallelism": EXPERTS_OF_8, "implementation": run}
        return plan_from_dict({"workload": {**workload, "precision": "fp8", "fp8_recipe": "mxfp8"}, **tables})

    apart, fused = of(), of(moe_fused_mlp=True)
    assert "biases of experts run in PyTorch's own kernels" in said(apart)
    assert "experts' products their clamps and biases" in said(fused)
    assert 1.1 < forecast(apart).time_s / forecast(fused).time_s < 2.0


EXPERTS_OF_8 = {"expert_model_parallel_size": 8, "distributed_optimizer": True}
OWN = {"implementation": {"modules": "transformers", "attention_backend": "unfused"}}


def test_code_that_one_family_has_alone_can_be_planned(tmp_path: Path) -> None:
    """GPT-J, BLOOM and MPT run no other attention than their own, Falcon PyTorch's on the whole square."""
    gptj = {"model_type": "gptj", "n_embd": 4096, "n_layer": 4, "n_head": 16, "rotary_dim": 64, "n_positions": 2048}
    (tmp_path / "gptj.json").write_text(json.dumps({**gptj, "vocab_size": 50400, "tie_word_embeddings": False}))
    for model in ("falcon-7b", "falcon-40b", "bloom-7b", "mpt-7b", str(tmp_path / "gptj.json")):
        of, sharded = {"batch": 8, "gpus": 8}, {"parallelism": {"fsdp": True}}
        own, joint = plan(model, 2048, **of, **sharded, **OWN), plan(model, 2048, **of, **sharded)
        assert "a kernel for each operation" in said(own)
        assert 1.2 < forecast(own).time_s / forecast(joint).time_s < 2.0
        squares = [footprint_of(plan(model, n, **of, **sharded, **OWN), 0).activations for n in (1024, 2048)]
        assert 2.3 < squares[1] / squares[0] < 4.0
    fused = {"implementation": {"modules": "transformers"}}
    assert "given a mask" in said(plan("falcon-7b", 2048, gpus=8, batch=8, parallelism={"fsdp": True}, **fused))


def test_biases_of_falcons_first_models_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 50304}
    file = {"model_type": "falcon", **sizes, "multi_query": False, "bias": True, "alibi": True, "parallel_attn": False}
    (tmp_path / "rw.json").write_text(json.dumps(file))
    with pytest.raises(NotYetError, match=r'biases in transformers.* Set it to "joint"'):
        plan(str(tmp_path / "rw.json"), 2048, **OWN)


def test_transformers_own_attention_can_be_planned() -> None:
    own = OWN
    words = said(plan("gemma-2-2b", 1024, batch=1, **own))
    assert "a kernel for each operation" in words and "soft-capping" not in words
    sharded = {**own, "parallelism": {"fsdp": True}}
    words = said(plan("gpt-oss-20b", 1024, gpus=4, **sharded))
    assert "a kernel for each operation" in words and "grouped products" in words
    fused = {"implementation": {"modules": "transformers"}}
    own_slower = [forecast(plan("gemma-2-2b", 4096, batch=1, **tables)).time_s for tables in (fused, own)]
    assert own_slower[1] > 1.2 * own_slower[0]


@pytest.mark.parametrize(
    ("model", "tables", "key"),
    [
        ("gemma-2-2b", {"implementation": {"compile": True}}, "implementation.compile"),
        ("gemma-2-2b", {"parallelism": {"context_parallel_size": 2}}, "parallelism.context_parallel_size"),
        (
            "gemma-3-1b",
            {"implementation": {"modules": "transformers", "attention_backend": "flash-attention-2"}},
            "implementation.attention_backend",
        ),
        ("olmo-2-1b", {"implementation": {"modules": "torchtitan"}}, "implementation.modules"),
        ("command-r7b", {"implementation": {"compile": True}}, "implementation.compile"),
        (
            "bloom-7b",
            {"implementation": {"attention_backend": "flash-attention-2"}},
            "implementation.attention_backend",
        ),
        ("bloom-7b", {"implementation": {"modules": "transformers"}}, "implementation.attention_backend"),
        (
            "falcon-7b",
            {"implementation": {"modules": "transformers", "attention_backend": "flash-attention-2"}},
            "implementation.attention_backend",
        ),
        (
            "mpt-7b",
            {"implementation": {**OWN["implementation"], "parameter_precision": "fp32"}},
            "implementation.parameter_precision",
        ),
        ("falcon-40b", {"implementation": {"modules": "transformers", "compile": True}}, "implementation.compile"),
        ("mpt-7b", {"parallelism": {"context_parallel_size": 2}}, "parallelism.context_parallel_size"),
        ("smollm3-3b", {"overlap": {"nanobatches": 2}}, "overlap.nanobatches"),
        (
            "gpt-oss-20b",
            {"implementation": {"framework": "megatron", "attention_backend": "flash-attn-2"}},
            "implementation.attention_backend",
        ),
        ("gpt-oss-20b", {"implementation": {"modules": "transformers"}}, "implementation.attention_backend"),
        (
            "glm-4-9b",
            {
                "implementation": {"framework": "megatron"},
                "schedule": {"recompute": "selective", "recompute_modules": ["mlp"]},
            },
            "schedule.recompute_modules",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_its_key(model: str, tables: dict[str, Any], key: str) -> None:
    with pytest.raises(NotYetError) as caught:
        plan(model, gpus=2, **tables)
    assert caught.value.key == key
    assert "layers" in str(caught.value)


def test_layers_without_rotary_embedding_take_less_time() -> None:
    for implementation in ({"framework": "megatron"}, {}, {"modules": "transformers"}):
        usual, all_rotary = (
            forecast(plan("smollm3-3b", 2048, implementation={**implementation, **rotary}))
            for rotary in ({}, {"rotary": True})
        )
        assert 0.95 < usual.time_s / all_rotary.time_s < 1.0
    assert plan("smollm3-3b", implementation={"rotary": True}).workload.model.kinds[-1].rotary


def scout(sequence: int, framework: str = "megatron", **more: Any) -> Plan:
    split = {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8, "distributed_optimizer": True}
    return plan(
        "llama-4-scout",
        sequence,
        gpus=16,
        batch=32,
        parallelism={**split, **more},
        cluster={"gpu": "h200-sxm", "gpus": 64},
        implementation={"framework": framework},
        schedule={"recompute": "full"},
    )


def test_layers_of_several_kinds_in_the_closed_form() -> None:
    """Llama 4 Scout: three of four layers see chunks of 8192 tokens, the fourth all of them."""
    for sequence, kinds in ((4096, 2), (16384, 2)):
        one = scout(sequence)
        assert len(one.workload.model.kinds) == kinds
        ways_agree(one, time=0.03)
    with pytest.raises(NotYetError, match="chunks of 8192 tokens leave a rest"):
        scout(12288)


def test_alibi_costs_most_where_it_is_a_mask() -> None:
    times, words = {}, {}
    for backend in ("cudnn", "flash-attn-2"):
        one = forecast(
            plan(
                "mpt-7b",
                2048,
                gpus=8,
                batch=8,
                parallelism={"fsdp": True},
                implementation={"attention_backend": backend},
            )
        )
        times[backend], words[backend] = one.time_s, " ".join(one.assumptions)
    assert times["cudnn"] > times["flash-attn-2"]
    assert "nothing skipped" in words["cudnn"] and "kernel computes ALiBi" in words["flash-attn-2"]
    megatron = said(plan("bloom-7b", 2048, gpus=8, batch=8, implementation={"framework": "megatron"}))
    assert "kernel computes ALiBi" in megatron


def test_the_closed_form_has_layers_that_take_turns_under_fsdp_in_their_order() -> None:
    """Llama 4 Maverick gathers an expert layer's weights beside the ordinary layer in front of it."""
    one = plan(
        "llama-4-maverick",
        4096,
        batch=64,
        cluster={"gpu": "h200-sxm", "gpus": 64},
        parallelism={"expert_model_parallel_size": 32, "fsdp": True},
        schedule={"recompute": "full"},
    )
    assert len(one.workload.model.kinds) == 3
    ways_agree(one, time=0.03, energy=0.03)
