"""What each kernel of a state-space mixer (Mamba-2) multiplies and moves, counted from its code.

A scan of T tokens takes chunks of Q positions, in which H heads of P values, in G groups, work on states of N values a
value. One Triton kernel makes each of these (``mamba_ssm/ops/triton/ssd_*.py`` of state-spaces/mamba), and others the
short convolution in front (``causal_conv1d``) and the norm of groups of heads behind (``layernorm_gated.py``):

    cumsum            steps and decays of each chunk, summed
    state             what each chunk adds to the state, Bᵀ·x                                   2·T·N·P·H operations
    pass              states handed from chunk to chunk, one after the other; ``pass_wide`` writes them in fp32
    bmm               pairs of a chunk's positions, C·Bᵀ of each group                          2·T·Q·N·G
    scan              what the state gives to the output, C·state, and what a chunk's earlier
                      positions give, half of whose pairs are masked                            2·T·(N + Q/2)·P·H
    dz                gradient of the gate, and of the result that it multiplied
    dstates           Cᵀ·dy                                                                     2·T·N·P·H
    pass_backward     gradients of states handed back
    dx                as ``scan``, of what was scanned
    db, dc            gradients of B and C, of all heads of a group                             2·T·N·P·H each
    dcb, decays       gradients of pairs and of decays, each from x and dy                      T·Q·P·H each
    bmm_backward      from pairs to B, and to C                                                 2·T·Q·N·G each
    cumsum_backward   gradients of steps

States of chunks are in fp32, but in the products' type where the forward's scan, or the backward's products, read them.
Pairs and gradients of B and C, which heads of a group share, are in fp32.

References
----------
Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.model.kernels.arrays import column
from joulecast.model.kernels.operators import DTYPE_BYTES, Scan

#: Bytes of a value in fp32.
WIDE = 4.0
#: Values of a row for each warp of the gated norm's kernels, and the most warps; an SM has so many of them in all.
NORM_VALUES, NORM_WARPS, NORM_SM_WARPS = 256.0, 8.0, 4.0
#: A step of that norm's backward takes as long again for so many values of its row: fitted with
#: :data:`joulecast.model.kernels.scan.PACES` [+-15 %].
NORM_ROW = 3660.0


@dataclass(frozen=True)
class ScanSizes:
    """Sizes of ``n`` scans, each of shape ``(n,)``.

    Attributes
    ----------
    tokens, heads, groups, state, chunk
        T, H, G, N and Q.
    inner, shared
        Values of a token that are scanned (H·P), and of its B or its C (G·N).
    states, pairs
        Values of all chunks' states, and of the pairs of positions of all chunks and groups.
    chunks
        Chunks of a sequence.
    gate
        Whether this kernel multiplies by the gate, 0 or 1.
    size
        Bytes of a value that is not in fp32.
    """

    tokens: Array
    heads: Array
    groups: Array
    state: Array
    chunk: Array
    inner: Array
    shared: Array
    states: Array
    pairs: Array
    chunks: Array
    gate: Array
    size: Array

    @property
    def into_state(self) -> Array:
        """Operations of a product of states and what is scanned."""
        return 2.0 * self.tokens * self.state * self.inner

    @property
    def within_chunk(self) -> Array:
        """Operations of a product of pairs and what is scanned, half of the pairs being masked."""
        return self.tokens * self.chunk * self.inner

    @property
    def of_pairs(self) -> Array:
        """Operations of a product of B and C, or of either and pairs."""
        return 2.0 * self.pairs * self.state

    def narrow(self, values: Array) -> Array:
        """Bytes of so many values of each token in the products' type."""
        return values * self.tokens * self.size

    def wide(self, values: Array) -> Array:
        """The same in fp32."""
        return values * self.tokens * WIDE


@dataclass(frozen=True)
class ScanWork:
    """Work of ``n`` scans of one kernel, each of shape ``(n,)`` or a number.

    Attributes
    ----------
    bytes
        Bytes that reach beyond the SMs.
    states, pairs
        Operations of the matrix units in products with states or of B and C, and in those with pairs and what is
        scanned.
    steps, spread
        Steps that follow one another however many SMs there are, and such that the SMs share.
    """

    bytes: Array
    states: Array | float = 0.0
    pairs: Array | float = 0.0
    steps: Array | float = 0.0
    spread: Array | float = 0.0


def sizes_of(operators: Sequence[Scan]) -> ScanSizes:
    """Sizes of some scans."""
    names = ("batch", "sequence", "heads", "head_dim", "groups", "state", "chunk", "gated")
    batch, sequence, heads, head_dim, groups, state, chunk, gate = (column(operators, name) for name in names)
    tokens, inner, chunk = batch * sequence, heads * head_dim, np.minimum(chunk, sequence)
    return ScanSizes(
        tokens=tokens,
        heads=heads,
        groups=groups,
        state=state,
        chunk=chunk,
        inner=inner,
        shared=groups * state,
        states=tokens / chunk * inner * state,
        pairs=tokens * chunk * groups,
        chunks=np.ceil(sequence / chunk),
        gate=gate,
        size=np.array([DTYPE_BYTES[operator.dtype] for operator in operators], dtype=np.float64),
    )


def _state(s: ScanSizes) -> ScanWork:
    moved = s.narrow(s.inner + s.shared) + s.wide(2.0 * s.heads) + WIDE * s.states
    return ScanWork(moved, states=s.into_state)


def _scan(s: ScanSizes) -> ScanWork:
    """With a gate, that is read, and the result without it written beside the other."""
    moved = s.narrow((2.0 + 2.0 * s.gate) * s.inner + s.shared) + s.wide(2.0 * s.heads)
    return ScanWork(moved + WIDE * s.pairs + s.size * s.states, states=s.into_state, pairs=s.within_chunk)


def _dstates(s: ScanSizes) -> ScanWork:
    return ScanWork(s.narrow(s.inner + s.shared) + s.wide(s.heads) + WIDE * s.states, states=s.into_state)


def _dx(s: ScanSizes) -> ScanWork:
    moved = s.narrow(3.0 * s.inner + s.shared) + s.wide(3.0 * s.heads)
    return ScanWork(moved + WIDE * s.pairs + s.size * s.states, states=s.into_state, pairs=s.within_chunk)


def _db(s: ScanSizes) -> ScanWork:
    """B's or C's gradient, and that of decays."""
    moved = s.narrow(s.inner + s.shared) + s.wide(s.shared + 3.0 * s.heads) + s.size * s.states
    return ScanWork(moved, states=s.into_state)


def _decays(s: ScanSizes) -> ScanWork:
    return ScanWork(s.narrow(2.0 * s.inner) + s.wide(3.0 * s.heads) + WIDE * s.pairs, pairs=s.within_chunk)


def _cumsum_backward(s: ScanSizes) -> ScanWork:
    return ScanWork(s.narrow(2.0 * s.heads) + s.wide(2.0 * s.heads), steps=np.ones_like(s.tokens))


def _norm_backward(s: ScanSizes) -> ScanWork:
    """Values and gradients, and those of the gate with one; few blocks take a group of a token after the other.

    A block has as many warps as a row of a group's values has for them, and an SM has one block, or some of few warps.
    """
    row = s.inner / s.groups
    warps = np.clip(2.0 ** np.ceil(np.log2(row)) / NORM_VALUES, 1.0, NORM_WARPS)
    rows = s.tokens * s.groups / np.ceil(NORM_SM_WARPS / warps)
    return ScanWork(s.narrow((3.0 + 2.0 * s.gate) * s.inner), spread=rows * (1.0 + row / NORM_ROW))


def _norm_again(s: ScanSizes) -> ScanWork:
    """The same where its result is made again for the gradient of the weight behind it."""
    once = _norm_backward(s)
    return replace(once, bytes=once.bytes + s.narrow(s.inner))


#: Work of every kernel.
WORK: dict[str, Callable[[ScanSizes], ScanWork]] = {
    "cumsum": lambda s: ScanWork(s.narrow(s.heads) + s.wide(2.0 * s.heads)),
    "state": _state,
    "pass": lambda s: ScanWork((WIDE + s.size) * s.states, steps=s.chunks),
    "pass_wide": lambda s: ScanWork(2.0 * WIDE * s.states, steps=s.chunks),
    "bmm": lambda s: ScanWork(s.narrow(2.0 * s.shared) + WIDE * s.pairs, states=s.of_pairs),
    "scan": _scan,
    # Result, its gradient, gate and what was scanned; gradients of the gate and of the result without it.
    "dz": lambda s: ScanWork(s.narrow(6.0 * s.inner)),
    "dstates": _dstates,
    # States and their gradients, read in fp32 and written in the products' type.
    "pass_backward": lambda s: ScanWork(2.0 * (WIDE + s.size) * s.states, steps=s.chunks),
    "dx": _dx,
    "db": _db,
    "dc": _db,
    "dcb": lambda s: ScanWork(s.narrow(2.0 * s.inner) + s.wide(2.0 * s.heads) + WIDE * s.pairs, pairs=s.within_chunk),
    "bmm_backward": lambda s: ScanWork(WIDE * s.pairs + s.narrow(2.0 * s.shared) + s.wide(s.shared), states=s.of_pairs),
    "decays": _decays,
    "cumsum_backward": _cumsum_backward,
    "conv": lambda s: ScanWork(s.narrow(2.0 * (s.inner + 2.0 * s.shared))),
    "conv_backward": lambda s: ScanWork(s.narrow(3.0 * (s.inner + 2.0 * s.shared))),
    # Values, the gate where the norm multiplies by it, and the result.
    "norm": lambda s: ScanWork(s.narrow((2.0 + s.gate) * s.inner)),
    "norm_backward": _norm_backward,
    "norm_again": _norm_again,
}
