"""Selective recomputation by module: what runs again and what is not kept, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Attention, Gemm
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.memory.layer_transients import layer_transient_bytes
from joulecast.model.training.step import layer_backward
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.instructions.footprints import footprint_of, footprints
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import plan_from_dict

DENSE = ModelConfig("tiny", 512, 4, 8, 4, 64, 1024, 4096)
MOE = replace(DENSE, experts=Experts(16, 2, 256, shared_ffn=256))
LATENT = replace(DENSE, head_dim=80, kv_heads=8, latent=LatentAttention(192, 128, 64, 32, 64))
TOKENS = 2048
NONE = Implementation(framework="megatron", expert_parallel=8)


def selective(*modules: str) -> Implementation:
    return replace(NONE, recompute="selective", recompute_modules=modules)


def again(config: ModelConfig, *modules: str) -> tuple[Counter[str], float]:
    """Kernels that run again, and the floating-point operations of their products."""
    plain, more = (layer_backward(config, run, 2, 1024) for run in (NONE, selective(*modules)))
    products = [sum(x.operator.flops for x in way if isinstance(x.operator, Gemm)) for way in (plain, more)]
    names = [Counter(x.operator.name for x in way) for way in (plain, more)]
    return names[1] - names[0], products[1] - products[0]


def saved(config: ModelConfig, *modules: str) -> float:
    return layer_bytes(shard(config, NONE, 2, 1024)) - layer_bytes(shard(config, selective(*modules), 2, 1024))


def test_norms():
    """Those that stand alone: Transformer Engine's other products begin with their norms."""
    assert again(DENSE, "layernorm") == (Counter(), 0.0)
    assert again(MOE, "layernorm") == (Counter({"norm2": 1}), 0.0)
    assert again(LATENT, "layernorm") == (Counter({"norm1": 1}), 0.0)
    assert saved(DENSE, "layernorm") == 0.0
    assert saved(MOE, "layernorm") == saved(LATENT, "layernorm") == 2 * TOKENS * 512


def test_a_whole_mlp_keeps_its_input_alone():
    names, products = again(DENSE, "mlp")
    assert names == Counter({"norm2": 1, "up": 1, "gate.silu": 1, "down": 1})
    assert products == 2 * TOKENS * 3 * 512 * 1024
    assert saved(DENSE, "mlp") == 2 * TOKENS * (512 + 3 * 1024)
    assert saved(MOE, "mlp") == 0


def test_the_experts_activation():
    assert again(MOE, "moe_act") == (Counter({"gate.silu": 1}), 0.0)
    assert saved(MOE, "moe_act") == 2 * (2 * TOKENS) * 256
    assert saved(DENSE, "moe_act") == 0


def test_shared_experts_and_all_of_them():
    names, products = again(MOE, "shared_experts")
    assert names == Counter({"shared_up": 1, "gate.silu": 1, "shared_down": 1})
    assert products == 2 * TOKENS * 3 * 512 * 256
    assert saved(MOE, "shared_experts") == 2 * TOKENS * 3 * 256
    names, products = again(MOE, "moe")
    assert names["dispatch.all_to_all"] == names["combine.all_to_all"] == names["router"] == 1
    assert products == 2 * TOKENS * (3 * 512 * 256 + 512 * 16) + 2 * (2 * TOKENS) * 3 * 512 * 256
    rows = 2 * TOKENS * (2 * (512 + 512 + 256) + 4) + 8 * TOKENS * 16
    assert saved(MOE, "moe") == rows + 2 * TOKENS * 3 * 256


def test_what_latent_attention_unfolds():
    names, products = again(LATENT, "mla_up_proj")
    assert names["query_up"] == names["key_up"] == 1 and "query_down" not in names
    assert products == 2 * TOKENS * (192 * 8 * 96 + 128 * 8 * 128)
    assert saved(LATENT, "mla_up_proj") == 2 * TOKENS * (8 * (96 + 96 + 64) + 192 + 128)  # and the normed vectors


def test_what_is_made_again_is_there_once():
    """While one layer's backward runs, it holds what all the layers no longer keep."""
    for modules in (("mlp",), ("moe",), ("moe_act", "layernorm")):
        config = DENSE if modules == ("mlp",) else MOE
        once = [layer_transient_bytes(shard(config, run, 2, 1024)) for run in (NONE, selective(*modules))]
        assert once[1] - once[0] == saved(config, *modules)


def plan(**schedule: Any) -> dict[str, Any]:
    return {
        "workload": {"model": "deepseek-v3", "layers": 8, "sequence_length": 4096, "global_batch_size": 64},
        "cluster": {"gpu": "h200-sxm", "gpus": 64},
        "parallelism": {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 32},
        "schedule": schedule,
        "implementation": {"framework": "megatron"},
    }


def test_modules_lie_between_nothing_and_everything():
    some = plan(recompute="selective", recompute_modules=["mla_up_proj", "moe_act", "layernorm"])
    plans = [plan_from_dict(tables) for tables in (plan(), some, plan(recompute="full"))]
    memory = [footprint_of(one, 0).activations for one in plans]
    times = [forecast(one, must_fit=False).time_s for one in plans]
    assert memory[0] > 1.1 * memory[1] > 1.1 * memory[2]
    assert times[0] < times[1] < times[2]
    assert closed_form(plans).time_s == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (plan(recompute="full", recompute_modules=["mlp"]), ("recompute_modules", "selective")),
        (plan(recompute="selective", recompute_modules=["attention"]), ("recompute_modules", "core_attn")),
        (
            {
                **plan(recompute="selective", recompute_modules=["mlp"]),
                "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 64},
                "parallelism": {},
                "implementation": {},
            },
            ("recompute_modules", "megatron"),
        ),
    ],
)
def test_what_cannot_be_is_refused(tables: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan_from_dict(tables)
    for word in words:
        assert word in str(error.value)


def eager(**schedule: Any) -> dict[str, Any]:
    """A dense model whose layers PyTorch computes again, over two GPUs with FSDP."""
    return {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 4},
        "cluster": {"gpu": "h200-sxm", "gpus": 2},
        "parallelism": {"fsdp": True},
        "schedule": {"name": "none", **schedule},
        "implementation": {"parameter_precision": "fp32", "modules": "torchtitan"},
    }


def test_checkpoints_that_do_not_stop_early_run_a_layers_last_product_again() -> None:
    config, whole = DENSE, Implementation(recompute="full", recompute_stops_early=False)
    early, late = (layer_backward(config, run, 2, 1024) for run in (replace(whole, recompute_stops_early=True), whole))
    more = Counter(x.operator.name for x in late) - Counter(x.operator.name for x in early)
    assert more == Counter({"down": 1, "residual2": 1})
    assert layer_bytes(shard(config, whole, 2, 1024)) == 2 * TOKENS * 512


def test_every_other_layer_is_computed_again() -> None:
    ways = (eager(), eager(recompute="full", recompute_interval=2), eager(recompute="full"))
    plans = [plan_from_dict(tables) for tables in ways]
    times = [forecast(one, must_fit=False).time_s for one in plans]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2, rel=0.005)
    kept = [footprint_of(one, 0).activations for one in plans]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2)
    assert closed_form(plans).time_s == pytest.approx(times, rel=0.02)


def test_a_plan_that_does_not_fit_is_told_of_its_interval() -> None:
    tables = eager(recompute="full", recompute_interval=2)
    plan = plan_from_dict({**tables, "workload": {**tables["workload"], "sequence_length": 2**20}})
    with pytest.raises(InputError, match=r"lower schedule\.recompute_interval or split states"):
        footprints(plan, gpu_of(plan))


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_intervals_without_full_recomputation_by_pytorch_are_refused(framework: str) -> None:
    for keys in ({"recompute_interval": 2}, {"recompute_stops_early": False}):
        (key,) = keys
        with pytest.raises(InputError, match=rf"schedule\.{key}.*recompute is 'none'"):
            plan_from_dict({**eager(**keys), "implementation": {"framework": framework}})
        if framework == "megatron":
            with pytest.raises(InputError, match=rf"schedule\.{key}.*PyTorch's checkpoints"):
                plan_from_dict({**eager(recompute="full", **keys), "implementation": {"framework": framework}})
    with pytest.raises(InputError, match="recompute_interval"):
        plan_from_dict(eager(recompute="full", recompute_interval=0))


def test_operators_are_kept_as_torchtitan_lists_them() -> None:
    """Of a layer's seven products three run again: keys, behind attention, beside the gate; attention does not."""
    gated = replace(DENSE, gated_mlp=True)
    run = Implementation(modules="torchtitan", recompute="operators", attention_backend="flash-attention-2")
    whole, plain = (layer_backward(gated, one, 2, 1024) for one in (run, replace(run, recompute="none")))
    repeated = [one.operator for one in whole[: len(whole) - len(plain)]]
    assert [one.name for one in repeated if isinstance(one, Gemm)] == ["key", "output", "up"]
    assert not any(isinstance(one, Attention) for one in repeated)
    eager = layer_bytes(shard(gated, run, 2, 1024))
    keys, width = gated.kv_heads * gated.head_dim, gated.heads * gated.head_dim
    assert eager == TOKENS * (2 * (2 * gated.hidden + 2 * width + keys + gated.ffn) + 4 * gated.heads)
    compiled = layer_bytes(shard(gated, replace(run, compiled=True), 2, 1024))
    assert compiled == eager - 2 * TOKENS * gated.hidden
