"""Norm of the residual stream as the modules of a PyTorch plan have it: one fused kernel, or tensor operations."""

from __future__ import annotations

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import unfused_norm


def unfused(s: Shard) -> bool:
    """Whether RMSNorm is made of tensor operations."""
    run = s.implementation
    return run.modules == "transformers" and s.config.norm == "rmsnorm" and not run.compiled


def forward(name: str, s: Shard) -> tuple[Launch, ...]:
    """The norm of every token."""
    if unfused(s):
        return unfused_norm.forward(name, s.stream, s.norm_tokens, s.config.hidden)
    return (eager.norm_forward(name, s.stream),)


def backward(name: str, s: Shard, accumulate: bool) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Gradient kernels, and the accumulation of its parameters' gradients."""
    kernels, sums = eager.norm_backward(name, s.stream, accumulate)
    if unfused(s):
        done = "" if accumulate else f"{name}.weight"
        kernels = unfused_norm.backward(name, s.stream, s.norm_tokens, s.config.hidden, done)
    return kernels, sums
