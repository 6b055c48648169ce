"""What Hugging Face's code fixes for each ``model_type`` and its ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Key names of a Mixture of Experts in one family; an empty one does not exist there.

    ``shared`` counts shared experts of the same width as the others, ``shared_width`` is the width of one of their own;
    ``dense`` counts the leading layers without experts, ``every`` and ``without`` pick others.
    """

    count: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_width: str = ""
    dense: str = ""
    every: str = "decoder_sparse_step"
    without: str = "mlp_only_layers"


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults and key names of one ``model_type``.

    ``keys`` maps the common key to this family's own; ``attention_bias_key`` and ``mlp_bias_key`` switch biases where
    the family lets the file decide (an empty key never occurs in a file, so the default holds). ``output_follows``: the
    attention output's bias follows ``attention_bias_key`` too. ``experts`` has the key names of a Mixture of Experts,
    ``latent`` says that attention is multi-head latent attention, ``joint`` that queries, keys and values are one
    product, and gate and up.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    gated: bool = True
    activation: str = "silu"
    norm: str = "rmsnorm"
    norm_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_bias_key: str = ""
    output_follows: bool = False
    mlp_bias_key: str = ""
    qk_norm: bool = False
    rotary: bool = True
    rotary_fraction: float = 1.0
    ffn_multiple: int = 0
    extra_positions: int = 0
    experts: ExpertKeys | None = None
    latent: bool = False
    joint: bool = False

    def key(self, common: str) -> str:
        """This family's spelling of a common key."""
        return self.keys.get(common, common)


_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}
_OPT_KEYS = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}

_DEEPSEEK_EXPERTS = ExpertKeys(
    count="n_routed_experts", shared="n_shared_experts", dense="first_k_dense_replace", every="moe_layer_freq"
)

#: The layer of GPT-2 and those that followed it: layer norms, an MLP without a gate, biases everywhere.
_GPT_LAYER = Family(
    gated=False,
    activation="gelu",
    norm="layernorm",
    norm_bias=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)

#: Supported ``model_type`` values.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(attention_bias_key="attention_bias", output_follows=True, mlp_bias_key="mlp_bias"),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(attention_bias_key="attention_bias", output_follows=True, qk_norm=True),
    "mixtral": Family(experts=ExpertKeys(count="num_local_experts", width="intermediate_size")),
    "qwen2_moe": Family(qkv_bias=True, experts=ExpertKeys(shared_width="shared_expert_intermediate_size")),
    "qwen3_moe": Family(attention_bias_key="attention_bias", output_follows=True, qk_norm=True, experts=ExpertKeys()),
    "deepseek_v2": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "deepseek_v3": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "kimi_k2": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "phi3": Family(joint=True),
    "gemma": Family(tied=True, activation="gelu", attention_bias_key="attention_bias", output_follows=True),
    "nemotron": Family(
        gated=False,
        activation="relu2",
        norm="layernorm",
        norm_bias=True,
        attention_bias_key="attention_bias",
        output_follows=True,
        mlp_bias_key="mlp_bias",
        rotary_fraction=0.5,
    ),
    "gpt2": replace(
        _GPT_LAYER, keys=_GPT2_KEYS, tied=True, activation="gelu_new", rotary=False, ffn_multiple=4, joint=True
    ),
    "gpt_neox": replace(
        _GPT_LAYER, attention_bias_key="attention_bias", output_follows=True, rotary_fraction=0.25, joint=True
    ),
    "opt": replace(
        _GPT_LAYER,
        keys=_OPT_KEYS,
        tied=True,
        activation="relu",
        attention_bias_key="enable_bias",
        output_follows=True,
        mlp_bias_key="enable_bias",
        rotary=False,
        extra_positions=2,
    ),
}
