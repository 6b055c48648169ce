"""Constants of kernels with explicit tiles that a GPU's description may leave out, each with what it rests on.

A description that has one of the names wins.
"""

from __future__ import annotations

from joulecast.model.hardware.description import Parameter
from joulecast.model.hardware.gpu_model import GpuModel

_TILES = "100 Triton tiles measured on one H200"
_ROWS = "51 row-wise Triton tiles measured on one H200"
_WEIGHTS = "25 Triton norms of 4,096 and 8,192 columns measured on one H200"
_NORMS = "100 Triton tiles measured on one H200, less what joins and weights of 35 on two take"
_BACKWARD = "25 Triton tiles of attention backward measured on one H200"
_FORWARD = "29 Triton tiles of attention forward measured on three H200s"
_COMPILED_FORWARD = (
    "registers of 60 such tiles as Triton 3.6 compiles them for sm_90, met within 18 (standard deviation)"
)
_COMPILED_BACKWARD = "registers of 20 of these as Triton 3.6 compiles them for sm_90"
_COMPILED = "registers of 94 tiles as Triton 3.6 compiles them for sm_90"


def _estimate(value: float, rel_sd: float, unit: str, source: str) -> Parameter:
    return Parameter(value, unit=unit, sd=rel_sd * abs(value), source=source, status="estimate")


#: By name, as in :class:`~joulecast.model.hardware.gpu_model.GpuModel`.
ESTIMATES: dict[str, Parameter] = {
    "kernel.tile_gemm.registers": _estimate(25.0, 0.3, "", _COMPILED),
    "kernel.tile_gemm.registers_per_value": _estimate(1.6, 0.1, "", _COMPILED),
    "kernel.tile_gemm.narrow_step": _estimate(0.02, 1.0, "", "small, where the other constants were fitted without it"),
    "kernel.tile_gemm.load_latency_cycles": _estimate(950.0, 0.3, "cycle", _TILES),
    "kernel.tile_gemm.exposed_bytes_per_sm_cycle": _estimate(45.0, 0.1, "B/cycle", _TILES),
    "kernel.tile_gemm.sum_share": _estimate(1.5, 0.3, "", _TILES),
    "kernel.tile_gemm.sum_fixed_s": _estimate(12e-6, 0.3, "s", _TILES),
    "kernel.tile_gemm.register_bytes_per_sm_cycle": _estimate(64.0, 0.3, "B/cycle", "half of the L1's peak"),
    "kernel.tile_gemm.unstaged_eta": _estimate(0.6, 0.2, "", "warp-level instead of asynchronous matrix instructions"),
    "kernel.tile_rmsnorm.block_cycles": _estimate(2150.0, 0.2, "cycle", _ROWS),
    "kernel.tile_reduce_min.block_cycles": _estimate(1360.0, 0.2, "cycle", _ROWS),
    "kernel.tile_rows.registers": _estimate(13.0, 0.3, "", _COMPILED),
    "kernel.tile_rows.registers_per_value": _estimate(1.08, 0.1, "", _COMPILED),
    "kernel.tile_rows.overlap_exponent": _estimate(7.0, 0.2, "", _ROWS),
    "kernel.tile_rows.barrier_cycles_per_warp": _estimate(42.0, 0.2, "cycle", _ROWS),
    "kernel.tile_rows.cycles_per_value": _estimate(30.0, 0.2, "cycle", _ROWS),
    "kernel.tile_rows.cycles_per_load": _estimate(2.5, 0.2, "cycle", _ROWS),
    "kernel.tile_rows.tail_share": _estimate(0.1, 0.3, "", _ROWS),
    "kernel.tile_rows.lone_block_cycles": _estimate(400.0, 0.5, "cycle", _ROWS),
    "kernel.tile_rows.turning_share": _estimate(0.0085, 0.4, "", _ROWS),
    "kernel.tile_rows.mixed_share": _estimate(0.025, 0.2, "", _ROWS),
    "kernel.tile_rows.running_share": _estimate(0.022, 0.2, "", "15 Triton tiles of exponentials on two H200s"),
    "kernel.tile_rows.second_wait_cycles": _estimate(680.0, 0.3, "cycle", "layer norms and softmaxes on two H200s"),
    "kernel.tile_rows.blocks_per_cycle": _estimate(0.87, 0.1, "", _TILES),
    "kernel.tile_spill.cycles_per_register": _estimate(120.0, 0.2, "cycle", _ROWS),
    "kernel.tile_spill.bytes_per_sm_cycle": _estimate(30.0, 0.3, "B/cycle", _TILES),
    "kernel.tile_spill.uses_in_memory": _estimate(4.0, 0.2, "", "memory accesses of three tiles as compiled"),
    "kernel.tile_spill.bandwidth_share": _estimate(0.64, 0.1, "", _TILES),
    "kernel.tile_attention.registers": _estimate(42.0, 0.3, "", _COMPILED_FORWARD),
    "kernel.tile_attention.registers_per_sum": _estimate(1.3, 0.1, "", _COMPILED_FORWARD),
    "kernel.tile_attention.registers_per_score": _estimate(1.35, 0.1, "", _COMPILED_FORWARD),
    "kernel.tile_attention.eta": _estimate(0.87, 0.1, "", "as Triton's matrix products"),
    "kernel.tile_attention.cycles_per_score": _estimate(0.05, 0.2, "cycle", _FORWARD),
    "kernel.tile_attention.cycles_per_masked_score": _estimate(0.0415, 0.3, "cycle", _FORWARD),
    "kernel.tile_attention.cycles_per_kept_value": _estimate(0.38, 0.3, "cycle", _FORWARD),
    "kernel.tile_attention.cycles_per_warp": _estimate(10.9, 0.3, "cycle", _FORWARD),
    "kernel.tile_attention.cycles_per_scaled_value": _estimate(0.016, 0.2, "cycle", _FORWARD),
    "kernel.tile_attention.alone": _estimate(1.153, 0.1, "", _FORWARD),
    "kernel.tile_attention.thin": _estimate(1.48, 0.1, "", _FORWARD),
    "kernel.tile_attention.joint": _estimate(1.044, 0.02, "", _FORWARD),
    "kernel.tile_attention.exposed_bytes_per_sm_cycle": _estimate(68.0, 0.2, "B/cycle", _FORWARD),
    "kernel.tile_attention_backward.registers": _estimate(44.0, 0.3, "", _COMPILED_BACKWARD),
    "kernel.tile_attention_backward.registers_per_sum": _estimate(1.15, 0.1, "", _COMPILED_BACKWARD),
    "kernel.tile_attention_backward.registers_per_score": _estimate(1.85, 0.2, "", _COMPILED_BACKWARD),
    "kernel.tile_attention_backward.few_rows": _estimate(1.05, 0.2, "", _BACKWARD),
    "kernel.tile_attention_backward.few_columns": _estimate(0.486, 0.2, "", _BACKWARD),
    "kernel.tile_attention_backward.cycles_per_score": _estimate(0.162, 0.2, "cycle", _BACKWARD),
    "kernel.tile_attention_backward.cycles_per_walked_value": _estimate(0.165, 0.2, "cycle", _BACKWARD),
    "kernel.tile_attention_backward.steps_of_block": _estimate(3.6, 0.2, "", _BACKWARD),
    "kernel.tile_attention_backward.thin": _estimate(1.35, 0.1, "", _BACKWARD),
    "kernel.tile_attention_backward.alone": _estimate(1.147, 0.1, "", _BACKWARD),
    "kernel.tile_attention_backward.exposed_stage": _estimate(0.085, 0.5, "", _BACKWARD),
    "power.tile_attention_backward.share": _estimate(0.6, 0.1, "", _BACKWARD),
    "power.tile_attention_backward.pj_per_walked_byte": _estimate(48.5, 0.3, "pJ/B", _BACKWARD),
    "power.tile_attention.pj_per_masked_score": _estimate(74.0, 0.3, "pJ", _FORWARD),
    "power.tile_attention.pj_per_l2_byte": _estimate(30.0, 0.3, "pJ/B", _FORWARD),
    "power.tile_attention_share": _estimate(0.748, 0.05, "", _FORWARD),
    "power.tile_rmsnorm.value_pj_per_byte": _estimate(-0.3, 7.0, "pJ/B", _TILES),
    "power.tile_layernorm.value_pj_per_byte": _estimate(1.9, 2.0, "pJ/B", _NORMS),
    "power.tile_softmax.value_pj_per_byte": _estimate(18.5, 0.4, "pJ/B", _NORMS),
    "power.tile_reduce_min.value_pj_per_byte": _estimate(5.6, 0.4, "pJ/B", _TILES),
    "power.tile_rmsnorm.pj_per_thread": _estimate(280.0, 0.4, "pJ", _TILES),
    "power.tile_rows.pj_per_join": _estimate(45.0, 0.1, "pJ", _ROWS),
    "power.tile_rows.pj_per_load": _estimate(26.0, 0.1, "pJ", _ROWS),
    "power.tile_rows.pj_per_weight_byte": _estimate(9.0, 0.45, "pJ/B", _WEIGHTS),
    "power.tile_spill_pj_per_byte": _estimate(10.0, 0.5, "pJ/B", "first-level cache, written and read"),
    "power.tile_shared_pj_per_byte": _estimate(4.0, 0.5, "pJ/B", "shared memory, written and read"),
}


def estimate(gpu: GpuModel, name: str) -> float:
    """The description's value of a constant, else the estimate."""
    return gpu.get(name, ESTIMATES[name].number)
