"""Laws of clusters: better links are never slower, more memory fits no fewer plans, and what a run costs adds up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ways_agree import ways_agree

import joulecast as jc
from joulecast.model.hardware.catalogue import load_site
from joulecast.simulator.closed_form.forecast import Shared, closed_form
from joulecast.simulator.closed_form.trust import USUAL_ERROR
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

#: The same examples on every run.
few = settings(derandomize=True, deadline=None, max_examples=25, database=None)

#: Values of a key from the worst to the best.
BETTER: dict[str, tuple[float, ...]] = {
    "network.nic_gbit_per_s": (25.0, 100.0, 400.0, 1600.0),
    "network.oversubscription": (8.0, 3.0, 1.0),
    "network.efficiency": (0.3, 0.6, 0.95),
    "network.step_latency_us": (100.0, 20.0, 5.0),
    "network.jitter": (0.4, 0.1, 0.0),
    "cluster.node_clock_spread": (0.05, 0.02, 0.0),
    "power.power_limit_w": (350.0, 500.0, 650.0, 700.0),
}
#: Ways to split Llama-3.1-8B, or Mixtral-8x7B where experts are, over 64 GPUs.
SPLITS: tuple[dict[str, Any], ...] = (
    {"fsdp": True},
    {"tensor_model_parallel_size": 8, "distributed_optimizer": True},
    {"tensor_model_parallel_size": 16},
    {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4},
    {"context_parallel_size": 16},
    {"expert_model_parallel_size": 8, "pipeline_model_parallel_size": 2},
)
shared = Shared()


def tables(split: dict[str, Any], framework: str, grad_reduce: str) -> dict[str, dict[str, Any]]:
    model = "mixtral-8x7b" if "expert_model_parallel_size" in split else "llama-3.1-8b"
    return {
        "workload": {"model": model, "sequence_length": 4096, "global_batch_size": 64},
        "cluster": {"gpu": "h100-sxm", "gpus": 64},
        "network": {"rails": 1},  # so that groups reach beyond a leaf
        "parallelism": split,
        "implementation": {"framework": framework},
        "overlap": {} if "fsdp" in split or framework == "pytorch-eager" else {"grad_reduce": grad_reduce},
    }


@few
@given(
    st.sampled_from(sorted(BETTER)),
    st.sampled_from(SPLITS),
    st.sampled_from(["megatron", "pytorch-eager"]),
    st.sampled_from(["after", "overlapped"]),
)
def test_a_better_cluster_is_never_slower(key: str, split: dict[str, Any], framework: str, grad_reduce: str) -> None:
    """To 0.1 %: clocks are found on a grid."""
    table, _, name = key.partition(".")
    plain = tables(split, framework, grad_reduce)
    plans = [plan_from_dict({**plain, table: {**plain.get(table, {}), name: value}}) for value in BETTER[key]]
    times = closed_form(plans, shared=shared).time_s
    assert all(better <= worse * (1 + 1e-3) for worse, better in pairwise(times)), (key, times)


@pytest.fixture(scope="module")
def swept() -> Any:
    """Every plan of a space on cards with less memory and with more."""
    return jc.sweep(
        {
            "workload": {
                "model": "llama-3.1-70b",
                "sequence_length": 4096,
                "global_batch_size": 128,
                "micro_batch_size": [1, 2, 4],
                "training_tokens": 1e12,
            },
            "cluster": {"gpu": ["h100-sxm", "h200-sxm"], "gpus": [64, 128]},
            "parallelism": {
                "tensor_model_parallel_size": [2, 4, 8],
                "pipeline_model_parallel_size": [1, 2, 4],
                "distributed_optimizer": [True, False],
            },
            "implementation": {"framework": "megatron"},
            "site": {"electricity_price_per_kwh": 0.2, "carbon_intensity_kg_per_kwh": 0.5, "goodput": 0.9},
            "objective": {"top": 0},
        }
    )


def test_more_memory_fits_no_fewer_plans(swept: Any) -> None:
    keys = [key for key in swept.keys if key != "cluster.gpu"]
    small, large = (
        {tuple(row[key] for key in keys) for row in swept.rows if row["cluster.gpu"] == gpu}
        for gpu in ("h100-sxm", "h200-sxm")
    )
    assert small < large


def test_iterations_tokens_and_run_say_the_same(swept: Any) -> None:
    """Money is that of electricity and of the hardware's time; a run is so many iterations."""
    site = load_site("default")
    paid_s = site["hardware_lifetime_years"] * 365.25 * 86400.0 * site["hardware_utilisation"]
    for row in swept.rows:
        assert row["tokens_per_s"] * row["time_s"] == pytest.approx(row["tokens"])
        assert row["power_w"] * row["time_s"] == pytest.approx(row["energy_j"])
        iterations = 1e12 / row["tokens"] / 0.9
        for name, each in (("time_s", "time_s"), ("energy_j", "facility_energy_j"), ("money", "money")):
            assert row[f"run_{name}"] == pytest.approx(iterations * row[each])
        kwh = row["facility_energy_j"] / 3.6e6
        node = {"h100-sxm": 290_000.0, "h200-sxm": 310_000.0}[row["cluster.gpu"]]
        hardware = (node / 8 + site["network_price_per_nic"]) * row["gpus"] * row["time_s"] / paid_s
        assert row["money"] == pytest.approx(0.2 * kwh + hardware, rel=1e-9)
        embodied = site["embodied_kg_per_gpu"] * row["gpus"] * row["time_s"] / paid_s
        assert row["carbon_kg"] == pytest.approx(0.5 * kwh + embodied, rel=1e-9)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("gpu", ["h200-sxm", "mi210", "mi300x", "mi350x"])
def test_gradients_reduced_beside_backwards_take_no_longer_than_behind_them(gpu: str, sharded: bool) -> None:
    """However much compute loses to what runs beside it, it gets something done."""

    def reduced(way: str) -> Plan:
        return plan_from_dict(
            {
                "workload": {
                    "model": "llama-3.1-8b",
                    "layers": 2,
                    "sequence_length": 2048,
                    "micro_batch_size": 4,
                    "global_batch_size": 16,
                },
                "cluster": {"gpu": gpu, "gpus": 4},
                "parallelism": {"distributed_optimizer": sharded},
                "overlap": {"grad_reduce": way},
                "implementation": {"framework": "megatron"},
            }
        )

    assert forecast(reduced("overlapped")).time_s < forecast(reduced("after")).time_s
    ways_agree(reduced("overlapped"), time=USUAL_ERROR)
