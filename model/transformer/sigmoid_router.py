"""MiniMax-M2's router as transformers writes it: scores by a sigmoid, a bias for the choice alone, weights in fp32.

Forward: σ of the widened scores, a bias added, the choice, the chosen scores gathered, and divided by their sum. The
experts' rows then meet fp32 weights, so that they are put back and summed in fp32, and rounded behind that.

Source: ``modeling_minimax_m2`` of transformers 5.17, as many kernels as it dispatches. None was measured.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, issued, linear_forward, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import row_operators, unfused_norm
from joulecast.model.transformer.expert_rows import experts_of
from joulecast.model.transformer.modules_activation import MIXED

#: Operations on the chosen scores forward, and on their gradients; each reads about as much as it writes.
CHOSEN = ("gather", "total", "copy", "share")
CHOSEN_BACKWARD = ("share", "quotient", "neg", "product", "over", "total", "sum")


def forward(s: Shard) -> tuple[Launch, ...]:
    """Scores, choice and weights."""
    experts, tokens, dtype = experts_of(s), s.norm_tokens, s.implementation.dtype
    scores = tokens * experts.count
    return (
        linear_forward("router", tokens, experts.count, s.config.hidden, dtype),
        row_operators.widened("router.widen", scores, dtype),
        streaming("unary", "router.sigmoid", scores, dtype="fp32"),
        streaming("unary", "router.bias", scores, dtype="fp32"),
        row_operators.choice(tokens, experts.count),
        *_small("router.weights", CHOSEN, tokens * experts.active),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    experts, tokens = experts_of(s), s.norm_tokens
    scores, chosen = tokens * experts.count, tokens * experts.active
    return (
        *_small("router.weights.grad", CHOSEN_BACKWARD, chosen),
        streaming("fill", "router.grad.fill", scores, reads=0, dtype="fp32"),
        streaming("unary", "router.grad.put", chosen, dtype="fp32"),
        streaming("mul", "router.sigmoid.grad", scores, reads=2, dtype="fp32"),
        streaming("unary", "router.grad.round", scores, writes=0.5, dtype="fp32"),
        *eager.linear_backward(
            "router", replace(s, tokens=tokens), experts.count, s.config.hidden, experts.bias, accumulate
        ),
    )


def _small(name: str, steps: tuple[str, ...], values: int) -> tuple[Launch, ...]:
    return tuple(streaming("unary", f"{name}.{step}", values, dtype="fp32") for step in steps)


def weighed(s: Shard, values: int) -> Launch:
    """Rows in the products' type times fp32 weights."""
    return _mixed("unpermute.weigh", values, 0.5)


def rounded(s: Shard) -> tuple[Launch, ...]:
    """Tokens' sums in fp32 rounded."""
    values = s.norm_tokens * s.config.hidden
    return (streaming("unary", "unpermute.round", values, writes=0.5, dtype="fp32"),)


def widened_gradient(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`rounded`."""
    values = s.norm_tokens * s.config.hidden
    return (row_operators.widened("unpermute.grad.widen", values, s.implementation.dtype),)


def weighed_backward(s: Shard, values: int) -> tuple[Launch, ...]:
    """Gradients of weights and rows of :func:`weighed`."""
    return (
        _mixed("unpermute.grad.weights", values, 1.5),
        unfused_norm.by_row("unpermute.grad.weigh", values),
        streaming("unary", "unpermute.grad.round", values, writes=0.5, dtype="fp32"),
        streaming("reduce", "unpermute.grad.weights.sum", values, writes=1.0 / s.config.hidden, dtype="fp32"),
    )


def wide(s: Shard) -> Shard:
    """The same with rows in fp32."""
    return replace(s, implementation=replace(s.implementation, dtype="fp32"))


def _mixed(name: str, values: int, reads: float) -> Launch:
    """Values of two types, one by one."""
    return issued("mul", name, values, MIXED * values, activity=1.0, reads=reads, dtype="fp32")
