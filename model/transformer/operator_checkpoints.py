"""Recomputation that chooses by operator, as torchtitan's checkpoints do (``selective_ac_option = "op"``).

Of a layer's forward the results of attention, of every other matrix product and of sums that are scattered over
tensor-parallel ranks are kept; all else runs again in the backward, up to what that needs. Products are counted from
the layer's first: in torchtitan's order those of queries and values, the gate's and the MLP's last are kept, those of
keys, behind attention and beside the gate run again. An FP8 product counts as the product that it stands for.

    kept of a token = input + query + value + attention's result and statistic + gate (+ the MLP's result, eager)

PyTorch's checkpoint keeps the last result though no gradient needs it; a compiled graph drops it.

Source: ``_save_list`` and ``_apply_ac_to_transformer_block`` in torchtitan's ``parallelize_llama.py`` (2024 and 2025);
``create_selective_checkpoint_contexts`` in PyTorch's ``torch.utils.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Attention, Gemm

#: One product in so many runs again.
EVERY = 2
#: Bytes of attention's statistic of a row and head.
STATISTIC_BYTES = 4.0


def again(launches: Sequence[Launch], s: Shard) -> tuple[Launch, ...]:
    """What of a forward, ``launches`` up to where a checkpoint stops, runs again."""
    products = dict.fromkeys(one.operator.name for one in launches if isinstance(one.operator, Gemm))
    kept = [name for place, name in enumerate(products) if (place + 1) % EVERY]
    casts = [f"{name}.weight" for name in kept]
    if not s.implementation.compiled:  # a graph casts an input once for all products that read it
        casts += [f"{name}.input" for name in kept]
    dropped = (*(f"{cast}." for cast in casts), "attention.")
    return tuple(one for one in launches if not (_is_kept(one, kept) or one.operator.name.startswith(dropped)))


def _is_kept(launch: Launch, products: Sequence[str]) -> bool:
    operator = launch.operator
    if isinstance(operator, Gemm):
        return operator.name in products
    return ".reduce_scatter" in operator.name or isinstance(operator, Attention)


def kept_bytes(s: Shard) -> float:
    """Bytes that one layer keeps for one micro-batch."""
    run, config, size = s.implementation, s.config, s.value_bytes
    keys = s.kv_heads * config.head_dim
    wide = s.heads * config.head_dim + keys + s.attention_width + s.ffn
    stream = 1  # the layer's input
    if run.splits_sequence:
        stream += 1 if run.compiled else 2  # what the scattered sums give
    wide += 0 if run.compiled else config.hidden
    kept = size * (s.tokens * wide + stream * s.norm_tokens * config.hidden)
    return kept + STATISTIC_BYTES * s.heads * s.tokens
