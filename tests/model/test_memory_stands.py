"""Memory of ranks by part, with options of which nobody published a peak, stands as it was last accepted.

``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import accepted
import pytest
from launch_cases import LAYERS, model_of

from joulecast.model.framework.implementation import Implementation
from joulecast.model.memory.activations import micro_batch_bytes
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank, in_flight
from joulecast.model.memory.states import StateShards
from joulecast.model.training.parameters import parameters_of_stage

FILE = "memory"
WHOLE, SPLIT = StateShards(), StateShards(2, 4, 8, 3, 5, 7)
#: What a rank holds, and how its states are split.
RANKS = {
    "alone": (PipelineRank([3]), WHOLE),
    "first, zero-bubble": (PipelineRank([2], [(1,)], 0, 3, 8, "zb-h1"), StateShards(optimizer=8, expert_optimizer=2)),
    "held back": (PipelineRank([3], None, 0, 2, 4, "none"), StateShards(1, 1, 4, 2, 2, 2)),
    "last of few": (PipelineRank([1], None, 1, 2, 16, "1f1b"), WHOLE),
    "middle": (PipelineRank([4], [(2,)], 1, 3, 8), SPLIT),
    "last": (PipelineRank([2], None, 2, 3, 8, "gpipe"), StateShards(4, 4, 4, 1, 1, 1)),
    "first of two chunks": (
        PipelineRank([2, 1], [(1,), (0,)], 0, 2, 6, "interleaved-1f1b"),
        StateShards(1, 1, 1, 4, 4, 4),
    ),
    "last of two chunks": (PipelineRank([1, 2], [(1,), (0,)], 1, 2, 5, "interleaved-1f1b", forwards=4), SPLIT),
}


def of_memory(name: str) -> dict[str, list[float]]:
    """Parts of a micro-batch, of every rank and the rank's parameters, all in bytes but these [1]."""
    model, options, batch, sequence = LAYERS[name]
    config, run = model_of(model), Implementation(**options)
    if config.experts is not None:
        config = replace(config, experts=replace(config.experts, dense_layers=1))
    parts = astuple(micro_batch_bytes(config, run, batch, sequence))[1:]
    found = {"micro-batch": list(parts)}
    for place, (rank, shards) in RANKS.items():
        others = (1,) if len(config.kinds) > 1 else ()
        rank = replace(rank, others=rank.others if others else None)
        held = memory_footprint(config, run, batch, sequence, rank, shards=shards, communicators=len(place) % 4)
        some = parameters_of_stage(config, run, sum(rank.layers), first=rank.first, last=rank.last, others=others)
        elements = [sum(p.elements for p in some if p.linear), sum(p.elements for p in some if p.replicated)]
        sums = held.states_bytes, held.allocated_bytes, held.total_bytes
        found[place] = [round(float(v), 3) for v in (*astuple(held), *sums, *elements, len(some))]
    return found


def of_forwards() -> dict[str, list[int]]:
    """Most forwards under way on every stage."""
    return {
        f"{schedule} {stages} {batches} {chunks}": [
            in_flight(schedule, stage, stages, batches, chunks) for stage in range(stages)
        ]
        for schedule in ("none", "gpipe", "1f1b", "zb-h1", "interleaved-1f1b")
        for stages in (1, 2, 4)
        for batches in (2, 6, 16)
        for chunks in ((1, 2, 3) if schedule == "interleaved-1f1b" else (1,))
    }


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize("name", LAYERS)
def test_memory_stands(name: str, stands: dict[str, Any]) -> None:
    assert not accepted.differences(of_memory(name), stands[name])


def test_forwards_under_way_stand(stands: dict[str, Any]) -> None:
    assert of_forwards() == stands["forwards"]


if __name__ == "__main__":
    accepted.write(FILE, {"forwards": of_forwards(), **{name: of_memory(name) for name in LAYERS}})
