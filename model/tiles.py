"""Kernels whose schedule is given: matrix products and row-wise kernels with explicit tiles (for instance Triton's).

Products: each step along K loads (BM + BN)·BK elements for 2·BM·BN·BK operations, so small tiles are bound by loads,

    1/η = 1/η0 + s·max(0, x − x0),      x = 64/BM + 64/BN.

Row-wise kernels: the bytes in flight on an SM over the memory's latency bound the bandwidth (Little's law); they follow
from the blocks that fit by threads and registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.operators import DTYPE_BYTES, Gemm, Streaming, Tile
from joulecast.model.toggling import toggle_factor

Columns = dict[str, NDArray[np.float64]]
PICO = 1e-12
#: Registers of a thread beyond the values that it holds: addresses, counters, scale.
EXTRA_REGISTERS = 24


def lower_tiled_gemms(operators: Sequence[Gemm], gpu: GpuModel) -> Columns:
    """Work of matrix products with explicit tiles."""
    first = operators[0]
    tiles = [o.tile for o in operators if o.tile is not None]
    bm, bn, bk = (np.array([getattr(t, axis) for t in tiles], dtype=np.float64) for axis in ("m", "n", "k"))
    m, n, k = (np.array([getattr(o, axis) for o in operators], dtype=np.float64) for axis in ("m", "n", "k"))
    rate = gpu.flops_per_cycle(first.dtype) / gpu.sm_count
    x = 64.0 / bm + 64.0 / bn
    inverse = 1.0 / gpu["kernel.tile_gemm.eta"] + gpu["kernel.tile_gemm.load_slope"] * np.maximum(
        0.0, x - gpu["kernel.tile_gemm.load_knee"]
    )
    short = 1.0 + gpu["kernel.tile_gemm.short_step"] * np.maximum(0.0, 64.0 / bk - 1.0)
    count = np.ceil(m / bm) * np.ceil(n / bn)
    resident = np.array([_resident_tiles(t, first.dtype, gpu) for t in tiles])
    waves = np.ceil(count / gpu.sm_count)
    full = np.ceil(count / (gpu.sm_count * resident)) * resident
    waves = np.where(
        x > gpu["kernel.tile_gemm.load_knee"], np.maximum(count / gpu.sm_count, 1.0), np.minimum(waves, full)
    )
    cycles = waves * (2.0 * bm * bn * k * inverse * short / rate + gpu["kernel.tile_gemm.tile_overhead_cycles"])
    toggle = toggle_factor(first.data, gpu)
    size = DTYPE_BYTES[first.dtype]
    l2 = count * (bm + bn) * k * size
    hbm = (m * k + n * k + m * n) * size
    per_byte = gpu["power.hbm_base_pj_per_byte"] + gpu["power.hbm_toggle_pj_per_byte"]
    return {
        "fixed_s": np.full(len(operators), gpu["kernel.tile_gemm.fixed_s"]),
        "core_cycles": cycles,
        "memory_s": hbm / (gpu["kernel.gemm.bandwidth_share"] * gpu.device["memory_bandwidth_bytes_per_s"]),
        "activity": count / (waves * gpu.sm_count).clip(1.0),
        "tensor_j": 2.0 * m * n * k * gpu["power.tile_pj_per_flop"] * PICO * toggle,
        "onchip_j": l2 * gpu["power.tile_pj_per_l2_byte"] * PICO * toggle,
        "hbm_j": hbm * per_byte * PICO,
    }


def _resident_tiles(tile: Tile, dtype: str, gpu: GpuModel) -> float:
    """Tiles that one SM holds at a time, by shared memory and threads."""
    staged = tile.stages * (tile.m + tile.n) * tile.k * DTYPE_BYTES[dtype]
    by_memory = gpu.device["shared_memory_per_sm_bytes"] // max(staged, 1)
    by_threads = gpu.device["max_threads_per_sm"] // (32 * tile.warps)
    return float(max(1.0, min(by_memory, by_threads)))


def lower_tiled_rows(operators: Sequence[Streaming], gpu: GpuModel) -> Columns:
    """Work of row-wise kernels with explicit tiles: ``tile_rmsnorm`` and ``tile_reduce_min``."""
    pattern = operators[0].pattern
    prefix = f"kernel.{pattern}."
    read = np.array([o.bytes_read for o in operators])
    bytes_ = read + np.array([o.bytes_written for o in operators])
    in_flight = np.array([_bytes_in_flight(o, gpu) for o in operators])
    cycles = read / gpu.sm_count * gpu[prefix + "latency_cycles"] / in_flight
    warps = np.array([o.warps for o in operators], dtype=np.float64)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    per_byte = gpu["power.hbm_base_pj_per_byte"] + gpu["power.hbm_toggle_pj_per_byte"]
    vector = gpu[f"power.{pattern}.pj_per_byte"] + gpu[f"power.{pattern}.pj_per_byte_and_warp"] * np.log2(warps)
    return {
        "fixed_s": np.full(len(operators), gpu["kernel.tile_gemm.fixed_s"]),
        "core_cycles": cycles,
        "memory_s": bytes_ / (gpu[prefix + "bandwidth_share"] * peak),
        "activity": np.ones(len(operators)),
        "vector_j": bytes_ * vector * PICO,
        "onchip_j": bytes_ * gpu["power.l2_pj_per_byte"] * PICO,
        "hbm_j": bytes_ * per_byte * PICO,
    }


def _bytes_in_flight(operator: Streaming, gpu: GpuModel) -> float:
    columns = operator.tile_columns or operator.columns
    values = operator.tile_rows * columns / (32.0 * operator.warps)
    registers = 32.0 * operator.warps * (values + EXTRA_REGISTERS)
    blocks = min(
        gpu.device.get("max_blocks_per_sm", 32.0),
        gpu.device["max_threads_per_sm"] // (32 * operator.warps),
        max(1.0, gpu.device["registers_per_sm"] // registers),
    )
    return float(blocks * operator.tile_rows * columns * DTYPE_BYTES[operator.dtype])
