"""Attention over a sequence that is split over context-parallel ranks, as Transformer Engine does it.

With ``c`` ranks a rank holds chunks r and 2c − 1 − r of the 2c that a sequence is cut into, so that causal attention is
the same work on every rank. Queries stay, keys and values move:

``p2p``
    around a ring, beside attention. The first step is causal over the rank's own positions; each later one is half of
    its pairs unmasked, all queries with half of the keys or half of the queries with all keys. Partial results are
    joined after every step. In the backward the gradients of keys and values follow them around the ring. Of packed
    documents each is cut into the 2c chunks; what a later step takes a half of lies in pieces then, and is copied.
``all_gather``
    to every rank before attention, which then runs for each of its two chunks with the keys before it, in a window of W
    keys with the last W of them; their gradients are summed by a reduce-scatter. FlashAttention takes one sequence
    after the other where Megatron has positions first: of several sequences Transformer Engine copies queries, keys and
    values, keys and values back to gather them, each chunk's queries and the keys and values that it sees, in the
    backward with results and gradients, and results and gradients into the whole.
``a2a``
    heads are exchanged for positions by an all-to-all in front of attention, and back behind it.

Sources: Liu et al., Ring Attention, arXiv 2310.01889; Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509; Llama 3,
arXiv 2407.21783, section 3.3.2; Transformer Engine 2, ``context_parallel``, and ``FlashAttention`` and
``AttnFuncWithCPAndKVAllGather`` of its ``dot_product_attention``. The names are those of Megatron's ``cp_comm_type``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, collective, reordered, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention
from joulecast.model.transformer import attention_kernel
from joulecast.model.transformer.ring_steps import kernel_of, kv_values, local_step, step, step_queries

Launches = tuple[Launch, ...]


def attention(s: Shard, direction: str) -> tuple[Launch, ...]:
    """Attention of one rank with its communication, ``forward`` or ``backward``."""
    kind = s.implementation.cp_comm_type
    if kind == "all_gather":
        return _gathered(s, direction)
    if kind == "a2a":
        return _exchanged(s, direction)
    return _ring_forward(s) if direction == "forward" else _ring_backward(s)


def kept_bytes(s: Shard) -> float:
    """What is kept beside queries, keys, values and what the next product reads.

    Attention's own results, where they are put together or exchanged behind it, and outside Megatron keys and values as
    they are sent. Twelve peaks on H200s (`validate/recorded/h200_sxm/train_context.jsonl`) are met within 0.1 %.
    """
    run = s.implementation
    if run.context_parallel == 1:
        return 0.0
    values = 0.0 if run.cp_comm_type == "p2p" else float(s.tokens * s.attention_width)
    if not run.megatron and run.cp_comm_type != "a2a":
        values += kv_values(s)
    return DTYPE_BYTES[s.dtype] * values


def _ring_forward(s: Shard) -> tuple[Launch, ...]:
    ranks = s.implementation.context_parallel
    out = [_hop(s, "attention.ring") for _ in range(ranks - 1)]
    out.append(local_step(s, "forward"))
    for number in range(1, ranks):
        joined = step_queries(s, number) * s.attention_width
        out += _arrived(s, "forward", number, ranks - 1 - number)
        out.append(streaming("add", "attention.join", joined, reads=2, dtype=s.dtype))
    return tuple(out)


def _ring_backward(s: Shard) -> tuple[Launch, ...]:
    ranks, dtype = s.implementation.context_parallel, s.dtype
    out = [_hop(s, "attention.ring") for _ in range(ranks - 1)]
    out.append(local_step(s, "backward"))
    gradient = streaming("add", "attention.ring.grad.join", kv_values(s), reads=2, dtype=dtype)
    for number in range(1, ranks):
        # Of the communications so far, this step's keys are number ``number`` − 1.
        out += _arrived(s, "backward", number, ranks - 2)
        joined = step_queries(s, number) * s.attention_width
        out.append(streaming("add", "attention.join.grad", joined, reads=2, dtype=dtype))
        if number > 1:
            out.append(replace(gradient, waits=True))
        out.append(_hop(s, "attention.ring.grad"))
    return (*out, replace(gradient, waits=True))


def _arrived(s: Shard, direction: str, number: int, outstanding: int) -> tuple[Launch, ...]:
    """A later step's kernel, which waits for its keys; half of packed documents' keys or queries are copied for it."""
    kernel = step(s, direction, number)
    if s.implementation.documents is None:
        return (replace(kernel, waits=True, outstanding=outstanding),)
    queries = s.tokens * s.attention_width * (3 if direction == "backward" else 1)  # with results and their gradients
    halved = kv_values(s) if step_queries(s, number) == s.tokens else queries
    copied = streaming("copy", f"attention.half.{direction}", halved / 2, dtype=s.dtype)
    return replace(copied, waits=True, outstanding=outstanding), kernel


def _gathered(s: Shard, direction: str) -> tuple[Launch, ...]:
    ranks, half, dtype = s.implementation.context_parallel, s.sequence // 2, s.dtype
    everything = ranks * kv_values(s)
    size = everything * DTYPE_BYTES[dtype]
    chunks = _slowest_chunks(s)
    seen = [min((chunk + 1) * half, half + (s.config.window or s.sequence * ranks)) for chunk in chunks]
    kernels = [_paired(kernel_of(s, direction, half, keys, causal=True)) for keys in seen]
    touched = everything * sum(seen) / (ranks * s.sequence)
    before, after = _sequences_first(s, direction, everything, touched)
    out = [
        _collective(s, "all_gather", "attention.keys.all_gather", size),
        streaming("cat", "attention.keys.order", everything, dtype=dtype),
        *before,
        *kernels,
        *after,
    ]
    if direction == "backward":
        joined = min(everything, touched) / 2
        out.append(streaming("add", "attention.keys.grad.join", joined, reads=2, dtype=dtype))
        out.append(streaming("cat", "attention.keys.grad.order", everything, dtype=dtype))
        out.append(_collective(s, "reduce_scatter", "attention.keys.grad.reduce_scatter", size))
    return tuple(out)


def _sequences_first(s: Shard, direction: str, gathered: float, seen: float) -> tuple[Launches, Launches]:
    """Copies for FlashAttention before and behind the kernels of two chunks, which see so many of the keys and values
    that are ``gathered``.
    """
    run = s.implementation
    if not run.megatron or run.attention_backend != "flash-attn-2" or s.batch == 1:
        return (), ()
    queries, local = float(s.tokens * s.attention_width), gathered / run.context_parallel
    if direction == "forward":
        before = {"attention.order": queries + 2.0 * local, "attention.chunks.order": queries + seen}
        after = {"attention.into": queries, "attention.result.order": queries}
    else:
        before = {"attention.grad.chunks.order": 3.0 * queries + seen}
        after = {"attention.grad.into": queries, "attention.keys.grad.chunks.order": seen}
    copied = [tuple(reordered(name, values, run.dtype) for name, values in one.items()) for one in (before, after)]
    return copied[0], copied[1]


def _slowest_chunks(s: Shard) -> tuple[int, int]:
    """Places of the two chunks of the rank that takes longest.

    Any pair is as much work. Of deterministic kernels, which leave SMs to each other, that of the first and the last
    takes longest; in a window the first chunk has less to do, which those in the middle have not.
    """
    ranks = s.implementation.context_parallel
    if 0 < s.config.window < s.sequence * ranks:
        return ranks - 1, ranks
    if s.implementation.deterministic:
        return 0, 2 * ranks - 1
    return (ranks - 1) // 2, 2 * ranks - 1 - (ranks - 1) // 2


def _exchanged(s: Shard, direction: str) -> tuple[Launch, ...]:
    dtype, ranks = s.dtype, s.implementation.context_parallel
    names = ("heads", "positions") if direction == "forward" else ("positions.grad", "heads.grad")
    widths = (s.qkv_width, s.attention_width) if direction == "forward" else (s.attention_width, s.qkv_width)
    kernel = attention_kernel.attention(s, direction)
    sequence = ranks * s.sequence
    kernel = replace(kernel, sequence=sequence, heads=s.heads // ranks, kv_heads=max(1, s.kv_heads // ranks))
    before, after = (
        (
            _collective(s, "all_to_all", f"attention.{name}.all_to_all", s.tokens * width * DTYPE_BYTES[dtype]),
            streaming("cat", f"attention.{name}.order", s.tokens * width, dtype=dtype),
        )
        for name, width in zip(names, widths, strict=True)
    )
    return (*before, Launch(kernel), *after)


def _paired(launch: Launch) -> Launch:
    """One of two kernels that Transformer Engine puts on two streams; only deterministic ones leave SMs to another."""
    kernel = launch.operator
    if not isinstance(kernel, Attention) or not kernel.deterministic:
        return launch
    return replace(launch, operator=replace(kernel, deterministic=2))


def _hop(s: Shard, name: str) -> Launch:
    """Keys and values (or their gradients) to the next rank and from the one before, beside what follows."""
    run = s.implementation
    width = DTYPE_BYTES[run.dtype if name.endswith(".grad") else run.attention_dtype]
    launch = _collective(s, "ring_step", name, kv_values(s) * width)
    return replace(launch, waits=False, prompt=True)


def _collective(s: Shard, kind: str, name: str, size_bytes: float) -> Launch:
    """A communication among the context-parallel ranks that attention waits for."""
    run = s.implementation
    return collective(kind, name, size_bytes, run, ranks=run.context_parallel, fabric=run.context_fabric)
