"""Plans of models with state spaces: what they may ask for, how they are cut, and jobs that they are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from plan_tables import merged
from row_files import csv_rows
from ways_agree import ways_agree

import joulecast as jc
from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import Scan
from joulecast.model.training.step import layer_forward
from joulecast.simulator.instructions.eager_launches import TRITON, eager_launches
from joulecast.simulator.instructions.host import module_launches
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.job_files.hub_names import hub_model
from joulecast.simulator.plan_file.plan import plan_from_dict

INLINE: dict[str, Any] = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 21504,
    "vocab_size": 131072, "num_hidden_layers": 5, "head_dim": 128, "gated_mlp": False, "activation": "relu2",
    "rotary": False, "hybrid_override_pattern": "M-M*-",
}  # fmt: skip

RECORDED = ROOT / "validate" / "recorded" / "scans"
DETERMINISTIC = {"implementation": {"deterministic": True, "attention_backend": "flash-attn-2"}}


def plan(model: Any = "nemotron-h-8b", *, users: bool = False, **tables: dict[str, Any]):
    run = {"framework": "pytorch-eager", "modules": "transformers"} if users else {"framework": "megatron"}
    usual: dict[str, dict[str, Any]] = {
        "workload": {"model": model, "sequence_length": 4096, "global_batch_size": 16},
        "cluster": {"gpu": "h200-sxm", "gpus": 8},
        "implementation": run,
    }
    return plan_from_dict(merged(usual, tables))


@pytest.mark.parametrize(
    ("users", "tables", "key"),
    [
        (True, {"implementation": {"modules": "joint"}}, "implementation.modules"),
        (True, {"implementation": {"modules": "torchtitan"}}, "implementation.modules"),
        (True, {"implementation": {"compile": True}}, "implementation.compile"),
        (False, DETERMINISTIC, "implementation.deterministic"),
        (True, {"implementation": {"parameter_precision": "fp32"}}, "implementation.parameter_precision"),
        (True, {"parallelism": {"tensor_model_parallel_size": 2}}, "parallelism.tensor_model_parallel_size"),
        (True, {"workload": {"lora": {}}}, "workload.lora"),
        (False, {"overlap": {"nanobatches": 2}}, "overlap.nanobatches"),
    ],
)
def test_what_is_not_known_of_state_spaces_is_refused(users: bool, tables: dict[str, Any], key: str) -> None:
    with pytest.raises(NotYetError, match="not known of nemotron-h-8b's layers") as caught:
        plan(users=users, **tables)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("users", "tables", "key"),
    [
        (False, {}, "implementation.framework"),
        (True, {"implementation": {"modules": "joint"}}, "implementation.modules"),
        (True, {"workload": {"lora": {}}}, "workload.lora"),
    ],
)
def test_what_is_not_known_of_linear_attention_is_refused(users: bool, tables: dict[str, Any], key: str) -> None:
    with pytest.raises(NotYetError, match="not known of qwen3-next-80b-a3b's layers") as caught:
        plan("qwen3-next-80b-a3b", users=users, **tables)
    assert caught.value.key == key


def test_documents_beside_linear_attention_are_refused() -> None:
    packed = {"document_tokens": [1024] * 4, "sequence_length": 4096}
    run = {"attention_backend": "flash-attn-2"}
    with pytest.raises(NotYetError, match="documents of packed sequences with linear attention are not known"):
        plan("qwen3-next-80b-a3b", users=True, workload=packed, implementation=run)


def test_linear_attention_is_forecast_on_one_gpu_and_sharded() -> None:
    """Each of four layers' weights and both embeddings take part once a step, on each of two GPUs when sharded."""
    small: dict[str, dict[str, Any]] = {
        "workload": {"layers": 4, "sequence_length": 4096, "global_batch_size": 2, "micro_batch_size": 1},
        "cluster": {"gpu": "h200-sxm", "gpus": 2},
    }
    sharded = forecast(plan("qwen3-next-80b-a3b", users=True, parallelism={"fsdp": True}, **small))
    alone = forecast(
        plan(
            "qwen3-next-80b-a3b",
            users=True,
            workload={**small["workload"], "global_batch_size": 1},
            cluster={"gpu": "h200-sxm", "gpus": 1},
        )
    )
    assert alone.ranks[0].memory_by_part_bytes["parameters"] == 2 * 7_210_003_520
    assert sharded.ranks[0].memory_by_part_bytes["parameters"] < 0.6 * 2 * 7_210_003_520
    assert any("fla's Triton kernels" in one for one in alone.assumptions)


@pytest.mark.parametrize(
    ("model", "ranks", "message"),
    [
        ("nemotron-h-8b", 16, "8 groups of such heads cannot be split over 16"),
        ("granite-4.0-h-micro", 2, "1 groups of such heads cannot be split over 2"),
    ],
)
def test_ranks_share_groups_of_heads(model: str, ranks: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(model, cluster={"gpus": 16}, parallelism={"tensor_model_parallel_size": ranks})


def test_a_hybrid_is_written_into_a_plan_as_the_catalogue_has_it() -> None:
    inline = plan(INLINE).workload.model
    known = load_model("nemotron-h-8b")
    assert inline.mixers == ("M", "-", "M", "*", "-") and inline.state_space == known.state_space
    assert inline.kinds[0].layer_parameters() == known.kinds[0].layer_parameters()
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    mixed = plan({**INLINE, **experts, "hybrid_override_pattern": "M-M*E"}).workload.model
    assert mixed.experts is not None and mixed.experts.turns == (False, False, False, False, True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hybrid_override_pattern": "M-M*"}, "the pattern has 4 layers, the model 5"),
        ({"hybrid_override_pattern": "M-M*X"}, "not a pattern of layers"),
        ({"hybrid_override_pattern": "M-M*E"}, "layers of experts without their sizes"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}, "experts in no layer"),
        ({"mamba_n_groups": 3}, "128 heads of state spaces are not divisible by 3 groups"),
        ({"hybrid_override_pattern": None, "ssm_state_size": 64}, "this is a size of state spaces"),
    ],
)
def test_hybrids_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan({name: value for name, value in {**INLINE, **changed}.items() if value is not None})


def test_stages_have_the_layers_that_they_hold() -> None:
    """Of "M-M*-" and "M-M-M-M*-" cut in two the later stage has the other's attention beside it."""
    cut = plan(workload={"layers": 20}, parallelism={"pipeline_model_parallel_size": 2, "stage_layers": [12, 8]})
    assert [cut.other_layers(stage) for stage in range(2)] == [(6, 5), (3, 4)]  # M and -, the rest is attention
    powers = [stage.energy_j for stage in forecast(cut).ranks]
    assert powers[0] > powers[1]


def test_virtual_stages_of_layers_that_differ() -> None:
    split = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
    turns = plan(workload={"layers": 32}, parallelism=split, schedule={"name": "interleaved-1f1b"})
    ways_agree(turns, time=0.01, energy=0.01)


def kept(found: Any) -> float:
    return found.ranks[0].memory_by_part_bytes["activations"]


def test_recomputation_takes_time_and_saves_memory() -> None:
    split = {"distributed_optimizer": True}
    usual, again = (forecast(plan(parallelism=split, schedule={"recompute": way})) for way in ("none", "full"))
    assert 1.2 < again.time_s / usual.time_s < 1.4
    assert kept(again) < 0.3 * kept(usual)


def test_what_megatron_counts_is_said() -> None:
    split = {"expert_model_parallel_size": 8, "distributed_optimizer": True}
    said = forecast(plan("nemotron-3-nano-30b-a3b", parallelism=split)).assumptions
    assert any("Triton kernels" in one for one in said)
    assert any("Megatron counts 7.8 % more operations" in one for one in said)


SCRIPT = """#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 1 pretrain_mamba.py \\
  --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --is-hybrid-model \\
  --num-layers 52 --hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 --kv-channels 128 \\
  --group-query-attention --num-query-groups 8 --mamba-num-heads 128 --mamba-state-dim 128 --mamba-num-groups 8 \\
  --hybrid-override-pattern "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-" --squared-relu \\
  --normalization RMSNorm --disable-bias-linear --position-embedding-type none --attention-dropout 0 \\
  --untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1 --global-batch-size 32 \\
  --tensor-model-parallel-size 2 --sequence-parallel --bf16 --vocab-size 131072 --hidden-dropout 0
"""


def converted(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "train.sh"
    file.write_text(text)
    return jc.convert(str(file), gpu="h200-sxm")


def test_megatrons_hybrids_are_found_in_the_catalogue(tmp_path: Path) -> None:
    assert 'model = "nemotron-h-8b"' in converted(tmp_path, SCRIPT).text
    other = converted(tmp_path, SCRIPT.replace("--mamba-state-dim 128", "--mamba-state-dim 256")).text
    assert "ssm_state_size = 256" in other and "mamba_n_groups = 8" in other and '"M-M-M-M*-' in other


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ('--hybrid-override-pattern "M-', '--hybrid-override-pattern "X-', "no pattern of layers that is known"),
        ('--hybrid-override-pattern "M-M', '--hybrid-override-pattern "M', "the pattern has 50 layers, the model 52"),
        ("--spec", "--disable-mamba-mem-eff-path --spec", "keeps what its fused function makes again"),
    ],
)
def test_megatrons_hybrids_that_are_not_known_are_refused(
    tmp_path: Path, written: str, instead: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        converted(tmp_path, SCRIPT.replace(written, instead))


def test_a_hybrid_is_read_from_transformers_file(tmp_path: Path) -> None:
    keys = {
        "model_type": "nemotron_h", "hidden_size": 1024, "num_hidden_layers": 4, "hybrid_override_pattern": "M-*-",
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 4096,
        "vocab_size": 32000, "mamba_num_heads": 32, "mamba_head_dim": 64, "ssm_state_size": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    of_file = forecast(plan(str(tmp_path), users=True))
    assert of_file.plan.workload.model.mixers == ("M", "-", "*", "-") and of_file.time_s > 0


def test_triton_kernels_cost_the_host_more_than_others() -> None:
    """A forward has seven, conv, sums, states, their handing on, pairs, scan and norm, beside PyTorch's."""
    mixer = load_model("nemotron-h-8b").kinds[0]
    launches = layer_forward(mixer, Implementation(framework="megatron"), 1, 4096)
    assert sum(isinstance(one.operator, Scan) for one in launches) == 7
    # Norm, two projections and the addition are modules' launches; three operations make the decays.
    assert module_launches(launches) == pytest.approx(4 + 0.2 * 3 + 7 * 0.73)
    eager = layer_forward(mixer, Implementation(modules="transformers"), 1, 4096)
    scans = [one for one in eager if isinstance(one.operator, Scan)]
    assert eager_launches(plan("nemotron-h-8b", users=True), scans) == pytest.approx(7 * 4.6)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("ibm-granite/granite-4.0-h-micro-base", "granite-4.0-h-micro"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron-3-ultra-550b-a55b"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", None),
    ],
)
def test_names_of_the_hub_are_those_of_the_catalogue(name: str, known: str | None) -> None:
    assert hub_model(name) == known


def test_hybrids_without_state_spaces_run_each_half_alone_too() -> None:
    halves = {**INLINE, "hybrid_override_pattern": "*-*--"}
    with pytest.raises(NotYetError, match="modules other than those of transformers"):
        plan(halves, users=True, implementation={"modules": "joint"})
    both = {name: value for name, value in INLINE.items() if name != "hybrid_override_pattern"}
    alone, whole = (forecast(plan(model, users=True)) for model in (halves, both))
    assert alone.time_s < 0.9 * whole.time_s  # two layers' attention and three MLPs of five each


@pytest.mark.parametrize(("gpu", "most"), [("h200-sxm", 0.08), ("h100-sxm", 0.15)])
def test_hosts_of_recorded_calls_are_met(gpu: str, most: float) -> None:
    """Calls that wait for the host, forward and backward, as long as their launches; an H200's gave the constant."""
    kernels = csv_rows(RECORDED / "kernels.csv", gpu=gpu, kind="mamba2")
    calls = csv_rows(RECORDED / "calls.csv", gpu=gpu, kind="mamba2")
    forecast_us, measured_us = 0.0, 0.0
    for call in calls:
        its = [one for one in kernels if all(one[key] == call[key] for key in ("direction", "shape"))]
        if float(call["time_us"]) > 1.2 * sum(float(one["total_us"]) for one in its):
            ours = [one for one in its if one["kernel"].startswith("_") or "conv1d" in one["kernel"]]
            scans, launches = (sum(float(one["calls"]) for one in part) for part in (ours, its))
            forecast_us += 45.0 * (TRITON * scans + launches - scans)
            measured_us += float(call["time_us"])
    assert len(calls) == 16 and abs(forecast_us / measured_us - 1) <= most


def test_graphs_of_mixers_spare_the_host_their_launches() -> None:
    """Norm, projections, scan and addition of a layer are one launch, forward and backward; attention's are not."""
    for layer, least in ((0, 0.6), (7, 0.0)):
        model = load_model("nemotron-h-8b")
        kind = model.of_kind(model.kind(layer))
        launches = layer_forward(kind, Implementation(framework="megatron"), 1, 4096)
        without, replayed = module_launches(launches), module_launches(launches, ["mamba"])
        assert replayed == 1 if least else replayed == without


def test_scopes_of_graphs_are_read(tmp_path: Path) -> None:
    graphs = {"implementation": {"framework": "megatron", "cuda_graphs": ["attn", "mamba"], "host_launch_us": 280.0}}
    assert plan(**graphs).implementation.graph_scopes == ("attn", "mamba")


def test_modules_for_further_tokens_of_hybrids() -> None:
    """Attention and experts each, in a hybrid with both; what others have is not known."""
    further = {"sequence_length": 1024, "global_batch_size": 8, "mtp_num_layers": 2}
    split = {"expert_model_parallel_size": 8}
    plans = [
        plan("nemotron-3-nano-30b-a3b", workload={**further, "mtp_num_layers": count}, parallelism=split)
        for count in (2, 0)
    ]
    names = [[x.operator.name for ty in plan_program(one).ranks[0].types for x in ty] for one in plans]
    for name in ("attention.forward", "router"):
        assert names[0].count(name) == names[1].count(name) + 2
    assert names[0].count("scan.scan") == names[1].count("scan.scan")
    with pytest.raises(NotYetError, match="modules that predict further tokens"):
        plan("nemotron-h-8b", workload=further)


def test_latent_experts_are_megatrons() -> None:
    shared = {"cluster": {"gpus": 64}, "parallelism": {"expert_model_parallel_size": 64}}
    assert plan("nemotron-3-super-120b-a12b", workload={"global_batch_size": 64}, **shared)
    with pytest.raises(NotYetError, match="latent projections"):
        plan("nemotron-3-super-120b-a12b", users=True, workload={"global_batch_size": 64}, cluster={"gpus": 64})
