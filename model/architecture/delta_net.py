"""Shape of a mixer of linear attention by the gated delta rule (Gated DeltaNet)."""

from __future__ import annotations

from dataclasses import dataclass

#: Positions that the rule takes at once in the kernels of ``fla``, which no file says.
CHUNK = 64


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Linear attention by the gated delta rule: projections, a short convolution, the rule, a gated norm, a projection.

    Attributes
    ----------
    key_heads, key_dim
        Heads of queries and of keys, and values of each.
    value_heads, value_dim
        Heads of values, of which some share a query and key, and values of each.
    conv
        Positions that the convolution over time sees.
    joint
        Whether one product makes queries, keys, values and gates of each head, and another its two numbers
        (Qwen3-Next); else there are four (Qwen3.5).

    References
    ----------
    Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule, arXiv 2412.06464.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4
    joint: bool = True

    @property
    def keys(self) -> int:
        """Values of a token's queries, or of its keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Values of a token; its gate has as many."""
        return self.value_heads * self.value_dim

    @property
    def repeated_keys(self) -> int:
        """The same of keys where each head of values has its own."""
        return self.value_heads * self.key_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def products(self) -> tuple[tuple[str, int], ...]:
        """Products in front of the convolution, and their widths; each head has a decay and a strength (beta)."""
        if self.joint:
            return (("in_proj", self.channels + self.values), ("in_heads", 2 * self.value_heads))
        heads = (("in_beta", self.value_heads), ("in_decay", self.value_heads))
        return (("in_proj", self.channels), ("in_gate", self.values), *heads)

    @property
    def projected(self) -> int:
        """Width of these products together."""
        return sum(width for _, width in self.products)

    def parameters(self, hidden: int) -> int:
        """Parameters: projections, convolution, the gated norm of a head, and of each head a decay and a bias."""
        projections = hidden * (self.projected + self.values)
        return projections + self.channels * self.conv + 2 * self.value_heads + self.value_dim

    def scan_operations(self, sequence: int) -> float:
        """Operations of the rule for a token, forward: matrix products of the chunked form, pairs of a chunk masked.

        Pairs of keys with each other and with queries, those times keys and values, and those of queries times
        values, half of all masked; states are read by keys and by queries, and added to. The inverse of a chunk's
        triangle is left out.
        """
        seen = min(CHUNK, sequence) / 2
        pairs = 2.0 * seen * (3 * self.key_dim + 2 * self.value_dim)
        return self.value_heads * (pairs + 6.0 * self.key_dim * self.value_dim)
