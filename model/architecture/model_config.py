"""The shape of a decoder-only transformer, and the parameters that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import gcd
from typing import NamedTuple

from joulecast.model.architecture.delta_net import DeltaNet
from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.layer_form import LayerForm
from joulecast.model.architecture.state_space import StateSpace
from joulecast.model.architecture.vision import Vision
from joulecast.model.hashing import hashed_once


class LayerKind(NamedTuple):
    """What tells a layer of a mixed stack from others.

    Attention in a window, no rotary embedding, no experts, linear layers in no narrow type, and of a hybrid its mixers.
    """

    local: bool
    plain: bool
    dense: bool
    wide: bool = False
    mixers: str = ""


@hashed_once
@dataclass(frozen=True, slots=True)
class ModelConfig(LayerForm):
    """Shape of a decoder-only transformer.

    Attributes
    ----------
    name
        Catalogue name or the file's stem.
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab
        Widths and counts; ``head_dim`` need not be ``hidden / heads``.
    gelu_formula
        Whether Hugging Face's code has its GELU as a formula of single operations (``gelu_new``).
    attention_softcap, logit_softcap
        Whether scores of attention, and logits, pass through a hyperbolic tangent (Gemma 2).
    rope_theta, rope_type
        Base and scaling kind of a rotary position embedding (``default``: none).
    rotary_pattern
        Which layers have a rotary embedding, repeated over the stack; empty: all alike.
    learned_positions
        Rows of a learned position table, 0 without one.
    max_positions
        Longest sequence that the model is made for, 0 where its file leaves that out.
    sliding_window, window_pattern
        Tokens that attention sees in local layers, its own included; 0: all. Which layers are local, repeated over the
        stack; empty: all of them.
    text_part
        Whether the file's model sees more than text, and this is the part that reads text.
    vision
        The part that sees images, where one is described; in none of the counts of parameters here.
    experts
        Mixture of Experts in place of the MLP, in all layers but some; ``ffn`` is then the width of those.
    latent
        Multi-head latent attention; ``head_dim`` is then the mean size of keys and values.
    nextn_layers, mtp_layers
        Modules that predict further tokens: those that the file knows (``num_nextn_predict_layers``), and those that
        are trained.
    mtp_repeated
        Whether the latter are one module, run again for each further token.
    wide_pattern
        Whether a layer's linear layers stay in the type of all else where a plan's others run in FP8 or FP4; repeats.
    state_space
        Shape of state-space mixers, in the layers that have one.
    delta_net
        Shape of linear attention, in the layers that have it.
    mixers
        What the layers of a hybrid are made of, each one of :data:`~joulecast.model.architecture.state_space.MIXERS`;
        repeats. Empty: attention, and an MLP or experts, in every layer.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gelu_formula: bool = False
    attention_softcap: bool = False
    logit_softcap: bool = False
    rope_theta: float = 10000.0
    rope_type: str = "default"
    rotary_pattern: tuple[bool, ...] = ()
    learned_positions: int = 0
    max_positions: int = 0
    sliding_window: int = 0
    window_pattern: tuple[bool, ...] = ()
    text_part: bool = False
    vision: Vision | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None
    nextn_layers: int = 0
    mtp_layers: int = 0
    mtp_repeated: bool = False
    wide_pattern: tuple[bool, ...] = ()
    state_space: StateSpace | None = None
    delta_net: DeltaNet | None = None
    mixers: tuple[str, ...] = ()

    @property
    def attends(self) -> bool:
        """Whether layers have attention."""
        return not self.mixers or any("*" in mixers for mixers in self.mixers)

    @property
    def feeds_forward(self) -> bool:
        """Whether layers have an MLP or experts."""
        return not self.mixers or any(mixers[-1] in "-E" for mixers in self.mixers)

    @property
    def split_heads(self) -> int:
        """Heads that tensor-parallel ranks share alike: attention's, and those of state spaces with their groups."""
        shared = () if self.state_space is None else (self.state_space.heads, self.state_space.groups)
        return gcd(*shared, *((self.heads,) if self.attends else ()))

    @property
    def halves(self) -> int:
        """Parts of a layer: one that mixes positions, by attention, linear or not, or a state space, and one not."""
        return (self.attends or self.mixer is not None) + self.feeds_forward

    @property
    def mixer(self) -> StateSpace | DeltaNet | None:
        """What mixes positions in place of attention."""
        return self.state_space if self.state_space is not None else self.delta_net

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
    def gate_width(self) -> int:
        """Width of what multiplies attention's result, 0 where nothing does."""
        return self.attention_width if self.gated_attention else 0

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary MLP: all without a Mixture of Experts."""
        if self.mixers:
            return sum("-" in self.kind(layer).mixers for layer in range(self.layers))
        return sum(self.kind(layer).dense for layer in range(self.layers)) if self.experts else self.layers

    @property
    def dense(self) -> ModelConfig:
        """The same model with an ordinary MLP in every layer, as its layers without experts have it."""
        return self if self.experts is None else replace(self, experts=None)

    def kind(self, layer: int) -> LayerKind:
        """What a layer, counted from 0, is among those of a mixed stack."""
        return LayerKind(
            local=bool(self.window_pattern) and self.window_pattern[layer % len(self.window_pattern)],
            plain=bool(self.rotary_pattern) and not self.rotary_pattern[layer % len(self.rotary_pattern)],
            dense=self.experts is not None and not self.experts.stand_in(layer),
            wide=bool(self.wide_pattern) and self.wide_pattern[layer % len(self.wide_pattern)],
            mixers=self.mixers[layer % len(self.mixers)] if self.mixers else "",
        )

    @property
    def stays_wide(self) -> bool:
        """Whether linear layers run in no narrow type in any of its layers."""
        return self.wide_pattern != () and all(self.wide_pattern)

    @property
    def alike(self) -> bool:
        """Whether all layers are alike, as no pattern nor experts tell them apart."""
        return self.experts is None and not self._patterns

    @property
    def takes_turns(self) -> bool:
        """Whether kinds of layers take turns, rather than follow each other once."""
        return bool(self._patterns or (self.experts is not None and self.experts.turns))

    @property
    def _patterns(self) -> tuple[object, ...]:
        return self.window_pattern or self.rotary_pattern or self.wide_pattern or self.mixers

    @property
    def kinds(self) -> tuple[ModelConfig, ...]:
        """For each kind of layer that it has, the model with such layers alone; the usual one is the last."""
        return _each_kind(self)

    @property
    def prediction_modules(self) -> int:
        """Modules that predict further tokens and have weights of their own."""
        return min(self.mtp_layers, 1) if self.mtp_repeated else self.mtp_layers

    @property
    def prediction_layer(self) -> ModelConfig:
        """The model with such layers as its modules that predict further tokens have: the usual ones.

        Of a hybrid with both they have attention and experts (``mtp_hybrid_override_pattern``: ``*E``, Nemotron 3).
        """
        if not self.mixers or self.experts is None or not self.attends:
            return self.kinds[-1]
        return self.of_kind(LayerKind(local=False, plain=False, dense=False, mixers="*E"))

    def of_kind(self, kind: LayerKind) -> ModelConfig:
        """The model with layers of one kind alone."""
        return _of_kind(self, kind)

    def others(self, first: int, count: int) -> tuple[int, ...]:
        """Layers of each kind but the usual one among ``count`` from the ``first`` on, which is 0 for the model's."""
        met = [self.kind(layer) for layer in range(first, first + count)]
        return tuple(met.count(kind) for kind in _kinds(self)[:-1])

    def runs(self, first: int, count: int) -> tuple[tuple[ModelConfig, int], ...]:
        """The same layers in order: models that have such alone, with how many follow each other."""
        met = (self.kind(layer) for layer in range(first, first + count))
        return tuple((self.of_kind(kind), len(list(run))) for kind, run in groupby(met))

    def sorted_kinds(self, others: Sequence[int], layers: int) -> tuple[tuple[ModelConfig, int], ...]:
        """Kinds and numbers of ``layers`` layers, so many of them of each kind but the usual one; empty: none."""
        *rare, usual = self.kinds
        counted = tuple(zip(rare, others, strict=True)) if others else ()
        return (*counted, (usual, layers - sum(others)))

    def sorted_stack(self, others: Sequence[int], layers: int) -> ModelConfig:
        """The model with ``layers`` layers, so many of each other kind first; if these are all, in their own order."""
        *rare, usual = _kinds(self)
        if not rare or (layers == self.layers and tuple(others) == self.others(0, layers)):
            return self
        stack = [kind for kind, count in zip(rare, others, strict=True) for _ in range(count)]
        stack += [usual] * (layers - len(stack))
        return _stacked(self, stack or [usual])

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
        biases = self.qkv_bias * (self.qkv_width + self.gate_width) + self.output_bias * self.hidden
        return (
            self.hidden * (self.qkv_width + self.attention_width + self.gate_width)
            + biases
            + sum(self.qk_norm_sizes)
            + self.attention_sinks * self.heads
        )

    @property
    def qk_norm_sizes(self) -> tuple[int, ...]:
        """Parameters of the norms of queries and of keys; nothing without them."""
        if not self.qk_norm or self.qk_norm_plain:
            return ()
        heads = (self.heads, self.kv_heads) if self.qk_norm_whole else (1, 1)
        return tuple(count * self.head_dim for count in heads)

    @property
    def layer_norms(self) -> int:
        """Norms of the residual stream or of what is added to it, in a layer."""
        return 1 if self.shared_norm else 4 if self.norm_place == "around" else self.halves

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of these norms: a layer of one half has that half's."""
        if self.halves == 1:
            return ("norm2",) if self.feeds_forward else ("norm1",)
        return ("norm1", "norm2", "norm1_after", "norm2_after")[: self.layer_norms]

    @property
    def norm_inputs(self) -> int:
        """Tensors that these norms read: parallel blocks' read the layer's input."""
        return 1 if self.parallel_residual else self.layer_norms

    @property
    def block_inputs(self) -> int:
        """Tensors that the blocks' first products read: one where a norm serves both."""
        return 1 if self.shared_norm else self.halves

    def layer_parameters(self, *, active: bool = False) -> int:
        """Parameters of one transformer layer: with all its experts, or with those that one token meets."""
        outside = self.layer_norms * self.norm_parameters
        outside += self.attention_parameters if self.attends else 0
        outside += self.mixer.parameters(self.hidden) if self.mixer is not None else 0
        if not self.feeds_forward:
            return outside
        if self.experts is not None:
            return outside + self.experts.parameters(self.hidden, gated=self.gated_mlp, active=active)
        biases = self.mlp_bias * (self.up_width + self.hidden)
        return outside + self.hidden * (self.up_width + self.ffn) + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token and position tables, and of the norm behind them."""
        return (self.vocab + self.learned_positions) * self.hidden + self.embedding_norm * self.norm_parameters

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
        stack = sum(count * model.layer_parameters(active=active) for model, count in self.runs(0, self.layers))
        return self.embedding_parameters + stack + self.norm_parameters + self.head_parameters


@lru_cache(maxsize=1024)
def _kinds(model: ModelConfig) -> tuple[LayerKind, ...]:
    """The kinds of layers that it has: local, plain and dense ones first; one of a stack without layers."""
    return tuple(sorted({model.kind(layer) for layer in range(max(1, model.layers))}, reverse=True))


@lru_cache(maxsize=1024)
def _each_kind(model: ModelConfig) -> tuple[ModelConfig, ...]:
    return tuple(_of_kind(model, kind) for kind in _kinds(model))


@lru_cache(maxsize=4096)
def _of_kind(model: ModelConfig, kind: LayerKind) -> ModelConfig:
    if model.alike:
        return model
    experts = None if kind.dense or model.experts is None else replace(model.experts, dense_layers=0, turns=())
    return replace(
        model,
        sliding_window=model.sliding_window if kind.local or not model.window_pattern else 0,
        window_pattern=(),
        rotary=model.rotary and not kind.plain,
        rotary_pattern=(),
        qk_norm=model.qk_norm and not (model.qk_norm_plain and kind.plain),
        scaled_queries=model.scaled_queries and (kind.plain or not model.rotary_pattern),
        experts=experts,
        wide_pattern=(True,) if kind.wide else (),
        state_space=model.state_space if "M" in kind.mixers else None,
        delta_net=model.delta_net if "G" in kind.mixers else None,
        mixers=(kind.mixers,) if kind.mixers else (),
    )


def _stacked(model: ModelConfig, stack: Sequence[LayerKind]) -> ModelConfig:
    """The model with these layers."""
    turns = tuple(not kind.dense for kind in stack)
    return replace(
        model,
        window_pattern=tuple(kind.local for kind in stack) if model.window_pattern else (),
        rotary_pattern=tuple(not kind.plain for kind in stack) if model.rotary_pattern else (),
        experts=model.experts and replace(model.experts, dense_layers=0, turns=turns),
        wide_pattern=tuple(kind.wide for kind in stack) if model.wide_pattern else (),
        mixers=tuple(kind.mixers for kind in stack) if model.mixers else (),
    )
