"""Norm of the residual stream as the modules of a PyTorch plan have it: one fused kernel, or tensor operations."""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import liger_kernels, unfused_norm
from joulecast.model.transformer.row_operators import rounded, widened


def unfused(s: Shard) -> bool:
    """Whether RMSNorm, or Cohere's layer norm, is made of tensor operations."""
    run, written = s.implementation, s.config.norm == "rmsnorm" or s.config.norm_formula == "centred"
    return run.modules == "transformers" and written and not run.compiled and not liger_kernels.swaps_norms(s)


def widens(s: Shard) -> bool:
    """Whether a layer norm takes a narrow residual stream in fp32 and leaves it so: ``torch.autocast`` beside adapters.

    Nemotron's casts what it reads to the products' type itself.
    """
    run, written = s.implementation, s.config.norm == "layernorm" and s.config.norm_formula != "shifted"
    return run.modules == "transformers" and written and run.casts_adapters and not (run.autocast or unfused(s))


def gives_fp32(s: Shard) -> bool:
    """Whether a norm's result is in fp32: with its weight under ``torch.autocast``, or as that takes a layer norm."""
    return s.implementation.autocast or widens(s)


def forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """The norm of every token."""
    if widens(s):
        values, dtype = s.stream_values, s.dtype
        weights = (widened(f"{name}.{part}.widen", s.hidden, dtype) for part in ("weight", "bias"))
        return (widened(f"{name}.widen", values, dtype), *weights, eager.norm_forward(name, s.in_fp32))
    if s.implementation.modules != "transformers" or s.config.norm_formula != "shifted" or not _fused(s):
        return _alone(name, s.stream)
    # One is added to a layer norm's weight, as transformers writes Nemotron's.
    return (streaming("unary", f"{name}.weight.shift", s.hidden, dtype=s.stream.dtype), *_alone(name, s.stream))


def _alone(name: str, s: Shard) -> tuple[Launch, ...]:
    """A norm of values in the shard's type."""
    if liger_kernels.swaps_norms(s):
        return (liger_kernels.norm_forward(name, s, s.norm_tokens, s.hidden),)
    return unfused_norm.forward(name, s, s.norm_tokens, s.hidden) if unfused(s) else (eager.norm_forward(name, s),)


def block_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """The norm in front of a block, where the model has one."""
    return forward(name, s) if eager.before_block(s, name) else ()


def branch_forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """Norm and scaling between a block and the residual stream, where the model has them; narrow under autocast."""
    if not eager.after_block(s):
        return eager.branch_norm_forward(name, s)
    return _alone(eager.branch_norm(name, s), s)


def branch_backward(name: str, s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`branch_forward`."""
    if not eager.after_block(s):
        return eager.branch_norm_backward(name, s, accumulate)
    norm = eager.branch_norm(name, s)
    kernels, _ = eager.norm_backward(norm, s, accumulate)
    _, sums = eager.norm_backward(norm, s.stream, accumulate)
    return (*(_undone(norm, s, accumulate) or kernels), *sums)


def backward(name: str, s: Shard, accumulate: bool) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Gradient kernels, and the accumulation of its parameters' gradients."""
    if widens(s):
        kernels, sums = eager.norm_backward(name, s.in_fp32, accumulate)
        return (*kernels, rounded(f"{name}.grad.round", s.stream_values)), sums
    kernels, sums = eager.norm_backward(name, s.stream, accumulate)
    return _undone(name, s.stream, accumulate) or kernels, sums


def _undone(name: str, s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of a norm that is not PyTorch's fused one; empty for that."""
    if _fused(s):
        return ()
    undone = liger_kernels.norm_backward if liger_kernels.swaps_norms(s) else unfused_norm.backward
    return undone(name, s, s.norm_tokens, s.hidden, "" if accumulate else f"{name}.weight")


def _fused(s: Shard) -> bool:
    return not (liger_kernels.swaps_norms(s) or unfused(s))


def last_needed(name: str, s: Shard) -> tuple[str, int]:
    """The launch of a norm that runs again last, for its gradient, and whether that is itself needed.

    Fused ones keep statistics that they make.
    """
    if unfused(s):
        return f"{name}.weighed", 0
    return (f"{name}.liger" if liger_kernels.swaps_norms(s) else name), 1


def half_backward(
    name: str, entered: str, s: Shard, accumulate: bool, *, leaf_input: bool = False
) -> tuple[Launch, ...]:
    """As :func:`joulecast.model.transformer.eager_layer.norm_half_backward`, with this norm."""
    gradient = backward(name, s, accumulate) if eager.before_block(s, name) else ((), ())
    return eager.met_with_stream(name, entered, s, gradient, leaf_input=leaf_input)
