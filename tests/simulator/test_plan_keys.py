"""No key of a plan is ignored in silence: changing it changes the forecast, is refused, or has a reason not to."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from joulecast.errors import InputError
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plan_text import plan_text
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.iteration import forecast as forecast_module
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.iteration.plan_interval import Interval
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.schema import TABLES

#: Another value of every key than the bases below have.
OTHER: dict[str, dict[str, Any]] = {
    "workload": {
        "model": "llama-3.2-1b",
        "layers": 3,
        "mtp_num_layers": 1,
        "mtp_use_repeated_layer": True,
        "sequence_length": 1024,
        "micro_batch_size": 2,
        "global_batch_size": 4096,
        "precision": "fp16",
        "fp8_recipe": "tensorwise",
        "moe_expert_capacity_factor": 1.5,
        "moe_load_imbalance": 1.4,
        "fp8_param_gather": True,
        "fp4_param_gather": True,
        "num_layers_at_start_in_bf16": 2,
        "num_layers_at_end_in_bf16": 3,
        "lora": {"rank": 64, "target_modules": "all-linear"},
        "images": {"per_sequence": 2},
        "training_tokens": 2e9,
        "document_tokens": 300,
        "document_packing": "whole",
        "objective": "dpo",
        "reference": "precomputed",
        "completion_tokens": 100,
        "teacher": "llama-3.2-3b",
        "num_iterations": 2,
        "old_log_probabilities": True,
        "rollout": {"num_generations": 4},
    },
    "cluster": {"gpu": "h100-sxm", "gpus": 128, "gpus_per_node": 4, "node": "hgx-h100", "node_clock_spread": 0.1},
    "network": {
        "name": "roce-400g",
        "nics_per_node": 2,
        "nic_gbit_per_s": 100.0,
        "efficiency": 0.5,
        "step_latency_us": 50.0,
        "rails": 1,
        "oversubscription": 3.0,
        "jitter": 0.3,
        "nvls": True,
        "sharp": True,
    },
    "parallelism": {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 2,
        "data_parallel_size": 3,
        "sequence_parallel": True,
        "stage_layers": [1, 3],
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "context_parallel_size": 4,
        "cp_comm_type": "all_gather",
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "distributed_optimizer": True,
        "fsdp": True,
        "fsdp_shard_size": 8,
        "fsdp_reshard_after_forward": False,
        "fsdp_sync_each_batch": False,
    },
    "schedule": {
        "name": "gpipe",
        "recompute": "full",
        "recompute_modules": ["mlp"],
        "recompute_interval": 2,
        "recompute_stops_early": False,
    },
    "overlap": {
        "nanobatches": 2,
        "window": ["qkv", "output"],
        "launch": "asap",
        "comm_ctas": 4,
        "comm_threads": 64,
        "comm_engine": "copy",
        "comm_first": True,
        "sm_margin": 16,
        "tp_comm": True,
        "ep_comm": True,
        "grad_reduce": "overlapped",
        "param_gather": "overlapped",
        "fsdp_prefetch": False,
        "grad_bucket_mb": 1.0,
    },
    "implementation": {
        "framework": "pytorch-eager",
        "generation": "nemo-2024",
        "attention_backend": "flash-attention-2",
        "attention_precision": "fp8",
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
        "moe_flex_dispatcher_num_sms": 4,
        "moe_permute_fusion": False,
        "moe_router_fusion": False,
        "moe_row_operator": "index_add",
        "moe_router_dtype": "fp32",
        "moe_fused_mlp": True,
        "moe_dispatch_precision": "fp8",
        "activation_func_fp8_input_store": True,
        "attention_output_store": "e5m6",
        "average_in_collective": True,
        "rotary": False,
        "tie_embeddings": True,
        "shard_head": False,
        "cuda_graphs": True,
        "host_launch_us": 9.0,
        "compile": True,
        "fused_loss": True,
        "loss_metrics": 2,
        "log_probabilities": "chunked",
        "training_loop": "trainer",
        "dataloader_num_workers": 0,
        "optimizer": "adamw-for-loop",
        "muon_num_ns_steps": 8,
        "muon_nesterov": True,
        "muon_tp_mode": "distributed",
        "muon_split_qkv": False,
        "muon_fp32_matmul_prec": "high",
        "parameter_precision": "fp32",
        "reference_precision": "bf16",
        "zero_grad_set_to_none": True,
        "gradient_clipping": True,
        "modules": "torchtitan",
        "liger_kernel": True,
        "dropout": 0.1,
        "deterministic": True,
        "gradient_precision": "bf16",
        "optimizer_precision": "bf16",
        "main_parameters": True,
        "tiles": {"qkv": [128, 128, 64]},
    },
    "power": {"clock_mhz": 1200, "power_limit_w": 400.0, "component_limits_w": {"compute": 250.0}},
    "site": {
        "name": "default-in-euro.toml",
        "currency": "EUR",
        "pue": 1.9,
        "electricity_price_per_kwh": 0.9,
        "carbon_intensity_kg_per_kwh": 0.9,
        "hardware_price_per_gpu": 9.0,
        "gpu_price_per_hour": 9.0,
        "embodied_kg_per_gpu": 9.0,
        "hardware_lifetime_years": 9.0,
        "hardware_utilisation": 0.2,
        "goodput": 0.5,
        "node_mtbf_hours": 9.0,
        "checkpoint_s": 99.0,
        "restart_s": 99.0,
        "node_power_limit_w": 3000.0,
        "nodes_per_rack": 2,
        "rack_power_limit_w": 3000.0,
        "power_limit_w": 3000.0,
    },
}
DENSE = {
    "model": "llama-3.1-8b",
    "layers": 4,
    "sequence_length": 2048,
    "micro_batch_size": 1,
    "global_batch_size": 32,
}
EXPERTS = DENSE | {"model": "mixtral-8x7b"}
MEGATRON = {"framework": "megatron"}


def cluster(gpus: int) -> dict[str, Any]:
    return {"gpu": "h200-sxm", "gpus": gpus, "gpus_per_node": min(gpus, 8)}


BASES: dict[str, dict[str, Any]] = {
    "one GPU": {"workload": DENSE, "cluster": cluster(1)},
    "replicas": {"workload": DENSE | {"global_batch_size": 2048}, "cluster": cluster(2048), "implementation": MEGATRON},
    "ZeRO-1 and tensor parallelism": {
        "workload": DENSE,
        "cluster": cluster(16),
        "parallelism": {"distributed_optimizer": True, "tensor_model_parallel_size": 2, "sequence_parallel": True},
        "overlap": {"grad_reduce": "overlapped"},
        "implementation": MEGATRON,
    },
    "pipeline, cut micro-batches": {
        "workload": DENSE | {"micro_batch_size": 4, "global_batch_size": 32},
        "cluster": cluster(8),
        "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        "overlap": {"nanobatches": 4, "window": ["qkv", "attention"]},
    },
    "FSDP": {
        "workload": DENSE,
        "cluster": cluster(16),
        "parallelism": {"fsdp": True},
        "implementation": MEGATRON,
    },
    "a run in FP8, split sequences": {
        "workload": DENSE | {"precision": "fp8", "training_tokens": 1e9, "layers": 8},
        "cluster": cluster(16),
        "parallelism": {
            "context_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 4,
        },
        "schedule": {"name": "interleaved-1f1b"},
        "site": {"nodes_per_rack": 1, "node_mtbf_hours": 999.0},
        "implementation": MEGATRON,
    },
    "experts in MXFP8": {
        "workload": EXPERTS | {"precision": "fp8", "fp8_recipe": "mxfp8"},
        "cluster": {"gpu": "b200", "gpus": 8},
        "parallelism": {"expert_model_parallel_size": 8, "distributed_optimizer": True},
        "implementation": MEGATRON,
    },
    "experts in FP8 by HybridEP": {
        "workload": EXPERTS | {"precision": "fp8", "fp8_recipe": "blockwise", "mtp_num_layers": 2},
        "cluster": cluster(8),
        "parallelism": {"expert_model_parallel_size": 8, "distributed_optimizer": True},
        "overlap": {"ep_comm": True},
        "implementation": MEGATRON | {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
    },
    "NVFP4, its ends in bf16": {
        "workload": DENSE | {"precision": "fp4", "num_layers_at_end_in_bf16": 1},
        "cluster": {"gpu": "b200", "gpus": 8},
        "parallelism": {"distributed_optimizer": True},
        "implementation": MEGATRON,
    },
    "experts": {
        "workload": EXPERTS | {"global_batch_size": 128},
        "cluster": cluster(64),
        "network": {"oversubscription": 2.0},
        "parallelism": {"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1},
        "implementation": MEGATRON,
    },
    "experts in eager mode": {
        "workload": EXPERTS | {"global_batch_size": 16},
        "cluster": cluster(8),
        "parallelism": {"expert_model_parallel_size": 8},
    },
}
BASES["Muon"] = BASES["one GPU"] | {
    "cluster": cluster(16),
    "parallelism": {"tensor_model_parallel_size": 2},
    "implementation": MEGATRON | {"optimizer": "muon"},
}
BASES["layers computed again by PyTorch"] = BASES["one GPU"] | {"schedule": {"recompute": "full"}}
BASES["adapters"] = {
    "workload": DENSE | {"lora": {}},
    "cluster": cluster(1),
    "implementation": {"modules": "transformers"},
}
BASES["images"] = {
    "workload": DENSE | {"model": "qwen3-vl-8b", "images": {}},
    "cluster": cluster(1),
    "implementation": {"modules": "transformers"},
}
BASES["pairs"] = {
    "workload": DENSE | {"objective": "dpo"},
    "cluster": cluster(1),
    "implementation": {"modules": "transformers"},
}
BASES["pairs in mixed precision"] = BASES["pairs"] | {
    "implementation": {"modules": "transformers", "parameter_precision": "fp32", "training_loop": "trainer"},
}
BASES["own completions"] = BASES["pairs"] | {
    "workload": DENSE | {"objective": "grpo", "reference": "copy", "completion_tokens": 256},
}
BASES["a teacher"] = BASES["pairs"] | {
    "workload": DENSE | {"objective": "distillation", "teacher": "llama-3.2-1b"},
}
BASES["documents"] = {
    "workload": DENSE | {"document_tokens": 1200},
    "cluster": cluster(1),
    "implementation": {"modules": "transformers", "attention_backend": "flash-attn-2"},
}
BASES["parameters sharded by PyTorch"] = BASES["one GPU"] | {"cluster": cluster(4), "parallelism": {"fsdp": True}}
BASES["experts by PyTorch's operators"] = BASES["experts in eager mode"] | {
    "implementation": {"moe_permute_fusion": False}
}
SIZE = "one rank, node or micro-batch has nothing that this could change, and spaces vary their number"
#: Why a key may change nothing in some plan.
REASONS = {
    "cluster.gpus_per_node": "fewer GPUs than a node has are joined as a node joins them",
    "cluster.node_clock_spread": SIZE,
    "network.nics_per_node": SIZE,
    "network.nic_gbit_per_s": SIZE,
    "network.efficiency": SIZE,
    "network.step_latency_us": "hidden beside computation, or " + SIZE,
    "network.rails": "few nodes hang on one leaf switch, or " + SIZE,
    "network.oversubscription": "few nodes hang on one leaf switch, or " + SIZE,
    "network.jitter": SIZE,
    "network.nvls": "only all-reduces run in switches, and these cross nodes or are none",
    "network.sharp": "only all-reduces run in switches, and these stay within nodes or are none",
    "parallelism.sequence_parallel": "Megatron leaves it off with one tensor-parallel rank; " + SIZE,
    "parallelism.account_for_embedding_in_pipeline_split": SIZE,
    "parallelism.account_for_loss_in_pipeline_split": SIZE,
    "parallelism.cp_comm_type": SIZE,
    "implementation.average_in_collective": SIZE,
    "parallelism.distributed_optimizer": SIZE,
    "schedule.name": "one micro-batch has one order",
    "overlap.comm_ctas": SIZE,
    "overlap.grad_reduce": SIZE,
    "overlap.launch": "as soon as it can is when it starts without a window, too",
    "overlap.grad_bucket_mb": "every parameter fills a bucket of its own, or " + SIZE,
    "implementation.shard_head": SIZE,
    "implementation.optimizer_precision": "eager moments are as the weights are, which is this value",
    "implementation.gradient_precision": "eager gradients are as the weights are, which is this value",
    "implementation.reference_precision": "a second model is as the weights are, which is this value",
    "implementation.gradient_clipping": "Megatron always takes the gradients' norm, which is this value",
    "implementation.main_parameters": "Megatron always keeps a second copy, which is this value",
    "implementation.zero_grad_set_to_none": "FSDP drops gradients unless it is told otherwise, which is this value",
    "implementation.log_probabilities": "pairs are taken in tiles unless it is told otherwise, which is this value",
}


def figures(tables: dict[str, Any]) -> str:
    """Everything that a forecast says, but the plan."""
    found = forecast(plan_from_dict(tables), must_fit=False).to_dict()
    return json.dumps({name: value for name, value in found.items() if name != "plan"}, sort_keys=True, default=str)


def keys() -> list[str]:
    """Of tables; those of tables within them have tests of their own."""
    return [f"{table}.{key}" for table, of in TABLES.items() if "." not in table for key in of.model_fields]


def changed(base: dict[str, Any], key: str) -> dict[str, Any]:
    table, _, name = key.partition(".")
    tables = copy.deepcopy(base)
    tables.setdefault(table, {})[name] = OTHER[table][name]
    return tables


@contextmanager
def without_intervals() -> Iterator[None]:
    """Forecasts whose error bars are not computed, in two thirds of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_module, "interval", lambda *_: Interval((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)))
        yield


def is_same(other: dict[str, Any], whole: str, quick: str) -> bool:
    """Whether a plan has this forecast; error bars are compared where all else is the same."""
    with without_intervals():
        if figures(other) != quick:
            return False
    return figures(other) == whole


@pytest.fixture(scope="module")
def effects() -> dict[str, dict[str, str]]:
    """By key and base: changed, refused or nothing."""
    found: dict[str, dict[str, str]] = {}
    for name, base in BASES.items():
        whole = figures(base)
        with without_intervals():
            quick = figures(base)
        for key in keys():
            table, _, option = key.partition(".")
            default = TABLES[table].model_fields[option].default
            if base.get(table, {}).get(option, default) == OTHER[table][option]:
                continue
            try:
                effect = "nothing" if is_same(changed(base, key), whole, quick) else "changed"
            except InputError as error:
                effect = "refused" if error.key or error.remedy else "refused without a word"
            found.setdefault(key, {})[name] = effect
    return found


def test_every_key_has_another_value():
    listed = {f"{table}.{key}" for table, of in OTHER.items() for key in of}
    assert listed == set(keys())


def test_no_key_is_ignored_in_silence(effects):
    silent = {key: [b for b, effect in of.items() if effect == "nothing"] for key, of in effects.items()}
    assert {key: bases for key, bases in silent.items() if bases and key not in REASONS} == {}


def test_reasons_are_needed(effects):
    assert {key for key in REASONS if "nothing" not in effects[key].values()} == set()


def test_every_key_acts_somewhere(effects):
    """All but what can only be refused here: derived sizes, dropout and determinism alone, no such file, reserved."""
    idle = {key for key, of in effects.items() if "changed" not in of.values()}
    assert idle == {
        "parallelism.data_parallel_size",
        "parallelism.account_for_embedding_in_pipeline_split",
        "parallelism.account_for_loss_in_pipeline_split",
        "implementation.dropout",
        "implementation.deterministic",
        "site.name",
        "site.currency",
        "schedule.recompute_modules",
    }


def test_what_is_refused_says_why(effects):
    assert not any("refused without a word" in of.values() for of in effects.values())


FSDP_OFF = [
    ({"parallelism": {"fsdp_shard_size": 8}}, "parallelism.fsdp_shard_size", "fsdp = true"),
    ({"overlap": {"fsdp_prefetch": False}}, "overlap.fsdp_prefetch", "fsdp = true"),
    ({"workload": DENSE | {"fp8_recipe": "tensorwise"}}, "workload.fp8_recipe", 'precision = "fp8"'),
    ({"workload": DENSE | {"fp8_param_gather": True}}, "workload.fp8_param_gather", 'precision = "fp8"'),
    ({"workload": DENSE | {"fp4_param_gather": True}}, "workload.fp4_param_gather", 'precision = "fp4"'),
    (
        {"workload": DENSE | {"num_layers_at_end_in_bf16": 4}},
        "workload.num_layers_at_end_in_bf16",
        '"fp8" or "fp4"',
    ),
    ({"parallelism": {"fsdp": True}, "overlap": {"grad_bucket_mb": 25.0}}, "overlap.grad_bucket_mb", "fsdp = false"),
    ({"implementation": {"moe_token_dispatcher_type": "flex"}}, "implementation.moe_token_dispatcher_type", "experts"),
    ({"implementation": {"moe_permute_fusion": False}}, "implementation.moe_permute_fusion", "experts"),
    ({"implementation": {"moe_row_operator": "scatter_add"}}, "implementation.moe_row_operator", "= false"),
    ({"site": {"goodput": 0.9}}, "site.goodput", "training_tokens"),
    ({"site": {"node_mtbf_hours": 9e3}}, "site.node_mtbf_hours", "training_tokens"),
    ({"site": {"restart_s": 60.0}}, "site.restart_s", "node_mtbf_hours"),
]


@pytest.mark.parametrize(("tables", "key", "remedy"), FSDP_OFF, ids=[key for _, key, _ in FSDP_OFF])
def test_keys_of_a_feature_that_is_off_are_refused(tables: dict[str, Any], key: str, remedy: str):
    with pytest.raises(InputError) as error:
        plan_from_dict(BASES["one GPU"] | tables)
    assert error.value.key == key
    assert remedy in (error.value.remedy or "")


def test_a_space_may_state_once_what_only_some_of_its_plans_have():
    """FSDP or ZeRO-1, each with its own keys: neither is refused, and what is written for the best can be forecast."""
    base = BASES["FSDP"] | {
        "parallelism": {"fsdp": [True, False], "distributed_optimizer": True},
        "overlap": {"fsdp_prefetch": False, "grad_reduce": "overlapped", "param_gather": "overlapped"},
    }
    space = space_from_dict(base)
    plans = Plans(space)
    sharded, plain = (plans.plan({"parallelism.fsdp": on}) for on in (True, False))
    assert (sharded.parallelism.distributed_optimizer, sharded.overlap.grad_reduce) == (False, "after")
    assert (plain.parallelism.distributed_optimizer, plain.overlap.grad_reduce) == (True, "overlapped")
    assert (sharded.overlap.fsdp_prefetch, plain.overlap.fsdp_prefetch) == (False, True)
    for on, expected in ((True, sharded), (False, plain)):
        assert plan_from_dict(tomllib.loads(plan_text(space, {"plan": 0, "parallelism.fsdp": on}))) == expected
    varied = space_from_dict(base | {"overlap": {"fsdp_prefetch": [True, False]}})
    found = Plans(varied)
    both = [found.plan({"parallelism.fsdp": False, "overlap.fsdp_prefetch": way}) for way in (True, False)]
    assert both[0] == both[1] and both[0].overlap.fsdp_prefetch  # a sweep goes through one of them
    assert [values["overlap.fsdp_prefetch"] for values in all_of(varied) if not values["parallelism.fsdp"]] == [True]


def all_of(space):
    """Values of every combination of a space."""
    found = combinations(space, Plans(space))
    return [found.of(number) for number in range(len(found))]


@pytest.mark.parametrize("name", ["gpu_count", "num_gpus", "n_gpu"])
def test_a_count_is_named_in_the_plural(name):
    with pytest.raises(InputError) as caught:
        plan_from_dict({"cluster": {"gpu": "h200-sxm", name: 4}})
    assert caught.value.remedy == "Did you mean 'gpus'?"
