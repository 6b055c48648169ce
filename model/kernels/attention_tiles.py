"""Fused attention whose schedule is given: queries and keys of a block, warps and stages.

Forward a block holds BM queries and takes the keys BN at a time; each step is two products, a softmax of the scores,
and a scaling of what was summed before,

    cycles of a step = (2·2·BM·BN·D / (R·η) + (s + c)·BM·BN + r·BM·D) · g

with R the dense rate of one SM, and c what a causal mask costs every score: two comparisons and a choice, where the
rest takes five to six instructions (as compiled for sm_90). g > 1 where the SM has no second group of four warps, where
eight warps share 64 rows, and where fewer than three stages leave loads exposed. A block takes b·BM·D cycles more, to
load its queries and store its sums. Blocks of different length (a mask) even out over the SMs but for the last, others
do not.

Backward a block holds BN keys and takes the queries BM at a time: five products, and D values for each query that are
loaded twice (Q, dO) and added to dQ in L2. There r is of these, products whose rows or columns are fewer than 64 use
narrower matrix instructions, and g > 1 where the SM has no second block to run meanwhile. To fill its pipeline and to
store its sums takes a block some steps more. (Dao 2023, "FlashAttention-2", algorithms 1 and 2.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, column, hbm_energy_j
from joulecast.model.kernels.occupancy import WARP, Blocks, resident_blocks, spilled_registers
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention
from joulecast.model.kernels.tile_estimates import estimate

#: Products of a pair of blocks, by direction.
PRODUCTS = {"forward": 2.0, "backward": 5.0}
#: Constants of the backward kernel, and bytes of a value of dQ while it is summed.
BACKWARD, SUM_BYTES = "kernel.tile_attention_backward", 4.0
#: Registers that the compiler frees of a step by computing values again, and by keeping in memory what no step needs.
COMPUTED_AGAIN = 45.0
#: Registers that it moves for each that it then still lacks (estimate; three compiled tiles: 1.9 to 3.6).
SHUFFLED = 2.0
#: Backend whose energy of an operation a kernel with an explicit tile has.
LIKE = "flash-attention-2"
#: Stages from which on keys and values are loaded while others are multiplied.
PIPELINED = 3.0
#: Rows that four warps multiply at a time.
GROUP_ROWS = 64.0
#: Columns from which on matrix instructions backward are not too narrow.
MANY_COLUMNS = 128.0
#: Queries of a block to which that energy refers.
REFERENCE_QUERIES = 128.0


def attention_blocks(operators: Sequence[Attention], gpu: GpuModel) -> Blocks:
    """What a thread block of each kernel needs."""
    m, n, warps, stages, dim = _sides(operators)
    threads = WARP * warps
    direction = operators[0].direction
    kept, walked = (m, n) if direction == "forward" else (n, m)
    size = DTYPE_BYTES[operators[0].dtype]
    if direction == "forward":
        values = estimate(gpu, "kernel.tile_attention.registers_per_sum") * kept * dim
        values = values + estimate(gpu, "kernel.tile_attention.registers_per_score") * m * n
        registers = estimate(gpu, "kernel.tile_attention.registers") + values / threads
        return Blocks(threads, registers, (kept + 2.0 * stages * walked) * dim * size)
    values = estimate(gpu, f"{BACKWARD}.registers_per_sum") * 2.0 * kept * dim + walked * dim
    # Two groups of four warps that share 64 keys both hold the scores.
    holders = np.where(_thin(n, warps), 2.0, 1.0)
    values = values + estimate(gpu, f"{BACKWARD}.registers_per_score") * m * n * holders
    # Where loads are on the way to shared memory, what is added to dQ needs room of its own there.
    added = np.where(stages > 1.0, walked * dim * SUM_BYTES, 0.0)
    shared = (2.0 * kept + 2.0 * stages * walked) * dim * size + added
    return Blocks(threads, estimate(gpu, f"{BACKWARD}.registers") + values / threads, shared)


def lower_tiled_attention(operators: Sequence[Attention], gpu: GpuModel) -> Columns:
    """Work of attention kernels with explicit tiles, all of one direction and data type."""
    first = operators[0]
    m, n, _, _, dim = _sides(operators)
    batch, heads, kv_heads = (column(operators, c) for c in ("batch", "heads", "kv_heads"))
    sequence, keys = column(operators, "sequence"), column(operators, "keys")
    size, walk = DTYPE_BYTES[first.dtype], attention_steps(operators)
    blocks = attention_blocks(operators, gpu)
    step = _step_cycles(operators, blocks, gpu)
    mean = batch * heads * walk.steps / gpu.sm_count
    hbm = batch * dim * size * (2.0 * heads * sequence + 2.0 * kv_heads * keys)
    executed = PRODUCTS[first.direction] * 2.0 * batch * heads * walk.steps * m * n * dim
    if first.direction == "forward":
        beside = _forward(operators, walk, blocks, step, mean, gpu)
    else:
        beside = _backward(operators, walk, blocks, gpu)
        # Gradients, and the kernels before and behind: row products of dO and O, dQ cleared and rounded.
        hbm = 2.0 * hbm + batch * sequence * dim * heads * (2.0 * size + 3.0 * SUM_BYTES)
    passes = np.maximum(mean + beside.last, walk.full)  # fewer blocks than SMs: the longest alone takes as long as all
    cycles = (step + beside.spilled_cycles) * passes + gpu["kernel.tile_gemm.tile_overhead_cycles"]
    per_flop = beside.share * gpu[f"power.attention_pj_per_flop.{LIKE}.{first.direction}"]
    return {
        "fixed_s": np.full(len(operators), gpu["kernel.attention.fixed_s"]),
        "core_cycles": cycles,
        "memory_s": hbm / gpu.device["memory_bandwidth_bytes_per_s"],
        "activity": mean / passes,
        "tensor_use": executed / (gpu.flops_per_cycle(first.dtype) * cycles),
        "tensor_j": executed * per_flop * PICO,
        "onchip_j": beside.l2_j + batch * heads * walk.steps * beside.spilled_j,
        "hbm_j": hbm_energy_j(hbm, gpu),
    }


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a direction adds to its steps; all of shape ``(n,)``.

    Attributes
    ----------
    spilled_cycles, spilled_j
        Of registers that a step spills: cycles of an SM, and energy [J].
    last
        Steps of an SM beside its mean.
    l2_j
        Energy of what is read from L2, and of masked scores [J].
    share
        Energy of an operation over that of the library's kernel.
    """

    spilled_cycles: Array
    spilled_j: Array
    last: Array
    l2_j: Array
    share: Array


def _forward(
    operators: Sequence[Attention], walk: AttentionSteps, blocks: Blocks, step: Array, mean: Array, gpu: GpuModel
) -> _Beside:
    m, n, _, _, dim = _sides(operators)
    batch, heads = (column(operators, c) for c in ("batch", "heads"))
    size = DTYPE_BYTES[operators[0].dtype]
    spilled = 8.0 * np.maximum(spilled_registers(blocks, gpu) - COMPUTED_AGAIN, 0.0) * blocks.threads
    spilled_j = spilled * estimate(gpu, "power.tile_spill_pj_per_byte") * PICO
    last = _forward_tail(operators, walk, mean, gpu) + _forward_ends(operators, walk, step, gpu)
    again = np.maximum(1.0 - walk.kept / REFERENCE_QUERIES, 0.0)
    l2 = batch * heads * walk.steps * walk.walked * 2.0 * dim * size * again
    l2_j = l2 * estimate(gpu, "power.tile_attention.pj_per_l2_byte") * PICO
    masked = np.array([o.causal for o in operators]) * estimate(gpu, "power.tile_attention.pj_per_masked_score")
    return _Beside(
        spilled / estimate(gpu, "kernel.tile_spill.bytes_per_sm_cycle"),
        spilled_j,
        last,
        l2_j + batch * heads * walk.steps * m * n * masked * PICO,
        np.full(len(operators), estimate(gpu, "power.tile_attention_share")),
    )


def _backward(operators: Sequence[Attention], walk: AttentionSteps, blocks: Blocks, gpu: GpuModel) -> _Beside:
    _, n, _, _, dim = _sides(operators)
    batch, heads = (column(operators, c) for c in ("batch", "heads"))
    size = DTYPE_BYTES[operators[0].dtype]
    l2 = batch * heads * walk.steps * walk.walked * dim * (2.0 * size + SUM_BYTES)
    return _Beside(
        *_backward_spills(blocks, gpu),
        estimate(gpu, f"{BACKWARD}.steps_of_block") * batch * heads * walk.rows / gpu.sm_count,
        l2 * estimate(gpu, "power.tile_attention_backward.pj_per_walked_byte") * PICO,
        estimate(gpu, "power.tile_attention_backward.share") * _read_twice(n, blocks.threads / WARP, gpu),
    )


def _forward_tail(operators: Sequence[Attention], walk: AttentionSteps, mean: Array, gpu: GpuModel) -> Array:
    """Steps of an SM in which others have no block left, shape ``(n,)``."""
    each = column(operators, "batch") * column(operators, "heads") * walk.rows / gpu.sm_count
    masked = np.array([o.causal for o in operators])
    return np.where(masked, 0.5 * np.minimum(walk.full, mean), mean * (np.ceil(each) / each - 1.0))


def _forward_ends(operators: Sequence[Attention], walk: AttentionSteps, step: Array, gpu: GpuModel) -> Array:
    """Steps that an SM could do while its blocks load their queries and store their sums, shape ``(n,)``."""
    moved = (
        column(operators, "batch") * column(operators, "heads") * walk.rows * walk.kept * column(operators, "head_dim")
    )
    return np.asarray(estimate(gpu, "kernel.tile_attention.cycles_per_kept_value") * moved / gpu.sm_count / step)


def _backward_spills(blocks: Blocks, gpu: GpuModel) -> tuple[Array, Array]:
    """Cycles and energy [J] of what a step moves out of its registers and back, shape ``(n,)`` each.

    The first-level cache holds what fits beside shared memory; the rest goes through L2.
    """
    moved = SHUFFLED * np.maximum(spilled_registers(blocks, gpu) - COMPUTED_AGAIN, 0.0)
    bytes_ = 8.0 * moved * blocks.threads
    room = gpu.device["shared_memory_per_sm_bytes"] / resident_blocks(blocks, gpu) - blocks.shared_bytes
    far = np.maximum(bytes_ - 2.0 * room.clip(0.0), 0.0)
    near = bytes_ - far
    cycles = near / estimate(gpu, "kernel.tile_gemm.register_bytes_per_sm_cycle")
    cycles = cycles + far / gpu["kernel.l2.bytes_per_sm_cycle"]
    energy = near * estimate(gpu, "power.tile_spill_pj_per_byte") + far * gpu["power.l2_pj_per_byte"]
    return cycles, energy * PICO


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
    one = 2.0 * m * n * dim / (rate * estimate(gpu, "kernel.tile_attention.eta"))
    if first.direction == "backward":
        return _backward_step_cycles(operators, blocks, one, gpu)
    kept, products = m, PRODUCTS[first.direction] * one
    masked = np.array([o.causal for o in operators]) * estimate(gpu, "kernel.tile_attention.cycles_per_masked_score")
    scores = (estimate(gpu, "kernel.tile_attention.cycles_per_score") + masked) * m * n
    scaling = estimate(gpu, "kernel.tile_attention.cycles_per_scaled_value") * kept * dim
    scaling = scaling + estimate(gpu, "kernel.tile_attention.cycles_per_warp") * warps
    groups = resident_blocks(blocks, gpu) * np.minimum(warps / 4.0, np.ceil(kept / GROUP_ROWS))
    alone = np.where(groups < 2.0, estimate(gpu, "kernel.tile_attention.alone"), 1.0)
    thin = np.where(_thin(kept, warps), estimate(gpu, "kernel.tile_attention.thin"), 1.0)
    joint = np.where(warps > 4.0, estimate(gpu, "kernel.tile_attention.joint"), 1.0)
    loads = 2.0 * n * dim * DTYPE_BYTES[first.dtype] * np.maximum(PIPELINED - stages, 0.0)
    exposed = loads / estimate(gpu, "kernel.tile_attention.exposed_bytes_per_sm_cycle") / resident_blocks(blocks, gpu)
    return np.asarray((products + scores + scaling) * alone * thin * joint + exposed)


def _backward_step_cycles(operators: Sequence[Attention], blocks: Blocks, product: Array, gpu: GpuModel) -> Array:
    """The same backward; ``product`` is what one of the five takes at the tensor units' pace."""
    m, n, warps, stages, dim = _sides(operators)
    few = estimate(gpu, f"{BACKWARD}.few_rows")
    short = 1.0 + estimate(gpu, f"{BACKWARD}.few_columns") * np.maximum(MANY_COLUMNS / m - 1.0, 0.0)
    # Scores, dP, dV and dK have a row for each key; dQ one for each query.
    products = product * (4.0 * short * np.where(n < GROUP_ROWS, few, 1.0) + np.where(m < GROUP_ROWS, few, 1.0))
    scores = estimate(gpu, f"{BACKWARD}.cycles_per_score") * m * n
    walked = estimate(gpu, f"{BACKWARD}.cycles_per_walked_value") * m * dim
    alone = np.where(resident_blocks(blocks, gpu) < 2.0, estimate(gpu, f"{BACKWARD}.alone"), 1.0)
    exposed = 1.0 + estimate(gpu, f"{BACKWARD}.exposed_stage") * np.maximum(2.0 - stages, 0.0)
    return np.asarray((products + scores + walked) * _read_twice(n, warps, gpu) * alone * exposed)


def _read_twice(keys: Array, warps: Array, gpu: GpuModel) -> Array:
    """How much more products cost backward where two groups of four warps share 64 keys: both read every operand."""
    return np.where(_thin(keys, warps), estimate(gpu, f"{BACKWARD}.thin"), 1.0)


def _thin(rows: Array, warps: Array) -> Bool:
    """Whether there are more groups of four warps than rows for them to multiply."""
    return np.asarray(warps / 4.0 > rows / GROUP_ROWS)


def _sides(operators: Sequence[Attention]) -> tuple[Array, Array, Array, Array, Array]:
    tiles = [o.tile for o in operators if o.tile is not None]
    m, n, warps, stages = (column(tiles, name) for name in ("m", "n", "warps", "stages"))
    return m, n, warps, stages, column(operators, "head_dim")
