"""Shapes of a Mixture of Experts and of multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of Experts in place of a layer's MLP.

    Attributes
    ----------
    count, active
        Experts of a layer, and those that each token is sent to.
    ffn
        Width of one.
    shared_ffn
        Width of the shared experts that see every token, together; 0 without.
    shared_gate
        Whether their result is scaled by a gate of its own.
    bias
        Whether router and experts add biases.
    router
        How Hugging Face's code scores experts: ``softmax``, ``wide softmax``, ``sigmoid`` or ``grouped sigmoid``
        (:mod:`joulecast.model.transformer.modules_router`).
    dense_layers
        Leading layers of the model that have an ordinary MLP instead.
    groups, chosen_groups
        Equal parts in which the router looks at them, and of how many of these a token's may be (DeepSeek-V3: 4 of 8).
    latent
        Width to which tokens are projected on their way to experts, and whence results are projected back (Nemotron 3
        Super); 0: experts take the model's own.
    turns
        Which of the others have experts, repeated over the whole stack from its first layer on; empty: all.
    """

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    bias: bool = False
    router: str = "softmax"
    dense_layers: int = 0
    groups: int = 1
    chosen_groups: int = 1
    latent: int = 0
    turns: tuple[bool, ...] = ()

    @property
    def wide_weights(self) -> bool:
        """Whether Hugging Face's code leaves the weights of a token's experts in fp32."""
        return self.router != "softmax"

    def stand_in(self, layer: int) -> bool:
        """Whether a layer of the model, counted from 0, has experts."""
        return layer >= self.dense_layers and (not self.turns or self.turns[layer % len(self.turns)])

    def row_width(self, hidden: int) -> int:
        """Values of a row that goes to an expert."""
        return self.latent or hidden

    def parameters(self, hidden: int, *, gated: bool, active: bool = False) -> int:
        """Parameters of the router and of all experts, or of those that one token meets."""
        matrices = 3 if gated else 2
        routed = (self.active if active else self.count) * self.ffn * self.row_width(hidden)
        projections = 2 * hidden * self.latent
        shared = matrices * self.shared_ffn * hidden + self.shared_gate * hidden
        met = self.active if active else self.count
        biases = self.bias * (self.count + met * ((matrices - 1) * self.ffn + hidden))
        return self.count * hidden + matrices * routed + projections + shared + biases


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values unfolded from narrow latent vectors.

    Attributes
    ----------
    query_rank, kv_rank
        Width of the latent vectors of queries (0: queries have none) and of keys with values.
    plain_dim, rotary_dim
        Parts of a head's query and key without and with rotary position; the latter part of a key is one for all heads.
    value_dim
        Size of a head's value.

    References
    ----------
    DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    query_rank: int
    kv_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def key_dim(self) -> int:
        """Size of a head's query and key."""
        return self.plain_dim + self.rotary_dim

    def parameters(self, hidden: int, heads: int) -> int:
        """Parameters of the projections and of the norms of the latent vectors."""
        queries = heads * self.key_dim
        if self.query_rank:
            queries_from = hidden * self.query_rank + self.query_rank + self.query_rank * queries
        else:
            queries_from = hidden * queries
        keys_from = hidden * (self.kv_rank + self.rotary_dim) + self.kv_rank
        keys_from += self.kv_rank * heads * (self.plain_dim + self.value_dim)
        return queries_from + keys_from + heads * self.value_dim * hidden
