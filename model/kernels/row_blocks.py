"""Row-wise kernels that give each row one block of threads and move single values: vLLM's norm, activation, rotary.

A block of T threads sweeps its row ceil(columns / T) times. Alone on an SM a sweep takes its latency L; r blocks share
an SM, whose instructions then move x bytes in a cycle; between two blocks the SM loses c cycles:

    cycles = w · (c + max(s·L, r·b/x)) + c + max(s·L, n·b/x),   w = full waves of r blocks, n = blocks of the last wave

with s the sweeps and b the bytes of a row. Source: vLLM's csrc/layernorm_kernels.cu, activation_kernels.cu and
pos_encoding_kernels.cu, whose blocks have at most 1024, 1024 and 512 threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, footprints, hbm_energy_j
from joulecast.model.kernels.operators import Streaming
from joulecast.model.kernels.streaming import residency

#: Most threads of a block by pattern, and values of a row that one thread takes in a sweep.
THREADS = {"vllm_rms_norm": (1024, 1), "vllm_silu_and_mul": (1024, 1), "vllm_rotary": (512, 2)}
#: The streaming pattern whose energy of a byte stands in for each.
ENERGY_OF = {"vllm_rms_norm": "rmsnorm", "vllm_silu_and_mul": "swiglu", "vllm_rotary": "rope"}
WARP = 32


def lower_row_blocks(operators: Sequence[Streaming], gpu: GpuModel) -> dict[str, Array]:
    """Work of such kernels of one pattern; reads ``kernel.row_blocks.<pattern>.*``."""
    pattern = operators[0].pattern
    prefix = f"kernel.row_blocks.{pattern}."
    most, values = THREADS[pattern]
    rows = np.array([o.rows for o in operators], dtype=np.float64)
    bytes_ = np.array([o.bytes_read + o.bytes_written for o in operators])
    columns = np.array([o.columns for o in operators], dtype=np.float64)
    threads = np.minimum(np.ceil(columns / values / WARP) * WARP, most)
    latency = np.ceil(columns / values / threads) * gpu[prefix + "sweep_cycles"]
    resident = np.floor(gpu.device["max_threads_per_sm"] / threads)
    issue = bytes_ / rows / gpu[prefix + "bytes_per_sm_cycle"]
    waves = np.floor(rows / (resident * gpu.sm_count))
    left = np.ceil((rows - waves * resident * gpu.sm_count) / gpu.sm_count)
    change = gpu[prefix + "block_cycles"]
    last = np.where(left > 0, change + np.maximum(latency, left * issue), 0.0)
    hit = residency(footprints(operators, bytes_), gpu)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    return {
        "fixed_s": np.full(len(operators), gpu[prefix + "fixed_s"]),
        "core_cycles": waves * (change + np.maximum(latency, resident * issue)) + last,
        "memory_s": (1.0 - hit) * bytes_ / (gpu[prefix + "bandwidth_share"] * peak),
        "activity": np.ones(len(operators)),
        "vector_j": bytes_ * gpu[f"power.streaming_pj_per_byte.{ENERGY_OF[pattern]}"] * PICO,
        "onchip_j": bytes_ * gpu["power.l2_pj_per_byte"] * PICO,
        "hbm_j": hbm_energy_j((1.0 - hit) * bytes_, gpu),
    }
