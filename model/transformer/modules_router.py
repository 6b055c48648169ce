"""Routers of experts as transformers writes them (``Experts.router``): scores, choice and weights of each token.

    ``softmax``          of all experts' scores in fp32, the chosen ones' rounded (Qwen); with biases (gpt-oss) of the
                         chosen ones' alone, as they are
    ``wide softmax``     the chosen ones' divided by their sum, and kept in fp32 (Mixtral)
    ``sigmoid``          a bias added for the choice alone, the chosen ones' divided by their sum (MiniMax-M2)
    ``grouped sigmoid``  the product in fp32 too, the choice first among groups, and a factor behind (DeepSeek-V3, GLM)

Source: transformers 5.17, as many kernels as it dispatches. Of ``softmax``, ``wide softmax`` and ``sigmoid`` iterations
were measured, of ``grouped sigmoid`` none.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, linear_forward, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import masked_values, row_operators
from joulecast.model.transformer.expert_rows import experts_of
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.row_operators import rounded

#: Operations on the chosen scores forward, and on their gradients; each reads about as much as it writes.
CHOSEN = {
    "wide softmax": ("total", "copy", "share"),
    "sigmoid": ("gather", "total", "copy", "share"),
    "grouped sigmoid": ("gather", "total", "epsilon", "copy", "share", "factor"),
}
CHOSEN_BACKWARD = ("share", "quotient", "neg", "product", "over", "total", "sum")
#: Of the choice among groups, on one number for a group: best two, their sum, the best groups, and the mask of these.
GROUPS = ("best", "sum", "choice", "zeros", "chosen")


def forward(s: Shard) -> tuple[Launch, ...]:
    """Scores, choice and weights."""
    experts, tokens, dtype = experts_of(s), s.norm_tokens, s.dtype
    product = linear_forward("router", tokens, experts.count, s.hidden, dtype)
    chosen = row_operators.choice(tokens, experts.count)
    if experts.bias:
        return (product, chosen, row_wise("softmax", "router.softmax", tokens, experts.active, dtype=dtype))
    if experts.router == "grouped sigmoid":
        return (*_wide_product(s), *_sigmoid(s), *_grouped(s), chosen, *_weights(s))
    scores = tokens * experts.count
    widen = row_operators.widened("router.widen", scores, dtype)
    if experts.router == "sigmoid":
        return (product, widen, *_sigmoid(s), chosen, *_weights(s))
    small = rounded("router.weights.round", tokens * experts.active)
    ends = _weights(s) if experts.wide_weights else (small,)
    softmax = row_wise("softmax", "router.softmax", tokens, experts.count, dtype="fp32")
    return (product, widen, softmax, chosen, *ends)


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, to that of the router's input."""
    experts, tokens, dtype = experts_of(s), s.norm_tokens, s.dtype
    chosen = tokens * experts.active
    if experts.bias:
        softmax = row_wise("mul", "router.softmax.grad", tokens, experts.active, reads=2, dtype=dtype)
        return (softmax, *_put(s, dtype), *_product_backward(s, accumulate))
    if experts.wide_weights:
        factor = ("factor",) if experts.router == "grouped sigmoid" else ()
        first = _small("router.weights.grad", (*factor, *CHOSEN_BACKWARD), chosen)
    else:
        first = (row_operators.widened("router.weights.grad.widen", chosen, dtype),)
    scores = tokens * experts.count
    if "sigmoid" in experts.router:
        gradient = streaming("mul", "router.sigmoid.grad", scores, reads=2, dtype="fp32")
    else:
        gradient = row_wise("mul", "router.softmax.grad", tokens, experts.count, reads=2, dtype="fp32")
    if experts.router == "grouped sigmoid":
        return (*first, *_put(s, "fp32"), gradient, *_wide_product_backward(s, accumulate))
    narrow = rounded("router.grad.round", scores)
    return (*first, *_put(s, "fp32"), gradient, narrow, *_product_backward(s, accumulate))


def _sigmoid(s: Shard) -> tuple[Launch, ...]:
    return _small("router", ("sigmoid", "bias"), s.norm_tokens * experts_of(s).count)


def _weights(s: Shard) -> tuple[Launch, ...]:
    experts = experts_of(s)
    return _small("router.weights", CHOSEN[experts.router], s.norm_tokens * experts.active)


def _grouped(s: Shard) -> tuple[Launch, ...]:
    """Scores of groups that a token may not choose from set aside; so run where there is one group, too."""
    experts, scores = experts_of(s), s.norm_tokens * experts_of(s).count
    return (
        *_small("router.groups", GROUPS, s.norm_tokens * experts.groups),
        *_small("router.groups.mask", ("spread", "not"), scores),
        *masked_values.masked("router.groups.masked", scores, "fp32"),
    )


def _wide_product(s: Shard) -> tuple[Launch, ...]:
    """Tokens and weights widened, and their product in fp32."""
    experts, hidden, tokens, dtype = experts_of(s), s.hidden, s.norm_tokens, s.dtype
    sizes = (("tokens", tokens * hidden), ("weight", experts.count * hidden))
    widened = (row_operators.widened(f"router.{name}.widen", size, dtype) for name, size in sizes)
    return (*widened, linear_forward("router", tokens, experts.count, hidden, "fp32"))


def _wide_product_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    experts, hidden, tokens = experts_of(s), s.hidden, s.norm_tokens
    products = eager.linear_backward(_router(s), replace(s.in_fp32, tokens=tokens), accumulate)
    sizes = (("weight", experts.count * hidden), ("tokens", tokens * hidden))
    return (*products, *(rounded(f"router.{name}.grad.round", n) for name, n in sizes))


def _product_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    return eager.linear_backward(_router(s), replace(s, tokens=s.norm_tokens), accumulate)


def _router(s: Shard) -> Linear:
    return Linear("router", experts_of(s).count, s.hidden, experts_of(s).bias)


def _put(s: Shard, dtype: str) -> tuple[Launch, ...]:
    """Gradients of the chosen scores among zeros."""
    scores, chosen = s.norm_tokens * experts_of(s).count, s.norm_tokens * experts_of(s).active
    zeros = streaming("fill", "router.grad.fill", scores, reads=0, dtype=dtype)
    return (zeros, streaming("unary", "router.grad.put", chosen, dtype=dtype))


def _small(name: str, steps: tuple[str, ...], values: int) -> tuple[Launch, ...]:
    return tuple(streaming("unary", f"{name}.{step}", values, dtype="fp32") for step in steps)
