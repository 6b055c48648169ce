"""Projections between the residual stream and the width in which experts work (Nemotron 3 Super's ``moe_latent_size``).

The router and shared experts read the tokens as they are. What goes to experts is projected to the latent width before
it is permuted and sent, and the sum of their results back behind their return:

    router, h → l, permute ⟨all-to-all⟩ experts ⟨all-to-all⟩ unpermute, l → h, join

Every tensor-parallel rank has both projections whole, for its share of the sequence (``fc1_latent_proj`` and
``fc2_latent_proj`` of Megatron-Core's ``moe_layer``, ``TELinear`` with ``parallel_mode="duplicated"``).

Source: NVIDIA, Nemotron 3 (LatentMoE), technical report; Megatron-Core ``moe_layer``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.expert_rows import experts_of


def into(s: Shard) -> tuple[Launch, ...]:
    """Tokens in the latent width."""
    latent = experts_of(s).latent
    return linear.whole_forward(s, "experts.latent_down", latent) if latent else ()


def out_of(s: Shard) -> tuple[Launch, ...]:
    """Experts' results in the model's width."""
    return linear.whole_forward(_within(s), "experts.latent_up", s.hidden) if experts_of(s).latent else ()


def out_of_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of :func:`out_of`."""
    return linear.whole_backward(_within(s), "experts.latent_up", s.hidden) if experts_of(s).latent else ()


def into_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of :func:`into`, added to the router's."""
    latent = experts_of(s).latent
    if not latent:
        return ()
    return (
        *linear.whole_backward(s, "experts.latent_down", latent),
        eager.residual_addition("experts.latent_down.grad.join", s),
    )


def _within(s: Shard) -> Shard:
    """The same tokens in the latent width."""
    return replace(s, config=replace(s.config, hidden=experts_of(s).latent))
