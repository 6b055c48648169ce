"""Where clocks are set, the closed form is the simulation to rounding: nothing settles, and sums are left."""

from __future__ import annotations

from typing import Any

import pytest
from ways_agree import ways_agree

from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

BESIDE = {"grad_reduce": "overlapped", "param_gather": "overlapped"}
DDP = {"grad_reduce": "overlapped"}
#: Each by its own tables; a key without a table is of [parallelism].
PLANS: dict[str, dict[str, Any]] = {
    "tensor": {"tp": 8, "overlap": BESIDE, "distributed_optimizer": True},
    "tensor, gradients alone": {"tp": 8, "overlap": DDP},
    "context": {"tp": 2, "context_parallel_size": 2, "overlap": BESIDE, "distributed_optimizer": True},
    "gpipe": {"tp": 4, "pp": 2, "schedule": {"name": "gpipe"}},
    "gpipe beside": {
        "tp": 2,
        "pp": 4,
        "schedule": {"name": "gpipe"},
        "overlap": BESIDE,
        "distributed_optimizer": True,
    },
    "1f1b": {"tp": 2, "pp": 4, "schedule": {"name": "1f1b", "recompute": "full"}},
    "1f1b beside": {"tp": 2, "pp": 4, "overlap": BESIDE, "distributed_optimizer": True},
    "zero bubbles": {"tp": 4, "pp": 4, "schedule": {"name": "zb-h1"}},
    "zero bubbles beside": {
        "tp": 2,
        "pp": 4,
        "schedule": {"name": "zb-h1"},
        "overlap": BESIDE,
        "distributed_optimizer": True,
    },
    "sharded": {"eager": True, "fsdp": True},
    "copies": {"eager": True, "overlap": DDP},
    "copies of a pipeline": {"eager": True, "pp": 4, "overlap": DDP},
    "experts": {
        "model": "mixtral-8x7b",
        "tp": 2,
        "pp": 2,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "overlap": BESIDE,
        "distributed_optimizer": True,
    },
    "layers that take turns": {"model": "gpt-oss-20b", "eager": True, "pp": 2},
    "layers of two kinds": {"model": "gemma-3-4b", "tp": 2, "pp": 2, "layers": 12},
    "state spaces between others": {"model": "nemotron-h-8b", "tp": 2, "pp": 2, "layers": 16},
    "state spaces, cut unevenly": {
        "model": "nemotron-h-8b",
        "pp": 2,
        "layers": 13,
        "stage_layers": [8, 5],
        "distributed_optimizer": True,
        "overlap": BESIDE,
    },
    "state spaces and experts": {
        "model": "nemotron-3-nano-30b-a3b",
        "layers": 6,
        "expert_model_parallel_size": 8,
        "distributed_optimizer": True,
    },
    "state spaces sharded": {"model": "granite-4.0-h-micro", "eager": True, "users": True, "fsdp": True, "layers": 6},
    "linear attention": {"model": "qwen3-next-80b-a3b", "eager": True, "users": True, "fsdp": True, "layers": 4},
}


def plan(
    nic_gbit_per_s: float,
    model: str = "llama-3.1-8b",
    tp: int = 1,
    pp: int = 1,
    layers: int = 8,
    *,
    eager: bool = False,
    users: bool = False,
    schedule: dict[str, str] | None = None,
    overlap: dict[str, str] | None = None,
    **split: Any,
) -> Plan:
    return plan_from_dict(
        {
            "workload": {"model": model, "layers": layers, "sequence_length": 4096, "global_batch_size": 32},
            "cluster": {"gpu": "h200-sxm", "gpus": 16},
            "parallelism": {
                "tensor_model_parallel_size": tp,
                "pipeline_model_parallel_size": pp,
                "sequence_parallel": not eager,
                **split,
            },
            "schedule": schedule or {"name": "1f1b" if pp > 1 else "none"},
            "overlap": overlap or {},
            "implementation": {
                "framework": "pytorch-eager" if eager else "megatron",
                "modules": "transformers" if users else "joint",
                "cuda_graphs": True,
            },
            "power": {"clock_mhz": 1200},
            "network": {"nic_gbit_per_s": nic_gbit_per_s},
        }
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("nic_gbit_per_s", [400.0, 50.0])
def test_at_a_set_clock_it_is_the_simulation(name: str, nic_gbit_per_s: float) -> None:
    """With cards of an eighth of the usual rate most of the reductions stick out behind the work."""
    one = plan(nic_gbit_per_s, **PLANS[name])
    ways_agree(one, time=1e-9, energy=1e-9, must_fit=False)


def test_what_waits_for_a_slow_network_draws_little() -> None:
    """Most of the slower one's time nothing but the network is at work, while its GPUs wait."""
    fast, slow = (closed_form([plan(nic, **PLANS["tensor"])]) for nic in (400.0, 10.0))
    assert slow.time_s[0] > 2.0 * fast.time_s[0]
    assert slow.energy_j[0] > fast.energy_j[0] and slow.power_w[0] < 0.7 * fast.power_w[0]
