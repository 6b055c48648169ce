"""However a plan splits a model, all its GPUs together multiply what one would: every size at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.kernels.operators import Attention, Gemm
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict


def plan(model: str, layers: int | None, gpus: int, batch: int, **parallelism: Any) -> Plan:
    workload: dict[str, Any] = {"model": model, "sequence_length": 4096, "global_batch_size": batch}
    if layers is not None:
        workload["layers"] = layers
    if load_model(model).experts is not None:
        workload["moe_load_imbalance"] = 1.0
    workload |= parallelism.pop("workload", {})
    tables = {
        "workload": workload,
        "cluster": {"gpu": "h100-sxm", "gpus": gpus},
        "parallelism": {"sequence_parallel": True, **parallelism},
        "schedule": {"name": "interleaved-1f1b" if "virtual_pipeline_model_parallel_size" in parallelism else "1f1b"},
        "overlap": {"tp_comm": parallelism.get("tensor_model_parallel_size", 1) > 1},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(tables)


TP, PP, VP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
CP, EP, ETP = "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"
PLANS = {
    "dense": plan("llama-3.1-8b", 8, 32, 16, **{TP: 2, PP: 2, VP: 2, CP: 4}),
    "gathered keys": plan("llama-3.1-8b", 8, 32, 16, **{TP: 4, PP: 2, CP: 2, "cp_comm_type": "all_gather"}),
    "uneven stages": plan("llama-3.1-8b", 8, 16, 16, **{TP: 2, PP: 4, "stage_layers": [3, 2, 2, 1]}),
    "fp8": plan("gpt3-175b", 8, 64, 16, **{TP: 8, PP: 4, "workload": {"precision": "fp8"}}),
    "experts": plan("mixtral-8x7b", 8, 32, 32, **{TP: 2, PP: 2, EP: 8, ETP: 1, CP: 2}),
    "shared experts of two ranks each": plan("mixtral-8x7b", 4, 16, 32, **{TP: 2, PP: 2, EP: 2, ETP: 2}),
    "latent": plan("deepseek-v3", 8, 64, 32, **{TP: 2, PP: 4, EP: 16, ETP: 1}),
}


@pytest.mark.parametrize("one", PLANS.values(), ids=PLANS)
def test_products_of_all_gpus_are_the_models(one: Plan):
    """Micro-batches, stages, shares of sequences, vocabulary, columns and experts add up to the definition."""
    program, counted = plan_program(one), Counter[str]()
    for rank in program.ranks:
        for kind, times in Counter(rank.order).items():
            for launch in rank.types[kind]:
                operator = launch.operator
                if isinstance(operator, Gemm | Attention):
                    counted[type(operator).__name__] += operator.flops * launch.repeat * times
    model, gpus = one.workload.model, one.tp * one.replicas
    wide, narrow = (1, 1) if model.latent is None else (model.latent.key_dim, model.latent.value_dim)
    # An attention kernel computes scores again in its backward: five products, of which three are as wide as keys.
    kernel = (1.0 + (3 * wide + 2 * narrow) / (wide + narrow)) / 3.0
    done = gpus * (counted["Gemm"] + counted["Attention"] / kernel)
    expected = training_flops(model, one.workload.sequence_length, one.tokens)
    vocabulary = -(-model.vocab // one.tp) * one.tp / model.vocab
    assert vocabulary < 1.001
    assert done == pytest.approx(expected, rel=1e-3 * (vocabulary > 1) + 1e-9)


@pytest.mark.parametrize("one", PLANS.values(), ids=PLANS)
def test_parameters_of_all_gpus_are_the_models(one: Plan):
    """Each tensor-parallel rank's share, copies once, experts of all their ranks; replicas hold the same."""
    split = one.parallelism
    sharing = split.expert_model_parallel_size * split.expert_tensor_parallel_size
    total = 0
    for rank in range(one.pp):
        for p in stage_parameters(one, rank):
            total += p.elements * (1 if p.replicated else sharing if p.expert else one.tp)
    model = one.workload.model
    ties = model.vocab * model.hidden if model.tied_embeddings and one.pp > 1 else 0
    assert total == pytest.approx(model.parameters + ties, rel=1e-3 * (model.vocab % one.tp > 0) + 1e-12)
