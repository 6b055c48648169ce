"""Attention over a sequence that is split over context-parallel ranks, as PyTorch's ``context_parallel`` does it.

The chunks are those of :mod:`joulecast.model.transformer.context_parallel`, the steps those of its ring, each a kernel
of its own. torchtitan gives attention its keys and values repeated for every head, and so they are sent. They are put
into one buffer and either gathered once, beside the first step (``all_gather``), or sent on around the ring beside
each step (``p2p``; PyTorch's all-to-all). Results and gradients are added up in fp32:

    forward    O += σ(l' − l)·(O' − O) in each later step; O rounded at the end
    backward   dQ, dK, dV filled with zeros; each step adds to them; dK and dV go on to the next rank in fp32,
               c times in all, the last time with nothing beside it; all rounded at the end

Compiled, what a step adds is one kernel for each tensor. Eagerly O' is widened, then subtracted, scaled and subtracted
again, and a step of half the queries or keys copies the whole tensor anew.

Source: ``_templated_ring_attention``, its backward, ``_SDPAMerger`` and the two rotaters in PyTorch's
``torch/distributed/tensor/experimental/_attention.py`` (2024 and 2025); ``repeat_kv`` in torchtitan's Llama. Nothing of
it was measured here.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.ring_steps import kv_values, local_step, step, step_queries
from joulecast.model.transformer.row_operators import rounded, widened

#: Type in which results and gradients are added up.
SUMS = "fp32"


def forward(s: Shard) -> tuple[Launch, ...]:
    """Attention of one rank, with its communication and what joins its steps."""
    ranks, own = s.implementation.context_parallel, _every_head(s)
    repeated = streaming("copy", "attention.keys.repeat", kv_values(own), reads=_share(s), dtype=s.dtype)
    out = [repeated, *_sent(own), local_step(own, "forward")]
    for number in range(1, ranks):
        out += _arrived(own, step(own, "forward", number), number)
        out += _joined(own, step_queries(own, number) * s.attention_width)
    return (*out, rounded("attention.round", s.tokens * s.attention_width))


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`; those of keys and values follow them around the ring."""
    ranks, own = s.implementation.context_parallel, _every_head(s)
    queries, keys = float(s.tokens * s.attention_width), kv_values(own)
    out = [streaming("fill", "attention.grad.fill", queries + keys, reads=0, dtype=SUMS)]
    out += [*_sent(own), local_step(own, "backward"), *_added(own, queries + keys), *_passed_on(own)]
    for number in range(1, ranks):
        out += _arrived(own, step(own, "backward", number), number, behind=1)
        added = _added(own, step_queries(own, number) * s.attention_width + _step_keys(own, number))
        sent_since = not _gathers(s) and number < ranks - 1
        out += [replace(added[0], waits=True, outstanding=int(sent_since)), *added[1:], *_passed_on(own)]
    narrow = rounded("attention.grad.round", queries + keys)
    summed = streaming("reduce", "attention.keys.grad.sum", keys, writes=_share(s), dtype=s.dtype)
    return (*out, replace(narrow, waits=True), summed)


def _every_head(s: Shard) -> Shard:
    """The shard with keys and values repeated for every head."""
    return replace(s, kv_heads=s.heads)


def _gathers(s: Shard) -> bool:
    return s.implementation.cp_comm_type == "all_gather"


def _share(s: Shard) -> float:
    return s.kv_heads / s.heads


def _step_keys(s: Shard, number: int) -> float:
    """Values of the gradients of keys and values that a later step gives."""
    return kv_values(s) * (0.5 if step_queries(s, number) == s.tokens else 1.0)


def _sent(s: Shard) -> tuple[Launch, ...]:
    """Keys and values in one buffer, and its first way to others."""
    ranks, values = s.implementation.context_parallel, kv_values(s)
    size = values * DTYPE_BYTES[s.dtype]
    moved = _communication(s, "all_gather", ranks * size) if _gathers(s) else _communication(s, "ring_step", size)
    return streaming("cat", "attention.keys.pack", values, dtype=s.dtype), moved


def _arrived(s: Shard, kernel: Launch, number: int, *, behind: int = 0) -> tuple[Launch, ...]:
    """A later step's kernel, which waits for its keys but not for ``behind`` communications since.

    Around the ring it first sends on what it got, beside itself.
    """
    if _gathers(s):
        return (replace(kernel, waits=True, outstanding=behind * number),)
    if number == s.implementation.context_parallel - 1:
        return (replace(kernel, waits=True, outstanding=behind),)
    pack, sent = _sent(s)
    return replace(pack, waits=True, outstanding=behind), sent, kernel


def _passed_on(s: Shard) -> tuple[Launch, ...]:
    """Gradients of keys and values in one buffer, and on to the next rank."""
    values = kv_values(s)
    packed = streaming("cat", "attention.keys.grad.pack", values, dtype=SUMS)
    return packed, _communication(s, "ring_step", values * DTYPE_BYTES[SUMS], grad=True)


def _joined(s: Shard, values: float) -> tuple[Launch, ...]:
    """A step's result added to those before, in fp32."""
    name, whole = "attention.join", float(s.tokens * s.attention_width)
    if s.implementation.compiled:
        return (streaming("add", name, values, reads=1.5, dtype=SUMS),)
    anew = (streaming("cat", f"{name}.anew", whole, dtype=SUMS),) if values < whole else ()
    return (
        widened(f"{name}.widen", values, s.dtype),
        streaming("add", f"{name}.difference", values, reads=2, dtype=SUMS),
        streaming("unary", f"{name}.scaled", values, dtype=SUMS),
        streaming("add", name, values, reads=2, dtype=SUMS),
        *anew,
    )


def _added(s: Shard, values: float) -> tuple[Launch, ...]:
    """A step's gradients added to those before, in fp32."""
    name, whole = "attention.grad.join", float(s.tokens * s.attention_width) + kv_values(s)
    added = streaming("add", name, values, reads=1.5, dtype=SUMS)
    if s.implementation.compiled or values == whole:
        return (added,)
    return added, streaming("cat", f"{name}.anew", whole - values, dtype=SUMS)


def _communication(s: Shard, kind: str, size_bytes: float, *, grad: bool = False) -> Launch:
    """What the context-parallel ranks send beside the kernels that follow."""
    run, name = s.implementation, f"attention.keys.{'grad.' if grad else ''}{kind}"
    launch = collective(kind, name, size_bytes, run, ranks=run.context_parallel, fabric=run.context_fabric)
    return replace(launch, waits=False)
