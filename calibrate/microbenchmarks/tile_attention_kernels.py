"""Fused attention in Triton with explicit tiles, forward and backward. Importing this module does not need Triton.

Forward: a program keeps ``tile_m`` queries and walks over the keys, rescaling what it summed whenever a row's largest
score grows (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Dao 2023, "FlashAttention-2",
algorithm 1). Backward: a program keeps ``tile_n`` keys and walks over the queries; with P = exp(S - L) from the stored
logarithm L of each row's sum, and D = rowsum(dO * O),

    dV += P^T dO,  dP = dO V^T,  dS = P * (dP - D),  dK += dS^T Q,  dQ += dS K   (ibid., algorithm 2)

dQ is added to by every program that meets the query. Scores are in units of log 2.
"""

from __future__ import annotations

from typing import Any

# The kernels are Triton's language: it compiles annotations too, so that only its own words may stand there.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, valid-type, name-defined"

#: Triton's language, which ``triton_kernels.compiled`` brings in.
tl: Any = None


def forward(
    query,
    key,
    value,
    out,
    log_sum,
    scale,
    length,
    causal: tl.constexpr,
    width: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
):
    """One program computes ``tile_m`` rows of one head; all tensors are [heads, length, width]."""
    # With a mask the last rows have most to do, and come first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length
    rows, inner, columns = block * tile_m + tl.arange(0, tile_m), tl.arange(0, width), tl.arange(0, tile_n)
    own = (head + rows)[:, None] * width + inner[None, :]
    queries = tl.load(query + own)
    largest = tl.full((tile_m,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((tile_m,), dtype=tl.float32)
    summed = tl.zeros((tile_m, width), dtype=tl.float32)
    end = length
    if causal:
        end = (block + 1) * tile_m
    for start in range(0, end, tile_n):
        there = (head + start + columns)[:, None] * width + inner[None, :]
        scores = tl.dot(queries, tl.trans(tl.load(key + there))) * scale
        if causal:
            scores = tl.where(rows[:, None] >= (start + columns)[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        share, before = tl.exp2(scores - larger[:, None]), tl.exp2(largest - larger)
        total = total * before + tl.sum(share, 1)
        values = tl.load(value + there)
        summed = tl.dot(share.to(values.dtype), values, summed * before[:, None])
        largest = larger
    tl.store(out + own, (summed / total[:, None]).to(out.dtype.element_ty))
    tl.store(log_sum + head + rows, largest + tl.log2(total))


def row_products(out, incoming, products, width: tl.constexpr, tile_rows: tl.constexpr):
    """D = rowsum(dO * O), ``tile_rows`` rows a program."""
    rows = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    where = rows[:, None] * width + tl.arange(0, width)[None, :]
    each = tl.load(out + where).to(tl.float32) * tl.load(incoming + where).to(tl.float32)
    tl.store(products + rows, tl.sum(each, 1))


def backward(
    query,
    key,
    value,
    incoming,
    log_sum,
    products,
    to_query,
    to_key,
    to_value,
    scale,
    softmax_scale,
    length,
    causal: tl.constexpr,
    width: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
):
    """One program computes dK and dV of ``tile_n`` keys of one head, and adds its part of dQ, which lacks its scale."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length
    columns, inner, rows = block * tile_n + tl.arange(0, tile_n), tl.arange(0, width), tl.arange(0, tile_m)
    own = (head + columns)[:, None] * width + inner[None, :]
    keys, values = tl.load(key + own), tl.load(value + own)
    grown_key = tl.zeros((tile_n, width), dtype=tl.float32)
    grown_value = tl.zeros((tile_n, width), dtype=tl.float32)
    first = 0
    if causal:
        first = block * tile_n // tile_m * tile_m
    for start in range(first, length, tile_m):
        there = head + start + rows
        at = there[:, None] * width + inner[None, :]
        queries, grown = tl.load(query + at), tl.load(incoming + at)
        # Transposed, [tile_n, tile_m]: so they are the left operand of what is summed here.
        shares = tl.exp2(tl.dot(keys, tl.trans(queries)) * scale - tl.load(log_sum + there)[None, :])
        if causal:
            shares = tl.where(columns[:, None] <= (start + rows)[None, :], shares, 0.0)
        grown_value = tl.dot(shares.to(grown.dtype), grown, grown_value)
        changes = shares * (tl.dot(values, tl.trans(grown)) - tl.load(products + there)[None, :])
        changes = changes.to(queries.dtype)
        grown_key = tl.dot(changes, queries, grown_key)
        tl.atomic_add(to_query + at, tl.dot(tl.trans(changes), keys), sem="relaxed")
    tl.store(to_value + own, grown_value.to(to_value.dtype.element_ty))
    tl.store(to_key + own, (grown_key * softmax_scale).to(to_key.dtype.element_ty))
