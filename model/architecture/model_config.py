"""The shape of a decoder-only transformer, and the parameters that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulecast.model.architecture.experts import Experts, LatentAttention


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer.

    Attributes
    ----------
    name
        Catalogue name or the file's stem.
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab
        Widths and counts; ``head_dim`` need not be ``hidden / heads``.
    tied_embeddings
        Whether the output head is the embedding matrix.
    gated_mlp
        Whether the MLP's first product has two halves, ``activation(gate)·up``.
    activation
        ``silu gelu relu relu2`` (relu2: squared ReLU).
    gelu_formula
        Whether Hugging Face's code has this GELU as a formula of single operations (``gelu_new``).
    joint_projections
        Whether it multiplies queries, keys and values, and gate and up, in one product each (GPT-2, GPT-NeoX, Phi-3).
    norm, norm_bias
        ``rmsnorm`` or ``layernorm``, and whether it adds a bias.
    qkv_bias, output_bias, mlp_bias
        Biases of the linear layers: query/key/value, attention output, both of the MLP.
    qk_norm, qk_norm_whole
        Whether queries and keys are normalised: per head (Qwen3), or all heads of a token together (OLMo-2).
    norm_place
        Where a block's norm stands: ``before`` it, ``after`` it in front of the addition to the residual stream
        (OLMo-2), or ``around`` (both: Gemma 2 and 3, GLM-4).
    norm_formula
        How Hugging Face's code multiplies RMSNorm's weight: ``rounded`` (the values are rounded first, as Llama has
        it), ``shifted`` (by 1 + weight in fp32, Gemma) or ``mixed`` (a bf16 weight times fp32 values, OLMo-2).
    parallel_residual, shared_norm
        Whether attention and MLP stand beside each other, each on the layer's input (GPT-NeoX, Falcon), and whether one
        norm serves both (Phi, Cohere).
    scaled_branches, scaled_logits
        Whether blocks' results, and logits, are multiplied by a number (Granite, Cohere).
    joint_up
        Whether Hugging Face's code multiplies gate and up alone in one product (GLM).
    head_bias
        Whether the output head adds a bias (Phi, GPT-J).
    attention_sinks
        Whether each head of attention has a learned score that no value belongs to (gpt-oss).
    known_modules
        Whether the kernels of that code are known here.
    sliced_projections
        Whether that code cuts queries, keys and values out of a joint product, and the rotated part out of heads, by
        slices, whose gradients stand among zeros (Phi-3).
    half_rotary
        Whether that code rotates halves of heads one by one and joins them (gpt-oss).
    wide_rotary
        Whether that code rotates by a table in fp32 (OLMo-2).
    scaled_embeddings
        Whether embeddings are multiplied by a number before the first layer.
    attention_softcap, logit_softcap
        Whether scores of attention, and logits, pass through a hyperbolic tangent (Gemma 2).
    rotary, rotary_fraction, rope_theta, rope_type
        Rotary position embedding: used at all, on which share of the head, base, scaling kind (``default``: none).
    learned_positions
        Rows of a learned position table, 0 without one.
    max_positions
        Longest sequence that the model is made for, 0 where its file leaves that out.
    sliding_window, window_pattern
        Tokens that attention sees in local layers, its own included; 0: all. Which layers are local, repeated over the
        stack; empty: all of them.
    text_part
        Whether the file's model sees more than text, and this is the part that reads text.
    experts
        Mixture of Experts in place of the MLP, in all layers but the first few; ``ffn`` is then the width of those few.
    latent
        Multi-head latent attention; ``head_dim`` is then the mean size of keys and values.
    nextn_layers, mtp_layers
        Modules that predict further tokens: those that the file knows (``num_nextn_predict_layers``), and those that
        are trained.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    activation: str = "silu"
    gelu_formula: bool = False
    joint_projections: bool = False
    norm: str = "rmsnorm"
    norm_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    norm_place: str = "before"
    norm_formula: str = "rounded"
    parallel_residual: bool = False
    shared_norm: bool = False
    scaled_branches: bool = False
    scaled_logits: bool = False
    joint_up: bool = False
    head_bias: bool = False
    attention_sinks: bool = False
    known_modules: bool = True
    sliced_projections: bool = False
    half_rotary: bool = False
    wide_rotary: bool = False
    scaled_embeddings: bool = False
    attention_softcap: bool = False
    logit_softcap: bool = False
    rotary: bool = True
    rotary_fraction: float = 1.0
    rope_theta: float = 10000.0
    rope_type: str = "default"
    learned_positions: int = 0
    max_positions: int = 0
    sliding_window: int = 0
    window_pattern: tuple[bool, ...] = ()
    text_part: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    nextn_layers: int = 0
    mtp_layers: int = 0

    @property
    def qkv_width(self) -> int:
        """Width of queries, keys and values together."""
        if self.latent is not None:
            return self.heads * (2 * self.latent.key_dim + self.latent.value_dim)
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention_width(self) -> int:
        """Width of the concatenated heads."""
        return self.heads * (self.head_dim if self.latent is None else self.latent.value_dim)

    @property
    def dense_layers(self) -> int:
        """Leading layers with an ordinary MLP: all without a Mixture of Experts."""
        return self.layers if self.experts is None else min(self.layers, self.experts.dense_layers)

    @property
    def dense(self) -> ModelConfig:
        """The same model with an ordinary MLP in every layer, as its leading layers have it."""
        return self if self.experts is None else replace(self, experts=None)

    @property
    def is_mixed(self) -> bool:
        """Whether its layers may be of two kinds."""
        return self.experts is not None or bool(self.window_pattern)

    @property
    def other(self) -> ModelConfig:
        """The model with layers of its other kind alone: an ordinary MLP beside experts, or local attention."""
        return replace(self, window_pattern=()) if self.window_pattern else self.dense

    def others(self, first: int, count: int) -> int:
        """Layers of the other kind among ``count`` from the ``first`` on, which is 0 for the model's first."""
        if self.window_pattern:
            return sum(self.is_local(layer) for layer in range(first, first + count))
        return 0 if self.experts is None else min(max(self.dense_layers - first, 0), count)

    def is_local(self, layer: int) -> bool:
        """Whether attention of a layer of a mixed stack sees a window alone."""
        return self.window_pattern[layer % len(self.window_pattern)]

    @property
    def window(self) -> int:
        """Tokens that attention of this kind of layer sees, 0: all."""
        return 0 if self.window_pattern else self.sliding_window

    @property
    def up_width(self) -> int:
        """Output width of the MLP's first product."""
        return self.ffn * (2 if self.gated_mlp else 1)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def attention_parameters(self) -> int:
        """Parameters of a layer's attention, norms of queries and keys included."""
        if self.latent is not None:
            return self.latent.parameters(self.hidden, self.heads)
        biases = self.qkv_bias * self.qkv_width + self.output_bias * self.hidden
        return (
            self.hidden * (self.qkv_width + self.attention_width)
            + biases
            + sum(self.qk_norm_sizes)
            + self.attention_sinks * self.heads
        )

    @property
    def qk_norm_sizes(self) -> tuple[int, ...]:
        """Parameters of the norms of queries and of keys; nothing without them."""
        if not self.qk_norm:
            return ()
        heads = (self.heads, self.kv_heads) if self.qk_norm_whole else (1, 1)
        return tuple(count * self.head_dim for count in heads)

    @property
    def layer_norms(self) -> int:
        """Norms of the residual stream or of what is added to it, in a layer."""
        return 1 if self.shared_norm else 4 if self.norm_place == "around" else 2

    @property
    def norm_inputs(self) -> int:
        """Tensors that these norms read: parallel blocks' read the layer's input."""
        return 1 if self.parallel_residual else self.layer_norms

    @property
    def block_inputs(self) -> int:
        """Tensors that the blocks' first products read: one where a norm serves both."""
        return 1 if self.shared_norm else 2

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer: with experts where the model has them."""
        return self._layer_parameters(active=False)

    def _layer_parameters(self, *, active: bool) -> int:
        outside = self.attention_parameters + self.layer_norms * self.norm_parameters
        if self.experts is not None:
            return outside + self.experts.parameters(self.hidden, gated=self.gated_mlp, active=active)
        biases = self.mlp_bias * (self.up_width + self.hidden)
        return outside + self.hidden * (self.up_width + self.ffn) + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token and position tables."""
        return (self.vocab + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head that are not shared with the embedding."""
        return (0 if self.tied_embeddings else self.vocab * self.hidden) + self.head_bias * self.vocab

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once, without modules that predict further tokens."""
        return self._parameters(active=False)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts that it is not sent to."""
        return self._parameters(active=True)

    def _parameters(self, *, active: bool) -> int:
        dense = self.dense_layers * self.dense.layer_parameters
        others = (self.layers - self.dense_layers) * self._layer_parameters(active=active)
        return self.embedding_parameters + dense + others + self.norm_parameters + self.head_parameters
