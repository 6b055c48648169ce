"""Split sequences of layers that see a window, of packed documents and of state spaces, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from launched import flops
from plan_tables import changed
from ways_agree import ways_agree

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.documents import Documents
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Scan, Streaming
from joulecast.model.memory.activations import micro_batch_bytes
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

GPU = gpu_model(load_gpu("h200-sxm"))
WINDOW, BATCH, SEQUENCE = 512, 2, 8192
MODEL = ModelConfig("tiny", 1024, 2, 16, 4, 64, 4096, 32000, sliding_window=WINDOW)
ALONE = Implementation(framework="megatron", attention_backend="cudnn")
DOCUMENTS = Documents(((640.0, 4.0), (1024.0, 3.0), (2560.0, 1.0)))


def split(ranks: int, kind: str, **options: Any) -> Implementation:
    return replace(ALONE, context_parallel=ranks, cp_comm_type=kind, **options)


def kernels(launches: tuple[Launch, ...]) -> list[Attention]:
    return [one.operator for one in launches if isinstance(one.operator, Attention)]


def moved(launches: tuple[Launch, ...]) -> dict[str, float]:
    return {one.operator.name: one.operator.bytes for one in launches if isinstance(one.operator, Collective)}


def copied(launches: tuple[Launch, ...], name: str) -> list[float]:
    """Values that such kernels write."""
    found = [one.operator for one in launches if isinstance(one.operator, Streaming) and one.operator.name == name]
    return [one.bytes_written / 2 for one in found]


@pytest.mark.parametrize("earlier", [0, 100, 511, 512, 3000])
def test_pairs_of_a_window_behind_earlier_keys_are_those_counted_one_by_one(earlier: int) -> None:
    queries = 1024
    one = Attention(1, 1, 1, queries, 64, window=WINDOW, kv_sequence=queries + earlier)
    counted = sum(min(WINDOW, earlier + i + 0.5) for i in range(queries))
    assert one.flops == pytest.approx(4 * 64 * counted, rel=1e-3)


def test_chunks_of_a_window_take_together_what_the_whole_takes() -> None:
    whole = Attention(4, 16, 4, SEQUENCE, 64, window=WINDOW)
    first = replace(whole, sequence=2048, kv_sequence=2048)
    later = replace(whole, sequence=2048, kv_sequence=2048 + WINDOW)
    assert first.flops + 3 * later.flops == whole.flops
    costs = lower([whole, first, later], GPU)
    assert costs.tensor_j[1] < costs.tensor_j[2]
    assert costs.tensor_j[1] + 3 * costs.tensor_j[2] == pytest.approx(costs.tensor_j[0], rel=0.02)


def test_gathered_keys_are_those_of_the_window_in_front_of_each_chunk() -> None:
    """The rank with the two middle chunks, whose windows are full; all keys are gathered all the same."""
    run = split(4, "all_gather")
    half = SEQUENCE // 8
    for layer in (layer_forward, layer_backward):
        found = kernels(layer(MODEL, run, BATCH, SEQUENCE))
        assert [(one.sequence, one.keys, one.window) for one in found] == [(half, half + WINDOW, WINDOW)] * 2
    everything = 2.0 * BATCH * SEQUENCE * 4 * 64 * 2
    assert moved(layer_forward(MODEL, run, BATCH, SEQUENCE)) == {"attention.keys.all_gather": everything}
    backward = layer_backward(MODEL, run, BATCH, SEQUENCE)
    assert copied(backward, "attention.keys.grad.join") == [everything / 2 * (half + WINDOW) / SEQUENCE]


def test_windows_longer_than_a_chunk_reach_over_several() -> None:
    found = kernels(layer_forward(replace(MODEL, sliding_window=2048), split(4, "all_gather"), BATCH, SEQUENCE))
    assert [one.keys for one in found] == [1024 + 2048] * 2
    found = kernels(layer_forward(replace(MODEL, sliding_window=4096), split(4, "all_gather"), BATCH, SEQUENCE))
    assert [one.keys for one in found] == [4 * 1024, 5 * 1024]
    whole = replace(MODEL, sliding_window=SEQUENCE)
    assert [one.keys for one in kernels(layer_forward(whole, split(4, "all_gather"), BATCH, SEQUENCE))] == [2048, 7168]


def test_exchanged_heads_see_their_window() -> None:
    alone, shared = (layer_forward(MODEL, run, BATCH, SEQUENCE) for run in (ALONE, split(4, "a2a")))
    assert 4 * flops(shared, kind=Attention) == flops(alone, kind=Attention)
    assert kernels(shared)[0].window == WINDOW


def test_rectangles_of_documents_are_those_counted_one_by_one() -> None:
    steps = DOCUMENTS.share(0.5, 0.5)
    assert steps.pieces == ((320.0, 4.0), (512.0, 3.0), (1280.0, 1.0))
    assert steps.pairs() == sum(n * length * length / 2 for length, n in steps.pieces)
    found = steps.blocks(128)
    # Blocks of queries times steps of 64 keys, by hand: 3 x 3, 4 x 4 and 10 x 10.
    assert (found.squares, found.longest) == ((4 * 9 + 3 * 16 + 100) / 2, 5.0)
    assert found.queries == (4 * 320 + 3 * 512 + 1280) / 128
    assert DOCUMENTS.share(0.25, 2.0).pairs() == sum(n * 2 * (length / 4) ** 2 for length, n in DOCUMENTS.pieces)
    assert DOCUMENTS.share(0.5).pairs() == DOCUMENTS.pairs() / 4


@pytest.mark.parametrize("layer", [layer_forward, layer_backward])
def test_a_ring_keeps_documents_apart_and_shares_each_evenly(layer: Any) -> None:
    model = replace(MODEL, sliding_window=0)
    alone = layer(model, replace(ALONE, documents=DOCUMENTS), BATCH, SEQUENCE)
    shared = layer(model, split(4, "p2p", documents=DOCUMENTS), BATCH, SEQUENCE)
    assert 4 * flops(shared, kind=Attention) == pytest.approx(flops(alone, kind=Attention))
    assert len({one.flops for one in kernels(shared)}) == 1
    whole = layer(model, split(4, "p2p"), BATCH, SEQUENCE)
    assert moved(shared) == moved(whole)
    name = "forward" if layer is layer_forward else "backward"
    keys, queries = 2 * BATCH * 2048 * 4 * 64 / 2, BATCH * 2048 * 16 * 64 / 2 * (1 if name == "forward" else 3)
    assert copied(shared, f"attention.half.{name}") == [keys, keys, queries]
    assert copied(whole, f"attention.half.{name}") == []
    # Each kernel behind its copy, which waits for the keys.
    order = [one for one in shared if one.operator.name.startswith(("attention.half", f"attention.{name}"))]
    assert [one.waits for one in order] == [False, True, False, True, False, True, False]


def test_one_document_of_the_whole_sequence_is_none() -> None:
    model = replace(MODEL, sliding_window=0)
    one = Documents(((float(SEQUENCE), 1.0),))
    with_it, without = (
        kernels(layer_forward(model, split(4, "p2p", documents=of), BATCH, SEQUENCE)) for of in (one, None)
    )
    assert [k.flops for k in with_it] == [k.flops for k in without]
    a, b = (lower(found, GPU) for found in (with_it, without))
    assert np.allclose(a.tensor_j, b.tensor_j, rtol=0.15)  # kernels that are given lengths look at positions


def mixer(ranks: int, tp: int = 1, layer: Any = layer_forward) -> tuple[Launch, ...]:
    model = next(one for one in load_model("nemotron-h-8b").kinds if one.mixers[0] == "M")
    assert model.state_space is not None
    run = replace(ALONE, context_parallel=ranks, tensor_parallel=tp, sequence_parallel=tp > 1)
    return layer(model, run, BATCH, SEQUENCE)


def scans(launches: tuple[Launch, ...]) -> dict[str, Scan]:
    return {one.operator.name: one.operator for one in launches if isinstance(one.operator, Scan)}


@pytest.mark.parametrize("layer", [layer_forward, layer_backward])
def test_a_rank_scans_the_whole_sequence_with_a_share_of_the_heads(layer: Any) -> None:
    alone, shared = scans(mixer(1, layer=layer)), scans(mixer(4, layer=layer))
    assert alone.keys() == shared.keys()
    for name, one in shared.items():
        if "norm" in name:
            assert one == replace(alone[name], sequence=SEQUENCE // 4)
        else:
            assert one == replace(alone[name], heads=alone[name].heads // 4, groups=alone[name].groups // 4)


def test_what_a_mixer_exchanges_by_hand() -> None:
    """Nemotron-H 8B: 128 heads of 64, 8 groups with states of 128."""
    tokens = BATCH * SEQUENCE // 4
    widths = {"gate": 8192, "values": 8192, "b": 1024, "c": 1024, "steps": 128}
    expected = {f"scan.{name}.heads.all_to_all": 2.0 * tokens * width for name, width in widths.items()}
    assert moved(mixer(4)) == expected | {"scan.result.positions.all_to_all": 2.0 * tokens * 8192}
    backward = moved(mixer(4, layer=layer_backward))
    assert backward == {
        name.replace(".all_to_all", ".grad.all_to_all"): size
        for name, size in (expected | {"scan.result.positions.all_to_all": 2.0 * tokens * 8192}).items()
    }
    assert copied(mixer(4), "scan.order") == copied(mixer(4), "scan.join") == [tokens * sum(widths.values())]
    assert copied(mixer(4), "scan.groups.repeat") == []


def test_fewer_groups_than_ranks_are_repeated() -> None:
    found = mixer(4, tp=4)  # two groups on a tensor-parallel rank
    tokens = BATCH * SEQUENCE // 4
    assert copied(found, "scan.groups.repeat") == [2 * tokens * 4 * 128]
    assert moved(found)["scan.b.heads.all_to_all"] == 2.0 * tokens * 4 * 128
    assert {one.groups for name, one in scans(found).items() if "norm" not in name} == {1}


def test_memory_of_a_mixer_falls_with_the_ranks() -> None:
    model = next(one for one in load_model("nemotron-h-8b").kinds if one.mixers[0] == "M")
    alone, shared = (
        micro_batch_bytes(model, replace(ALONE, context_parallel=ranks), BATCH, SEQUENCE) for ranks in (1, 4)
    )
    assert shared.layer == pytest.approx(alone.layer / 4, rel=1e-3)
    assert shared.layer_transient == pytest.approx(alone.layer_transient / 4, rel=1e-3)


def plan(**changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "gemma-3-12b", "sequence_length": 32768, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {"tensor_model_parallel_size": 2, "context_parallel_size": 4, "sequence_parallel": True},
        "implementation": {"framework": "megatron"},
        "schedule": {"recompute": "full"},
    }
    return plan_from_dict(changed(tables, changes))


HYBRID = {"workload__model": "nemotron-h-8b"}
PACKED = {"workload__model": "llama-3.1-8b", "workload__document_tokens": 2048}


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism__cp_comm_type": "all_gather"},
        {"parallelism__cp_comm_type": "a2a"},
        PACKED,
        HYBRID,
        {**HYBRID, "workload__document_tokens": 4096},
    ],
)
def test_simulation_and_closed_form_agree(changes: dict[str, Any]) -> None:
    one = plan(**changes)
    ways_agree(one, time=0.01, energy=0.01, must_fit=False)


def test_documents_save_time_in_split_sequences_too() -> None:
    whole = forecast(plan(workload__model="llama-3.1-8b"), must_fit=False)
    assert forecast(plan(**PACKED), must_fit=False).time_s < 0.8 * whole.time_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"cp_comm_type\]: gemma-3-12b has windows, which Transformer Engine refuses around a ring"),
        (
            {"workload__model": "gpt-oss-20b", "parallelism__cp_comm_type": "all_gather"},
            "gpt-oss-20b has sinks, which Transformer Engine knows of exchanged heads",
        ),
        ({**PACKED, "parallelism__cp_comm_type": "all_gather"}, "keys of split sequences that are gathered"),
        (
            {
                **HYBRID,
                "cluster__gpus": 48,
                "workload__sequence_length": 36864,
                "parallelism__context_parallel_size": 24,
            },
            "64 heads of a state space",
        ),
    ],
)
def test_what_nobody_runs_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, NotYetError), match=message):
        plan(**changes)
