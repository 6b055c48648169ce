"""Temporary bytes at the worst moments of a layer's backward."""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory import lora_kept, modules_kept
from joulecast.model.memory.layer_kept import boundary_bytes, eager_activation_extra, whole_layer_bytes
from joulecast.model.memory.recomputation import saved_bytes
from joulecast.model.transformer import (
    delta_net,
    math_attention,
    modules_experts,
    operator_checkpoints,
    state_space,
    transformers_attention,
    unfused_attention,
)
from joulecast.model.transformer.expert_rows import expert_bytes, expert_shard, row_width
from joulecast.model.transformer.state_space_context import scanned


def _restored_bytes(s: Shard) -> float:
    """An activation's input as its gradient reads it, where it is kept in FP8."""
    if not s.implementation.stores_activation_input:
        return 0.0
    values = s.tokens * s.up_width
    if s.config.experts is not None:
        e = expert_shard(s)
        values = max(values, e.all_rows * e.up_width)
    return s.value_bytes * values


def layer_transient_bytes(s: Shard, *, anew: bool = False) -> float:
    """Gradients alive early in a layer's backward, when everything kept is still there.

    They are the last product's weight and input gradients (Megatron's weight gradient goes into its buffer), or those
    around a gate, and, with full recomputation, the layer's activations computed again. A weight's gradient that comes
    ``anew`` is still there at the gate, in the type that it stays in.
    """
    size, implementation = s.value_bytes, s.implementation
    trained = not implementation.megatron and implementation.lora is None
    weight = s.hidden * s.ffn * trained
    gradients = float(size * (weight + s.tokens * s.ffn))
    if implementation.lora is not None:
        gradients = lora_kept.gradient_bytes(s, implementation.lora)
    kept = implementation.dtype if implementation.gathered else implementation.kept_gradient_dtype
    around_gate = max(modules_kept.gate_gradient_bytes(s), _cast_bytes(s))
    gradients = max(gradients, weight * DTYPE_BYTES[kept] * anew + around_gate)
    gradients = max(gradients, state_space.transient_bytes(scanned(s)), delta_net.transient_bytes(s))
    if s.config.experts is not None:
        e = expert_shard(s)
        inner = e.up_width if implementation.megatron else e.ffn  # behind the activation's gradient its input's
        gradients += float(size * e.all_rows * (row_width(s) + inner))
        if trained:
            gradients = max(gradients, _experts_transient_bytes(s, stays=kept if anew else ""))
    if implementation.splits_sequence:
        gradients += s.activation_bytes
    gradients += saved_bytes(s) + _restored_bytes(s)
    if implementation.recomputes("core_attn") and implementation.attention_backend == "unfused":
        gradients = max(gradients, unfused_attention.kept_bytes(s))  # neither is alive while the other is
    if implementation.recompute == "operators":
        gradients += max(0.0, whole_layer_bytes(s) - operator_checkpoints.kept_bytes(s))
    if implementation.recompute == "full" and not implementation.keeps_products:
        gradients += _made_again_bytes(s)
    return gradients


def _made_again_bytes(s: Shard) -> float:
    """What a layer that is computed again keeps beside the input that its checkpoint holds."""
    return whole_layer_bytes(s) - (0.0 if modules_kept.copies_input(s) else boundary_bytes(s))


def _cast_bytes(s: Shard) -> float:
    """When eager casts to FP8 are at the MLP's first products, less what all behind their input kept.

    Their results' gradient is there with two copies of it in fp32, scaled and clamped; or with its own in FP8 and two
    such copies of the weight (``hp_tensor_to_float8_dynamic`` and ``to_fp8_saturated`` in torchao). Peaks of three
    iterations on an H200 are met so.
    """
    run = s.implementation
    if run.narrow is None or run.megatron or run.compiled or run.modules != "joint" or s.config.experts is not None:
        return 0.0
    gradient, weight, copies = s.tokens * s.up_width, s.hidden * s.up_width, 2 * DTYPE_BYTES["fp32"]
    cast = max(copies * gradient, run.narrow.value_bytes * gradient + copies * weight)
    kept = s.tokens * (s.up_width + s.ffn + eager_activation_extra(s))
    return s.value_bytes * (gradient - kept) + cast


def _experts_transient_bytes(s: Shard, stays: str) -> float:
    """When PyTorch's first product of experts gives its gradients, less what all behind its input kept.

    Its result's gradient, its input and that one's gradient are there, and gradients of the weights: of all products
    where they come anew, in the type ``stays``, of this one alone where they are added to others.
    """
    e, width = expert_shard(s), row_width(s)
    rows = s.value_bytes * e.all_rows * (e.up_width + 2 * width)
    weights = DTYPE_BYTES[stays or s.dtype] * e.experts * width * (e.up_width + e.ffn * bool(stays))
    joint = s.implementation.modules == "joint"
    return rows + weights - (expert_bytes(s) if joint else modules_experts.kept_bytes(s))


def attention_transient_bytes(s: Shard) -> float:
    """The same when attention of separate kernels makes its softmax's gradient, and the MLP's part is gone.

    Gradients of the weights behind it are there by then.
    """
    written = transformers_attention.applies(s)
    if not written and not math_attention.applies(s):
        return 0.0
    run, behind = s.implementation, s.up_width + s.ffn + s.attention_width
    weights = 0.0 if run.lora is not None else float(DTYPE_BYTES[run.dtype] * s.hidden * behind)
    again = _made_again_bytes(s) if run.recompute == "full" else saved_bytes(s)
    gradients = transformers_attention.gradient_bytes(s) if written else math_attention.gradient_bytes(s)
    return gradients + weights + again - modules_kept.mlp_bytes(s) - modules_kept.second_norm_bytes(s)
