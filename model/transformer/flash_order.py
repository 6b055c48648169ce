"""Copies by which Transformer Engine hands FlashAttention's package tensors with sequences first.

Megatron's activations have positions first, and FlashAttention takes queries, keys and values of one sequence after
the other. With several sequences and context parallelism by ``all_gather`` Transformer Engine copies (classes
``FlashAttention`` and ``AttnFuncWithCPAndKVAllGather`` of its ``dot_product_attention``): queries, keys and values;
keys and values back, to gather them; each chunk's queries and the keys and values that it sees, in the backward with
results and gradients; and results and gradients into the whole. A single sequence lies right as it is. cuDNN, which
takes positions first, needs none of it.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, reordered
from joulecast.model.framework.layer_shard import Shard

Launches = tuple[Launch, ...]


def of_chunks(s: Shard, direction: str, gathered: float, seen: float) -> tuple[Launches, Launches]:
    """Copies before and behind the kernels of a rank's two chunks.

    Parameters
    ----------
    gathered
        Keys and values of all ranks.
    seen
        Those that the two chunks see together.
    """
    run = s.implementation
    if run.framework != "megatron" or run.attention_backend != "flash-attn-2" or s.batch == 1:
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
