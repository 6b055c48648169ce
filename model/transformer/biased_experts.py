"""Clamps and biases of experts in Megatron, forward and backward (gpt-oss).

The first product adds its bias itself, and its gradient's sums come with the weights' gradient. The rest is PyTorch's
own, before and behind kernels that are fused:

- gate and up are clamped one by one and joined again in front of the activation;
- the second product's bias is multiplied by the rows' probabilities and added expert by expert, and the experts' rows
  are joined. In fp32 where probabilities are: with a router in fp32, and always with ``flex``, whose kernels take no
  others.

Grouped products of cuteDSL do all of it in their epilogues (``fused_experts``).

Source: Megatron-Core ``TEGroupedMLP._apply_bias`` and ``weighted_bias_quick_geglu_impl``; Transformer Engine
``GroupedLinear`` and ``ScaledClampedQGeGLU``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, column_sums, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer import megatron_mlp
from joulecast.model.transformer.expert_rows import ExpertShard, experts_of
from joulecast.model.transformer.megatron_norm import accumulation
from joulecast.model.transformer.modules_experts import clamp_gradients


def activation(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Between the experts' products, clamps included."""
    values, dtype = e.all_rows * e.ffn, s.dtype
    act = megatron_mlp.activation(s.config, values, dtype)
    if not experts_of(s).bias:
        return (act,)
    clamps = (streaming("strided_unary", f"gate.clamp.{part}", values, dtype=dtype) for part in ("gate", "up"))
    return (*clamps, streaming("cat", "gate.clamp.join", e.all_rows * e.up_width, dtype=dtype), act)


def activation_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Gradient of :func:`activation`."""
    values, dtype = e.all_rows * e.ffn, s.dtype
    act = megatron_mlp.activation_backward(s.config, values, dtype)
    if not experts_of(s).bias:
        return (act,)
    joined = streaming("cat", "gate.clamp.grad.join", e.all_rows * e.up_width, dtype=dtype)
    return (act, *clamp_gradients(values, dtype), joined)


def bias_added(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Biases of the second product, times probabilities, added to each expert's rows."""
    if not experts_of(s).bias:
        return ()
    kind, narrow, values = _probabilities(s), s.dtype, e.all_rows * s.hidden
    share = DTYPE_BYTES[narrow] / DTYPE_BYTES[kind]
    rounded = (streaming("unary", "experts.down.bias.round", values, writes=share, dtype=kind),) if share < 1 else ()
    return (
        _each(e, streaming("unary", "experts.down.bias.weigh", values / e.experts, reads=0, dtype=kind)),
        _each(e, streaming("add", "experts.down.bias.add", values / e.experts, reads=1 + share, dtype=kind)),
        streaming("cat", "experts.down.bias.join", values, dtype=kind),
        *rounded,
    )


def bias_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Gradients of :func:`bias_added`: of the rows, of the biases and of the probabilities."""
    if not experts_of(s).bias:
        return ()
    run, hidden = s.implementation, s.hidden
    kind, values = _probabilities(s), e.all_rows * hidden
    share, part = DTYPE_BYTES[run.dtype] / DTYPE_BYTES[kind], values / e.experts
    name = "experts.down.bias.grad"
    widened = (streaming("unary", f"{name}.widen", values, reads=share, dtype=kind),) if share < 1 else ()
    rounded = (_each(e, streaming("unary", f"{name}.round", part, writes=share, dtype=kind)),) if share < 1 else ()
    return (
        *widened,
        _each(e, streaming("unary", f"{name}.weigh", part, dtype=kind)),
        _each(e, column_sums(f"{name}.sum", e.rows, hidden, kind)),
        _each(e, streaming("mul", f"{name}.probabilities", part, dtype=kind)),
        _each(e, streaming("reduce", f"{name}.probabilities.sum", part, writes=1.0 / hidden, dtype=kind)),
        *rounded,
        streaming("cat", f"{name}.join", values, dtype=run.dtype),
        *(_each(e, one) for one in accumulation("experts.down.bias", hidden, run)),
    )


def up_bias_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Addition of the first product's bias gradients to their buffer; their sums come with the weights' gradient."""
    if not experts_of(s).bias:
        return ()
    return tuple(_each(e, one) for one in accumulation("experts.up.bias", e.up_width, s.implementation))


def _probabilities(s: Shard) -> str:
    """Type of the rows' probabilities, to which PyTorch widens what meets them."""
    run = s.implementation
    return "fp32" if run.expert_dispatcher == "flex" else run.router_dtype or run.dtype


def _each(e: ExpertShard, launch: Launch) -> Launch:
    """A launch for each of the rank's experts."""
    return replace(launch, repeat=e.experts)
