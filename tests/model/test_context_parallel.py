"""Sequences split over ranks: work, bytes and waiting of ring, gathering and exchange, computed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from launched import flops
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.training.step import head_forward, layer_backward, layer_forward
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.instructions.tables import instruction_table, kernels_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

GPU = gpu_model(load_gpu("h100-sxm"))
MODEL = ModelConfig("tiny", 1024, 2, 16, 4, 64, 4096, 32000)
BATCH, SEQUENCE = 2, 16384
ALONE = Implementation(framework="megatron")
KINDS = ("p2p", "all_gather", "a2a")


def split(ranks: int, kind: str = "p2p", **options: Any) -> Implementation:
    return replace(ALONE, context_parallel=ranks, cp_comm_type=kind, **options)


def forward(run: Implementation) -> tuple[Launch, ...]:
    return layer_forward(MODEL, run, BATCH, SEQUENCE)


def backward(run: Implementation) -> tuple[Launch, ...]:
    return layer_backward(MODEL, run, BATCH, SEQUENCE)


def communicated(launches: Iterable[Launch]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for launch in launches:
        if isinstance(launch.operator, Collective):
            found.setdefault(launch.operator.name, []).append(launch.operator.bytes)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_work_evenly_and_lose_none(ranks: int, kind: str):
    for layer in (forward, backward):
        for operator in (Gemm, Attention):
            assert ranks * flops(layer(split(ranks, kind)), kind=operator) == flops(layer(ALONE), kind=operator)
    head = ranks * flops(head_forward(MODEL, split(ranks, kind), BATCH, SEQUENCE))
    assert head == flops(head_forward(MODEL, ALONE, BATCH, SEQUENCE))


@pytest.mark.parametrize("kind", KINDS)
def test_eager_mode_splits_attention_as_megatron_does(kind: str):
    """The same kernels of attention and the same communication; all else is eager mode's own."""
    for layer in (forward, backward):
        eager, megatron = (layer(split(2, kind, framework=name)) for name in ("pytorch-eager", "megatron"))
        assert communicated(eager) == communicated(megatron)
        kernels = [
            [replace(x.operator, backend="") for x in run if isinstance(x.operator, Attention)]
            for run in (eager, megatron)
        ]
        assert kernels[0] == kernels[1]
        assert flops(eager) == flops(megatron)
        alone = layer(replace(ALONE, framework="pytorch-eager"))
        assert 2 * flops(eager, kind=Attention) == flops(alone, kind=Attention)


def test_bytes_of_the_ring_by_hand():
    """Keys and values of the own positions go three times round among four, their gradients as often."""
    own = 2.0 * BATCH * (SEQUENCE // 4) * 4 * 64 * 2
    assert communicated(forward(split(4))) == {"attention.ring": [own] * 3}
    assert communicated(backward(split(4))) == {"attention.ring": [own] * 3, "attention.ring.grad": [own] * 3}


def test_bytes_of_gathering_and_exchange_by_hand():
    everything = 2.0 * BATCH * SEQUENCE * 4 * 64 * 2
    assert communicated(forward(split(4, "all_gather"))) == {"attention.keys.all_gather": [everything]}
    assert communicated(backward(split(4, "all_gather")))["attention.keys.grad.reduce_scatter"] == [everything]
    tokens = BATCH * SEQUENCE // 4
    found = communicated(forward(split(4, "a2a")))
    assert found["attention.heads.all_to_all"] == [tokens * (16 + 2 * 4) * 64 * 2]
    assert found["attention.positions.all_to_all"] == [tokens * 16 * 64 * 2]


def test_steps_of_the_ring_are_balanced_halves():
    kernels = [launch.operator for launch in forward(split(4)) if isinstance(launch.operator, Attention)]
    local = SEQUENCE // 4
    assert [(k.sequence, k.keys, k.causal) for k in kernels] == [
        (local, local, True),
        (local, local // 2, False),
        (local, local // 2, False),
        (local // 2, local, False),
    ]
    assert len({k.flops for k in kernels}) == 1


def test_keys_before_the_queries_are_all_seen():
    """A causal kernel of the last quarter of the queries has 7/16 of all unmasked pairs."""
    whole = Attention(1, 16, 4, 8192, 64)
    last = replace(whole, sequence=2048, kv_sequence=8192)
    first = [replace(whole, sequence=2048, kv_sequence=2048 * (i + 1)) for i in range(4)]
    assert last.flops / whole.flops == 7 / 16
    assert sum(k.flops for k in first) == whole.flops
    costs = lower([whole, replace(whole, kv_sequence=8192), *first], GPU)
    assert costs.core_cycles[0] == costs.core_cycles[1] and costs.hbm_j[0] == costs.hbm_j[1]
    assert costs.tensor_j[2:].sum() == pytest.approx(costs.tensor_j[0], rel=0.02)


def times(launches: tuple[Launch, ...]) -> tuple[float, float]:
    clocks = np.array([1755.0])
    table = instruction_table([launches], kernels_of([[launches]], clocks, GPU), GPU)
    return float(table.duration_s[0, 0]), float(table.exposed_s[0, 0])


@pytest.mark.parametrize("layer", [forward, backward])
def test_the_ring_hides_behind_attention_and_a_slow_network_shows(layer: Any):
    slow = Fabric(domains=4, exit_bytes_per_s=1e9, efficiency=0.95, step_latency_s=7.8e-6)
    near, far = times(layer(split(4))), times(layer(split(4, context_fabric=slow)))
    hops = len([x for x in layer(split(4)) if x.stream == "communication"])
    assert near[1] < 0.05 * near[0]
    own = 2.0 * BATCH * (SEQUENCE // 4) * 4 * 64 * 2
    assert far[1] > 0.6 * hops * own / 1e9


def test_a_hop_takes_one_card_and_what_others_have_does_not_help():
    """Two members a domain with a card each: what crosses goes through one of the two."""
    cards = Fabric(domains=2, exit_bytes_per_s=100e9, efficiency=0.95, step_latency_s=0.0)
    two = Collective("ring_step", 1e9, 4, fabric=cards)
    one = Collective("ring_step", 1e9, 2, fabric=replace(cards, exit_bytes_per_s=50e9))
    costs = lower([two, one], GPU)
    assert costs.link_s[0] == pytest.approx(costs.link_s[1])


def test_activations_fall_with_the_ranks():
    def kept(run: Implementation) -> float:
        return memory_footprint(MODEL, run, BATCH, SEQUENCE, PipelineRank([2])).activations

    assert kept(split(4)) == pytest.approx(kept(ALONE) / 4)


def plan(**changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 32768, "global_batch_size": 8},
        "cluster": {"gpu": "h100-sxm", "gpus": 16},
        "parallelism": {"tensor_model_parallel_size": 2, "context_parallel_size": 4, "sequence_parallel": True},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(changed(tables, changes))


def test_gradients_are_summed_over_data_and_context_ranks():
    one = plan()
    assert (one.dp, one.cp, one.replicas, one.microbatches) == (2, 4, 8, 4)
    sums = [x.operator for x in plan_program(one).ranks[0].types[-1] if isinstance(x.operator, Collective)]
    assert [c.gpus for c in sums if c.kind == "all_reduce"] == [8]
    assert footprints(one, load_gpu("h100-sxm"), must_fit=False)[0].allocated_bytes > 0


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_gain(kind: str):
    """The same tokens on the same GPUs: ranks that share sequences instead of having their own take about as long."""
    shared = forecast(plan(parallelism__cp_comm_type=kind), must_fit=False)
    own = forecast(plan(parallelism__context_parallel_size=1), must_fit=False)
    assert shared.gpus == own.gpus == 16
    assert own.time_s < shared.time_s < 1.2 * own.time_s
    assert shared.ranks[0].gpus == own.ranks[0].gpus == 16
    assert shared.ranks[0].memory_bytes < own.ranks[0].memory_bytes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"implementation__attention_backend": "unfused"}, ("attention_backend", "context_parallel_size = 1")),
        ({"workload__sequence_length": 32772}, ("context_parallel_size", "two chunks", "1, 2")),
        ({"parallelism__context_parallel_size": 3}, ("cluster.gpus", "context 3")),
        ({"parallelism__cp_comm_type": "a2a", "parallelism__context_parallel_size": 8}, ("cp_comm_type", "p2p")),
        ({"parallelism__cp_comm_type": "ring"}, ("cp_comm_type", "p2p")),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan(**changes)
    for word in words:
        assert word in str(error.value)


def test_a_sequence_that_has_no_two_chunks_for_each_rank_is_refused() -> None:
    assert len(layer_forward(MODEL, split(2), 1, 8))
    for ranks, sequence in ((2, 6), (2, 5), (4, 12)):
        with pytest.raises(InputError, match=f"multiple of {2 * ranks}"):
            layer_forward(MODEL, split(ranks), 1, sequence)
