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


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, mixer and residual addition."""
    into, out_of = state_space.projections(s)
    return (
        *pytorch_norm.block_forward("norm1", s),
        *autocast_linear.forward(into, s),
        *state_space.decays(s),
        *state_space.forward(s),
        *autocast_linear.forward(out_of, s, wide=False),
        *pytorch_norm.branch_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the layer's input gradient."""
    into, out_of = state_space.projections(s)
    return (
        *pytorch_norm.branch_backward("norm1", s, accumulate),
        *autocast_linear.backward(out_of, s, accumulate, wide=False),
        *state_space.backward(s),
        *state_space.decays(s, ".grad"),
        *eager.small_gradients(state_space.scalars(s), s.dtype, accumulate),
        *autocast_linear.backward(into, s, accumulate),
        *pytorch_norm.half_backward("norm1", "in_proj", s, accumulate, leaf_input=leaf_input),
    )
