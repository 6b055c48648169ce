"""The experts' half of a layer as transformers writes it, forward and backward, on one rank.

Every expert takes part in one grouped product (``grouped_mm``, the library's default). Rows are gathered in the
experts' order and put back into the tokens' by indexing, whose gradient sorts and sums; rows of ranks that are not
there are masked, weights multiplied and a token's rows summed by operators of their own.

    router, choice, sort, gather, mask ⟨up, mask⟩ activation ⟨down, mask⟩ weights, gather back, sum

All experts are on the rank, so that they have its rows, each as many as the router sends it. gpt-oss clamps gate and
up, which take turns in a row, gathers a bias for each row, and chooses before the softmax.

Source: transformers 5.17 (``grouped_mm_experts_forward``), as many kernels as it dispatches but for small ones; what
operators on rows take is from ``row_operators``. Five iterations were measured after that was written: Qwen3-MoE's were
forecast 7 and 8 % too short, Mixtral's 2 %, MiniMax-M2's 4 %, gpt-oss's 17 %. Their kernels told of copies in front of
masks and sums, that routers which nothing has trained leave experts uneven, and which of these keep weights in fp32
(`validate/recorded/h200_sxm/train_families_second.jsonl`, ``…_third.jsonl``).
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import (
    eager_moe,
    expert_weights,
    masked_values,
    modules_activation,
    modules_router,
    modules_shared,
    pytorch_norm,
    row_operators,
)
from joulecast.model.transformer.expert_rows import ExpertShard, copies, expert_shard, experts_of, random_reads

#: Cycles in which one warp adds a row to its expert's sum, one row after the other: reads from memory that nothing
#: hides. gpt-oss's eight sums on an H200 took 2,600 to 4,000 for each row that an expert has in the mean, with a router
#: as it is initialised [estimate, +-20 %].
NEXT_ROW = 3100.0


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, experts and residual addition."""
    e, hidden = expert_shard(s), s.hidden
    return (
        *pytorch_norm.block_forward("norm2", s),
        *modules_router.forward(s),
        *_order(e.sent),
        copies("permute", s, e, reads=random_reads(s)),
        masked_values.filled("permute.mask", e.sent * hidden, s.dtype),
        *_product("experts.up", s, e, e.up_width, hidden),
        *(_clamped(s, e) if experts_of(s).bias else eager.activation_forward(eager_moe.expert_rows(s, e))),
        *_product("experts.down", s, e, hidden, e.ffn),
        *expert_weights.put_back(s, e),
        *modules_shared.forward(s),
        *eager.branch_scaling("norm2.branch.scale", s),
        eager.residual_addition("residual2", s),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the one before the norm."""
    e, hidden, dtype = expert_shard(s), s.hidden, s.dtype
    values = e.sent * hidden
    kernels, sums = pytorch_norm.backward("norm2", s, accumulate)
    return (
        *eager.branch_scaling("norm2.branch.grad.scale", s),
        *modules_shared.backward(s, accumulate),
        *expert_weights.put_back_backward(s, e),
        *_product_backward("experts.down", s, e, hidden, e.ffn, accumulate),
        *(_clamped_backward(s, e) if experts_of(s).bias else eager.activation_backward(eager_moe.expert_rows(s, e))),
        *_product_backward("experts.up", s, e, e.up_width, hidden, accumulate),
        *masked_values.masked("permute.grad.mask", values, dtype),
        streaming("fill", "permute.grad.weights.zeros", e.sent, reads=0, dtype=dtype),
        streaming("unary", "permute.grad.weights", e.sent, dtype=dtype),
        *expert_weights.indexed_gradient("permute.grad", e.sent, s.norm_tokens, hidden, dtype),
        *modules_router.backward(s, accumulate),
        eager.residual_addition("router.grad.join", s),
        *kernels,
        eager.residual_addition("norm2.grad.join", s),
        *sums,
    )


def _order(rows: int) -> tuple[Launch, ...]:
    """Rows sorted by expert, and counted: nine small kernels beside the sort, on 64-bit numbers."""
    steps = ("token", "weights", "narrow", "counts", "offsets", "absent", "clamp", "places", "back")
    small = (streaming("unary", f"router.order.{step}", rows, reads=2, writes=2, dtype="fp32") for step in steps)
    return (row_operators.order(rows), *small)


def _product(name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int) -> tuple[Launch, ...]:
    """A grouped product, each row's bias gathered and added, and rows of absent experts masked."""
    dtype, values = s.dtype, e.all_rows * outputs
    product = _uneven(eager_moe.grouped(name, e, e.rows, outputs, inputs, dtype, "tn"))
    mask = masked_values.masked(f"{name}.mask", values, dtype)
    if not experts_of(s).bias:
        return (product, *mask)
    gathered = streaming("embedding", f"{name}.bias.gather", values, reads=0, dtype=dtype, rows=e.all_rows)
    return (gathered, product, streaming("add", f"{name}.bias", values, reads=2, dtype=dtype), *mask)


def _product_backward(
    name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int, accumulate: bool
) -> tuple[Launch, ...]:
    mask = masked_values.masked(f"{name}.grad.mask", e.all_rows * outputs, s.dtype)
    rows, *rest = eager_moe.grouped_backward(name, s, e, outputs, inputs, accumulate)
    return (*mask, _uneven(rows), *rest, *_bias_sums(name, s, e, outputs, accumulate))


def _uneven(launch: Launch) -> Launch:
    """A grouped product whose experts have different numbers of rows."""
    product = launch.operator
    return replace(launch, operator=replace(product, uneven=True)) if isinstance(product, Gemm) else launch


def _bias_sums(name: str, s: Shard, e: ExpertShard, width: int, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of gathered biases: sorted, and an expert's rows added one after the other."""
    if not experts_of(s).bias:
        return ()
    dtype, bias, values = s.dtype, f"{name}.bias", e.all_rows * width
    zeros = streaming("fill", f"{bias}.grad.zeros", e.experts * width, reads=0, dtype=dtype)
    cycles, power = row_operators.ACCUMULATE
    total = issued(
        "embedding",
        f"{bias}.grad",
        values,
        cycles * values,
        activity=power,
        writes=1.0 / e.rows,
        dtype=dtype,
        chain_cycles=NEXT_ROW * e.rows,
    )
    return (
        zeros,
        row_operators.order(e.all_rows),
        replace(total, completes="" if accumulate else bias),
        *eager.accumulation(bias, e.experts * width, dtype, accumulate),
    )


def _clamped(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """(up + 1)·gate·σ(α·gate) of clamped values."""
    values, dtype = e.all_rows * e.ffn, s.dtype
    return (
        *(streaming("strided_unary", f"gate.clamp.{part}", values, dtype=dtype) for part in ("gate", "up")),
        streaming("unary", "gate.steeper", values, dtype=dtype),
        issued("unary", "gate.sigmoid", values, modules_activation.SILU * values, activity=1.0, dtype=dtype),
        streaming("mul", "gate.glu", values, reads=2, dtype=dtype),
        streaming("unary", "gate.one", values, dtype=dtype),
        streaming("mul", "gate.product", values, reads=2, dtype=dtype),
    )


def _clamped_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    values, dtype, both = e.all_rows * e.ffn, s.dtype, e.all_rows * e.up_width
    products = ("product.grad_up", "product.grad_glu", "glu.grad_gate", "glu.grad_sigmoid", "sigmoid.grad")
    return (
        *(streaming("mul", f"gate.{name}", values, reads=2, dtype=dtype) for name in products),
        streaming("unary", "gate.steeper.grad", values, dtype=dtype),
        streaming("add", "gate.grad.branches", values, reads=2, dtype=dtype),
        *clamp_gradients(values, dtype),
        *(streaming("fill", f"gate.{part}.fill", both, reads=0, dtype=dtype) for part in ("up", "gate")),
        *(streaming("strided_unary", f"gate.{part}.slice", values, dtype=dtype) for part in ("up", "gate")),
        streaming("add", "gate.slices", both, reads=2, dtype=dtype),
    )


def clamp_gradients(values: float, dtype: str) -> tuple[Launch, ...]:
    """Gradients of a gate that is clamped above and of what is clamped on both sides: tests, and what passes them."""
    tests = ("low", "high", "gate")
    return (
        *(streaming("strided_unary", f"gate.clamp.{name}", values, writes=0.5, dtype=dtype) for name in tests),
        streaming("unary", "gate.clamp.both", values, dtype=dtype),
        *(streaming("mul", f"gate.clamp.{part}.grad", values, reads=1.5, dtype=dtype) for part in ("up", "gate")),
    )


def kept_bytes(s: Shard) -> float:
    """Rows as they come to the experts and leave them, both products' inputs, and what lies between [bytes].

    Of a gate both halves, its activation and their product; of clamped ones also gate, sigmoid, what both make, and up.
    """
    e, size = expert_shard(s), s.value_bytes
    between = e.up_width + (5 if experts_of(s).bias else 2) * e.ffn
    scores = 4.0 * s.norm_tokens * experts_of(s).count
    return size * (e.all_rows * between + 2.0 * e.sent * s.hidden) + scores
