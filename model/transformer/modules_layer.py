"""One transformer layer as PyTorch's users write it: the modules of transformers, or of torchtitan.

Queries, keys and values are products of their own, as are gate and up, whose input gradients are added. Activations
then run on whole tensors. transformers writes RMSNorm and GPT-2's GELU as formulas, torchtitan its rotary embedding in
complex numbers; where transformers has one product for queries, keys and values, it is split by views.

The order was checked against traces of transformers 5.17 and of a Llama after torchtitan
(`validate/recorded/h200_sxm/train_modules.jsonl`).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import (
    autocast_linear,
    dropout,
    family_attention,
    gated_attention,
    liger_kernels,
    linear,
    masked_attention,
    modules_activation,
    modules_experts,
    modules_mixer,
    modules_mlp,
    pytorch_norm,
    rotary,
    torchtitan_rotary,
    transformers_rotary,
    unfused_norm,
)
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.row_operators import rounded, widened


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    return (*_mixed_forward(s), *_fed_forward(s))


def _mixed_forward(s: Shard) -> tuple[Launch, ...]:
    """What mixes positions, where a layer does."""
    if s.state_space is not None or s.delta_net is not None:
        return modules_mixer.forward(s)
    return _attention_half_forward(s) if s.config.attends else ()


def _fed_forward(s: Shard) -> tuple[Launch, ...]:
    """MLP or experts, where a layer has them."""
    if not s.config.feeds_forward:
        return ()
    return _mlp_half_forward(s) if s.config.experts is None else modules_experts.forward(s)


def _attention_half_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, attention block and residual addition."""
    return (
        *pytorch_norm.block_forward("norm1", s),
        *eager.enter_forward("qkv", s),
        *_projections_forward(s),
        *gated_attention.cut_out(s),
        *family_attention.before_rotation(s),
        *(torchtitan_rotary.forward(s) if _torchtitan(s) else transformers_rotary.forward(s.between)),
        *transformers_rotary.queries_scaled(s.between),
        *_attention_forward(s),
        *transformers_rotary.attention_turned(s),
        *gated_attention.forward(s),
        *autocast_linear.forward(linear.output(s), s, wide=False),
        *eager.leave_forward("output", s),
        *dropout.forward("output", s),
        *pytorch_norm.branch_forward("norm1", s),
        residual_addition("residual1", s),
    )


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """Backward of a layer."""
    return (*_fed_backward(s, accumulate), *_mixed_backward(s, accumulate, leaf_input))


def _mixed_backward(s: Shard, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    if s.state_space is not None or s.delta_net is not None:
        return modules_mixer.backward(s, accumulate=accumulate, leaf_input=leaf_input)
    return _attention_half_backward(s, accumulate, leaf_input) if s.config.attends else ()


def _fed_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    if not s.config.feeds_forward:
        return ()
    return _mlp_half_backward(s, accumulate) if s.config.experts is None else modules_experts.backward(s, accumulate)


def _attention_half_backward(s: Shard, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """From the gradient behind the first residual addition to the layer's input gradient."""
    return (
        *_branch_gradient("output", s),
        *pytorch_norm.branch_backward("norm1", s, accumulate),
        *dropout.backward("output", s),
        *eager.leave_backward("output", s),
        *autocast_linear.backward(linear.output(s), s, accumulate, wide=False),
        *gated_attention.backward(s),
        *_attention_backward(s),
        *eager.sinks_backward(s, accumulate),
        *transformers_rotary.queries_scaled(s.between, ".grad"),
        *(torchtitan_rotary.backward(s) if _torchtitan(s) else transformers_rotary.backward(s.between)),
        *(() if s.config.qk_norm_whole else head_norm_backward(s.between, accumulate)),
        *_projections_backward(s, accumulate),
        *pytorch_norm.half_backward("norm1", "qkv", s, accumulate, leaf_input=leaf_input),
    )


def _attention_forward(s: Shard) -> tuple[Launch, ...]:
    """Attention, for which autocast rounds what linear layers gave in fp32."""
    parts = (rounded(f"attention.{part}.round", values) for part, values in _rounded_for_attention(s))
    return (*masked_attention.repeated(s.between), *parts, *masked_attention.forward(s))


def _attention_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`_attention_forward`."""
    parts = (widened(f"attention.{part}.grad.widen", values, s.dtype) for part, values in _rounded_for_attention(s))
    return (*masked_attention.backward(s), *parts, *masked_attention.summed(s.between))


def _rounded_for_attention(s: Shard) -> tuple[tuple[str, int], ...]:
    """What attention is given that was in fp32, keys and values repeated where it takes a mask."""
    if not s.implementation.prepared:
        return ()
    keys = s.tokens * s.config.head_dim * (s.heads if masked_attention.masked(s) else s.kv_heads)
    return (("query", s.tokens * s.attention_width), ("key", keys), ("value", keys))


def _mlp_half_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, MLP and residual addition."""
    return (
        *pytorch_norm.block_forward("norm2", s),
        *eager.enter_forward("up", s),
        *modules_mlp.forward(linear.first_products(s), s, s.between),
        *autocast_linear.forward(linear.down(s), s, wide=modules_activation.gives_fp32(s)),
        *eager.leave_forward("down", s),
        *dropout.forward("down", s.between),
        *pytorch_norm.branch_forward("norm2", s.between),
        residual_addition("residual2", s.between),
    )


def _mlp_half_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """From the gradient behind the second residual addition to the one before the second norm."""
    return (
        *_branch_gradient("down", s.between),
        *pytorch_norm.branch_backward("norm2", s.between, accumulate),
        *dropout.backward("down", s.between),
        *eager.leave_backward("down", s),
        *autocast_linear.backward(linear.down(s), s, accumulate, wide=modules_activation.gives_fp32(s)),
        *modules_mlp.backward(linear.first_products(s), s, s.between, accumulate, _branches("up", s)),
        *pytorch_norm.half_backward("norm2", "up", s, accumulate),
    )


def _projections_forward(s: Shard) -> tuple[Launch, ...]:
    """Products in front of attention, and norms of queries and keys: of heads behind them, of all heads among them."""
    launches, parts = list[Launch](), ("query", "key")
    norms = {} if not s.config.qk_norm_whole else {part: head_norm_forward(s.between, part) for part in parts}
    for layer in linear.projections(s):
        launches += (*autocast_linear.forward(layer, s), *norms.get(layer.name, ()))
    return (*launches, *(() if norms else head_norm_forward(s.between)))


def head_norm_forward(s: Shard, only: str = "") -> tuple[Launch, ...]:
    """Norms of queries and keys, or of ``only`` one of them; their products are theirs alone: no copy."""
    if liger_kernels.swaps_norms(s):
        parts = (one for one in rotary.normed_parts(s) if one[0].startswith(only))
        return tuple(liger_kernels.norm_forward(f"{part}_norm", s, rows, columns) for part, rows, columns in parts)
    if not pytorch_norm.unfused(s):
        fused = (one for one in rotary.head_norm_forward(s) if not one.operator.name.endswith(".copy"))
        return tuple(one for one in fused if one.operator.name.startswith(only))
    return tuple(
        launch
        for part, rows, columns in rotary.normed_parts(s)
        if part.startswith(only)
        for launch in unfused_norm.forward(f"{part}_norm", s, rows, columns)
    )


def head_norm_backward(s: Shard, accumulate: bool, only: str = "") -> tuple[Launch, ...]:
    """Gradient of :func:`head_norm_forward`."""
    if not (pytorch_norm.unfused(s) or liger_kernels.swaps_norms(s)):
        return tuple(one for one in rotary.head_norm_backward(s, accumulate) if one.operator.name.startswith(only))
    launches: list[Launch] = []
    undone = unfused_norm.backward if s.config.qk_norm_whole else unfused_norm.heads_backward
    undone = liger_kernels.norm_backward if liger_kernels.swaps_norms(s) else undone
    for part, rows, columns in reversed(rotary.normed_parts(s)):
        if part.startswith(only):
            name, done = f"{part}_norm", "" if accumulate else f"{part}_norm.weight"
            launches += undone(name, s, rows, columns, done)
            launches += eager.accumulation(f"{name}.weight", columns, s.dtype, accumulate)
    return tuple(launches)


def residual_addition(name: str, s: Shard) -> Launch:
    """Addition of a block's result; to a wider stream value by value."""
    if not s.implementation.autocast:
        return eager.residual_addition(name, s)
    return modules_activation.added(name, s.stream_values, s.dtype, "fp32")


def _branch_gradient(name: str, s: Shard) -> tuple[Launch, ...]:
    """Gradient of a block's result, rounded from a wider stream's."""
    return (rounded(f"{name}.grad.round", s.stream_values),) if s.implementation.autocast else ()


def _torchtitan(s: Shard) -> bool:
    return s.implementation.modules == "torchtitan"


def _projections_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the products in front of attention, the last first, and the sums of their inputs' gradients.

    transformers has queries and keys heads first, from which a copy turns back.
    """
    products = linear.projections(s)
    if len(products) == 1:
        ahead = _sliced(s.between) if sliced(s) and not _torchtitan(s) else _joined(s.between)
        return (*ahead, *autocast_linear.backward(products[0], s, accumulate))
    launches: list[Launch] = []
    for layer in reversed(products):
        name = layer.name
        turned = () if _torchtitan(s) else masked_attention.turned(name, s.between)
        if s.config.qk_norm_whole and name != "value":
            launches += (*turned, *head_norm_backward(s.between, accumulate, name))
        else:
            launches += gated_attention.joined(s) if name == "query" and s.config.gated_attention else turned
        launches += autocast_linear.backward(layer, s, accumulate)
        if name != "value":
            launches.append(_branches(name, s))
    return tuple(launches)


def sliced(s: Shard) -> bool:
    """Whether queries, keys and values are slices of their joint product, rather than its split parts."""
    return s.config.sliced_projections or s.family in ("falcon", "bloom")


def _sliced(s: Shard) -> tuple[Launch, ...]:
    """Gradients of queries, keys and values, each put among zeros of their joint product, and the sums of these."""
    dtype, whole, launches = s.dtype, s.tokens * s.qkv_width, list[Launch]()
    keys = s.tokens * s.kv_heads * s.config.head_dim
    if s.config.sliced_projections:
        launches += (*transformers_rotary.turned("key", s), *transformers_rotary.turned("query", s))
    for name, values in (("value", keys), ("key", keys), ("query", s.tokens * s.attention_width)):
        launches.append(streaming("fill", f"qkv.{name}.fill", whole, reads=0, dtype=dtype))
        launches.append(streaming("strided_unary", f"qkv.{name}.slice", values, dtype=dtype))
        if name != "value":
            launches.append(streaming("add", f"qkv.{name}.sum", whole, reads=2, dtype=dtype))
    return tuple(launches)


def _joined(s: Shard) -> tuple[Launch, ...]:
    """Gradients of queries, keys and values joined; within each head, heads first, they are turned behind that."""
    if not (s.config.heads_joined and s.implementation.modules == "transformers"):
        return (joined(s),)
    return transformers_rotary.joined_heads(s.tokens * s.qkv_width, s)


def joined(s: Shard) -> Launch:
    """Gradients of queries, keys and values copied into that of their joint product."""
    return streaming("copy", "qkv.cat", s.tokens * s.qkv_width, dtype=s.dtype)


def _branches(name: str, s: Shard) -> Launch:
    """Sum of two products' input gradients."""
    elements, dtype = s.tokens * s.hidden, s.stream.dtype
    return streaming("add", f"{name}.grad.branches", elements, reads=2, dtype=dtype)
