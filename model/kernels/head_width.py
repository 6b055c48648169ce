"""Heads of attention whose width is not 128: the pace of their products, and widths that libraries have kernels for."""

from __future__ import annotations

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel

#: Width to which kernels' parameters refer.
REFERENCE = 128.0
#: cuDNN has kernels for heads of multiples of so many values; others run in the next wider one, on zeros.
WIDTH = 64.0
#: What such heads take of the difference to that kernel, forward and backward, below 128: heads of 48 to 112 beside 64
#: and 128 on an H200 (`validate/recorded/h200_sxm/heads.jsonl`); above 128 all of it [estimates, +-0.1].
PADDED = (1.0, 0.88)
#: Cycles of the kernels of 128, 192 and 256, forward and backward, over those of 128 for the same operations: heads of
#: 144 to 256 there, with no mask but the causal one [estimates, +-0.05].
WIDER, WIDER_BY = (128.0, 192.0, 256.0), ((1.0, 0.93, 0.89), (1.0, 1.45, 1.26))
#: Energy of the products of a backward of heads wider than 128 over that of the same operations at 128, with no mask
#: but the causal one: without it kernels of 192 and 256 on an H100, which its limit holds, are forecast to draw 5 to
#: 8 % less at the clock that their SMs counted (`validate/recorded/h100_sxm/wide_heads.jsonl`) [+-0.04].
WIDE_ENERGY = 1.12
#: Cycles of the kernels of 64, 128, 192 and 256 that add a mask to every score, forward and backward, over those of 128
#: without one for the same operations. Heads take what their kernel's width does: 64 to 256 at five shapes on one H200
#: (`validate/recorded/masked`) [+-0.06 forward, +-0.08 backward].
MASKED_WIDTHS, MASKED_BY = (64.0, 128.0, 192.0, 256.0), ((2.4, 1.75, 3.8, 2.4), (2.17, 1.88, 3.43, 2.74))
#: Energy of the products of such kernels over that of the same operations at 128 without a mask: a forward and a
#: backward on an H200 and an H100 (`validate/recorded/documents`) [+-0.05].
MASKED_ENERGY = (1.7, 1.05)

#: Widths of FlashAttention-2's kernels (``headdim_switch`` in ``csrc/flash_attn/src/static_switch.h``): other heads run
#: in the next wider one, on zeros. Cycles of each over those that :func:`pace` has for it, forward and backward: heads
#: of 64 to 256 on an H200 and an H100 (`validate/recorded/framework_kernels`) [estimates, +-0.05].
FLASH_KERNELS = ("flash-attention-2", "flash-attn-2")
FLASH_WIDTHS = (32.0, 64.0, 96.0, 128.0, 192.0, 256.0)
FLASH_BY = ((1.0, 1.0, 0.96, 1.0, 1.02, 1.0), (1.0, 1.0, 1.08, 1.0, 1.08, 1.10))


def pace(head_dim: Array, prefix: str, gpu: GpuModel) -> Array:
    """Share of the dense rate at which products run with heads of a width, were there a kernel of it, shape ``(n,)``.

    Parameters
    ----------
    prefix
        Of the kernels' parameters, such as ``kernel.attention.cudnn.forward.``; reads ``eta`` (the share at 128),
        ``narrow`` (factor on it for each halving) and ``wide`` (for each doubling, by default 1).
    """
    doublings = np.log2(head_dim / REFERENCE)
    wide = gpu.get(prefix + "wide", 1.0) ** np.maximum(doublings, 0.0)
    return np.asarray(gpu[prefix + "eta"] * gpu[prefix + "narrow"] ** np.maximum(-doublings, 0.0) * wide)


def _on_zeros(head_dim: Array, width: Array, prefix: str, gpu: GpuModel) -> Array:
    """Cycles of a kernel of such a width, of the pace that it has by :func:`pace`, over those of the heads' own."""
    return np.asarray(width / head_dim * pace(head_dim, prefix, gpu) / pace(width, prefix, gpu))


def next_masked(head_dim: Array, prefix: str, gpu: GpuModel, *, backward: bool) -> Array:
    """Cycles of cuDNN's kernel that adds a mask over those that :func:`pace` has for the same heads, shape ``(n,)``."""
    width = np.ceil(head_dim / WIDTH) * WIDTH
    slower = np.interp(width, MASKED_WIDTHS, MASKED_BY[backward])
    return np.asarray(slower * width / head_dim * pace(head_dim, prefix, gpu) / gpu[prefix + "eta"])


def next_wider(head_dim: Array, prefix: str, gpu: GpuModel, *, backward: bool) -> Array:
    """Cycles of the kernel of cuDNN that heads run in over those that :func:`pace` has for them, shape ``(n,)``.

    GPUs that state ``wide`` have a growth of their own with the width above 128.
    """
    width = np.ceil(head_dim / WIDTH) * WIDTH
    there = _on_zeros(head_dim, width, prefix, gpu)
    if prefix + "wide" in gpu.parameters:
        return np.asarray(np.where(head_dim < REFERENCE, 1.0 + PADDED[backward] * (there - 1.0), 1.0))
    there = there * np.interp(width, WIDER, WIDER_BY[backward])
    return np.asarray(1.0 + np.where(head_dim < REFERENCE, PADDED[backward], 1.0) * (there - 1.0))


def next_flash(head_dim: Array, prefix: str, gpu: GpuModel, *, backward: bool) -> Array:
    """Cycles of FlashAttention-2's kernel that heads run in over those that :func:`pace` has for them, ``(n,)``."""
    widths = np.array(FLASH_WIDTHS)
    place = np.searchsorted(widths, head_dim).clip(max=len(widths) - 1)
    width = np.maximum(widths[place], head_dim)
    return np.asarray(_on_zeros(head_dim, width, prefix, gpu) * np.array(FLASH_BY[backward])[place])


def next_power(head_dim: Array, prefix: str, gpu: GpuModel) -> Array:
    """Cycles of Triton's kernel over those that :func:`pace` has, shape ``(n,)``: its tiles are powers of two wide.

    Source: ``QK_HEAD_DIM_ROUNDED`` in ``torch/_inductor/kernel/flex`` of PyTorch 2.11.
    """
    return _on_zeros(head_dim, 2.0 ** np.ceil(np.log2(head_dim)), prefix, gpu)
