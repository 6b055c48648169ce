"""The Mixture-of-Experts half of a layer in PyTorch's eager mode, forward and backward.

As in Megatron (:mod:`.moe`), but every expert of a rank takes part in one grouped product (``torch._grouped_mm``),
activation and gate product are kernels of their own, and the router's weights scale the experts' results where these
are summed, so that their gradient reads the results again. Each weight's gradient is added to the one accumulated.

    norm, router, permute ⟨all-to-all⟩ sort, up, activation, product, down, sort ⟨all-to-all⟩ weighted sum

Shared experts (:mod:`.shared_experts`) run before the sum.

Sources: TorchTitan, arXiv 2410.06511, ``models/moe`` and ``distributed/expert_parallel``; PyTorch 2.11.
"""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.model.framework.launches import Launch, column_sums, input_gradient, streaming, weight_gradient
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import row_operators, shared_experts
from joulecast.model.transformer.expert_rows import (
    ExpertShard,
    copies,
    expert_shard,
    experts_of,
    from_experts,
    random_reads,
    router_forward,
    summed,
    to_experts,
)


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, experts and residual addition."""
    e, dtype, hidden = expert_shard(s), s.dtype, s.hidden
    return (
        eager.norm_forward("norm2", s),
        *router_forward(s),
        *((row_operators.order(e.sent),) if s.implementation.row_operator else ()),
        copies("permute", s, e, reads=random_reads(s)),
        *to_experts("dispatch", s, e),
        grouped("experts.up", e, e.rows, e.up_width, hidden, dtype, "tn"),
        *_biased("experts.up", s, e, e.up_width),
        *eager.activation_forward(expert_rows(s, e)),
        grouped("experts.down", e, e.rows, hidden, e.ffn, dtype, "tn"),
        *_biased("experts.down", s, e, hidden),
        *from_experts("combine", s, e),
        *shared_experts.forward(s),
        *_joined(s, e),
        *((eager.residual_addition("shared.add", s),) if s.ffn else ()),
        eager.residual_addition("residual2", s),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the one before the norm."""
    e, hidden = expert_shard(s), s.hidden
    kernels, accumulations = eager.norm_backward("norm2", s, accumulate)
    return (
        *_parted(s, e),
        *shared_experts.backward(s, accumulate),
        *to_experts("combine.grad", s, e),
        *_bias_backward("experts.down", s, e, hidden, accumulate),
        *grouped_backward("experts.down", s, e, hidden, e.ffn, accumulate),
        *eager.activation_backward(expert_rows(s, e)),
        *_bias_backward("experts.up", s, e, e.up_width, accumulate),
        *grouped_backward("experts.up", s, e, e.up_width, hidden, accumulate),
        *from_experts("dispatch.grad", s, e),
        *_permuted_backward(s, e),
        *_router_backward(s, accumulate),
        eager.residual_addition("router.grad.join", s),
        *kernels,
        eager.residual_addition("norm2.grad.join", s),
        *accumulations,
    )


def _joined(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Each token's rows weighed and summed."""
    operator, dtype, hidden = s.implementation.row_operator, s.dtype, s.hidden
    if not operator:
        return (summed("unpermute", s, e, weighted=True),)
    if operator == "index_put":
        rows = row_operators.put("unpermute.order", e.sent, hidden, dtype)
        return (*rows, row_operators.combined("unpermute", s.norm_tokens, experts_of(s).active, hidden, dtype))
    return (
        *row_operators.weighed("unpermute", e.sent * hidden, dtype),
        streaming("fill", "unpermute.zeros", s.norm_tokens * hidden, reads=0, dtype=dtype),
        row_operators.added("unpermute", operator, e.sent, s.norm_tokens, hidden, dtype),
    )


def _parted(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Gradients of the experts' results and of the router's weights."""
    operator, dtype, hidden = s.implementation.row_operator, s.dtype, s.hidden
    if not operator:
        return (copies("unpermute.grad", s, e, reads=random_reads(s) + 1),)
    if operator == "index_put":
        chosen = experts_of(s).active
        products = row_operators.combined_backward("unpermute.grad", s.norm_tokens, chosen, hidden, dtype)
        return (*products, copies("unpermute.grad", s, e))
    return (
        copies("unpermute.grad", s, e, reads=random_reads(s)),
        *row_operators.weighed_backward("unpermute.grad", e.sent * hidden, dtype),
    )


def _permuted_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Gradients of a token's copies summed."""
    operator, dtype, hidden = s.implementation.row_operator, s.dtype, s.hidden
    if not operator:
        return (summed("permute.grad", s, e),)
    if operator == "index_put":
        return row_operators.accumulated("permute.grad", e.sent, s.norm_tokens, hidden, dtype)
    return (
        streaming("fill", "permute.grad.zeros", s.norm_tokens * hidden, reads=0, dtype=dtype),
        row_operators.added("permute.grad", operator, e.sent, s.norm_tokens, hidden, dtype),
    )


def expert_rows(s: Shard, e: ExpertShard) -> Shard:
    """The rank's experts as one MLP of all their rows."""
    return replace(s, tokens=e.all_rows, ffn=e.ffn, up_width=e.up_width)


def _biased(name: str, s: Shard, e: ExpertShard, width: int) -> tuple[Launch, ...]:
    """Each row's expert's bias added to a grouped product, which has none in its epilogue; nothing without biases."""
    if not experts_of(s).bias:
        return ()
    return (streaming("strided_binary", f"{name}.bias", e.all_rows * width, dtype=s.dtype),)


def _bias_backward(name: str, s: Shard, e: ExpertShard, width: int, accumulate: bool) -> tuple[Launch, ...]:
    """Sums of a grouped product's gradient over each expert's rows."""
    if not experts_of(s).bias:
        return ()
    return _bias_sum(name, s, e.all_rows, width, e.experts, accumulate)


def _bias_sum(name: str, s: Shard, rows: int, width: int, experts: int, accumulate: bool) -> tuple[Launch, ...]:
    bias, dtype = f"{name}.bias", s.dtype
    total = column_sums(f"{bias}.grad", rows, width, dtype, "" if accumulate else bias, experts)
    return (total, *eager.accumulation(bias, experts * width, dtype, accumulate))


def _router_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    count, hidden, tokens, dtype = experts_of(s).count, s.hidden, s.norm_tokens, s.dtype
    weight = "router.weight"
    return (
        streaming("mul", "router.softmax.grad", tokens * count, reads=2, dtype="fp32"),
        *(_bias_sum("router", s, tokens, count, 1, accumulate) if experts_of(s).bias else ()),
        weight_gradient("router", tokens, count, hidden, dtype, completes="" if accumulate else weight),
        input_gradient("router", tokens, count, hidden, dtype),
        *eager.accumulation(weight, count * hidden, dtype, accumulate),
    )


def grouped_backward(
    name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int, accumulate: bool
) -> tuple[Launch, ...]:
    """Gradients of a grouped product."""
    dtype, weight = s.dtype, f"{name}.weight"
    wgrad = grouped(f"{name}.wgrad", e, outputs, inputs, e.rows, dtype, "nt")
    return (
        grouped(f"{name}.dgrad", e, e.rows, inputs, outputs, dtype, "nn"),
        replace(wgrad, completes="" if accumulate else weight),
        *eager.accumulation(weight, e.experts * outputs * inputs, dtype, accumulate),
    )


def grouped(name: str, e: ExpertShard, m: int, n: int, k: int, dtype: str, layout: str) -> Launch:
    """One kernel's products of every expert."""
    product = Gemm(
        m, n, k, dtype=dtype, layout=layout, batch=e.experts, footprint_bytes=math.inf, name=name, grouped=True
    )
    return Launch(product)
