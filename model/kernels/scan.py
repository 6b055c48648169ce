"""Kernels of a state-space mixer (Mamba-2): the chunked scan, its short convolution and its gated norm.

    t = t0 + ((flop / (η·R·f))^p + (bytes / (φ·B_HBM))^p)^(1/p)

Each kernel reaches a share η of the rate R at which the matrix units multiply its type, and a share φ of the memory's
bandwidth. The scan of T tokens takes chunks of Q positions, in which H heads of P values, in G groups, work on states
of N values a value. One Triton kernel makes each of these (``mamba_ssm/ops/triton/ssd_*.py`` of state-spaces/mamba):

    forward    cumsum    decays of each chunk, summed: no matrix product
               state     what each chunk adds to the state, Bᵀ·x                                 2·T·N·P·H
               pass      states handed from chunk to chunk: no matrix product
               bmm       pairs of a chunk's positions, C·Bᵀ of each group                        2·T·Q·N·G
               scan      what the state gives to the output, and what earlier positions of the
                         chunk do, half of whose pairs are masked                                2·T·(N + Q/2)·P·H
    backward   dz, dstates (Cᵀ·dy), pass_backward, dx, db, dc, dcb, twice bmm_backward, decays and cumsum_backward,
               after cumsum, state, pass and bmm again

States of chunks are in fp32, but in the products' type where the forward's scan, or the backward's products, read them.
Gradients of B and C, which heads of a group share, are summed in fp32.

References
----------
Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, column, hbm_energy_j
from joulecast.model.kernels.operators import DTYPE_BYTES, Scan

Array = NDArray[np.float64]


class Pace(NamedTuple):
    """Shares of the matrix units' rate and of the memory's bandwidth that a kernel reaches [1]."""

    rate: float
    bandwidth: float


#: All that is not counted from the kernels' code [estimates, a factor of two].
PACES = {
    "cumsum": Pace(1.0, 0.5),
    "state": Pace(0.25, 0.7),
    "pass": Pace(1.0, 0.7),
    "bmm": Pace(0.2, 0.6),
    "scan": Pace(0.25, 0.7),
    "dz": Pace(1.0, 0.7),
    "dstates": Pace(0.25, 0.7),
    "pass_backward": Pace(1.0, 0.7),
    "dx": Pace(0.2, 0.6),
    "db": Pace(0.2, 0.6),
    "dc": Pace(0.2, 0.6),
    "dcb": Pace(0.2, 0.6),
    "bmm_backward": Pace(0.2, 0.6),
    "decays": Pace(0.15, 0.6),
    "cumsum_backward": Pace(1.0, 0.5),
    "conv": Pace(1.0, 0.6),
    "conv_backward": Pace(1.0, 0.5),
    "norm": Pace(1.0, 0.8),
    "norm_backward": Pace(1.0, 0.6),
}
#: Exponent of the smooth maximum of the products' and the memory's time, time beside both of a kernel [s], and power of
#: the SMs over that of SMs that move data and wait [estimates, +-50 %].
OVERLAP, FIXED_S, ACTIVITY = 2.0, 4e-6, 1.5
#: Energy of an operation in these kernels over one in a product of the library's [estimate, +-50 %].
ENERGY = 1.5
#: Bytes of a value in fp32.
WIDE = 4.0


@dataclass(frozen=True)
class ScanSizes:
    """Sizes of ``n`` scans, each of shape ``(n,)``: values, or products of them.

    Attributes
    ----------
    tokens, inner, shared, steps
        T, values of a token that are scanned (H·P), values of B or of C of a token (G·N), and heads H.
    states, pairs
        Values of all chunks' states, and of all chunks' pairs of positions in all groups.
    state, chunk, gate
        N, Q, and whether the scan multiplies its result by a gate, or the norm does.
    conv
        Channels of the convolution times tokens.
    size
        Bytes of a value that is not in fp32.
    """

    tokens: Array
    inner: Array
    shared: Array
    steps: Array
    states: Array
    pairs: Array
    state: Array
    chunk: Array
    gate: Array
    conv: Array
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
        """Operations of a product that makes pairs, or that pairs are multiplied in, for all groups."""
        return 2.0 * self.pairs * self.state

    def narrow(self, values: Array) -> Array:
        """Bytes of values of all tokens in the products' type."""
        return values * self.tokens * self.size

    @property
    def decays(self) -> Array:
        """Bytes of a step and a decay in fp32 for each head and token."""
        return 2.0 * WIDE * self.steps * self.tokens


class Work(NamedTuple):
    """Operations of the matrix units, and bytes that reach beyond the SMs."""

    flops: Array
    bytes: Array


def sizes_of(operators: Sequence[Scan]) -> ScanSizes:
    """Sizes of some scans."""
    batch, sequence, heads, head_dim, groups, state, chunk, gate = (
        column(operators, name)
        for name in ("batch", "sequence", "heads", "head_dim", "groups", "state", "chunk", "gated")
    )
    tokens, inner, chunk = batch * sequence, heads * head_dim, np.minimum(chunk, sequence)
    return ScanSizes(
        tokens=tokens,
        inner=inner,
        shared=groups * state,
        steps=heads,
        states=tokens / chunk * inner * state,
        pairs=tokens * chunk * groups,
        state=state,
        chunk=chunk,
        gate=gate,
        conv=tokens * (inner + 2.0 * groups * state),
        size=np.array([DTYPE_BYTES[operator.dtype] for operator in operators], dtype=np.float64),
    )


def _cumsum(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, s.narrow(s.steps) + s.decays)


def _state(s: ScanSizes) -> Work:
    return Work(s.into_state, s.narrow(s.inner + s.shared) + s.decays + WIDE * s.states)


def _pass(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, (WIDE + s.size) * s.states)


def _pass_wide(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, 2.0 * WIDE * s.states)


def _bmm(s: ScanSizes) -> Work:
    return Work(s.of_pairs, s.narrow(2.0 * s.shared) + WIDE * s.pairs)


def _scan(s: ScanSizes) -> Work:
    """A gate is read, and the result kept without it too."""
    moved = s.narrow((2.0 + 2.0 * s.gate) * s.inner + s.shared) + s.decays
    return Work(s.into_state + s.within_chunk, moved + WIDE * s.pairs + s.size * s.states)


def _dz(s: ScanSizes) -> Work:
    """Output, its gradient, gate and what is scanned; gradients of gate and of the result without it."""
    return Work(0.0 * s.tokens, s.narrow(6.0 * s.inner))


def _dstates(s: ScanSizes) -> Work:
    return Work(s.into_state, s.narrow(s.inner + s.shared) + WIDE * (s.states + s.steps * s.tokens))


def _pass_backward(s: ScanSizes) -> Work:
    """States and their gradients, in fp32 and rounded."""
    return Work(0.0 * s.tokens, 2.0 * (WIDE + s.size) * s.states)


def _dx(s: ScanSizes) -> Work:
    moved = s.narrow(3.0 * s.inner + s.shared) + 1.5 * s.decays
    return Work(s.into_state + s.within_chunk, moved + WIDE * s.pairs + s.size * s.states)


def _db(s: ScanSizes) -> Work:
    """Gradients of B, and of decays; that of C takes as much."""
    moved = s.narrow(s.inner + s.shared) + WIDE * s.shared * s.tokens + 1.5 * s.decays
    return Work(s.into_state, moved + s.size * s.states)


def _dcb(s: ScanSizes) -> Work:
    return Work(s.within_chunk, s.narrow(2.0 * s.inner) + s.decays + WIDE * s.pairs)


def _bmm_backward(s: ScanSizes) -> Work:
    return Work(s.of_pairs, WIDE * s.pairs + s.narrow(2.0 * s.shared) + WIDE * s.shared * s.tokens)


def _decays(s: ScanSizes) -> Work:
    return Work(s.within_chunk, s.narrow(2.0 * s.inner) + 1.5 * s.decays + WIDE * s.pairs)


def _cumsum_backward(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, s.narrow(2.0 * s.steps) + s.decays)


def _conv(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, 2.0 * s.conv * s.size)


def _conv_backward(s: ScanSizes) -> Work:
    return Work(0.0 * s.tokens, 3.0 * s.conv * s.size)


def _norm(s: ScanSizes) -> Work:
    """Values, the gate where the norm multiplies by it, and the result."""
    return Work(0.0 * s.tokens, s.narrow((2.0 + s.gate) * s.inner))


def _norm_backward(s: ScanSizes) -> Work:
    """Values and gradients, and with a gate its own, and the result once more for the gradient of a weight."""
    return Work(0.0 * s.tokens, s.narrow((3.0 + 3.0 * s.gate) * s.inner))


#: Work of every kernel.
WORK: dict[str, Callable[[ScanSizes], Work]] = {
    "cumsum": _cumsum,
    "state": _state,
    "pass": _pass,
    "pass_wide": _pass_wide,
    "bmm": _bmm,
    "scan": _scan,
    "dz": _dz,
    "dstates": _dstates,
    "pass_backward": _pass_backward,
    "dx": _dx,
    "db": _db,
    "dc": _db,
    "dcb": _dcb,
    "bmm_backward": _bmm_backward,
    "decays": _decays,
    "cumsum_backward": _cumsum_backward,
    "conv": _conv,
    "conv_backward": _conv_backward,
    "norm": _norm,
    "norm_backward": _norm_backward,
}
#: Kernels that run at the pace of another.
LIKE = {"pass_wide": "pass"}


def lower_scans(operators: Sequence[Scan], gpu: GpuModel) -> Columns:
    """Columns of :class:`~joulecast.model.kernels.costs.Costs` of scans of one kernel and data type."""
    first = operators[0]
    work = WORK[first.kernel](sizes_of(operators))
    pace, per_cycle = PACES[LIKE.get(first.kernel, first.kernel)], gpu.flops_per_cycle(first.dtype)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    count = len(operators)
    return {
        "fixed_s": np.full(count, FIXED_S),
        "core_cycles": work.flops / (pace.rate * per_cycle),
        "memory_s": work.bytes / (pace.bandwidth * peak),
        "overlap": np.full(count, OVERLAP),
        "activity": np.full(count, ACTIVITY),
        "tensor_use": pace.rate * (work.flops > 0.0),
        "tensor_j": work.flops * gpu[f"power.tensor_pj_per_flop.{first.dtype}"] * ENERGY * PICO,
        "onchip_j": work.bytes * gpu["power.l2_pj_per_byte"] * PICO,
        "hbm_j": hbm_energy_j(work.bytes, gpu),
    }
