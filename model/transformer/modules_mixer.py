"""A layer's first half in transformers where something else than attention mixes positions: a state space, or linear
attention.

A state space's ``mamba_split_conv1d_scan_combined`` takes the gated norm and the second projection too; the latter's
input is made again in its backward.

Sources: ``NemotronHMamba2Mixer.cuda_kernels_forward`` in transformers 5, with the kernels of ``mamba-ssm`` and
``causal-conv1d`` installed; ``Qwen3NextDecoderLayer`` and ``Qwen3NextGatedDeltaNet`` of transformers 5.17.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import autocast_linear, delta_net, pytorch_norm, state_space
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.linear import Linear


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, mixer and residual addition."""
    *into, out_of = _projections(s)
    return (
        *pytorch_norm.block_forward("norm1", s),
        *(launch for layer in into for launch in autocast_linear.forward(layer, s)),
        *_mixed(s),
        *autocast_linear.forward(out_of, s, wide=False),
        *pytorch_norm.branch_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the layer's input gradient."""
    *into, out_of = _projections(s)
    launches = [
        *pytorch_norm.branch_backward("norm1", s, accumulate),
        *autocast_linear.backward(out_of, s, accumulate, wide=False),
        *_mixed_backward(s, accumulate),
    ]
    for number, layer in enumerate(reversed(into)):
        launches += autocast_linear.backward(layer, s, accumulate)
        if number:  # the sum of their inputs' gradients
            launches.append(eager.residual_addition(f"{layer.name}.grad.branches", s))
    return (*launches, *pytorch_norm.half_backward("norm1", "in_proj", s, accumulate, leaf_input=leaf_input))


def _projections(s: Shard) -> tuple[Linear, ...]:
    return delta_net.projections(s) if s.delta_net is not None else state_space.projections(s)


def _mixed(s: Shard) -> tuple[Launch, ...]:
    """What lies between the projections."""
    return delta_net.forward(s) if s.delta_net is not None else (*state_space.decays(s), *state_space.forward(s))


def _mixed_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    if s.delta_net is not None:
        return delta_net.backward(s, accumulate)
    small = eager.small_gradients(state_space.scalars(s), s.dtype, accumulate)
    return (*state_space.backward(s), *state_space.decays(s, ".grad"), *small)
