"""Tensors that Megatron's layers keep for the backward in fewer bits than they compute with, and what packs them.

===================== ======== ==================================================================================
tensor                kept in  kernels
===================== ======== ==================================================================================
input of a gated      E4M3     a cast behind the product that makes it, and one back in front of the activation's
activation                     gradient, or of the activation where that runs again
output of attention   E5M6     packed beside the one FP8 copy that its product reads; unpacked for the gradient of
                               attention, with the other copy for that of the product's weight
===================== ======== ==================================================================================

The first is Megatron-Core's ``activation_func_fp8_input_store`` (``fused_bias_swiglu``), whose casts are kernels of
their own; scales of blocks come with it where the recipe has them, as DeepSeek stores it. Both are DeepSeek-V3's
(arXiv 2412.19437, section 3.3.3), of whose E5M6 a value is taken for 12 bits without gaps.
"""

from __future__ import annotations

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Bytes of a value in E5M6 with its share of a 4-byte scale of 128 values.
E5M6_BYTES = 12 / 8 + 4 / 128


def activation_input_bytes(run: Implementation) -> float:
    """Bytes of a value of an activation's input, as it is kept."""
    if not run.stores_activation_input:
        return float(DTYPE_BYTES[run.dtype])
    return DTYPE_BYTES["fp8"] if run.narrow is None else run.narrow.value_bytes


def stored_input(name: str, values: float, run: Implementation) -> tuple[Launch, ...]:
    """Cast of an activation's input of so many values, where it is kept in FP8."""
    return _cast(f"{name}.input.store", values, run, writes=_share(activation_input_bytes(run), run))


def restored_input(name: str, values: float, run: Implementation) -> tuple[Launch, ...]:
    """Cast of :func:`stored_input` back."""
    return _cast(f"{name}.input.restore", values, run, reads=_share(activation_input_bytes(run), run))


def _cast(
    name: str, values: float, run: Implementation, *, reads: float = 1.0, writes: float = 1.0
) -> tuple[Launch, ...]:
    if not run.stores_activation_input:
        return ()
    return (streaming("unary", name, values, reads=reads, writes=writes, dtype=run.dtype),)


def packed_output(s: Shard) -> tuple[Launch, ...]:
    """Attention's output in E5M6."""
    run = s.implementation
    if not run.packs_attention_output:
        return ()
    values = s.tokens * s.attention_width
    return (streaming("unary", "attention.output.pack", values, writes=_share(E5M6_BYTES, run), dtype=run.dtype),)


def unpacked_output(s: Shard) -> tuple[Launch, ...]:
    """Attention's output as its gradient reads it, and an FP8 copy along the tokens."""
    run = s.implementation
    if not run.packs_attention_output or run.narrow is None:
        return ()
    values, writes = s.tokens * s.attention_width, 1.0 + _share(run.narrow.value_bytes, run)
    reads = _share(E5M6_BYTES, run)
    return (streaming("cat", "attention.output.unpack", values, reads=reads, writes=writes, dtype=run.dtype),)


def saved_bytes(s: Shard) -> float:
    """Bytes of one layer and micro-batch that such tensors take less: of attention, and of MLP or shared experts.

    Routed experts have theirs in :func:`joulecast.model.transformer.expert_rows.expert_bytes`.
    """
    run = s.implementation
    wide = float(DTYPE_BYTES[run.dtype])
    saved = s.tokens * s.up_width * (wide - activation_input_bytes(run))
    if run.packs_attention_output and run.narrow is not None:
        copy = run.narrow.value_bytes if run.narrow.copies_attention else 0.0
        saved += s.tokens * s.attention_width * (wide + copy - E5M6_BYTES)
    return saved


def _share(bytes_: float, run: Implementation) -> float:
    """Bytes of a value over those of the layers' type."""
    return bytes_ / DTYPE_BYTES[run.dtype]
