"""Row-wise and element-wise kernels whose schedule is given: rows, columns and warps of a thread block.

A block loads its values, combines them and writes the result. Its threads work through their values one after another,
so with R blocks on an SM at a time

    cycles = blocks / (SMs·R) · (l + b·barriers·warps + c·values + s·spilled)

where l is the latency of a block, b what each warp adds to a barrier, c the cycles of a thread's value and s those of a
register that does not fit and is kept in the first-level cache. Few blocks with few bytes leave the memory waiting, and
many small ones the scheduler, which starts about one in a cycle. Where warps outnumber a tile's columns they load the
same values, and the SM is bound by its loads. So much of this goes on at a time that it shows little beside the memory
unless it takes about as long: the smooth maximum of both is sharper than other kernels'. Measured tiles do not say that
it depends on how many blocks, warps or loads are on the way.

l is what was measured of norms, whose blocks wait for their rows and then for weights, and of row minima, which stand
for element-wise kernels: they wait once. A byte's energy is what a copy's is and less where little is computed.

The memory is not busy throughout. At the end of few waves the last blocks leave it idle, and so does an SM that holds
one block at a time between two of them, while warps wait for a second combination, or compute exponentials. Kernels
that read a block's values before they write any lose time as the memory turns around: not those of the smallest blocks,
whose reads and writes mix. A thread with many more values than registers keeps all of them in memory, beyond the
caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, column, footprints, hbm_energy_j
from joulecast.model.kernels.occupancy import MOST_REGISTERS, WARP, Blocks, resident_blocks, spilled_registers
from joulecast.model.kernels.operators import DTYPE_BYTES, Streaming
from joulecast.model.kernels.row_layout import RowLayout, barriers, row_layout
from joulecast.model.kernels.row_registers import (
    COMBINED,
    FOLDING,
    SHIFTED,
    WEIGHTED,
    WHOLE_ROWS,
    needed_registers,
)
from joulecast.model.kernels.streaming import level_weights, residency
from joulecast.model.kernels.tile_estimates import ESTIMATES, estimate

#: Bytes of a block above which the memory turns around seldom enough, and halvings of it that cost time.
LONG_RUN_BYTES, SHORTER_RUNS = 65536.0, 2.0
#: Bytes of a block up to which reads and writes mix, where rows are whole, and elsewhere; doublings that cost time.
SHORT_RUN_BYTES, MIXED_BYTES, LONGER_RUNS = 8192.0, 4096.0, 3.0
#: Patterns of an exponential for every value, and how many of these an SM computes in a cycle (CUDA programming guide,
#: throughput of native arithmetic instructions).
EXPONENTIAL, EXPONENTIALS_PER_CYCLE = ("softmax", "log_softmax"), 16.0
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
    values, loads
        Values that a thread works through, and the instructions with which it loads them.
    layout
        How a tile lies over the block's threads.
    """

    blocks: Blocks
    count: Array
    values: Array
    loads: Array
    layout: RowLayout


def tile_blocks(operators: Sequence[Streaming], gpu: GpuModel) -> RowBlocks:
    """Thread blocks of row-wise or element-wise kernels with explicit schedules."""
    threads = WARP * column(operators, "warps")
    rows, whole = column(operators, "tile_rows").clip(1.0), column(operators, "columns")
    tile = column(operators, "tile_columns")
    columns = np.where(tile > 0.0, tile, whole)
    patterns = [base_pattern(o.pattern) for o in operators]
    folding = np.array([pattern in FOLDING for pattern in patterns])
    steps = np.where(folding & (whole > 0.0), np.ceil(whole / columns), 1.0)
    values = rows * columns / threads
    staged = column(operators, "staged") > 0.0
    size = np.array([DTYPE_BYTES[o.dtype] for o in operators], dtype=np.float64)
    shared = np.where(staged, rows * columns * size, 0.0)
    touched = np.maximum(column(operators, "bytes_read"), column(operators, "bytes_written"))
    elements = np.where(column(operators, "elements") > 0.0, column(operators, "elements"), touched / size)
    count = np.ceil(elements / (rows * columns * steps))
    layout = row_layout(rows, columns.clip(1.0), threads / WARP, size)
    registers = needed_registers(patterns, values, layout.rows, staged, threads, gpu)
    return RowBlocks(
        Blocks(threads, registers, shared), count, steps * np.maximum(values, 1.0), steps * layout.loads, layout
    )


def base_pattern(pattern: str) -> str:
    """Pattern of the kernel without a schedule: ``tile_rmsnorm`` is an ``rmsnorm``."""
    return pattern.removeprefix("tile_")


def lower_tiled_rows(operators: Sequence[Streaming], gpu: GpuModel) -> Columns:
    """Work of row-wise and element-wise kernels with explicit schedules, all of one pattern."""
    pattern = base_pattern(operators[0].pattern)
    found = tile_blocks(operators, gpu)
    bytes_ = column(operators, "bytes_read") + column(operators, "bytes_written")
    spill = _spills(found, gpu)
    latency = _own(pattern, "kernel", "block_cycles", gpu)
    one = latency + _block_cycles(pattern, found, spill, gpu)
    rounds = np.maximum(found.count / (gpu.sm_count * spill.resident), 1.0)
    overlap = estimate(gpu, "kernel.tile_rows.overlap_exponent")
    resident = residency(footprints(operators, bytes_), gpu)
    near, far = level_weights(resident, overlap)
    hbm = bytes_ * (1.0 - resident)
    from_l2 = near * bytes_ / (gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    from_memory = bytes_ * far
    memory_s = from_memory * _turning(pattern, operators, found.count, gpu) / (_bandwidth_share(pattern, gpu) * peak)
    memory_s = memory_s + spill.far_bytes / (estimate(gpu, "kernel.tile_spill.bandwidth_share") * peak)
    waiting_s = (latency + _lone_cycles(pattern, found, spill.resident, rounds, gpu)) / (gpu.max_clock_mhz * 1e6)
    waiting_s = waiting_s + estimate(gpu, "kernel.tile_rows.tail_share") * memory_s / rounds
    launching = _launch_cycles(found.count, memory_s, gpu)
    staged = np.where(column(operators, "staged") > 0.0, bytes_, 0.0)
    spilled = spill.near_bytes * estimate(gpu, "power.tile_spill_pj_per_byte")
    return {
        "fixed_s": gpu["kernel.tile_gemm.fixed_s"] + waiting_s,
        "core_cycles": np.maximum.reduce([rounds * one, _load_cycles(found, gpu), from_l2, launching]),
        "memory_s": memory_s,
        "overlap": np.full(len(operators), overlap),
        "activity": np.ones(len(operators)),
        "vector_j": _vector_j(pattern, operators, found, gpu),
        "onchip_j": ((bytes_ + spill.far_bytes) * gpu["power.l2_pj_per_byte"] + spilled) * PICO
        + staged * estimate(gpu, "power.tile_shared_pj_per_byte") * PICO,
        "hbm_j": hbm_energy_j(hbm + spill.far_bytes, gpu),
    }


def _block_cycles(pattern: str, found: RowBlocks, spill: _Spills, gpu: GpuModel) -> Array:
    """Cycles of a block beyond its latency, shape ``(n,)``; exponentials that do not fit are computed again."""
    again = np.where(spill.registers > 0.0, 2.0, 1.0) if pattern in EXPONENTIAL else 1.0
    waits = np.zeros(len(found.count))
    if pattern in (*WHOLE_ROWS, *FOLDING):
        waits = barriers(found.layout) * found.blocks.threads / WARP
    return np.asarray(
        estimate(gpu, "kernel.tile_rows.barrier_cycles_per_warp") * waits
        + _second_wait(pattern, gpu) * (waits > 0.0)
        + estimate(gpu, "kernel.tile_rows.cycles_per_value") * found.values * again
        + estimate(gpu, "kernel.tile_spill.cycles_per_register") * spill.registers
    )


def _second_wait(pattern: str, gpu: GpuModel) -> float:
    """Cycles until what warps of a block combined a second time is known to all."""
    return estimate(gpu, "kernel.tile_rows.second_wait_cycles") if pattern in COMBINED else 0.0


def _turning(pattern: str, operators: Sequence[Streaming], count: Array, gpu: GpuModel) -> Array:
    """Factor on the memory's time where blocks read all their values before they write any, shape ``(n,)`` [1].

    Reads and writes of the smallest blocks mix; larger ones come in runs.
    """
    if pattern in FOLDING:
        return np.ones(len(count))
    read, written = column(operators, "bytes_read"), column(operators, "bytes_written")
    total = read + written
    size = total / count
    if pattern in WHOLE_ROWS:
        halvings = np.log2(LONG_RUN_BYTES / size).clip(0.0, SHORTER_RUNS)
        longer = estimate(gpu, "kernel.tile_rows.turning_share") * halvings
        longer = np.where(size > SHORT_RUN_BYTES, longer, -estimate(gpu, "kernel.tile_rows.mixed_share"))
    else:
        doublings = np.log2(size / MIXED_BYTES).clip(0.0, LONGER_RUNS)
        longer = estimate(gpu, "kernel.tile_rows.running_share") * doublings
    return np.asarray(1.0 + longer * 2.0 * np.minimum(read, written) / total)


def _lone_cycles(pattern: str, found: RowBlocks, resident: Array, rounds: Array, gpu: GpuModel) -> Array:
    """Cycles in which SMs that hold one block at a time wait with nothing to load or store, shape ``(n,)``."""
    alone = estimate(gpu, "kernel.tile_rows.lone_block_cycles") + _second_wait(pattern, gpu)
    exponentials = found.values * found.blocks.threads / EXPONENTIALS_PER_CYCLE if pattern in EXPONENTIAL else 0.0
    return np.where(resident > 1.0, 0.0, rounds * (alone + exponentials))


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


def _load_cycles(found: RowBlocks, gpu: GpuModel) -> Array:
    """Cycles in which an SM issues the loads of its warps: many where they are narrow, and warps share values."""
    warps = found.count * found.blocks.threads / (WARP * gpu.sm_count)
    return np.asarray(warps * found.loads * estimate(gpu, "kernel.tile_rows.cycles_per_load"))


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
    """A constant of this pattern, else that of RMS norms, which wait for rows and for weights, or of row minima."""
    alike = "rmsnorm" if pattern in WHOLE_ROWS else "reduce_min"
    names = [f"{table}.tile_{which}.{name}" for which in (pattern, alike, "rmsnorm")]
    known = next(key for key in names if key in gpu.parameters or key in ESTIMATES)
    return gpu[known] if known in gpu.parameters else ESTIMATES[known].number


def _vector_j(pattern: str, operators: Sequence[Streaming], found: RowBlocks, gpu: GpuModel) -> Array:
    """Energy of computing, of starting threads and joining their lanes, and of reading weights, shape ``(n,)`` [J].

    The fewer values each thread has the more threads there are; each takes part in joining every row that it has values
    of, once or twice. Each block reads the weights of its columns for itself. What loads take counts where values are
    folded as they come; of kernels that hold whole rows it was measured with the rest.
    """
    threads = found.count * found.blocks.threads
    bytes_ = column(operators, "bytes_read") + column(operators, "bytes_written")
    each = _own(pattern, "power", "value_pj_per_byte", gpu)
    total = bytes_ * each + threads * _own(pattern, "power", "pj_per_thread", gpu)
    if pattern in (*WHOLE_ROWS, *FOLDING):
        joins = found.layout.rows * np.log2(found.layout.lanes) * (2.0 if pattern in COMBINED else 1.0)
        total = total + threads * joins * estimate(gpu, "power.tile_rows.pj_per_join")
    if pattern in FOLDING:
        total = total + threads * found.loads * estimate(gpu, "power.tile_rows.pj_per_load")
    if pattern in WEIGHTED:
        vectors = 2.0 if pattern in SHIFTED else 1.0
        size = np.array([DTYPE_BYTES[o.dtype] for o in operators], dtype=np.float64)
        weights = found.count * column(operators, "columns") * size * vectors
        total = total + weights * estimate(gpu, "power.tile_rows.pj_per_weight_byte")
    return np.asarray(total * PICO)
