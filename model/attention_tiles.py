"""Fused attention whose schedule is given: queries and keys of a block, warps and stages.

A block holds BM queries and takes the keys BN at a time; each step is two products (five backward), a softmax of the
scores, and a scaling of what was summed before,

    cycles of a step = (products·2·BM·BN·D / (R·η) + s·BM·BN + r·BM·D) · g

with R the dense rate of one SM. g > 1 where the SM has no second group of four warps whose products could hide that
softmax, where eight warps share 64 rows, and where fewer than three stages leave loads exposed. Blocks of different
length (a causal mask) even out over the SMs but for the last. Backward a block holds BN keys and takes the queries BM
at a time; it is known only as the forward is [estimate].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.kernel_arrays import PICO, Columns, column, hbm_energy_j
from joulecast.model.occupancy import WARP, Blocks, resident_blocks, spilled_registers
from joulecast.model.operators import DTYPE_BYTES, Attention
from joulecast.model.tile_estimates import estimate

Array = NDArray[np.float64]
#: Products of a pair of blocks, and accumulators that stay in the registers, by direction.
PRODUCTS = {"forward": 2.0, "backward": 5.0}
ACCUMULATORS = {"forward": 1.0, "backward": 2.0}
#: Backend whose energy of an operation a kernel with an explicit tile has.
LIKE = "flash-attention-2"
#: Rows that four warps multiply at a time.
GROUP_ROWS = 64.0
#: Queries of a block to which that energy refers.
REFERENCE_QUERIES = 128.0


def attention_blocks(operators: Sequence[Attention], gpu: GpuModel) -> Blocks:
    """What a thread block of each kernel needs."""
    m, n, warps, stages, dim = _sides(operators)
    threads = WARP * warps
    direction = operators[0].direction
    kept, walked = (m, n) if direction == "forward" else (n, m)
    accumulators = ACCUMULATORS[direction] * kept * dim / threads
    scores = estimate(gpu, "kernel.tile_attention.registers_per_score") * ACCUMULATORS[direction] * m * n / threads
    registers = estimate(gpu, "kernel.tile_attention.registers") + accumulators + scores
    size = DTYPE_BYTES[operators[0].dtype]
    return Blocks(threads, registers, (ACCUMULATORS[direction] * kept + 2.0 * stages * walked) * dim * size)


def lower_tiled_attention(operators: Sequence[Attention], gpu: GpuModel) -> Columns:
    """Work of attention kernels with explicit tiles, all of one direction and data type."""
    first = operators[0]
    m, n, _, _, dim = _sides(operators)
    batch, heads, kv_heads = (column(operators, c) for c in ("batch", "heads", "kv_heads"))
    sequence, keys = column(operators, "sequence"), column(operators, "keys")
    products, size = PRODUCTS[first.direction], DTYPE_BYTES[first.dtype]
    walk = attention_steps(operators)
    steps, kept, walked, full = walk.steps, walk.kept, walk.walked, walk.full
    blocks = attention_blocks(operators, gpu)
    step = _step_cycles(operators, blocks, gpu)
    spilled = 8.0 * spilled_registers(blocks, gpu) * blocks.threads
    step = step + spilled / estimate(gpu, "kernel.tile_spill.bytes_per_sm_cycle")
    mean = batch * heads * steps / gpu.sm_count
    cycles = step * (mean + 0.5 * np.minimum(full, mean)) + gpu["kernel.tile_gemm.tile_overhead_cycles"]
    passes = 1.0 if first.direction == "forward" else 2.0
    hbm = passes * batch * dim * size * (2.0 * heads * sequence + 2.0 * kv_heads * keys)
    hbm = hbm + (batch * sequence * dim * size * 6.0 * heads if first.direction == "backward" else 0.0)
    executed = products * 2.0 * batch * heads * steps * m * n * dim
    l2 = batch * heads * steps * walked * 2.0 * dim * size * np.maximum(1.0 - kept / REFERENCE_QUERIES, 0.0)
    per_flop = estimate(gpu, "power.tile_attention_share")
    per_flop = per_flop * gpu[f"power.attention_pj_per_flop.{LIKE}.{first.direction}"]
    return {
        "fixed_s": np.full(len(operators), gpu["kernel.attention.fixed_s"]),
        "core_cycles": cycles,
        "memory_s": hbm / gpu.device["memory_bandwidth_bytes_per_s"],
        "activity": mean / (mean + 0.5 * np.minimum(full, mean)),
        "tensor_use": executed / (gpu.flops_per_cycle(first.dtype) * cycles),
        "tensor_j": executed * per_flop * PICO,
        "onchip_j": l2 * gpu["power.tile_pj_per_l2_byte"] * PICO
        + batch * heads * steps * spilled * estimate(gpu, "power.tile_spill_pj_per_byte") * PICO,
        "hbm_j": hbm_energy_j(hbm, gpu),
    }


@dataclass(frozen=True)
class AttentionSteps:
    """How the blocks of one head walk; every field has shape ``(n,)``.

    ``rows`` blocks keep ``kept`` positions each, and take ``walked`` others in a step; without a mask in ``full``
    steps each, with it in ``steps`` altogether.
    """

    rows: Array
    kept: Array
    walked: Array
    full: Array
    steps: Array


def attention_steps(operators: Sequence[Attention]) -> AttentionSteps:
    """Blocks and steps of one head of kernels that share a direction."""
    m, n, _, _, _ = _sides(operators)
    sequence, keys = column(operators, "sequence"), column(operators, "keys")
    forward = operators[0].direction == "forward"
    kept, walked, held, swept = (m, n, sequence, keys) if forward else (n, m, keys, sequence)
    rows, full = np.ceil(held / kept), np.ceil(swept / walked)
    # Of the last keys, as many as there are queries, a causal mask leaves the blocks below the diagonal.
    hidden = np.minimum(sequence, swept) / (2.0 * walked) * sequence / held - np.ceil(kept / walked) / 2.0
    causal = np.array([o.causal for o in operators])
    return AttentionSteps(rows, kept, walked, full, rows * (full - np.where(causal, np.maximum(hidden, 0.0), 0.0)))


def _step_cycles(operators: Sequence[Attention], blocks: Blocks, gpu: GpuModel) -> Array:
    """Cycles of one pair of blocks without spills."""
    first = operators[0]
    m, n, warps, stages, dim = _sides(operators)
    rate = gpu.flops_per_cycle(first.dtype) / gpu.sm_count
    kept = m if first.direction == "forward" else n
    products = PRODUCTS[first.direction] * 2.0 * m * n * dim / (rate * estimate(gpu, "kernel.tile_attention.eta"))
    scores = estimate(gpu, "kernel.tile_attention.cycles_per_score") * m * n
    scaling = estimate(gpu, "kernel.tile_attention.cycles_per_scaled_value") * kept * dim
    groups = resident_blocks(blocks, gpu) * np.minimum(warps / 4.0, np.ceil(kept / GROUP_ROWS))
    alone = np.where(groups < 2.0, estimate(gpu, "kernel.tile_attention.alone"), 1.0)
    thin = np.where(warps / 4.0 > kept / GROUP_ROWS, estimate(gpu, "kernel.tile_attention.thin"), 1.0)
    exposed = 1.0 + estimate(gpu, "kernel.tile_attention.exposed_stage") * np.maximum(3.0 - stages, 0.0)
    return np.asarray((products + scores + scaling) * alone * thin * exposed)


def _sides(operators: Sequence[Attention]) -> tuple[Array, Array, Array, Array, Array]:
    tiles = [o.tile for o in operators if o.tile is not None]
    m, n, warps, stages = (column(tiles, name) for name in ("m", "n", "warps", "stages"))
    return m, n, warps, stages, column(operators, "head_dim")
