"""Shape of a state-space mixer (Mamba-2), and which mixers the layers of a hybrid model have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

#: What a layer of a hybrid may be made of, in this order: a state space (M), attention (*) or linear attention (G),
#: then an MLP (-) or experts (E). Each part stands behind a norm of its own and is added to the residual stream.
MIXERS = ("M", "*", "-", "E", "M-", "*-", "ME", "*E", "G-", "GE")


def expert_turns(mixers: Sequence[str]) -> tuple[bool, ...]:
    """Which layers of a hybrid have experts, as :class:`~joulecast.model.architecture.experts.Experts` has it."""
    turns = tuple("E" in one for one in mixers)
    return () if all(turns) else turns


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 mixer: a projection, a short convolution, the scan of a state space, a gated norm and a projection.

    Attributes
    ----------
    heads, head_dim
        Heads of the scan, and values of each.
    state
        Values of state for each value of a head.
    groups
        Groups of heads that share what writes and reads the state (B and C).
    conv
        Positions that the convolution over time sees.
    chunk
        Positions that the scan takes at once.
    conv_bias, projection_bias
        Whether the convolution and the two projections add biases.

    References
    ----------
    Dao and Gu, Transformers are SSMs, arXiv 2405.21060, sections 6 and 7.
    """

    heads: int
    head_dim: int
    state: int
    groups: int = 1
    conv: int = 4
    chunk: int = 256
    conv_bias: bool = True
    projection_bias: bool = False

    @property
    def inner(self) -> int:
        """Values of a token that are scanned, d_inner = heads · head_dim; its gate has as many."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: what is scanned, and B and C of every group."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the first projection: gate, channels of the convolution, and a step of time for each head."""
        return self.inner + self.channels + self.heads

    def split(self, ranks: int) -> StateSpace:
        """What one of some tensor-parallel ranks has: a share of the heads with their groups."""
        return replace(self, heads=self.heads // ranks, groups=self.groups // ranks)

    def parameters(self, hidden: int) -> int:
        """Parameters: projections, convolution, gated norm, and of each head A, D and a bias of its step."""
        projections = hidden * (self.projected + self.inner) + self.projection_bias * (self.projected + hidden)
        return projections + self.channels * (self.conv + self.conv_bias) + self.inner + 3 * self.heads

    def scan_operations(self, sequence: int) -> float:
        """Operations of the scan for a token, forward: matrix products of the chunked form, pairs of a chunk masked.

        A chunk of Q positions takes for each pair of them 2·N a group (C·Bᵀ) and 2·P a head, of which half are masked,
        and 2·N·P a head and position each to add to the state and to read it.
        """
        seen = min(self.chunk, sequence) / 2
        pairs = 2.0 * seen * (self.groups * self.state + self.inner)
        return pairs + 4.0 * self.inner * self.state
