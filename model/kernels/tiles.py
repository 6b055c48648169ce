"""Matrix products whose schedule is given: tile, warps, stages, split-K, staging (for instance Triton's).

Each step along K loads (BM + BN)·BK elements for 2·BM·BN·BK operations, so small tiles are bound by loads,

    1/η = 1/η0 + s·max(0, x − x0),      x = 64/BM + 64/BN.

A tile's first loads and its stores take o·(1 + BM·BN / 128²)/2 cycles of an SM that has nothing else to do, and
others compute meanwhile where it has. With S stages and R blocks on an SM, (S − 1)·R steps are on the way at a time: a
step takes at least (l + step)/((S − 1)·R), l the latency of its loads. With fewer than three stages nothing is loaded
while a step computes. Without staging through shared memory every warp loads its own operands. What does not fit into
the registers is written to memory and read again in every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, column, footprints, hbm_energy_j
from joulecast.model.kernels.gemm import read_again
from joulecast.model.kernels.occupancy import WARP, Blocks, resident_blocks, spilled_registers
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm, Tile
from joulecast.model.kernels.tile_estimates import estimate
from joulecast.model.kernels.toggling import toggle_factor

#: Columns of the widest matrix instruction; narrower ones read the left operand more often.
WIDEST = 256.0
#: Values of the tile to which the cycles of its ends refer, and the share of these that storing its values takes
#: [estimate, +-0.2; 80 tiles of three lists].
REFERENCE_VALUES, STORING_SHARE = 128.0 * 128.0, 0.5
#: Loads for each operation, 64/BM + 64/BN, from which on tiles are small enough to even out: those of 128 x 128.
EVEN_LOADS = 1.0
#: Stages from which on operands are loaded while others are multiplied.
PIPELINED = 3


def gemm_blocks(tiles: Sequence[Tile], dtype: str, gpu: GpuModel) -> Blocks:
    """What a thread block of each tile needs."""
    bm, bn, bk, warps, stages = (column(tiles, name) for name in ("m", "n", "k", "warps", "stages"))
    threads = WARP * warps
    own, each = (estimate(gpu, f"kernel.tile_gemm.{name}") for name in ("registers", "registers_per_value"))
    registers = own + each * bm * bn / threads
    staged = column(tiles, "staged")
    return Blocks(threads, registers, staged * stages * (bm + bn) * bk * DTYPE_BYTES[dtype])


def lower_tiled_gemms(operators: Sequence[Gemm], gpu: GpuModel) -> Columns:
    """Work of matrix products with explicit tiles."""
    first = operators[0]
    tiles = [o.tile for o in operators if o.tile is not None]
    bm, bn, splits = (column(tiles, axis) for axis in ("m", "n", "split_k"))
    m, n, k, batch = (column(operators, axis) for axis in ("m", "n", "k", "batch"))
    outputs = np.ceil(m / bm) * np.ceil(n / bn) * batch
    count = outputs * splits
    # Blocks of small tiles share an SM and even out; of large ones the last wave holds up all.
    mean = count / gpu.sm_count
    waves = np.where(64.0 / bm + 64.0 / bn >= EVEN_LOADS, np.maximum(mean, 1.0), np.ceil(mean))
    per_k = _cycles_per_k(tiles, count, first.dtype, gpu)
    cycles = waves * (np.ceil(k / splits) * per_k + _ends_cycles(tiles, count, first.dtype, gpu))
    partial = np.where(splits > 1.0, 2.0 * 4.0 * m * n * batch * splits, 0.0)
    rate = estimate(gpu, "kernel.tile_gemm.sum_share") * gpu["kernel.l2.bytes_per_sm_cycle"] * gpu.sm_count
    cycles = cycles + partial / rate
    toggle = toggle_factor(first.data, gpu)
    size = DTYPE_BYTES[first.dtype]
    l2 = outputs * (bm + bn) * k * size
    output = np.array([o.output_bytes_per_element for o in operators], dtype=np.float64)
    once = ((m * k + n * k) * size + m * n * output) * batch
    hbm = read_again(once, l2, footprints(operators, once), gpu)
    near = outputs * k * (_spilled_bytes(tiles, first.dtype, gpu) + own_loads(tiles) * size)
    return {
        "fixed_s": gpu["kernel.tile_gemm.fixed_s"]
        + np.where(splits > 1.0, estimate(gpu, "kernel.tile_gemm.sum_fixed_s"), 0.0),
        "core_cycles": cycles,
        "memory_s": hbm / (gpu["kernel.gemm.bandwidth_share"] * gpu.device["memory_bandwidth_bytes_per_s"]),
        "activity": count / (waves * gpu.sm_count).clip(1.0),
        "tensor_j": 2.0 * m * n * k * batch * gpu["power.tile_pj_per_flop"] * PICO * toggle,
        "onchip_j": (l2 * gpu["power.tile_pj_per_l2_byte"] + partial * gpu["power.l2_pj_per_byte"]) * (PICO * toggle)
        + near * estimate(gpu, "power.tile_spill_pj_per_byte") * PICO,
        "hbm_j": hbm_energy_j(hbm, gpu),
    }


def _cycles_per_k(tiles: Sequence[Tile], count: Array, dtype: str, gpu: GpuModel) -> Array:
    """Cycles in which an SM advances one of ``count`` tiles by one element of K, shape ``(n,)``."""
    bm, bn, bk, stages = (column(tiles, name) for name in ("m", "n", "k", "stages"))
    size = DTYPE_BYTES[dtype]
    rate = gpu.flops_per_cycle(dtype) / gpu.sm_count
    knee = gpu["kernel.tile_gemm.load_knee"]
    slope = gpu["kernel.tile_gemm.load_slope"]
    inverse = 1.0 / gpu["kernel.tile_gemm.eta"] + slope * np.maximum(0.0, 64.0 / bm + 64.0 / bn - knee)
    short = 1.0 + gpu["kernel.tile_gemm.short_step"] * np.maximum(0.0, 64.0 / bk - 1.0)
    narrow = 1.0 + estimate(gpu, "kernel.tile_gemm.narrow_step") * np.maximum(WIDEST / bn - 1.0, 0.0)
    compute = 2.0 * bm * bn * inverse * short * narrow / rate
    alone = compute / estimate(gpu, "kernel.tile_gemm.unstaged_eta")
    near = estimate(gpu, "kernel.tile_gemm.register_bytes_per_sm_cycle")
    staged = column(tiles, "staged") > 0.0
    compute = np.where(staged, compute, np.maximum(alone, own_loads(tiles) * size / near))
    compute = compute + _spilled_bytes(tiles, dtype, gpu) / estimate(gpu, "kernel.tile_spill.bytes_per_sm_cycle")
    loads = (bm + bn) * size / estimate(gpu, "kernel.tile_gemm.exposed_bytes_per_sm_cycle")
    step = compute * bk
    blocks = _beside(tiles, count, dtype, gpu)
    waiting = (estimate(gpu, "kernel.tile_gemm.load_latency_cycles") + step) / ((stages - 1.0).clip(1.0) * blocks)
    return np.asarray(np.where(stages < PIPELINED, compute + loads, np.maximum(step, waiting) / bk))


def _ends_cycles(tiles: Sequence[Tile], count: Array, dtype: str, gpu: GpuModel) -> Array:
    """Cycles that a tile's first loads and its stores take from an SM, shape ``(n,)``: others compute meanwhile."""
    area = column(tiles, "m") * column(tiles, "n") / REFERENCE_VALUES
    alone = gpu["kernel.tile_gemm.tile_overhead_cycles"] * (STORING_SHARE * area + 1.0 - STORING_SHARE)
    return np.asarray(alone / _beside(tiles, count, dtype, gpu))


def _beside(tiles: Sequence[Tile], count: Array, dtype: str, gpu: GpuModel) -> Array:
    """How many of ``count`` tiles an SM has at a time, shape ``(n,)``."""
    return np.minimum(resident_blocks(gemm_blocks(tiles, dtype, gpu), gpu), np.ceil(count / gpu.sm_count))


def _spilled_bytes(tiles: Sequence[Tile], dtype: str, gpu: GpuModel) -> Array:
    """Bytes that a block writes and reads again for one element of K, as its accumulators do not fit: 0 for most."""
    blocks = gemm_blocks(tiles, dtype, gpu)
    return 8.0 * spilled_registers(blocks, gpu) * blocks.threads / column(tiles, "k")


def own_loads(tiles: Sequence[Tile]) -> Array:
    """Operand elements that the warps of a block load for one element of K where they share none, 0 where staged."""
    bm, bn, warps = (column(tiles, name) for name in ("m", "n", "warps"))
    down = 2.0 ** np.ceil(np.log2(warps) / 2.0)
    return np.where(column(tiles, "staged") > 0.0, 0.0, bm * warps / down + bn * down)
