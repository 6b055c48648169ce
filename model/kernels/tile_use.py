"""What an explicit tile makes of a GPU: blocks on an SM, waves, and bytes through each level of memory."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import hbm_energy_j
from joulecast.model.kernels.attention_tiles import attention_blocks, attention_steps
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.occupancy import Blocks, resident_blocks, spilled_registers
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Gemm, Operator, Streaming, Tile
from joulecast.model.kernels.row_tiles import tile_blocks
from joulecast.model.kernels.tiles import gemm_blocks, own_loads


@dataclass(frozen=True, slots=True)
class TileUse:
    """How a kernel with an explicit tile uses a GPU.

    Attributes
    ----------
    blocks
        Thread blocks of the kernel.
    threads, registers, spilled_registers, shared_bytes
        Of a block: its threads, what each needs and does not get in registers, and shared memory [bytes].
    resident_blocks
        Blocks that an SM holds at a time.
    occupancy
        Share of an SM's threads that they are [1].
    waves
        Rounds of the GPU until every block has run, the last one counted by its share [1].
    near_bytes
        Bytes that the SMs take from shared memory, or without staging from their first-level caches.
    l2_bytes, hbm_bytes
        Bytes between the SMs and L2, and to and from memory.
    """

    blocks: int
    threads: int
    registers: int
    spilled_registers: int
    shared_bytes: int
    resident_blocks: int
    occupancy: float
    waves: float
    near_bytes: float
    l2_bytes: float
    hbm_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)


def tile_use(operator: Operator, gpu: GpuModel) -> TileUse:
    """How an operator with an explicit tile uses a GPU.

    Raises
    ------
    InputError
        The operator has no tile.
    """
    if isinstance(operator, Gemm) and operator.tile is not None:
        blocks, count, near, l2 = _gemm(operator, operator.tile, gpu)
    elif isinstance(operator, Attention) and operator.tile is not None:
        blocks, count, near, l2 = _attention(operator, gpu)
    elif isinstance(operator, Streaming) and operator.warps:
        found = tile_blocks([operator], gpu)
        l2 = operator.bytes_read + operator.bytes_written
        blocks, count, near = found.blocks, float(found.count[0]), l2 * operator.staged
    else:
        raise InputError(f"{operator.name} has no explicit tile", key="tile", remedy="Give it one.")
    resident, threads = float(resident_blocks(blocks, gpu)[0]), float(blocks.threads[0])
    return TileUse(
        blocks=round(count),
        threads=round(threads),
        registers=math.ceil(float(blocks.registers[0])),
        spilled_registers=math.ceil(float(spilled_registers(blocks, gpu)[0])),
        shared_bytes=round(float(blocks.shared_bytes[0])),
        resident_blocks=round(resident),
        occupancy=resident * threads / gpu.device["max_threads_per_sm"],
        waves=count / (resident * gpu.sm_count),
        near_bytes=near,
        l2_bytes=l2,
        hbm_bytes=_hbm_bytes(operator, gpu),
    )


def _gemm(operator: Gemm, tile: Tile, gpu: GpuModel) -> tuple[Blocks, float, float, float]:
    size = DTYPE_BYTES[operator.dtype]
    outputs = math.ceil(operator.m / tile.m) * math.ceil(operator.n / tile.n) * operator.batch
    loaded = float(outputs * (tile.m + tile.n) * operator.k * size)
    partial = 8.0 * operator.m * operator.n * operator.batch * tile.split_k if tile.split_k > 1 else 0.0
    near = loaded if tile.staged else float(own_loads([tile])[0]) * outputs * operator.k * size
    return gemm_blocks([tile], operator.dtype, gpu), float(outputs * tile.split_k), near, loaded + partial


def _attention(operator: Attention, gpu: GpuModel) -> tuple[Blocks, float, float, float]:
    steps = attention_steps([operator])
    heads, size = operator.batch * operator.heads, DTYPE_BYTES[operator.dtype]
    swept = 2.0 * float(steps.walked[0]) * operator.head_dim * size
    moved = heads * float(steps.steps[0]) * swept
    kept = 2.0 * heads * float(steps.rows[0] * steps.kept[0]) * operator.head_dim * size
    return attention_blocks([operator], gpu), heads * float(steps.rows[0]), moved, moved + kept


def _hbm_bytes(operator: Operator, gpu: GpuModel) -> float:
    """Bytes to and from memory, from their energy, of which every byte has the same."""
    return float((lower([operator], gpu).hbm_j / hbm_energy_j(np.ones(1), gpu))[0])
