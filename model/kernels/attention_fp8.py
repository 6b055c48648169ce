"""Fused attention in FP8, as Transformer Engine runs it with cuDNN (``fp8_dpa``): its pace beside that of bf16 kernels.

Queries, keys and values are cast to FP8 in front of the kernel, and the gradient of its result in the backward; softmax
stays in fp32. Matrix units are twice as fast, the exponentials are not, so that kernels gain less:

    t_fp8 = t_bf16 / r

The ratios r are those of cuDNN's kernels on the same card in the benchmarks that NVIDIA publishes with its front end
(cudnn-frontend, ``benchmark/attention_training`` and ``sdpa_benchmark_training``: 64 or 128 heads of 128, 4,096 to
32,768 positions). FlashAttention-3 reports 1.2 PFLOP/s in FP8 over 0.74 in fp16 forward on H100 (arXiv 2407.08608).
Hopper's backward in FP8 does not skip masked blocks: with a causal mask it takes as long as without.
"""

from __future__ import annotations

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
    skips
        Whether the backward skips what a causal mask hides.
    """

    forward: float
    backward: float
    skips: bool = True


#: By architecture. H200 (cuDNN 9.27): 1.42-1.58 and 1.13-1.32; GB200 (9.19): 1.24-1.29 and 1.09-1.16; GB300: 1.16-1.25
#: and 1.23-1.39.
KERNELS = {
    "Hopper": Fp8Attention(1.50, 1.25, skips=False),
    "Blackwell": Fp8Attention(1.26, 1.13),
    "Blackwell Ultra": Fp8Attention(1.21, 1.32),
}


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
