"""Values in fp32, and their products in TF32.

PyTorch multiplies fp32 in TF32 where ``torch.set_float32_matmul_precision("high")`` is set, for every product of a
program; all else stays in fp32. Attention in fp32 is no kernel of FlashAttention's or cuDNN's, which take 16 bits: a
memory-efficient one of PyTorch's runs, three products in TF32 for one in fp32 whatever is set
(``OpMultiplyAddFastF32`` in PyTorch's ``mem_eff_attention/gemm_kernel_utils.h``), or where keys are shared none at all
(:mod:`joulecast.model.transformer.math_attention`), as three models in fp32 and TF32 on an H200 launched
(`validate/recorded/wide_values`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.narrow import NARROW
from joulecast.model.kernels.operators import Gemm

#: What a plan calls fp32 whose products are in TF32.
TF32 = "tf32"
#: Such precisions, whose tensors are in fp32.
WIDE = ("fp32", TF32)


def values_dtype(precision: str) -> str:
    """Type of weights and activations of a plan's precision."""
    return "bf16" if precision in NARROW else "fp32" if precision == TF32 else precision


def in_tf32(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The launches, with every product of fp32 in TF32."""
    return tuple(
        replace(one, operator=replace(one.operator, dtype=TF32))
        if isinstance(one.operator, Gemm) and one.operator.dtype == "fp32"
        else one
        for one in launches
    )
