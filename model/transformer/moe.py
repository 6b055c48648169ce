"""The Mixture-of-Experts half of a layer as Megatron-Core runs it, forward and backward.

Every rank routes its own share of the tokens, copies each to as many experts as it chooses, sends the copies to the
ranks that hold these (all-to-all over the expert-parallel group, all-gather over the ranks that share an expert), sorts
them by expert, multiplies all experts' rows in grouped products, and the same way back:

    norm, router, permute ⟨all-to-all, all-gather⟩ sort, up, activation, down, sort ⟨reduce-scatter, all-to-all⟩ join

The ``flex`` dispatcher (DeepEP) sends a token once to each domain that has an expert of it, or within one domain once
to each such rank, and copies it there: of k choices among p equal parts p·(1 − (1 − 1/p)^k) are different on average.

Shared experts are a tensor-parallel MLP beside that. The rows of a rank's experts are the mean times a load: either the
capacity factor, to which every expert is padded or cut, or without one (dropless) how far the busiest rank lies above
the mean, for all wait for it. A grouped product runs expert by expert on several streams. The router's weights scale
what the experts' activation makes, in its kernel, so that nothing needs the experts' results again.

Sources: Lepikhin et al., GShard, arXiv 2006.16668; Fedus et al., Switch Transformers, arXiv 2101.03961 (capacity
factor); Megatron-Core ``moe_layer`` and ``token_dispatcher`` (all-to-all), ``TEGroupedMLP``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from joulecast.model.architecture.experts import Experts
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import fp8_kernels, megatron_mlp
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.megatron_norm import norm_backward, recomputed_norm

#: Rows of an expert are padded to a multiple of this, as FP8 needs it; other types take any number at the same pace.
ROW_STEP = 16
#: Share of the reads of rows in random order that cost what they do from memory, though most were read before: copies
#: of 2 and 8 rows a token on an H200, 0.69 to 0.89 (`calibrate/recorded/h200_sxm_beside/row_copies.jsonl`) [estimate].
REPEATED_READS = 0.8


@dataclass(frozen=True, slots=True)
class ExpertShard:
    """One rank's experts and what reaches them.

    Attributes
    ----------
    sent
        Copies of the rank's own tokens.
    experts, rows
        Experts that the rank holds (whole or a share of each), and rows of each that it multiplies.
    ffn, up_width
        Width of its share of an expert.
    """

    sent: int
    experts: int
    rows: int
    ffn: int
    up_width: int

    @property
    def all_rows(self) -> int:
        """Rows of all the rank's experts."""
        return self.experts * self.rows


def expert_shard(s: Shard) -> ExpertShard:
    """Split a layer's experts over their ranks, and the tokens over the experts."""
    experts, run = _shape(s), s.implementation
    local = experts.count // run.expert_parallel
    sent = s.norm_tokens * experts.active
    ffn = experts.ffn // run.expert_tensor_parallel
    rows = math.ceil(sent * run.expert_tensor_parallel * run.expert_load / local / ROW_STEP) * ROW_STEP
    return ExpertShard(sent, local, rows, ffn, ffn * (2 if s.config.gated_mlp else 1))


def expert_bytes(s: Shard) -> float:
    """What routing and experts keep: rows as they arrive and after each product, their weights, fp32 scores twice."""
    e, run, hidden = expert_shard(s), s.implementation, s.config.hidden
    wide = float(DTYPE_BYTES[run.dtype])
    read = wide if run.fp8 is None else run.fp8.value_bytes  # by products
    rows = e.all_rows * (hidden * read + e.up_width * wide + e.ffn * read + 4.0)
    return rows + 2 * 4.0 * s.norm_tokens * _shape(s).count


def forward(s: Shard) -> tuple[Launch, ...]:
    """Norm, experts and residual addition."""
    return (eager.norm_forward("norm2", s), *_experts_forward(s), eager.residual_addition("residual2", s))


def _experts_forward(s: Shard) -> tuple[Launch, ...]:
    """Everything between the norm and the residual addition."""
    e, dtype = expert_shard(s), s.implementation.dtype
    return (
        *_router_forward(s),
        *_shared_forward(s),
        _copies("permute", s, e, reads=_reads(s)),
        *_to_experts("dispatch", s, e),
        *_grouped_forward("experts.up", s, e, e.up_width, s.config.hidden),
        megatron_mlp.activation(s.config, e.all_rows * e.ffn, dtype),
        *_grouped_forward("experts.down", s, e, s.config.hidden, e.ffn),
        *_from_experts("combine", s, e),
        _copies("unpermute", s, e, writes=1 / _shape(s).active),
        *((eager.residual_addition("shared.add", s),) if s.ffn else ()),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """From the gradient behind the residual addition to the one before the norm."""
    e, dtype, run = expert_shard(s), s.implementation.dtype, s.implementation
    act = megatron_mlp.activation(s.config, e.all_rows * e.ffn, dtype)
    return (
        *recomputed_norm("norm2", s),
        *(_experts_forward(s) if run.recomputes("moe") else ()),
        _copies("unpermute.grad", s, e, reads=_reads(s)),
        *_to_experts("combine.grad", s, e),
        *((act, *_cast("experts.down", s, e.all_rows * e.ffn)) if run.recomputes("moe_act") else ()),
        *_grouped_backward("experts.down", s, e, s.config.hidden, e.ffn),
        megatron_mlp.activation_backward(s.config, e.all_rows * e.ffn, dtype),
        *_grouped_backward("experts.up", s, e, e.up_width, s.config.hidden),
        *_from_experts("dispatch.grad", s, e),
        _copies("permute.grad", s, e, writes=1 / _shape(s).active),
        *(_shared_forward(s) if run.recomputes("shared_experts") else ()),
        *_shared_backward(s),
        *_router_backward(s),
        eager.residual_addition("router.grad.join", s),
        *norm_backward("norm2", s),
        eager.residual_addition("norm2.grad.join", s),
    )


def _shape(s: Shard) -> Experts:
    if s.config.experts is None:
        raise TypeError("a model without experts")
    return s.config.experts


def _router_forward(s: Shard) -> tuple[Launch, ...]:
    """Product, softmax in fp32, choice, and the numbers of rows that the ranks tell each other."""
    experts, tokens = _shape(s), s.norm_tokens
    scores, dtype = tokens * experts.count, s.implementation.dtype
    counts = 4.0 * experts.count * s.implementation.expert_parallel
    product = Gemm(tokens, experts.count, s.config.hidden, dtype=dtype, footprint_bytes=math.inf, name="router")
    return (
        Launch(product),
        streaming("softmax", "router.softmax", scores, dtype="fp32", rows=tokens, columns=experts.count),
        streaming("reduce", "router.choice", scores, dtype="fp32", rows=tokens, columns=experts.count),
        *_among_experts(s, "all_gather", "router.counts.all_gather", counts),
    )


def _router_backward(s: Shard) -> tuple[Launch, ...]:
    count, hidden, tokens, dtype = _shape(s).count, s.config.hidden, s.norm_tokens, s.implementation.dtype
    scores = streaming("mul", "router.softmax.grad", tokens * count, reads=2, dtype="fp32")
    dgrad = Gemm(tokens, hidden, count, dtype=dtype, layout="nn", footprint_bytes=math.inf, name="router.dgrad")
    own = replace(s, tokens=tokens, implementation=replace(s.implementation, fp8=None))
    return scores, Launch(dgrad), linear.fused_weight_gradient("router", own, count, hidden)


def _shared_forward(s: Shard) -> tuple[Launch, ...]:
    if not s.ffn:
        return ()
    return (
        *linear.column_forward("", "shared_up", s, s.up_width),
        megatron_mlp.activation(s.config, s.tokens * s.ffn, s.implementation.dtype),
        *linear.row_forward("shared_down", s, s.ffn),
        *_gate(s, ""),
    )


def _shared_backward(s: Shard) -> tuple[Launch, ...]:
    if not s.ffn:
        return ()
    return (
        *_gate(s, ".grad"),
        *linear.row_backward("shared_down", s, s.ffn),
        megatron_mlp.activation_backward(s.config, s.tokens * s.ffn, s.implementation.dtype),
        *linear.column_backward("shared_up", s, s.up_width, normed=False),
        eager.residual_addition("shared.grad.join", s),
    )


def _gate(s: Shard, suffix: str) -> tuple[Launch, ...]:
    """Scaling of the shared experts' result by a gate of its own."""
    if not _shape(s).shared_gate:
        return ()
    values = s.norm_tokens * s.config.hidden
    return (streaming("mul", f"shared.gate{suffix}", values, reads=2, dtype=s.implementation.dtype),)


def _copies(name: str, s: Shard, e: ExpertShard, *, reads: float = 1.0, writes: float = 1.0) -> Launch:
    """Rows gathered from tokens, or summed into them."""
    hidden = s.config.hidden
    return streaming(
        "embedding",
        name,
        e.sent * hidden,
        reads=reads,
        writes=writes,
        dtype=s.implementation.dtype,
        rows=e.sent,
        columns=hidden,
    )


def _reads(s: Shard) -> float:
    """Reads of tokens' rows that are copied to every expert chosen, as a share of the copies."""
    return max(1.0 / _shape(s).active, REPEATED_READS)


def _to_experts(name: str, s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Rows to the ranks of their experts, there sorted by expert."""
    size = float(e.sent * s.config.hidden * DTYPE_BYTES[s.implementation.dtype])
    return (
        *_among_experts(s, "all_to_all", f"{name}.all_to_all", size * _sent_share(s)),
        *_among_shares(s, "all_gather", f"{name}.all_gather", size * s.implementation.expert_tensor_parallel),
        *_sorting(name, s, e),
    )


def _from_experts(name: str, s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """The way back."""
    size = float(e.sent * s.config.hidden * DTYPE_BYTES[s.implementation.dtype])
    return (
        *_sorting(name, s, e),
        *_among_shares(s, "reduce_scatter", f"{name}.reduce_scatter", size * s.implementation.expert_tensor_parallel),
        *_among_experts(s, "all_to_all", f"{name}.all_to_all", size * _sent_share(s)),
    )


def _sent_share(s: Shard) -> float:
    """Rows that the busiest rank exchanges over those that its tokens are copied to."""
    run, chosen = s.implementation, _shape(s).active
    if run.expert_dispatcher != "flex":
        return run.expert_load
    domains = run.expert_fabric.domains if run.expert_fabric is not None else 1
    return run.expert_load * different_parts(chosen, domains if domains > 1 else run.expert_parallel) / chosen


def different_parts(chosen: int, parts: int) -> float:
    """Expected number of different parts among ``chosen`` independent, equally likely ones of ``parts``."""
    return parts * (1.0 - (1.0 - 1.0 / parts) ** chosen)


def _sorting(name: str, s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Rows from several ranks are in these ranks' order, not in the experts'."""
    run, hidden = s.implementation, s.config.hidden
    if e.experts == 1 or run.expert_parallel * run.expert_tensor_parallel == 1:
        return ()
    rows = e.all_rows
    return (streaming("embedding", f"{name}.sort", rows * hidden, dtype=run.dtype, rows=rows, columns=hidden),)


def _among_experts(s: Shard, kind: str, name: str, size_bytes: float) -> tuple[Launch, ...]:
    """A communication among the ranks that share a layer's experts."""
    run = s.implementation
    return _spoken(s, kind, name, size_bytes, run.expert_parallel, run.expert_fabric)


def _among_shares(s: Shard, kind: str, name: str, size_bytes: float) -> tuple[Launch, ...]:
    """A communication among the ranks that share each expert."""
    run = s.implementation
    return _spoken(s, kind, name, size_bytes, run.expert_tensor_parallel, run.expert_tensor_fabric)


def _spoken(s: Shard, kind: str, name: str, size_bytes: float, ranks: int, fabric: Fabric | None) -> tuple[Launch, ...]:
    if ranks == 1:
        return ()
    return (collective(kind, name, size_bytes, s.implementation, ranks=ranks, fabric=fabric),)


def _grouped_forward(name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int) -> tuple[Launch, ...]:
    """One product for each expert."""
    dtype, fp8 = s.implementation.dtype, s.implementation.fp8
    return (
        *_cast(name, s, e.all_rows * inputs),
        fp8_kernels.product(Launch(_grouped(name, e, e.rows, outputs, inputs, dtype, "tn")), fp8),
    )


def _cast(name: str, s: Shard, values: int) -> tuple[Launch, ...]:
    """FP8 copies of a product's input, where products are in FP8."""
    run = s.implementation
    return fp8_kernels.quantise(f"{name}.input", values, run.fp8, run.dtype)


def _grouped_backward(name: str, s: Shard, e: ExpertShard, outputs: int, inputs: int) -> tuple[Launch, ...]:
    dtype, fp8 = s.implementation.dtype, s.implementation.fp8
    dgrad = _grouped(f"{name}.dgrad", e, e.rows, inputs, outputs, dtype, "nn")
    wgrad = _grouped(f"{name}.wgrad", e, outputs, inputs, e.rows, dtype, "nt")
    added = replace(wgrad, out_dtype=s.implementation.gradient_dtype, accumulate=True)
    return (
        *fp8_kernels.quantise(f"{name}.grad", e.all_rows * outputs, fp8, dtype),
        fp8_kernels.product(Launch(dgrad), fp8),
        fp8_kernels.product(Launch(added, completes=f"{name}.weight"), fp8),
    )


def _grouped(name: str, e: ExpertShard, m: int, n: int, k: int, dtype: str, layout: str) -> Gemm:
    return Gemm(
        m, n, k, dtype=dtype, layout=layout, batch=e.experts, footprint_bytes=math.inf, name=name, separate=True
    )
