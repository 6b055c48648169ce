"""Whole matrices that Muon's layer-wise distributed optimizer gives a rank, beyond an even share of their states."""

from __future__ import annotations

from functools import lru_cache

from joulecast.model.memory.states import Stage, StateShards
from joulecast.model.training.layer_wise import largest_share
from joulecast.model.training.matrix import values_of
from joulecast.model.training.muon import counted
from joulecast.model.training.optimizer import matrix_state_bytes


@lru_cache(maxsize=1024)
def uneven_bytes(stage: Stage, split: StateShards) -> float:
    """States of a pipeline rank's matrices on the GPU that has most of them, beyond its share over all ranks."""
    run = stage.implementation
    if run.muon is None:
        return 0.0
    parameters = stage.parameters()
    more = 0.0
    for expert, ranks in ((False, split.optimizer), (True, split.expert_optimizer)):
        matrices = counted(p for p in parameters if p.expert == expert)
        if ranks > 1 and matrices:
            more += largest_share(matrices, ranks) - values_of(matrices) / ranks
    return more * matrix_state_bytes(run)
