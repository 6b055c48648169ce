"""Fused attention in FP8, as Transformer Engine runs it with cuDNN (``fp8_dpa``): its pace beside that of bf16 kernels.

Queries, keys and values are cast to FP8 in front of the kernel, and the gradient of its result in the backward; softmax
stays in fp32. Matrix units are twice as fast, the exponentials are not, so that kernels gain less:

    t_fp8 = t_bf16 / r

Those of Hopper were measured on an H100 and an H200 with cuDNN 9.19 (`validate/recorded/windows`): in equal cycles of
the SMs forwards of 4,096 to 16,384 positions are 1.44 to 1.53 times as fast, backwards of 32 heads 1.12 to 1.30 times;
both skip what a causal mask hides. Backwards of 64 heads took 1.6 times as long as twice those of 32, and with 64 or
128 heads NVIDIA's own figures are the same with and without a mask: these are taken to compute the whole square. One of
32 heads that share 8 took 1.4 times as long on the H100 as without sharing, but not on the H200.

Others are of the benchmarks that NVIDIA publishes with its front end (cudnn-frontend, ``benchmark/attention_training``
and ``sdpa_benchmark_training``: 64 or 128 heads of 128, 4,096 to 32,768 positions). FlashAttention-3 reports 1.2
PFLOP/s in FP8 over 0.74 in fp16 forward on H100 (arXiv 2407.08608).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.errors import InputError

if TYPE_CHECKING:
    from joulecast.model.hardware.gpu_model import GpuModel


@dataclass(frozen=True, slots=True)
class Fp8Attention:
    """Attention kernels in FP8 on one architecture.

    Attributes
    ----------
    forward, backward
        How much faster they are than those in bf16 on equal pairs of positions [1; estimate, +-8 %].
    most_heads
        Of all sequences together, up to which the backward skips what a causal mask hides.
    """

    forward: float
    backward: float
    most_heads: float = math.inf


#: By architecture. GB200 (cuDNN 9.19): 1.24-1.29 and 1.09-1.16; GB300: 1.16-1.25 and 1.23-1.39.
KERNELS = {
    "Hopper": Fp8Attention(1.48, 1.22, most_heads=32.0),
    "Blackwell": Fp8Attention(1.26, 1.13),
    "Blackwell Ultra": Fp8Attention(1.21, 1.32),
}
#: What an operation of attention saves over bf16, beside what one of a product saves, forward and backward: operands of
#: half the width are moved too. Kernels at the power limit of an H100 and an H200 [+-0.15].
FP8_SAVES = (1.6, 1.2)


def fp8_attention(gpu: GpuModel) -> Fp8Attention:
    """The kernels of a GPU.

    Raises
    ------
    InputError
        None are known on its architecture.
    """
    architecture = "" if gpu.description is None else gpu.description.text("architecture")
    if architecture not in KERNELS:
        raise InputError(
            f"attention in FP8 is not known on {gpu.name} ({architecture or 'unknown architecture'})",
            key="dtype",
            remedy=f"Use bf16, or a GPU of {', '.join(KERNELS)}.",
        )
    return KERNELS[architecture]
