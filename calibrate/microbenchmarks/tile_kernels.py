"""Triton kernels with explicit tiles. Importing this module does not need Triton, compiling them does."""

from __future__ import annotations

from typing import Any

# The kernels are Triton's language: it compiles annotations too, so that only its own words may stand there.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, valid-type, name-defined"

#: Triton's language, which ``triton_kernels.compiled`` brings in.
tl: Any = None

#: Tiles of this many rows of tiles follow each other, so that they share columns of B in L2.
GROUP = 8


def matmul(
    left,
    right,
    out,
    m,
    n,
    k,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group: tl.constexpr,
):
    """One program computes one tile of C[m, n] = A[m, k] · B[k, n]; k is a multiple of ``tile_k``."""
    program = tl.program_id(0)
    down, across = tl.cdiv(m, tile_m), tl.cdiv(n, tile_n)
    band = program // (group * across)
    height = min(down - band * group, group)
    row = band * group + (program % (group * across)) % height
    column = (program % (group * across)) // height
    rows = row * tile_m + tl.arange(0, tile_m)
    columns = column * tile_n + tl.arange(0, tile_n)
    inner = tl.arange(0, tile_k)
    # Reads beyond the edge wrap around and stay within the matrices; what they give is not stored.
    from_left = left + (rows % m)[:, None] * k + inner[None, :]
    from_right = right + inner[:, None] * n + (columns % n)[None, :]
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for _ in range(tl.cdiv(k, tile_k)):
        total = tl.dot(tl.load(from_left), tl.load(from_right), total)
        from_left += tile_k
        from_right += tile_k * n
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out + rows[:, None] * n + columns[None, :], total.to(out.dtype.element_ty), mask=inside)


def rmsnorm(source, weight, out, columns: tl.constexpr, tile_rows: tl.constexpr, epsilon: tl.constexpr):
    """One program normalises ``tile_rows`` whole rows."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, columns)
    where = row[:, None] * columns + column[None, :]
    value = tl.load(source + where).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / columns + epsilon)
    gain = tl.load(weight + column).to(tl.float32)
    tl.store(out + where, (value * scale[:, None] * gain[None, :]).to(out.dtype.element_ty))


def layernorm(source, weight, shift, out, columns: tl.constexpr, tile_rows: tl.constexpr, epsilon: tl.constexpr):
    """One program normalises ``tile_rows`` whole rows, and shifts them."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, columns)
    where = row[:, None] * columns + column[None, :]
    value = tl.load(source + where).to(tl.float32)
    apart = value - (tl.sum(value, axis=1) / columns)[:, None]
    scale = tl.rsqrt(tl.sum(apart * apart, axis=1) / columns + epsilon)
    gain, offset = tl.load(weight + column).to(tl.float32), tl.load(shift + column).to(tl.float32)
    tl.store(out + where, (apart * scale[:, None] * gain[None, :] + offset[None, :]).to(out.dtype.element_ty))


def softmax(source, out, columns: tl.constexpr, tile_rows: tl.constexpr):
    """One program takes the softmax of ``tile_rows`` whole rows."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    where = row[:, None] * columns + tl.arange(0, columns)[None, :]
    value = tl.load(source + where).to(tl.float32)
    share = tl.exp(value - tl.max(value, axis=1)[:, None])
    tl.store(out + where, (share / tl.sum(share, axis=1)[:, None]).to(out.dtype.element_ty))


def exponential(source, out, tile_columns: tl.constexpr):
    """One program takes the exponentials of ``tile_columns`` values."""
    where = tl.program_id(0).to(tl.int64) * tile_columns + tl.arange(0, tile_columns)
    tl.store(out + where, tl.exp(tl.load(source + where)))


def reduce_min(source, out, columns: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr):
    """One program finds the least value of each of ``tile_rows`` rows, ``tile_columns`` columns at a time."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    least = tl.full((tile_rows, tile_columns), float("inf"), dtype=tl.float32)
    for start in range(0, columns, tile_columns):
        column = start + tl.arange(0, tile_columns)
        least = tl.minimum(least, tl.load(source + row[:, None] * columns + column[None, :]))
    tl.store(out + row, tl.min(least, axis=1))
