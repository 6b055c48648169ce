"""Memory of ranks by part, with options of which nobody published a peak, stands as it was last accepted.

``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import accepted
import pytest
from test_launches_stand import LAYERS, model_of

from joulecast.model.framework.implementation import Implementation
from joulecast.model.memory.activations import micro_batch_bytes
from joulecast.model.memory.footprint import PipelineRank, memory_footprint
from joulecast.model.memory.states import StateShards
from joulecast.model.training.parameters import parameters_of_stage

FILE = "memory"
WHOLE, SPLIT = StateShards(), StateShards(2, 4, 8, 3, 5, 7)
#: What a rank holds, and how its states are split.
RANKS = {
    "alone": (PipelineRank([3]), WHOLE),
    "first, zero-bubble": (PipelineRank([2], [1], 0, 3, 8, "zb-h1"), StateShards(optimizer=8, expert_optimizer=2)),
    "middle": (PipelineRank([4], [2], 1, 3, 8), SPLIT),
    "last": (PipelineRank([2], None, 2, 3, 8, "gpipe"), StateShards(4, 4, 4, 1, 1, 1)),
    "first of two chunks": (PipelineRank([2, 1], [1, 0], 0, 2, 6, "interleaved-1f1b"), StateShards(1, 1, 1, 4, 4, 4)),
    "last of two chunks": (PipelineRank([1, 2], [1, 0], 1, 2, 5, "interleaved-1f1b", forwards=4), SPLIT),
}


def of_memory(name: str) -> dict[str, list[float]]:
    """Parts of a micro-batch, of every rank and the rank's parameters, all in bytes but these [1]."""
    model, options, batch, sequence = LAYERS[name]
    config, run = model_of(model), Implementation(**options)
    parts = astuple(micro_batch_bytes(config, run, batch, sequence))[1:]
    found = {"micro-batch": [accepted.short(v) for v in parts]}
    for place, (rank, shards) in RANKS.items():
        held = memory_footprint(config, run, batch, sequence, rank, shards=shards, communicators=len(place) % 4)
        some = parameters_of_stage(config, run, sum(rank.layers), first=rank.first, last=rank.last, dense=1)
        elements = [sum(p.elements for p in some if p.linear), sum(p.elements for p in some if p.replicated)]
        found[place] = [accepted.short(float(v)) for v in (*astuple(held), *elements, len(some))]
    return found


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize("name", LAYERS)
def test_memory_stands(name: str, stands: dict[str, Any]) -> None:
    assert of_memory(name) == stands[name]


if __name__ == "__main__":
    accepted.write(FILE, {name: of_memory(name) for name in LAYERS})
