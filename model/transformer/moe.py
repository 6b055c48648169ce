"""The Mixture-of-Experts half of a layer as Megatron-Core runs it, forward and backward.

Between a norm and a residual addition rows go to their experts and come back (:mod:`.expert_rows`), which are grouped
products around an activation:

    norm, router, permute ⟨all-to-all, all-gather⟩ sort, up, activation, down, sort ⟨reduce-scatter, all-to-all⟩ join

Shared experts are a tensor-parallel MLP beside that. A grouped product runs expert by expert on several streams. The
router's weights scale what the experts' activation makes, in its kernel, so that nothing needs the experts' results
again.

Experts may work in a narrower width (LatentMoE, Nemotron 3 Super's ``moe_latent_size``): what goes to them is projected
to it before it is permuted, and the sum of their results back behind their return, by products that every
tensor-parallel rank has whole (``fc1_latent_proj`` and ``fc2_latent_proj``, ``TELinear`` with
``parallel_mode="duplicated"``). Those with biases and clamps add kernels (:mod:`.biased_experts`). What is sent to
experts in FP8 is cast once before the exchange and not again behind it: the other copy, for the gradient of a weight,
is made where that is taken.

With ``fused_experts`` the first product applies the activation and casts what it makes, and the second one's gradient
does so with its gradient: grouped products of cuteDSL, by Megatron-Core's report on experts (arXiv 2603.07685, 6.1).

Sources: Megatron-Core ``moe_layer`` and ``TEGroupedMLP``; NVIDIA, Nemotron 3 (LatentMoE), technical report.
"""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.model.framework.launches import Launch, added_up, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm
from joulecast.model.transformer import (
    biased_experts,
    megatron_mlp,
    narrow_kernels,
    stored_narrow,
    unfused_router,
)
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.expert_rows import (
    ExpertShard,
    copies,
    dispatched_bytes,
    expert_shard,
    experts_of,
    from_experts,
    padded,
    permuted,
    random_reads,
    router_forward,
    row_width,
    to_experts,
    widened_input,
)
from joulecast.model.transformer.megatron_mlp import bias_backward
from joulecast.model.transformer.megatron_norm import norm_backward, recomputed_norm

#: Recipes whose copies of all experts' rows one kernel of Transformer Engine makes (``multi_tensor_quantize``, and its
#: grouped kernels of NVFP4); cuteDSL's products have such a kernel too. Others are cast expert by expert.
CAST_TOGETHER = ("delayed", "nvfp4")
#: Products to the width in which experts work, and back.
DOWN, UP = "experts.latent_down", "experts.latent_up"


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, experts and residual addition."""
    scaled = eager.branch_scaling("norm2.branch.scale", s)
    return (eager.norm_forward("norm2", s), *_experts_forward(s), *scaled, eager.residual_addition("residual2", s))


def _experts_forward(s: Shard) -> tuple[Launch, ...]:
    """Everything between the norm and the residual addition."""
    e, width, latent = expert_shard(s), row_width(s), experts_of(s).latent
    return (
        *router_forward(s),
        *_shared_forward(s),
        *(linear.whole_forward(s, DOWN, latent) if latent else ()),
        *permuted(copies("permute", s, e, reads=random_reads(s)), s),
        *_cast_to_send("dispatch", s),
        *to_experts("dispatch", s, e, weighted=True),
        *padded("experts.pad", s, e),
        *_grouped_forward("experts.up", s, e, e.up_width, width, cast=not s.implementation.narrow_dispatch),
        *stored_narrow.stored_input("experts", e.all_rows * e.up_width, s.implementation),
        *_unfused(s, *biased_experts.activation(s, e)),
        *_grouped_forward("experts.down", s, e, width, e.ffn, cast=not s.implementation.fused_experts),
        *_unfused(s, *biased_experts.bias_added(s, e)),
        *padded("experts.unpad", s, e),
        *from_experts("combine", s, e),
        *permuted(copies("unpermute", s, e, writes=1 / experts_of(s).active), s),
        *(linear.whole_forward(_within(s), UP, s.hidden) if latent else ()),
        *((eager.residual_addition("shared.add", s),) if s.ffn else ()),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the one before the norm."""
    e, run, width, latent = expert_shard(s), s.implementation, row_width(s), experts_of(s).latent
    act, sent = biased_experts.activation(s, e), run.narrow_dispatch
    made = _cast("experts.down.input", s, e, e.ffn)
    return (
        *eager.branch_scaling("norm2.branch.grad.scale", s),
        *recomputed_norm("norm2", s),
        *(_experts_forward(s) if run.recomputes("moe") else ()),
        *(linear.whole_backward(_within(s), UP, s.hidden) if latent else ()),
        *permuted(copies("unpermute.grad", s, e, reads=random_reads(s)), s),
        *_cast_to_send("combine.grad", s, gradient=True),
        *to_experts("combine.grad", s, e),
        *padded("experts.unpad.grad", s, e),
        *_unfused(s, *biased_experts.bias_backward(s, e)),
        *stored_narrow.restored_input("experts", e.all_rows * e.up_width, run),
        *((*act, *made) if run.recomputes("moe_act") else ()),
        *_turned("combine.grad", s, e),
        *_grouped_backward("experts.down", s, e, width, e.ffn, cast=not sent),
        *_unfused(s, *biased_experts.activation_backward(s, e), _weights_grad(s, e)),
        *_turned("dispatch", s, e),
        *_grouped_backward("experts.up", s, e, e.up_width, width, cast=not run.fused_experts),
        *biased_experts.up_bias_backward(s, e),
        *padded("experts.pad.grad", s, e),
        *from_experts("dispatch.grad", s, e, weighted=True),
        *permuted(copies("permute.grad", s, e, writes=1 / experts_of(s).active), s),
        *((*linear.whole_backward(s, DOWN, latent), eager.residual_addition(f"{DOWN}.grad.join", s)) if latent else ()),
        *(_shared_forward(s) if run.recomputes("shared_experts") else ()),
        *_shared_backward(s),
        *_router_backward(s),
        eager.residual_addition("router.grad.join", s),
        *norm_backward("norm2", s),
        eager.residual_addition("norm2.grad.join", s),
    )


def _within(s: Shard) -> Shard:
    """The same tokens in the width in which experts work."""
    return replace(s, config=replace(s.config, hidden=experts_of(s).latent))


def _weights_grad(s: Shard, e: ExpertShard) -> Launch:
    """Gradients of the router's weights, which scale what the activation makes."""
    reads, values = e.up_width / e.ffn + 1, e.all_rows * e.ffn
    return streaming("reduce", "experts.weights.grad", values, reads=reads, writes=0, dtype=s.dtype)


def _unfused(s: Shard, *launches: Launch) -> tuple[Launch, ...]:
    """Kernels that products before them do in their epilogues where the plan says so."""
    return () if s.implementation.fused_experts else launches


def _router_backward(s: Shard) -> tuple[Launch, ...]:
    count, hidden, tokens, dtype = experts_of(s).count, s.hidden, s.norm_tokens, s.dtype
    routed = s.implementation.router_dtype or dtype
    dgrad = Gemm(tokens, hidden, count, dtype=routed, layout="nn", footprint_bytes=math.inf, name="router.dgrad")
    narrowed = streaming("copy", "router.grad.narrow", tokens * hidden, writes=0.5, dtype="fp32")
    own = replace(s, tokens=tokens, implementation=replace(s.implementation, narrow=None, dtype=routed))
    return (
        *unfused_router.backward(experts_of(s), tokens, fused=s.implementation.fused_router),
        *bias_backward(own, "router", tokens, count, experts_of(s).bias),
        Launch(dgrad),
        *((narrowed,) if routed != dtype else ()),
        *widened_input(s),
        linear.fused_weight_gradient("router", own, count, hidden),
    )


def _shared_forward(s: Shard) -> tuple[Launch, ...]:
    if not s.ffn:
        return ()
    return (
        *linear.column_forward("", "shared_up", s, s.up_width),
        *stored_narrow.stored_input("shared", s.tokens * s.up_width, s.implementation),
        megatron_mlp.activation(s.config, s.tokens * s.ffn, s.dtype),
        *linear.row_forward("shared_down", s, s.ffn),
        *_gate(s, ""),
    )


def _shared_backward(s: Shard) -> tuple[Launch, ...]:
    if not s.ffn:
        return ()
    return (
        *_gate(s, ".grad"),
        *linear.row_backward("shared_down", s, s.ffn),
        *stored_narrow.restored_input("shared", s.tokens * s.up_width, s.implementation),
        megatron_mlp.activation_backward(s.config, s.tokens * s.ffn, s.dtype),
        *linear.column_backward("shared_up", s, s.up_width, normed=False),
        eager.residual_addition("shared.grad.join", s),
    )


def _gate(s: Shard, suffix: str) -> tuple[Launch, ...]:
    """Scaling of the shared experts' result by a gate of its own."""
    if not experts_of(s).shared_gate:
        return ()
    return (streaming("mul", f"shared.gate{suffix}", s.stream_values, reads=2, dtype=s.dtype),)


def _grouped_forward(
    name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int, *, cast: bool
) -> tuple[Launch, ...]:
    """One product for each expert."""
    dtype, narrow = s.dtype, s.implementation.narrow
    return (
        *(_cast(f"{name}.input", s, e, inputs) if cast else ()),
        narrow_kernels.product(Launch(_grouped(name, e, e.rows, outputs, inputs, dtype, "tn")), narrow),
    )


def _cast(name: str, s: Shard, e: ExpertShard, width: int, *, gradient: bool = False) -> tuple[Launch, ...]:
    """FP8 copies of rows that products multiply, of each expert by itself unless one kernel makes all."""
    run = s.implementation
    together = run.narrow is None or run.fused_experts or run.narrow.recipe in CAST_TOGETHER
    parts = 1 if together else e.experts
    made = narrow_kernels.quantise(name, e.all_rows / parts * width, run.narrow, run.dtype, gradient=gradient)
    return tuple(replace(launch, repeat=parts) for launch in made)


def _cast_to_send(name: str, s: Shard, *, gradient: bool = False) -> tuple[Launch, ...]:
    """One FP8 copy of tokens, or of gradients of results, where these go to experts so."""
    run, values = s.implementation, s.norm_tokens * row_width(s)
    if not run.narrow_dispatch:
        return ()
    return narrow_kernels.quantise(f"{name}.input", values, run.narrow, run.dtype, 1, gradient=gradient)


def _turned(name: str, s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """The second copy of rows that came in FP8, with scales along the rows, for the gradient of a weight.

    It takes values out of one kind of blocks and puts them into another; no such kernel was measured, and it is paced
    as one that makes both copies of wide values [estimate, -50 %].
    """
    run, values = s.implementation, e.all_rows * row_width(s)
    if not run.narrow_dispatch:
        return ()
    cycles = narrow_kernels.ROW_BLOCKS * values
    share = dispatched_bytes(run) / DTYPE_BYTES[run.dtype]
    name = f"{name}.rows.turn"
    return (issued("cat", name, values, cycles, activity=1.0, reads=share, writes=share, dtype=run.dtype),)


def _grouped_backward(
    name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int, *, cast: bool
) -> tuple[Launch, ...]:
    dtype, narrow = s.dtype, s.implementation.narrow
    dgrad = _grouped(f"{name}.dgrad", e, e.rows, inputs, outputs, dtype, "nn")
    wgrad = _grouped(f"{name}.wgrad", e, outputs, inputs, e.rows, dtype, "nt")
    added = added_up(Launch(wgrad, completes=f"{name}.weight"), s.implementation.gradient_dtype)
    return (
        *(_cast(f"{name}.grad", s, e, outputs, gradient=True) if cast else ()),
        narrow_kernels.product(Launch(dgrad), narrow),
        narrow_kernels.product(added, narrow),
    )


def _grouped(name: str, e: ExpertShard, m: int, n: int, k: int, dtype: str, layout: str) -> Gemm:
    return Gemm(
        m, n, k, dtype=dtype, layout=layout, batch=e.experts, footprint_bytes=math.inf, name=name, separate=True
    )
