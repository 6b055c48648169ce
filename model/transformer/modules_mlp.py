"""First products and activation of an MLP of transformers or torchtitan: a layer's own, or that of shared experts.

Gate and up are products of their own unless the family joins them; the input gradients of two are added.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import autocast_linear, modules_activation
from joulecast.model.transformer.linear import Linear


def forward(products: tuple[Linear, ...], s: Shard, between: Shard) -> tuple[Launch, ...]:
    """From the MLP's input to what its last product multiplies; ``between`` has the type of the products' results."""
    *gate, up = products
    if not gate:
        return (*autocast_linear.forward(up, s), *modules_activation.forward(between))
    return (
        *autocast_linear.forward(gate[0], s),
        *modules_activation.gate(between),
        *autocast_linear.forward(up, s),
        *modules_activation.gate_product(between),
    )


def backward(
    products: tuple[Linear, ...], s: Shard, between: Shard, accumulate: bool, branches: Launch
) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`; ``branches`` adds the input gradients of two products."""
    *gate, up = products
    if not gate:
        return (*modules_activation.backward(between), *autocast_linear.backward(up, s, accumulate))
    return (
        *modules_activation.gate_product_backward(between),
        *autocast_linear.backward(up, s, accumulate),
        *modules_activation.gate_backward(between),
        *autocast_linear.backward(gate[0], s, accumulate),
        branches,
    )
