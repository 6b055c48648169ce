"""Linear layers of modules whose parameters may be wider than their products: ``torch.autocast`` casts both operands.

    forward                weight and bias rounded, input rounded where it is wide         y  = x·Wᵀ + b
    backward               dW, db and dx of the products, each widened back where it was rounded

A product's input is in fp32 behind a norm, whose residual stream stays in the parameters' type, and behind GPT-2's
``gelu_new`` and a squared ReLU, whose power autocast takes so. An input that three products share is rounded three
times.

Layers in 4 bits beside parameters in fp32 cast themselves (``Linear4bit``), a bias too, and no weight: a wide input is
rounded and the result widened, both gradients the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import float8_linear, lora_linear, pytorch_norm
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.row_operators import rounded, widened


def forward(layer: Linear, s: Shard, *, wide: bool | None = None, shared: bool = False) -> tuple[Launch, ...]:
    """Product of a linear layer.

    ``wide`` says whether its input comes in fp32, ``None`` as norms give it, ``shared`` whether FP8 of it is there.
    """
    name, wide = layer.name, _in_fp32(s, wide)
    product = float8_linear.forward(layer, s, shared=shared)
    adapter = lora_linear.forward(layer, s, wide=wide)
    made = lora_linear.written_out(f"{name}.weight", s, layer.weights)
    rounds_bias = layer.bias and s.implementation.autocast and not s.implementation.compiled
    added = (rounded(f"{name}.bias.round", layer.outputs),) if rounds_bias else ()
    if s.implementation.prepared:
        entered = (rounded(f"{name}.round", s.tokens * layer.inputs),) if wide else ()
        left = (widened(f"{name}.result.widen", s.tokens * layer.outputs, s.dtype),) if wide else ()
        return (*entered, *added, *made, *product, *left, *adapter)
    return (*casts(layer, s, wide=wide), *added, *made, *product, *adapter)


def backward(
    layer: Linear, s: Shard, accumulate: bool, *, wide: bool | None = None, shared: bool = False
) -> tuple[Launch, ...]:
    """Gradients of a linear layer, as :func:`joulecast.model.transformer.eager_layer.linear_backward` has them."""
    name, outputs, wide = layer.name, layer.outputs, _in_fp32(s, wide)
    adapter, joined = lora_linear.backward(layer, s, accumulate, wide=wide)
    if not s.implementation.autocast or s.implementation.prepared:
        product = eager.linear_backward(layer, s, accumulate, shared=shared)
        made = lora_linear.written_out(f"{name}.dgrad", s, layer.weights)
        rounds = wide and s.implementation.prepared
        entered = (rounded(f"{name}.dgrad.round", s.tokens * outputs),) if rounds else ()
        left = (widened(f"{name}.dgrad.widen", s.tokens * layer.inputs, s.dtype),) if wide else ()
        return (*adapter, *entered, *made, *product, *left, *joined)
    launches = eager.linear_backward(layer, s, accumulate=False)
    weight, added, dtype = f"{name}.weight", f"{name}.bias", s.stream.dtype
    done, summed = ("", "") if accumulate else (weight, added)
    total = replace(widened(f"{added}.grad.widen", outputs, s.dtype), completes=summed)
    apart = layer.bias and not s.implementation.compiled  # a graph's kernel that adds up a bias's gradient writes fp32
    finished = {weight: "", added: "" if apart else summed, "": ""}
    return (
        *adapter,
        *(replace(one, completes=finished[one.completes]) for one in launches),
        *((total,) if apart else ()),
        *uncasts(layer, s, wide=wide, completes=done),
        *(eager.accumulation(added, outputs, dtype, accumulate) if layer.bias else ()),
        *eager.accumulation(weight, layer.weights, dtype, accumulate),
        *joined,
    )


def _in_fp32(s: Shard, wide: bool | None) -> bool:
    return pytorch_norm.gives_fp32(s) if wide is None else wide


def casts(layer: Linear, s: Shard, *, wide: bool) -> tuple[Launch, ...]:
    """Weight and input as a product takes them; nothing without autocast, no weight of the products' type."""
    weight = (rounded(f"{layer.name}.weight.round", layer.weights),) if s.implementation.autocast else ()
    read = (rounded(f"{layer.name}.round", s.tokens * layer.inputs),) if wide else ()
    return (*weight, *read)


def uncasts(layer: Linear, s: Shard, *, wide: bool, completes: str) -> tuple[Launch, ...]:
    """Gradient of :func:`casts`."""
    name, dtype = layer.name, s.dtype
    left = (widened(f"{name}.dgrad.widen", s.tokens * layer.inputs, dtype),) if wide else ()
    if not s.implementation.autocast:
        return left
    return (*left, replace(widened(f"{name}.wgrad.widen", layer.weights, dtype), completes=completes))
