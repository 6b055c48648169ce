"""How many thread blocks an SM holds at a time, and what does not fit into a thread's registers.

An SM holds blocks until its threads, registers, shared memory or block slots are used up. A thread has at most 255
registers, fewer if its block has many threads; what the compiler needs beyond that it keeps in memory ("spills").
Source: CUDA programming guide, technical specifications by compute capability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel

#: Threads of a warp, and most of a block.
WARP, MOST_THREADS = 32, 1024
#: Registers that one thread can have, and the unit in which they are handed out.
MOST_REGISTERS, REGISTER_UNIT = 255, 8
#: Shared memory of every block that the system keeps for itself [bytes].
RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class Blocks:
    """What one thread block of ``n`` kernels needs; every field has shape ``(n,)``.

    Attributes
    ----------
    threads
        Threads of the block.
    registers
        Registers that a thread needs to keep everything out of memory.
    shared_bytes
        Shared memory [bytes].
    """

    threads: Array
    registers: Array
    shared_bytes: Array


def available_registers(threads: Array, gpu: GpuModel) -> Array:
    """Registers that a thread can have in a block of so many threads, shape ``(n,)``."""
    fair = np.floor(gpu.device["registers_per_sm"] / threads / REGISTER_UNIT) * REGISTER_UNIT
    return np.asarray(np.minimum(fair, MOST_REGISTERS))


def spilled_registers(blocks: Blocks, gpu: GpuModel) -> Array:
    """Registers of a thread that do not fit, shape ``(n,)``."""
    return np.asarray(np.maximum(blocks.registers - available_registers(blocks.threads, gpu), 0.0))


def most_shared_bytes(gpu: GpuModel) -> float:
    """Shared memory that one block can have [bytes]."""
    return gpu.device["shared_memory_per_sm_bytes"] - RESERVED_SHARED_BYTES


def resident_blocks(blocks: Blocks, gpu: GpuModel) -> Array:
    """Blocks that one SM holds at a time, at least one, shape ``(n,)``."""
    held = np.minimum(blocks.registers, available_registers(blocks.threads, gpu))
    held = np.ceil(held / REGISTER_UNIT) * REGISTER_UNIT
    shared = gpu.device["shared_memory_per_sm_bytes"]
    limits = (
        np.floor(gpu.device["max_threads_per_sm"] / blocks.threads),
        np.floor(gpu.device["registers_per_sm"] / (blocks.threads * held)),
        np.floor(shared / (blocks.shared_bytes + RESERVED_SHARED_BYTES)),
    )
    fewest = np.minimum.reduce([*limits, np.full(len(held), gpu.device.get("max_blocks_per_sm", 32.0))])
    return np.asarray(np.maximum(fewest, 1.0))
