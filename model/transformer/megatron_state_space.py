"""A state-space mixer in Megatron: norm, projection that splits its outputs, scan, and one that splits its inputs.

``mamba_split_conv1d_scan_combined`` runs between them without the norm, which follows it. Heads and their groups are
split over tensor-parallel ranks, and nothing is exchanged between the projections but where the sequence is split
(:mod:`joulecast.model.transformer.state_space_context`). Sequences of several in a micro-batch are turned in front of
it and back behind it: Megatron has positions first.

Source: ``MambaMixer`` and ``MambaLayer`` in ``megatron/core/ssm``.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, reordered
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer import state_space
from joulecast.model.transformer import state_space_context as context
from joulecast.model.transformer.megatron_mlp import bias_backward
from joulecast.model.transformer.megatron_norm import accumulation, block_norm_backward, branch_norm_backward


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, mixer and residual addition."""
    m = state_space.mixer_of(s)
    return (
        *linear.column_forward("norm1", "in_proj", s, m.projected),
        *context.to_heads(s),
        *_turned("in_proj.turn", s, m.projected),
        *state_space.decays(s),
        *state_space.scan_forward(context.scanned(s), gates=True),
        *context.to_positions(s),
        state_space.norm_forward(s, gates=True),
        *_turned("scan.turn", s, m.inner),
        *linear.row_forward("out_proj", s, m.inner),
        *eager.branch_norm_forward("norm1", s),
        eager.residual_addition("residual1", s),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the layer's input gradient."""
    m, run = state_space.mixer_of(s), s.implementation
    return (
        *branch_norm_backward("norm1", s),
        *bias_backward(s, "out_proj", s.norm_tokens, s.hidden, m.projection_bias),
        *linear.row_backward("out_proj", s, m.inner),
        *_turned("scan.turn.grad", s, m.inner),
        state_space.norm_backward(s, gates=True),
        *context.to_positions(s, ".grad"),
        *state_space.scan_backward(context.scanned(s), gates=True),
        *state_space.decays(s, ".grad"),
        *(one for name, size in state_space.scalars(s).items() for one in accumulation(name, size, run)),
        *_turned("in_proj.turn.grad", s, m.projected),
        *context.to_heads(s, ".grad"),
        *bias_backward(s, "in_proj", s.tokens, m.projected, m.projection_bias),
        *linear.column_backward("in_proj", s, m.projected),
        *block_norm_backward("norm1", s),
        eager.residual_addition("norm1.grad.join", s),
    )


def _turned(name: str, s: Shard, width: int) -> tuple[Launch, ...]:
    """A copy of several sequences' values with the other of sequence and position first."""
    return () if s.batch == 1 else (reordered(name, s.tokens * width, s.dtype),)
