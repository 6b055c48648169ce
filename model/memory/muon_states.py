"""What Muon keeps in place of AdamW's two moments, and what it needs beside them while it steps one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.muon import Muon
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory.states import StateShards
from joulecast.model.training.layer_wise import largest_share
from joulecast.model.training.matrix import Matrix
from joulecast.model.training.muon import counted
from joulecast.model.training.parameters import parameters_of_stage


@dataclass(frozen=True, slots=True)
class MuonBytes:
    """Bytes of one GPU.

    Attributes
    ----------
    more
        What matrices with one moment, some of them whole on a rank, take beyond an even share with two; mostly below 0.
    in_step
        Temporary results of the matrix that needs most of them.
    """

    more: float = 0.0
    in_step: float = 0.0


@lru_cache(maxsize=1024)
def muon_bytes(
    config: ModelConfig,
    run: Implementation,
    layers: int,
    first: bool,
    last: bool,
    others: tuple[int, ...],
    split: StateShards,
    state_bytes: float,
) -> MuonBytes:
    """Of a pipeline rank's parameters, of which AdamW would keep ``state_bytes`` each, its share over all ranks."""
    if run.muon is None:
        return MuonBytes()
    parameters = parameters_of_stage(config, run, layers, first=first, last=last, others=others)
    moment = DTYPE_BYTES["fp32" if run.framework == "megatron" else run.trained_dtype]
    more, in_step = 0.0, 0.0
    for expert, ranks in ((False, split.optimizer), (True, split.expert_optimizer)):
        matrices = counted(p for p in parameters if p.expert == expert)
        if not matrices:
            continue
        even = sum(one.elements * count for one, count in matrices.items()) / ranks
        more += largest_share(matrices, ranks) * (state_bytes - moment) - even * state_bytes
        in_step = max(in_step, *(step_bytes(one, run, run.muon) for one in matrices))
    return MuonBytes(more, in_step)


def step_bytes(matrix: Matrix, run: Implementation, muon: Muon) -> float:
    """Temporary results of one matrix: in PyTorch what is orthogonalised, X before and after, A and B.

    Megatron's are in fp32 before and after the iterations, and where ranks gather the whole matrix there are its shards
    and a copy of all [estimate from the code].
    """
    rows, columns = sum(matrix.rows), matrix.columns
    values, squares = float(rows * columns), float(min(rows, columns) ** 2)
    if run.framework != "megatron":
        width = DTYPE_BYTES[muon.products]
        moved = muon.nesterov * DTYPE_BYTES[run.trained_dtype] * values
        return moved + 2.0 * width * (values + squares)
    ranks = run.expert_tensor_parallel if matrix.expert else run.tensor_parallel
    gathered = ranks if matrix.split and muon.tensor_mode == "duplicated" and ranks > 1 else 0
    whole, width = values * max(1, gathered), DTYPE_BYTES[muon.products]
    at_work = max(8.0 * whole, 2.0 * width * (whole + squares))
    parts = 8.0 * values if len(matrix.rows) > 1 and muon.split_qkv else 0.0
    return 4.0 * muon.nesterov * values + (8.0 * whole if gathered else 0.0) + parts + at_work
