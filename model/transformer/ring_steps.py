"""Kernels of attention in a ring of context-parallel ranks, by Transformer Engine and by PyTorch alike.

A rank's first step is causal over its own positions. Each later one is half of its pairs without a mask: all queries
with half of the keys of an earlier rank, or half of the queries with all keys of a later one.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import attention_kernel


def local_step(s: Shard, direction: str) -> Launch:
    """The rank's own positions, causal."""
    return kernel_of(s, direction, s.sequence, s.sequence, causal=True)


def step(s: Shard, direction: str, number: int) -> Launch:
    """A later step of the ring, unmasked: half of an earlier rank's keys, or half of the queries."""
    queries = step_queries(s, number) // s.batch
    keys = s.sequence if queries < s.sequence else s.sequence // 2
    return kernel_of(s, direction, queries, keys, causal=False)


def step_queries(s: Shard, number: int) -> int:
    """Query positions of a later step, as on the rank in the ring's middle."""
    return s.tokens if 2 * number <= s.implementation.context_parallel else s.tokens // 2


def kv_values(s: Shard) -> float:
    """Keys and values of the rank's positions."""
    return 2.0 * s.tokens * s.kv_heads * s.config.head_dim


def kernel_of(s: Shard, direction: str, queries: int, keys: int, *, causal: bool) -> Launch:
    """Attention of so many queries of each sequence with so many keys; of packed documents that share of each."""
    whole = attention_kernel.attention(s, direction)
    documents = whole.documents
    if documents is not None:
        part = queries / (s.sequence * s.implementation.context_parallel)
        documents = documents.share(part, 0.0 if causal else keys / queries)
    return Launch(replace(whole, sequence=queries, kv_sequence=keys, causal=causal, documents=documents))
