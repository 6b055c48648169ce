"""How tokens reach the experts of a layer and come back: their split over ranks, the router, copies and communication.

Every rank routes its own share of the tokens, copies each to as many experts as it chooses, sends the copies to the
ranks that hold these (all-to-all over the expert-parallel group, all-gather over the ranks that share an expert), sorts
them by expert, and the same way back:

    router, permute ⟨all-to-all, all-gather⟩ sort, experts, sort ⟨reduce-scatter, all-to-all⟩ unpermute

The ``flex`` dispatcher (DeepEP, HybridEP) sends a token once to each domain that has an expert of it, or within one
domain once to each such rank, straight from where it lies, and copies it there: of k choices among p equal parts
p·(1 − (1 − 1/p)^k) are different on average, p being those that its router may choose from (node-limited routing).
Its results are summed there, too, and on their way back: nothing is permuted where tokens come from. It may send in FP8
what goes to experts, tokens and gradients of results, and brings back in the layers' type what they make. HybridEP
sends more than tokens (:mod:`.hybrid_exchange`).

The rows of a rank's experts are the mean times a load: either the capacity factor, to which every expert is padded or
cut, or without one (dropless) how far the busiest rank lies above the mean, for all wait for it.

Sources: Lepikhin et al., GShard, arXiv 2006.16668; Fedus et al., Switch Transformers, arXiv 2101.03961 (capacity
factor); Megatron-Core ``moe_layer`` and ``token_dispatcher`` (all-to-all); DeepSeek-V3, arXiv 2412.19437, section 3.3.3
(FP8 on the way to experts).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.model.architecture.experts import Experts
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm, Streaming
from joulecast.model.transformer import hybrid_exchange, row_operators, stored_narrow, unfused_router
from joulecast.model.transformer.expert_parts import met

#: Rows of an expert are padded to a multiple of this, as FP8 needs it; other types take any number at the same pace.
ROW_STEP = 16
#: Share of the reads of rows in random order that cost what they do from memory, though most were read before: copies
#: of 2 and 8 rows a token on an H200, 0.69 to 0.89 (`calibrate/recorded/h200_sxm_beside/row_copies.jsonl`) [estimate].
REPEATED_READS = 0.8
#: What PyTorch's own operators take for a value, in values of its element-wise kernels on strided data, which the SMs'
#: instructions bind as well: to copy it where rows are sorted, to add it to a sum of ``embedding_bag`` with a weight or
#: without, and to begin such a sum [estimates]. From kernels' times in the first two iterations of
#: `validate/recorded/h200_sxm/train_experts.jsonl`, of 2 and 8 experts a token; those of the third are met within 5 %.
COPIED, WEIGHTED, ADDED, BEGUN = 0.88, 0.95, 0.6, 4.3


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
    experts, run = experts_of(s), s.implementation
    local = experts.count // run.expert_parallel
    sent = s.norm_tokens * experts.active
    ffn = experts.ffn // run.expert_tensor_parallel
    rows = math.ceil(sent * run.expert_tensor_parallel * run.expert_load / local / ROW_STEP) * ROW_STEP
    return ExpertShard(sent, local, rows, ffn, ffn * (2 if s.config.gated_mlp else 1))


def expert_bytes(s: Shard) -> float:
    """What routing and experts keep: rows as they arrive and after each product, their weights, fp32 scores twice.

    Eager mode also keeps the activated gate, and the experts' results, which the gradient of their weights reads.
    """
    e, run, width = expert_shard(s), s.implementation, row_width(s)
    wide = float(DTYPE_BYTES[run.dtype])
    read = wide if run.narrow is None else run.narrow.value_bytes  # by products
    made = e.up_width * stored_narrow.activation_input_bytes(run) + clamped_width(s, e) * wide
    rows = e.all_rows * (width * read + made + e.ffn * read + 4.0)
    if not run.megatron:
        rows += wide * (e.all_rows * (e.ffn if s.config.gated_mlp else 0) + e.sent * width)
        rows += 0.0 if run.compiled else e.sent * width * row_operators.kept_value_bytes(run.row_operator, run.dtype)
    rows += s.norm_tokens * experts_of(s).latent * read  # which the projection back reads
    return rows + 2 * 4.0 * s.norm_tokens * experts_of(s).count


def clamped_width(s: Shard, e: ExpertShard) -> int:
    """Values of a row that Megatron keeps a second time, clamped (gpt-oss); fused products clamp them anew."""
    run = s.implementation
    return e.up_width if run.megatron and experts_of(s).bias and not run.fused_experts else 0


def experts_of(s: Shard) -> Experts:
    """The layer's experts."""
    if s.config.experts is None:
        raise TypeError("a model without experts")
    return s.config.experts


def row_width(s: Shard) -> int:
    """Values of a row that goes to an expert."""
    return experts_of(s).row_width(s.hidden)


def router_forward(s: Shard) -> tuple[Launch, ...]:
    """Product, softmax in fp32, choice, and the numbers of rows that the ranks tell each other."""
    experts, tokens = experts_of(s), s.norm_tokens
    dtype = s.implementation.router_dtype or s.dtype
    product = Gemm(tokens, experts.count, s.hidden, dtype=dtype, footprint_bytes=math.inf, name="router")
    return (
        *widened_input(s),
        Launch(product),
        *unfused_router.forward(experts, tokens, fused=s.implementation.fused_router),
        *_numbers_of_rows(s),
    )


def _numbers_of_rows(s: Shard) -> tuple[Launch, ...]:
    """What the ranks tell each other of their tokens' choices: a number for each expert, or HybridEP all of them."""
    run, experts = s.implementation, experts_of(s)
    if run.hybrid_exchange:
        return hybrid_exchange.choices(run, experts, s.norm_tokens)
    return _among_experts(s, "all_gather", "router.counts.all_gather", 4.0 * experts.count * run.expert_parallel)


def widened_input(s: Shard) -> tuple[Launch, ...]:
    """The router's input in fp32, where it multiplies so."""
    if s.implementation.router_dtype in (None, s.dtype):
        return ()
    return (row_operators.widened("router.input.widen", s.stream_values, s.dtype),)


def copies(name: str, s: Shard, e: ExpertShard, *, reads: float = 1.0, writes: float = 1.0) -> Launch:
    """Rows gathered from tokens, or summed into them."""
    hidden = row_width(s)
    return streaming(
        "embedding", name, e.sent * hidden, reads=reads, writes=writes, dtype=s.dtype, rows=e.sent, columns=hidden
    )


def summed(name: str, s: Shard, e: ExpertShard, *, weighted: bool = False) -> Launch:
    """Rows of each token's experts summed into one, ``weighted`` by its router's weights or not."""
    active, hidden = experts_of(s).active, row_width(s)
    if s.implementation.fused_permutation:
        return copies(name, s, e, writes=1 / active)
    values = s.norm_tokens * hidden * (BEGUN + active * (WEIGHTED if weighted else ADDED))
    return _issued(name, s, values, e.sent * hidden, s.norm_tokens * hidden)


def _issued(name: str, s: Shard, values: float, read: float, written: float) -> Launch:
    """A kernel with a thread for every value it writes: paced as ``values`` of an element-wise one on strided data."""
    wide = s.value_bytes
    operator = Streaming(
        "strided_unary",
        values * wide,
        values * wide,
        elements=read,
        dtype=s.dtype,
        footprint_bytes=0.0,
        far_bytes=(read + written) * wide,
        name=name,
    )
    return Launch(operator)


def random_reads(s: Shard) -> float:
    """Reads of tokens' rows that are copied to every expert chosen, as a share of the copies."""
    return max(1.0 / experts_of(s).active, REPEATED_READS)


def dispatched_bytes(run: Implementation) -> float:
    """Bytes of a value on its way to experts, with its share of the scales in FP8; what they make comes back whole."""
    return run.narrow.value_bytes if run.narrow_dispatch and run.narrow else float(DTYPE_BYTES[run.dtype])


def to_experts(name: str, s: Shard, e: ExpertShard, *, weighted: bool = False) -> tuple[Launch, ...]:
    """Rows to the ranks of their experts, there sorted by expert; ``weighted``: with their tokens' weights."""
    value = dispatched_bytes(s.implementation)
    size, share = e.sent * row_width(s) * value, value / s.value_bytes
    sent = size + weighted * hybrid_exchange.weight_bytes(s.implementation, experts_of(s), e.sent)
    return (
        *_among_experts(s, _exchange(s), f"{name}.all_to_all", sent * _sent_share(s)),
        *_among_shares(s, "all_gather", f"{name}.all_gather", size * s.implementation.expert_tensor_parallel),
        *_sorting(name, s, e, reads=share * _arriving(s), writes=share, cycles=hybrid_exchange.SORTED),
    )


def from_experts(name: str, s: Shard, e: ExpertShard, *, weighted: bool = False) -> tuple[Launch, ...]:
    """The way back; ``weighted``: with gradients of the weights."""
    size = e.sent * row_width(s) * s.value_bytes
    fetched = e.sent * _sent_share(s) if s.implementation.hybrid_exchange else 0.0
    sent = size + weighted * hybrid_exchange.weight_bytes(s.implementation, experts_of(s), e.sent)
    return (
        *_sorting(name, s, e, writes=_arriving(s), cycles=hybrid_exchange.SUMMED),
        *_among_shares(s, "reduce_scatter", f"{name}.reduce_scatter", size * s.implementation.expert_tensor_parallel),
        *_among_experts(s, _exchange(s), f"{name}.all_to_all", sent * _sent_share(s), fetched),
    )


def permuted(launch: Launch, s: Shard) -> tuple[Launch, ...]:
    """Copying to experts, or summing from them, on the rank that tokens come from: none with ``flex``."""
    return () if s.implementation.expert_dispatcher == "flex" else (launch,)


def padded(name: str, s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Copy of the experts' rows into, or out of, numbers of rows that FP8's and FP4's products take.

    Transformer Engine's ``Fp8Padding`` around the products of Megatron-Core's ``TEGroupedMLP``. HybridEP and DeepEP pad
    as they sort, and a capacity is the same for all experts.
    """
    run = s.implementation
    if run.narrow is None or not run.pads_experts or run.expert_dispatcher == "flex":
        return ()
    return (streaming("copy", name, e.all_rows * row_width(s), dtype=run.dtype),)


def _exchange(s: Shard) -> str:
    """Kind of the communication between ranks."""
    if s.implementation.expert_dispatcher != "flex":
        return "all_to_all"
    return "hybrid_exchange" if s.implementation.hybrid_exchange else "token_exchange"


def _arriving(s: Shard) -> float:
    """Rows that reach a rank over those that its experts take: with ``flex`` a token comes once for all of them."""
    run, experts = s.implementation, experts_of(s)
    if run.expert_dispatcher != "flex":
        return 1.0
    return max(met(experts, run.expert_parallel) / experts.active, REPEATED_READS)


def _sent_share(s: Shard) -> float:
    """Rows that the busiest rank exchanges over those that its tokens are copied to."""
    run, experts = s.implementation, experts_of(s)
    if run.expert_dispatcher != "flex":
        return run.expert_load
    domains = run.expert_fabric.domains if run.expert_fabric is not None else 1
    return run.expert_load * met(experts, domains if domains > 1 else run.expert_parallel) / experts.active


def _arrived(s: Shard, e: ExpertShard) -> float:
    """Tokens that reach the busiest rank, each once."""
    run, experts = s.implementation, experts_of(s)
    return run.expert_load * e.sent * met(experts, run.expert_parallel) / experts.active


def _sorting(
    name: str, s: Shard, e: ExpertShard, *, cycles: float, reads: float = 1.0, writes: float
) -> tuple[Launch, ...]:
    """Rows from several ranks are in these ranks' order, not in the experts'; Megatron sorts those of one as well.

    ``cycles`` are what HybridEP's kernels take for each token that arrives and each expert.
    """
    run, hidden = s.implementation, row_width(s)
    alone = run.expert_parallel * run.expert_tensor_parallel == 1 and not run.megatron
    if e.experts == 1 or alone:
        return ()
    rows = e.all_rows
    if not run.fused_permutation:
        return (_issued(f"{name}.sort", s, COPIED * rows * hidden, rows * hidden, rows * hidden),)
    sort = streaming(
        "embedding",
        f"{name}.sort",
        rows * hidden,
        reads=reads,
        writes=writes,
        dtype=run.dtype,
        rows=rows,
        columns=hidden,
        sm_cycles=cycles * e.experts * _arrived(s, e) if run.hybrid_exchange else 0.0,
    )
    return (sort,)


def _among_experts(s: Shard, kind: str, name: str, size_bytes: float, rows: float = 0.0) -> tuple[Launch, ...]:
    """A communication among the ranks that share a layer's experts, which may fetch ``rows``."""
    run = s.implementation
    return _spoken(s, kind, name, size_bytes, run.expert_parallel, run.expert_fabric, rows)


def _among_shares(s: Shard, kind: str, name: str, size_bytes: float) -> tuple[Launch, ...]:
    """A communication among the ranks that share each expert."""
    run = s.implementation
    return _spoken(s, kind, name, size_bytes, run.expert_tensor_parallel, run.expert_tensor_fabric)


def _spoken(
    s: Shard, kind: str, name: str, size_bytes: float, ranks: int, fabric: Fabric | None, rows: float = 0.0
) -> tuple[Launch, ...]:
    if ranks == 1:
        return ()
    return (collective(kind, name, size_bytes, s.implementation, ranks=ranks, fabric=fabric, rows=rows),)
