"""Prediction of several tokens: parameters, work, bytes and memory of its modules, computed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launched import flops
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Attention, Collective, Gemm
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.plan.comparison.compare import differing_keys
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

HIDDEN, VOCAB = 512, 4096
MODEL = ModelConfig(
    "tiny",
    HIDDEN,
    4,
    8,
    8,
    80,
    1024,
    VOCAB,
    experts=Experts(16, 2, 256, shared_ffn=256, dense_layers=1),
    latent=LatentAttention(192, 128, 64, 32, 64),
)
PAIR = {"model": "deepseek-v3", "layers": 4, "sequence_length": 1024, "global_batch_size": 8}


def plan(modules: int = 0, **changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {**PAIR, "mtp_num_layers": modules},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "pipeline_model_parallel_size": 2,
            "expert_model_parallel_size": 8,
            "expert_tensor_parallel_size": 1,
        },
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(changed(tables, changes))


def by_name(launches: Iterable[Launch], kind: type) -> dict[str, Any]:
    return {x.operator.name: x.operator for x in launches if isinstance(x.operator, kind)}


def module_parameters(config: ModelConfig) -> int:
    """Of the modules that predict further tokens: a layer, a product of two hidden sizes, and three norms each."""
    return config.mtp_layers * (config.layer_parameters + 2 * config.hidden**2 + 3 * config.norm_parameters)


def test_the_file_says_how_many_a_model_knows_and_a_plan_how_many_are_trained():
    """Some 11.5 billion parameters that nothing else has, says DeepSeek-V3's README of its weights."""
    model = load_model("deepseek-v3")
    assert (model.nextn_layers, model.mtp_layers) == (1, 0)
    assert load_model("llama-3.1-8b").nextn_layers == 0
    trained = plan(1, workload__layers=61, parallelism__stage_layers=[31, 30]).workload.model
    assert module_parameters(trained) / 1e9 == pytest.approx(11.5, abs=0.15)
    assert trained.parameters == model.parameters


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 4), (4, 8)])
def test_parameters_of_all_ranks_are_the_modules(tp: int, ep: int):
    """Copies count once, shares as often as there are ranks, and the last of several stages has the table again."""
    run = Implementation(framework="megatron", tensor_parallel=tp, sequence_parallel=tp > 1, expert_parallel=ep)
    config = replace(MODEL, mtp_layers=2)

    def whole(one: ModelConfig, *, first: bool) -> int:
        tensors = parameters_of_stage(one, run, 2, first=first, last=True)
        return sum(p.elements * (1 if p.replicated else ep if p.expert else tp) for p in tensors)

    assert whole(config, first=True) - whole(MODEL, first=True) == module_parameters(config)
    assert whole(config, first=False) - whole(MODEL, first=False) == module_parameters(config) + VOCAB * HIDDEN


def test_work_of_a_module_is_a_layer_a_projection_and_a_head():
    """Published figures of DeepSeek-V3: 260.4 GFLOP a token with a module (557 TFLOP/s at 2139 tokens/s), 249.7 not."""
    model = load_model("deepseek-v3")
    assert training_flops(model, 4096, 1) == pytest.approx(249.7e9, rel=0.005)
    assert training_flops(replace(model, mtp_layers=1), 4096, 1) == pytest.approx(260.4e9, rel=0.005)
    whole, beside = (plan_program(plan(n)).ranks[1].types[:2] for n in (1, 0))
    added = [flops(a) - flops(b) for a, b in zip(whole, beside, strict=True)]
    one = plan(1).workload.model
    attention = 3.0 * 1024 * 2.0 * 1024 * one.heads * one.head_dim
    by_definition = training_flops(one, 1024, 1024) - training_flops(replace(one, mtp_layers=0), 1024, 1024)
    copies = 1.1 * 8 * 3 * 2 * 1024 * 3 * one.hidden * 2048  # the busiest rank's experts
    replicated = 3 * 2 * (1024 / 2) * one.hidden * (1536 + 512 + 64)
    routed = by_definition - attention - copies / 1.1 - 2 * replicated
    assert sum(added) == pytest.approx(routed / 2 + replicated + copies / 2, rel=0.01)
    assert added[1] == pytest.approx(2 * added[0], rel=1e-6)


def test_a_module_runs_behind_the_last_layer_and_communicates_with_its_tensor_parallel_ranks():
    """The projection gathers embedding and hidden state, and gives every rank its outputs whole."""
    one = plan(1)
    ranks = plan_program(one).ranks
    assert ranks[0].types[0] == plan_program(plan(0)).ranks[0].types[0]
    forward, backward = ranks[1].types[:2]
    products = by_name(forward, Gemm)
    assert (products["mtp.projection"].m, products["mtp.projection"].n, products["mtp.projection"].k) == (
        1024,
        7168 // 2,
        2 * 7168,
    )
    assert sum(x.operator.name == "head" for x in forward) == 2
    assert sum(isinstance(x.operator, Attention) for x in forward) == 3  # two layers and the module's
    collectives = by_name(forward, Collective) | by_name(backward, Collective)
    row = 1024 * 7168 * 2
    assert collectives["mtp.projection.all_gather"].bytes == row
    assert max(c.bytes for name, c in collectives.items() if name.startswith("mtp.projection")) == 2 * row
    assert collectives["mtp.projection.grad.reduce_scatter"].bytes == 2 * row
    assert "embedding.reduce_scatter" in collectives and "embedding.grad.all_gather" in collectives
    alone = plan_program(plan(1, parallelism__tensor_model_parallel_size=1, parallelism__sequence_parallel=False))
    assert not [n for n in by_name(alone.ranks[1].types[0], Collective) if n.startswith("mtp")]


def test_both_copies_of_the_table_sum_their_gradients():
    table = 129280 // 2 * 7168 * 4.0
    for modules, expected in ((1, [1, 1]), (0, [0, 0])):
        tails = [[x.operator for x in r.types[-1]] for r in plan_program(plan(modules)).ranks]
        found = [[o for o in tail if isinstance(o, Collective) and o.bytes == table] for tail in tails]
        assert [len(one) for one in found] == expected


def test_memory_of_a_module_by_hand():
    """Its parameters, what its layer and head keep, four residual streams, and a second softmax of the logits."""
    with_module, without = footprint_of(plan(1), 1), footprint_of(plan(0), 1)
    extra = sum(p.elements for p in stage_parameters(plan(1), 1)) - sum(
        p.elements for p in stage_parameters(plan(0), 1)
    )
    assert with_module.parameters - without.parameters == 2 * extra
    assert with_module.gradients - without.gradients == 4 * extra
    kept = with_module.activations - without.activations
    layer = (
        without.activations - footprint_of(plan(0, workload__layers=3, parallelism__stage_layers=[2, 1]), 1).activations
    )
    streams = 4 * (1024 / 2) * 7168 * 2
    head = (1024 / 2 + 1024) * 7168 * 2 + 1024 * 129280 / 2 * 4
    assert kept == pytest.approx(layer + streams + head, rel=0.01)
    assert footprint_of(plan(1), 0) == footprint_of(plan(0), 0)


def test_one_module_run_again_has_its_weights_once():
    """Kernels and what is kept for the backward are two modules', weights, gradients and moments one's."""
    two = plan(2)
    again, one = plan(2, workload__mtp_use_repeated_layer=True), plan(1)
    assert again.workload.model.prediction_modules == 1
    passes = [[rank.types[:2] for rank in plan_program(one_).ranks] for one_ in (again, two)]  # forward and backward
    assert passes[0] == passes[1]
    of_two, of_again, of_one = (footprint_of(one_, 1) for one_ in (two, again, one))
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(of_again, part) == getattr(of_one, part) < getattr(of_two, part)
    assert of_again.activations == of_two.activations > of_one.activations
    assert training_flops(again.workload.model, 4096, 1) == training_flops(two.workload.model, 4096, 1)
    assert differing_keys([two, again]) == {"workload.mtp_use_repeated_layer": (False, True)}
    with pytest.raises(InputError, match="no further token is predicted"):
        plan(0, workload__mtp_use_repeated_layer=True)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_more_modules_take_more_time_and_energy(schedule: str):
    plans = [plan(n, schedule__name=schedule, workload__global_batch_size=64) for n in (0, 1, 2)]
    found = [forecast(one, must_fit=False) for one in plans]
    assert closed_form(plans).time_s == pytest.approx([it.time_s for it in found], rel=0.025)
    assert found[0].time_s < found[1].time_s < found[2].time_s
    assert found[0].energy_j < found[1].energy_j < found[2].energy_j
    assert any("workload.mtp_num_layers = 1" in words for words in found[0].assumptions)
    assert not any("mtp_num_layers" in words for words in found[1].assumptions)


def test_a_comparison_names_the_keys_of_the_plan():
    """Not what the model is made into."""
    assert differing_keys([plan(0), plan(1)]) == {"workload.mtp_num_layers": (0, 1)}


def test_dense_models_can_have_modules_too(tmp_path: Path):
    config = json.loads(json.dumps({"model_type": "llama", "num_nextn_predict_layers": 2}))
    base = load_model("llama-3.1-8b")
    sizes = {"hidden_size": base.hidden, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": base.vocab}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | sizes | {"num_key_value_heads": 8, "intermediate_size": base.ffn}))
    assert load_model(file).nextn_layers == 2
    options = {"parallelism__expert_model_parallel_size": 1, "workload__model": str(file), "workload__layers": 4}
    for more in ({}, {"parallelism__fsdp": True, "cluster__gpus": 16}, {"schedule__recompute": "full"}):
        one, none = (forecast(plan(n, **options, **more), must_fit=False) for n in (1, 0))
        assert one.time_s > none.time_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"implementation__framework": "pytorch-eager"}, ("mtp_num_layers", "megatron")),
        ({"workload__sequence_length": 1}, ("mtp_num_layers", "at most 0")),
        ({"workload__mtp_num_layers": -1}, ("mtp_num_layers",)),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan(1, **changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("fsdp", [False, True])
def test_the_gradient_of_the_embedding_completes_once_for_each_use(fsdp: bool) -> None:
    """Where gradients are added to a buffer, with the addition; the module has a copy of the table of its own."""
    tables = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 8, "mtp_num_layers": 1},
        "cluster": {"gpu": "h200-sxm", "gpus": 8},
        "parallelism": {"fsdp": fsdp},
        "implementation": {"framework": "megatron"},
    }
    (rank,) = plan_program(plan_from_dict(tables)).ranks
    backward = max(rank.types, key=lambda launches: sum("grad" in launch.operator.name for launch in launches))
    ends = [launch.operator.name for launch in backward if launch.completes == "embedding.weight"]
    assert ends == ["embedding.weight.accumulate"] * 2
