"""What a type of model in Hugging Face's code fixes, and how its ``config.json`` spells the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.model.architecture.layer_form import LayerForm


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Key names of a Mixture of Experts in one family; an empty one does not exist there.

    ``shared`` counts shared experts of the same width as the others, ``shared_width`` is the width of one of their own;
    ``bias``: router and experts have biases; ``router``: as ``Experts.router``; ``dense`` counts the leading layers
    without experts. Of the others every ``every``-th has experts, the first one among them ``from_first``, but for
    those that ``without`` names; or those alone that ``listed`` names. ``shared_gate``: shared experts of a width of
    their own have a gate. ``latent`` is the width that experts work in, if not the model's.
    """

    count: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_width: str = ""
    dense: str = ""
    every: str = "decoder_sparse_step"
    from_first: bool = False
    without: str = "mlp_only_layers"
    listed: str = ""
    bias: bool = False
    router: str = "softmax"
    shared_gate: bool = True
    latent: str = ""


@dataclass(frozen=True, slots=True)
class StateSpaceKeys:
    """Key names of state-space mixers in one family, and how its layers are made of them and others.

    ``pattern`` names what each layer is made of, in letters or words, ``older`` has its former names; ``indexed``: it
    lists the layers with attention; empty: all are state spaces. ``followed``: an MLP or experts stand behind the mixer
    in the same layer. ``mixer`` is what stands in place of attention: a state space, or linear attention (G), whose
    sizes are of keys of their own.
    """

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    state: str = "mamba_d_state"
    groups: str = "mamba_n_groups"
    conv: str = "mamba_d_conv"
    chunk: str = "mamba_chunk_size"
    expand: str = "mamba_expand"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    pattern: str = "layer_types"
    older: tuple[str, ...] = ()
    indexed: bool = False
    followed: bool = True
    mixer: str = "M"


@dataclass(frozen=True, slots=True)
class Family(LayerForm):
    """Defaults and key names of one ``model_type``.

    ``keys`` maps the common key to this family's own; ``attention_bias_key`` and ``mlp_bias_key`` switch biases where
    the family lets the file decide (an empty key never occurs in a file, so the default holds). ``output_follows``: the
    attention output's bias follows ``attention_bias_key`` too. ``experts`` has the key names of a Mixture of Experts,
    ``latent`` says that attention is multi-head latent attention, ``state_space`` has the key names of state-space
    mixers, ``joint_delta`` says how linear attention is projected (``DeltaNet.joint``). ``defaults`` are sizes that a
    file leaves out where they are the code's own. Of layers in turn ``period - 1`` see a window alone and the last one
    all; 0: all are alike. ``local_type`` is what ``layer_types`` calls a local layer; ``plain_layers`` says which have
    no rotary embedding: those that see all (``global``; ``beside windows`` if there are any), or those that
    ``no_rope_layers`` lists with a 0 (``listed``). ``positions``: none is told to any layer (``none``), or none unless
    ``position_embedding_type`` is rope (``asked``). ``text_of``: a file of this type has a text model in its
    ``text_config``, of this type unless it says another; ``defaults`` are then that one's. ``parallel_key``,
    ``qk_norm_key``, ``scaled_key`` and ``alibi_key`` switch parallel blocks, norms of queries and keys, their scaling,
    and ALiBi, where ``shared_norm`` is of parallel blocks alone; files that set a ``refused`` key are. ``adapt`` gives
    a file's own keys in the common ones' form.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    attention_bias_key: str = ""
    output_follows: bool = True
    mlp_bias_key: str = ""
    parallel_key: str = ""
    alibi_key: str = ""
    ffn_multiple: int = 0
    extra_positions: int = 0
    local_type: str = "sliding_attention"
    plain_layers: str = ""
    positions: str = ""
    experts: ExpertKeys | None = None
    latent: bool = False
    state_space: StateSpaceKeys | None = None
    joint_delta: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    period: int = 0
    text_of: str = ""
    qk_norm_key: str = ""
    scaled_key: str = ""
    norm_bias_key: str = "norm_bias"
    refused: tuple[str, ...] = ()
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    def key(self, common: str) -> str:
        """This family's spelling of a common key."""
        return self.keys.get(common, common)
