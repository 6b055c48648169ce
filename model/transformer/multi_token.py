"""Multi-token prediction as Megatron trains it: modules behind the last layer that predict further tokens.

Module k embeds the tokens k places on, norms them and the hidden states before it, projects both together from 2h back
to h, and runs one more transformer layer. The final norm, the shared output head and a loss of its own follow, as
behind the last layer. All modules lie on the last stage, which holds a copy of the embedding for them. They may be one
module (``mtp_use_repeated_layer``), run again for each further token: its weights, their gradients and the optimizer's
states are there once, what it keeps for the backward each time.

    hidden ─ norm ┐
                  ├ cat ─ 2h → h ─ layer ─ norm ─ head ─ loss
    tokens ─ embedding ─ norm ┘

Sources: DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron-Core ``multi_token_prediction``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import head
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.megatron_norm import norm_backward


def forward(s: Shard) -> tuple[Launch, ...]:
    """What a module runs in front of its layer."""
    pair = _pair(s)
    return (
        *head.embedding_forward(s),
        eager.norm_forward("mtp.token_norm", s),
        eager.norm_forward("mtp.hidden_norm", s),
        streaming("cat", "mtp.cat", s.norm_tokens * pair.config.hidden, dtype=s.dtype),
        *linear.column_forward("", "mtp.projection", pair, _width(s)),
        *_whole(s, "mtp.projection.all_gather"),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient of the layer's input to those of the hidden states and the embedding."""
    return (
        *_whole(s, "mtp.projection.grad.all_gather", sequence=True),
        *linear.column_backward("mtp.projection", _pair(s), _width(s), normed=False),
        *norm_backward("mtp.hidden_norm", s),
        *norm_backward("mtp.token_norm", s),
        *head.embedding_backward(s, accumulate=True, head_here=True),
        eager.residual_addition("mtp.grad.join", s),
    )


def kept_bytes(s: Shard) -> float:
    """Inputs of a module's norms, and both of their results in one tensor, that its backward reads [bytes]."""
    return 4.0 * s.stream_values * s.value_bytes


def _pair(s: Shard) -> Shard:
    """The same tokens, twice as wide: embedding and hidden state."""
    return replace(s, config=replace(s.config, hidden=2 * s.hidden))


def _width(s: Shard) -> int:
    """Outputs of the projection on one rank."""
    return s.hidden // s.implementation.tensor_parallel


def _whole(s: Shard, name: str, *, sequence: bool = False) -> tuple[Launch, ...]:
    """Gathering of the projection's outputs; of its gradient's rows (``sequence``) where these are split."""
    run = s.implementation
    if run.tensor_parallel == 1 or (sequence and not run.sequence_parallel):
        return ()
    return (collective("all_gather", name, s.activation_bytes, run),)
