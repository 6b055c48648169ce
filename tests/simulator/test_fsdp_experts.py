"""Mixture of Experts under FSDP: who shares what, the bytes that travel, memory, and the closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.traces.kernel_timeline import kernel_timeline

# Mixtral 8x7B, counted by hand: 32 layers, hidden 4096, 8 experts of 14,336, 32 heads and 8 key-value heads of 128.
LAYERS, HIDDEN, VOCAB = 32, 4096, 32000
EXPERT = 3 * 14336 * HIDDEN
REST = HIDDEN * (4096 + 2 * 1024) + 4096 * HIDDEN + 8 * HIDDEN + 2 * HIDDEN
ROOT = 2 * VOCAB * HIDDEN + HIDDEN
MICROBATCHES = 2


def plan(*, gpus: int = 16, **changes: Any) -> Plan:
    """Mixtral on two nodes of H100s with FSDP; keys of [parallelism], or ``table__key``."""
    tables: dict[str, dict[str, Any]] = {
        "workload": {
            "model": "mixtral-8x7b",
            "sequence_length": 4096,
            "global_batch_size": MICROBATCHES * gpus,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": gpus, "gpus_per_node": 8},
        "parallelism": {"fsdp": True, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1},
        "implementation": {"framework": "megatron", "cuda_graphs": True},
    }
    places = {name if "__" in name else f"parallelism__{name}": value for name, value in changes.items()}
    return plan_from_dict(changed(tables, places))


def communicated(chosen: Plan) -> dict[str, tuple[float, int, int]]:
    """Bytes of an iteration, GPUs and nodes of every communication of sharded parameters by name."""
    program, found = plan_program(chosen).ranks[0], dict[str, tuple[float, int, int]]()
    for kind in program.order:
        for launch in program.types[kind]:
            one = launch.operator
            if isinstance(one, Collective) and one.name.startswith(("layer.", "root.")):
                size, *group = found.get(one.name, (0.0, one.gpus, one.fabric.domains if one.fabric else 1))
                found[one.name] = size + one.bytes, group[0], group[1]
    return found


def test_experts_are_gathered_among_the_ranks_that_hold_the_same_ones() -> None:
    """With 8 expert-parallel ranks of 16, each of 8 experts lies on two: one on each node."""
    passes = MICROBATCHES * LAYERS
    assert communicated(plan()) == {
        "root.all_gather": (MICROBATCHES * 2.0 * ROOT, 16, 2),
        "layer.all_gather": (2 * passes * 2.0 * REST, 16, 2),
        "layer.experts.all_gather": (2 * passes * 2.0 * EXPERT, 2, 2),
        "layer.reduce_scatter": (passes * 4.0 * REST, 16, 2),
        "layer.experts.reduce_scatter": (passes * 4.0 * EXPERT, 2, 2),
        "root.reduce_scatter": (MICROBATCHES * 4.0 * ROOT, 16, 2),
    }


def test_experts_that_every_rank_holds_are_gathered_with_the_rest() -> None:
    whole = REST + 8 * EXPERT
    found = communicated(plan(expert_model_parallel_size=1))
    assert found["layer.all_gather"] == (2 * MICROBATCHES * LAYERS * 2.0 * whole, 16, 2)
    assert found["layer.reduce_scatter"] == (MICROBATCHES * LAYERS * 4.0 * whole, 16, 2)
    assert not any("experts" in name for name in found)


def test_hybrid_shards_stay_within_a_node_where_experts_are_split_already() -> None:
    """8 ranks share the rest and hold one expert each: of experts nothing is gathered, copies sum their gradients."""
    found = communicated(plan(fsdp_shard_size=8))
    assert found["layer.all_gather"][1:] == (8, 1)
    assert found["layer.all_reduce"] == (MICROBATCHES * LAYERS * 4.0 * REST / 8, 2, 2)
    assert found["layer.experts.all_reduce"] == (MICROBATCHES * LAYERS * 4.0 * EXPERT, 2, 2)
    assert not {"layer.experts.all_gather", "layer.experts.reduce_scatter"} & set(found)


def test_tensor_parallel_ranks_that_hold_different_experts() -> None:
    """TP 2 x 8 replicas and EP 4: experts lie on 4 ranks each, 4 apart; each rank holds two."""
    split = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 4}
    found = communicated(plan(**split, workload__global_batch_size=16))
    assert found["layer.experts.all_gather"] == (2 * MICROBATCHES * LAYERS * 2.0 * 2 * EXPERT, 4, 2)
    assert found["layer.all_gather"][1:] == (8, 2)


def wholes(launches: Sequence[Launch], name: str) -> float:
    """How many there are of a communication, its parts added up."""
    return sum(1 / x.share for x in launches if x.operator.name == name)


def test_layers_without_experts_gather_none() -> None:
    chosen = plan(workload__model="deepseek-v3", workload__layers=5)
    forward, backward = plan_program(chosen).ranks[0].types[:2]
    for launches in (forward, backward):
        assert wholes(launches, "layer.all_gather") == pytest.approx(5)
        assert wholes(launches, "layer.experts.all_gather") == pytest.approx(2)
    order = [x.operator.name for x in forward if x.operator.name.startswith("layer.")]
    assert order[:5] == ["layer.all_gather"] * 4 + ["layer.experts.all_gather"]


def test_memory() -> None:
    """Of the rest a sixteenth, of the rank's expert half; two layers whole, and what lies outside them."""
    found = footprint_of(plan(), 0)
    elements = (LAYERS * REST + ROOT) / 16 + LAYERS * EXPERT / 2
    assert (found.parameters, found.gradients) == pytest.approx((2.0 * elements, 4.0 * elements))
    assert found.optimizer == pytest.approx(12.0 * elements)
    assert found.gathered == pytest.approx(6.0 * (2 * (REST + EXPERT) + ROOT))
    hybrid = footprint_of(plan(fsdp_shard_size=8), 0)
    elements = (LAYERS * REST + ROOT) / 8 + LAYERS * EXPERT
    assert hybrid.parameters == pytest.approx(2.0 * elements)
    assert hybrid.gathered == pytest.approx(6.0 * (2 * REST + ROOT))  # experts are whole anyway


def test_the_optimizer_steps_on_a_ranks_shards() -> None:
    steps = [x for x in plan_program(plan()).ranks[0].types[-1] if x.operator.name == "optimizer.adam"]
    parts = [x.operator.elements * x.repeat for x in steps]  # whole launches, then one with the rest
    shares = sorted({whole + rest for whole, rest in zip(parts[::2], parts[1::2], strict=True)})
    assert shares == pytest.approx(sorted([(LAYERS * REST + ROOT) / 16, LAYERS * EXPERT / 2]))


def test_the_ledger_splits_exposed_from_overlapped() -> None:
    beside, waiting = (forecast(plan(overlap__fsdp_prefetch=p), must_fit=False) for p in (True, False))
    one, other = beside.ranks[0], waiting.ranks[0]
    assert other.overlapped_communication_s == 0.0
    assert one.overlapped_communication_s > 0.0
    assert one.exposed_communication_s < other.exposed_communication_s
    assert beside.time_s < waiting.time_s
    total = one.exposed_communication_s + one.overlapped_communication_s
    assert total == pytest.approx(other.exposed_communication_s, rel=0.4)  # slower beside compute
    assert one.overlapped_communication_s > 0.8 * total


def test_the_timeline_has_the_time_of_the_forecast() -> None:
    chosen = plan(workload__layers=4, power__clock_mhz=1305.0)
    assert kernel_timeline(chosen).time_s == pytest.approx(forecast(chosen, must_fit=False).time_s, rel=1e-6)


def test_the_closed_form_agrees_with_the_simulation() -> None:
    plans = [
        plan(),
        plan(expert_model_parallel_size=1, workload__layers=8),
        plan(fsdp_shard_size=8, schedule__recompute="full"),
        plan(workload__model="deepseek-v3", workload__layers=16),
        plan(gpus=32, pipeline_model_parallel_size=2, workload__global_batch_size=128),
    ]
    exact = [forecast(one, must_fit=False) for one in plans]
    quick = closed_form(plans)
    assert np.abs(quick.time_s / [it.time_s for it in exact] - 1.0).max() < 0.02
    assert np.abs(quick.energy_j / [it.energy_j for it in exact] - 1.0).max() < 0.02


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"gpus": 24, "fsdp_shard_size": 12}, "parallelism.fsdp_shard_size"),
        ({"overlap__ep_comm": True}, "overlap.ep_comm"),
        ({"distributed_optimizer": True}, "parallelism.distributed_optimizer"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as error:
        plan(**changes)
    assert error.value.key == key
    assert error.value.remedy
