"""A state-space mixer as transformers writes it: norm, projection, and one function for all behind it.

``mamba_split_conv1d_scan_combined`` takes the gated norm and the second projection too; the latter's input is made
again in its backward. Source: ``NemotronHMamba2Mixer.cuda_kernels_forward`` in transformers 5, with the kernels of
``mamba-ssm`` and ``causal-conv1d`` installed.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import autocast_linear, pytorch_norm, state_space
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.row_operators import rounded


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, mixer and residual addition."""
    m, hidden = state_space.mixer_of(s), s.hidden
    return (
        *pytorch_norm.block_forward("norm1", s),
        *autocast_linear.forward("in_proj", s, m.projected, hidden),
        *state_space.decays(s),
        *state_space.forward(s),
        *autocast_linear.forward("out_proj", s, hidden, m.inner, wide=False),
        *pytorch_norm.branch_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the layer's input gradient."""
    m, hidden = state_space.mixer_of(s), s.hidden
    return (
        *pytorch_norm.branch_backward("norm1", s, accumulate),
        *autocast_linear.backward("out_proj", s, hidden, m.inner, m.projection_bias, accumulate, wide=False),
        *state_space.backward(s),
        *state_space.decays(s, ".grad"),
        *_parameters(s, accumulate),
        *autocast_linear.backward("in_proj", s, m.projected, hidden, m.projection_bias, accumulate),
        *pytorch_norm.half_backward("norm1", "in_proj", s, accumulate, leaf_input=leaf_input),
    )


def _parameters(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of small parameters, summed in fp32: rounded, and added where there are earlier ones."""
    launches: list[Launch] = []
    for name, size in state_space.scalars(s).items():
        done = "" if accumulate else name
        launches.append(rounded(f"{name}.grad.round", size, completes=done))
        launches += eager.accumulation(name, size, s.dtype, accumulate)
    return tuple(launches)
