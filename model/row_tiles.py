"""Row-wise and element-wise kernels whose schedule is given: rows, columns and warps of a thread block.

A block loads its values, combines them and writes the result. Its threads work through their values one after another,
so with R blocks on an SM at a time

    cycles = blocks / (SMs·R) · (l + b·warps + c·values + s·spilled)

and one block more while the SMs fill and empty; l is the latency of a block, b what each warp adds to its barriers, c
the cycles of a thread's value and s those of a register that does not fit and is kept in the first-level cache. Few
blocks with few bytes leave the memory waiting, and many small ones the scheduler, which starts about one in a cycle. A
thread with many more values than registers keeps all of them in memory, beyond the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.kernel_arrays import PICO, Columns, column, footprints, hbm_energy_j
from joulecast.model.occupancy import MOST_REGISTERS, WARP, Blocks, resident_blocks, spilled_registers
from joulecast.model.operators import DTYPE_BYTES, Streaming
from joulecast.model.streaming import residency
from joulecast.model.tile_estimates import ESTIMATES, estimate

Array = NDArray[np.float64]
#: Patterns that combine the values of a row as they come, and so hold few of them.
FOLDING = ("reduce_min", "sum", "gemv")
#: Patterns that need a whole row at a time.
WHOLE_ROWS = ("rmsnorm", "layernorm", "softmax", "log_softmax", "norm_backward")
#: Values that a thread holds where it combines them as they come, or keeps them in shared memory.
FEW = 16.0
#: Registers that the compiler leaves a thread, and bytes of memory for each of its values, where it gives up.
GIVEN_UP_REGISTERS, GIVEN_UP_BYTES = 64.0, 8.0


@dataclass(frozen=True)
class RowBlocks:
    """Thread blocks of ``n`` kernels; every field has shape ``(n,)``.

    Attributes
    ----------
    blocks
        Their needs.
    count
        How many each kernel has.
    values
        Values that a thread works through.
    """

    blocks: Blocks
    count: Array
    values: Array


def tile_blocks(operators: Sequence[Streaming], gpu: GpuModel) -> RowBlocks:
    """Thread blocks of row-wise or element-wise kernels with explicit schedules."""
    threads = WARP * column(operators, "warps")
    rows, whole = column(operators, "tile_rows").clip(1.0), column(operators, "columns")
    tile = column(operators, "tile_columns")
    columns = np.where(tile > 0.0, tile, whole)
    folding = np.array([base_pattern(o.pattern) in FOLDING for o in operators])
    steps = np.where(folding & (whole > 0.0), np.ceil(whole / columns), 1.0)
    values = rows * columns / threads
    staged = column(operators, "staged") > 0.0
    held = np.where(staged | folding, np.minimum(values, FEW), values)
    # Weights of the columns, two to a register, are shared by the rows.
    registers = estimate(gpu, "kernel.tile_rows.registers") + held / rows / 2.0
    registers = registers + estimate(gpu, "kernel.tile_rows.registers_per_value") * held
    size = np.array([DTYPE_BYTES[o.dtype] for o in operators], dtype=np.float64)
    shared = np.where(staged, rows * columns * size, 0.0)
    touched = np.maximum(column(operators, "bytes_read"), column(operators, "bytes_written"))
    elements = np.where(column(operators, "elements") > 0.0, column(operators, "elements"), touched / size)
    count = np.ceil(elements / (rows * columns * steps))
    return RowBlocks(Blocks(threads, registers, shared), count, steps * np.maximum(values, 1.0))


def base_pattern(pattern: str) -> str:
    """Pattern of the kernel without a schedule: ``tile_rmsnorm`` is an ``rmsnorm``."""
    return pattern.removeprefix("tile_")


def lower_tiled_rows(operators: Sequence[Streaming], gpu: GpuModel) -> Columns:
    """Work of row-wise and element-wise kernels with explicit schedules, all of one pattern."""
    pattern = base_pattern(operators[0].pattern)
    found = tile_blocks(operators, gpu)
    bytes_ = column(operators, "bytes_read") + column(operators, "bytes_written")
    spill = _spills(found, gpu)
    one = (
        _own(pattern, "kernel", "block_cycles", gpu)
        + estimate(gpu, "kernel.tile_rows.barrier_cycles_per_warp") * found.blocks.threads / WARP
        + estimate(gpu, "kernel.tile_rows.cycles_per_value") * found.values
        + estimate(gpu, "kernel.tile_spill.cycles_per_register") * spill.registers
    )
    rounds = np.maximum(found.count / (gpu.sm_count * spill.resident), 1.0)
    footprint = footprints(operators, bytes_)
    hit = residency(footprint, gpu)
    hbm = bytes_ * (1.0 - hit)
    from_l2 = hit * bytes_ / (gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    memory_s = hbm / (_bandwidth_share(pattern, gpu) * peak)
    memory_s = memory_s + spill.far_bytes / (estimate(gpu, "kernel.tile_spill.bandwidth_share") * peak)
    staged = np.where(column(operators, "staged") > 0.0, bytes_, 0.0)
    near = spill.near_bytes * estimate(gpu, "power.tile_spill_pj_per_byte")
    return {
        "fixed_s": gpu["kernel.tile_gemm.fixed_s"] + one / (gpu.max_clock_mhz * 1e6),
        "core_cycles": np.maximum.reduce([rounds * one, from_l2, _launch_cycles(found.count, memory_s, gpu)]),
        "memory_s": memory_s,
        "activity": np.ones(len(operators)),
        "vector_j": _vector_j(pattern, bytes_, found.count * found.blocks.threads, gpu),
        "onchip_j": ((bytes_ + spill.far_bytes) * gpu["power.l2_pj_per_byte"] + near) * PICO
        + staged * estimate(gpu, "power.tile_shared_pj_per_byte") * PICO,
        "hbm_j": hbm_energy_j(hbm + spill.far_bytes, gpu),
    }


@dataclass(frozen=True)
class _Spills:
    """Blocks that an SM holds, registers of a thread in the first-level cache, and bytes; shape ``(n,)`` each."""

    resident: Array
    registers: Array
    near_bytes: Array
    far_bytes: Array


def _spills(found: RowBlocks, gpu: GpuModel) -> _Spills:
    """What does not fit into registers: a little is written and read once, close by.

    Where more spills than there are registers, the compiler gives up keeping values, and every use of one goes through
    memory; the threads of an SM then need more than its caches hold.
    """
    blocks = found.blocks
    over = spilled_registers(blocks, gpu)
    given_up = over > MOST_REGISTERS
    registers = np.where(given_up, GIVEN_UP_REGISTERS, blocks.registers)
    resident = resident_blocks(Blocks(blocks.threads, registers, blocks.shared_bytes), gpu)
    threads = found.count * blocks.threads
    uses = estimate(gpu, "kernel.tile_spill.uses_in_memory")
    far = threads * uses * GIVEN_UP_BYTES * found.values
    near = np.where(given_up, 0.0, over)
    return _Spills(resident, near, 8.0 * threads * near, np.where(given_up, far, 0.0))


def _launch_cycles(count: Array, memory_s: Array, gpu: GpuModel) -> Array:
    """Cycles in which so many blocks can be started; it goes on beside the memory and shows where it takes longer."""
    cycles = count / estimate(gpu, "kernel.tile_rows.blocks_per_cycle")
    launch_s = cycles / (gpu.max_clock_mhz * 1e6)
    shows = np.minimum(launch_s / np.maximum(memory_s, launch_s), 1.0) ** 2
    return np.asarray(cycles * shows)


def _bandwidth_share(pattern: str, gpu: GpuModel) -> float:
    """Share of the memory's peak that this pattern reaches: its own, of element-wise kernels the library's."""
    keys = [f"kernel.tile_{pattern}.bandwidth_share"]
    keys += [f"kernel.streaming.{pattern}.bandwidth_share"] * (pattern not in WHOLE_ROWS)
    return next((gpu[key] for key in keys if key in gpu.parameters), gpu["kernel.tile_rmsnorm.bandwidth_share"])


def _own(pattern: str, table: str, name: str, gpu: GpuModel) -> float:
    """A constant of this pattern, else that of RMS norms."""
    key = f"{table}.tile_{pattern}.{name}"
    if key in gpu.parameters:
        return gpu[key]
    return estimate(gpu, key if key in ESTIMATES else f"{table}.tile_rmsnorm.{name}")


def _vector_j(pattern: str, bytes_: Array, threads: Array, gpu: GpuModel) -> Array:
    """Energy of computing, and of starting and joining threads: the fewer values each has the more there are [J]."""
    each = _own(pattern, "power", "value_pj_per_byte", gpu)
    return np.asarray((bytes_ * each + threads * _own(pattern, "power", "pj_per_thread", gpu)) * PICO)
