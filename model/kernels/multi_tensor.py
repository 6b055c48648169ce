"""AdamW by kernels that take many tensors at once: blocks of 65,536 values in waves, the last of which is seldom full.

PyTorch's fused AdamW, and those of Apex and Transformer Engine, launch up to 320 blocks of 512 threads, of which an SM
holds R at a time, two on NVIDIA's cards. A block takes 2,048 values after each other, and waits for the memory every
time, so that a wave takes at least as long as a block takes alone, however few there are in it:

    t = launches·t0 + waves·w + ((bytes / (φ·B))^q + (waves·65,536·c / f)^q)^(1/q)

with w the waits of a block and c the cycles of a value in it, the same whatever else runs on its SM. Of 320 blocks 264
make the first wave of an H100 or an H200, which keeps the memory busy; the 56 of the second do not, and memory that is
faster gains nothing in it.

Source: ``aten/src/ATen/native/cuda/MultiTensorApply.cuh`` of PyTorch 2.11; registers, waves and times of kernels on an
H100 and an H200 (``validate/recorded/single_values/adamw.csv``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import Columns, column
from joulecast.model.kernels.occupancy import Blocks, resident_blocks
from joulecast.model.kernels.operators import Streaming
from joulecast.model.kernels.streaming import StreamingWork

#: Values of a block, most blocks of a launch, and a block's threads and registers of each: 60 in fp32, 61 in bf16.
BLOCK_VALUES, MOST_BLOCKS, THREADS, REGISTERS = 65536, 320, 512.0, 61.0
#: Access patterns of these kernels, and the bytes of a parameter's step by which a description gives c, as bytes that a
#: block moves in a cycle.
FITTED_BYTES = {"adamw_fp32": 28.0, "adamw": 14.0, "adamw_untouched": 14.0}
#: w [s], 0.4 µs for each of 32 times, and q [1]. With c = 0.69 in bf16 and in fp32, and φ as that of copies, they meet
#: 26 rows of 16 and 320 blocks at 1.5 to 1.98 GHz on both cards within 1.2 % (rms); without w 2.9 % [+-10 %, +-0.2].
BLOCK_WAIT_S, IN_WAVES = 12.7e-6, 2.25


def lower_steps(operators: Sequence[Streaming], pattern: str, work: StreamingWork, gpu: GpuModel) -> Columns:
    """Times of the steps of so many parameters, as columns of costs; without a number of parameters that of the bytes.

    Parameters
    ----------
    operators
        The kernels, each of one launch or more.
    pattern
        Reads ``kernel.streaming.<pattern>.bytes_per_sm_cycle``, :data:`FITTED_BYTES` over c.
    work
        t0 and the memory's time.
    gpu
        The GPU.
    """
    said = column(operators, "elements")
    blocks = np.where(said > 0.0, said, work.l2_bytes / FITTED_BYTES[pattern]) / BLOCK_VALUES
    one = Blocks(np.array([THREADS]), np.array([REGISTERS]), np.zeros(1))
    at_once = gpu.sm_count * float(resident_blocks(one, gpu)[0])
    whole = np.floor(blocks / MOST_BLOCKS)
    rest = blocks - whole * MOST_BLOCKS
    waves = whole * np.ceil(MOST_BLOCKS / at_once) + np.where(rest < 1.0, rest, np.ceil(rest / at_once))
    cycles = BLOCK_VALUES * FITTED_BYTES[pattern] / gpu[f"kernel.streaming.{pattern}.bytes_per_sm_cycle"]
    return {
        "fixed_s": np.ceil(blocks / MOST_BLOCKS) * work.fixed_s + waves * BLOCK_WAIT_S,
        "core_cycles": waves * cycles,
        "memory_s": work.memory_s,
        "overlap": np.full(len(operators), IN_WAVES),
    }
