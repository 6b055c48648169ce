"""What Hugging Face's code fixes for each ``model_type`` and its ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


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
    product, and gate and up. ``defaults`` are sizes that a file leaves out where they are the code's own. Of layers in
    turn ``period - 1`` see a window alone and the last one all; 0: all are alike. ``text_of``: a file of this type has
    the text model in its ``text_config``. Other fields are those of
    :class:`~joulecast.model.architecture.model_config.ModelConfig`.
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
    qk_norm_whole: bool = False
    norm_place: str = "before"
    norm_formula: str = "rounded"
    wide_rotary: bool = False
    scaled_embeddings: bool = False
    rotary: bool = True
    rotary_fraction: float = 1.0
    ffn_multiple: int = 0
    extra_positions: int = 0
    experts: ExpertKeys | None = None
    latent: bool = False
    joint: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    period: int = 0
    text_of: str = ""

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

_LLAMA = Family(attention_bias_key="attention_bias", output_follows=True, mlp_bias_key="mlp_bias")

#: Gemma's norms multiply by 1 + weight, its embeddings are scaled, its gate is a GELU.
_GEMMA = Family(
    tied=True,
    activation="gelu",
    attention_bias_key="attention_bias",
    output_follows=True,
    norm_formula="shifted",
    scaled_embeddings=True,
)
#: Qwen's windows are off, and if on then from a late layer on.
_QWEN = {"use_sliding_window": False, "max_window_layers": 28}
#: What files of Gemma 2 and 3 may leave out: defaults of transformers 5.17.
_GEMMA2 = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}

#: Supported ``model_type`` values.
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True, defaults=_QWEN),
    "qwen3": Family(attention_bias_key="attention_bias", output_follows=True, qk_norm=True, defaults=_QWEN),
    "mixtral": Family(experts=ExpertKeys(count="num_local_experts", width="intermediate_size")),
    "qwen2_moe": Family(
        qkv_bias=True, experts=ExpertKeys(shared_width="shared_expert_intermediate_size"), defaults=_QWEN
    ),
    "qwen3_moe": Family(
        attention_bias_key="attention_bias", output_follows=True, qk_norm=True, experts=ExpertKeys(), defaults=_QWEN
    ),
    "deepseek_v2": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "deepseek_v3": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "kimi_k2": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "phi3": Family(joint=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norm_place="around", period=2, defaults=_GEMMA2),
    "gemma3_text": replace(_GEMMA, norm_place="around", qk_norm=True, period=6, defaults=_GEMMA3),
    "gemma3": Family(text_of="gemma3_text"),
    "olmo2": replace(
        _LLAMA,
        mlp_bias_key="",
        norm_place="after",
        norm_formula="mixed",
        qk_norm=True,
        qk_norm_whole=True,
        wide_rotary=True,
    ),
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
