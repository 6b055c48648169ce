"""Linear attention as transformers writes a layer's first half: norm, projections, what lies between, and the sum.

Source: ``Qwen3NextDecoderLayer`` and ``Qwen3NextGatedDeltaNet`` of transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import autocast_linear, delta_net, pytorch_norm
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.linear import Linear


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, mixer and residual addition."""
    *into, out_of = delta_net.projections(s)
    return (
        *pytorch_norm.block_forward("norm1", s),
        *(one for layer in into for one in autocast_linear.forward(layer, s)),
        *delta_net.forward(s),
        *autocast_linear.forward(out_of, s, wide=False),
        *pytorch_norm.branch_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the layer's input gradient."""
    *into, out_of = delta_net.projections(s)
    return (
        *pytorch_norm.branch_backward("norm1", s, accumulate),
        *autocast_linear.backward(out_of, s, accumulate, wide=False),
        *delta_net.backward(s, accumulate),
        *_projections_backward(into, s, accumulate),
        *pytorch_norm.half_backward("norm1", "in_proj", s, accumulate, leaf_input=leaf_input),
    )


def _projections_backward(layers: Sequence[Linear], s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the projections, the last first, and the sums of their inputs' gradients."""
    launches: list[Launch] = []
    for number, layer in enumerate(reversed(layers)):
        launches += autocast_linear.backward(layer, s, accumulate)
        if number:
            launches.append(eager.residual_addition(f"{layer.name}.grad.branches", s))
    return tuple(launches)
