"""What Hugging Face's code fixes for each ``model_type`` and its ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Key names of a Mixture of Experts in one family; an empty one does not exist there.

    ``shared`` counts shared experts of the same width as the others, ``shared_width`` is the width of one of their own;
    ``bias``: router and experts have biases; ``dense`` counts the leading layers without experts, ``every`` and
    ``without`` pick others.
    """

    count: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_width: str = ""
    dense: str = ""
    every: str = "decoder_sparse_step"
    without: str = "mlp_only_layers"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults and key names of one ``model_type``.

    ``keys`` maps the common key to this family's own; ``attention_bias_key`` and ``mlp_bias_key`` switch biases where
    the family lets the file decide (an empty key never occurs in a file, so the default holds). ``output_follows``: the
    attention output's bias follows ``attention_bias_key`` too. ``experts`` has the key names of a Mixture of Experts,
    ``latent`` says that attention is multi-head latent attention, ``joint`` that queries, keys and values are one
    product, and gate and up. ``defaults`` are sizes that a file leaves out where they are the code's own. Of layers in
    turn ``period - 1`` see a window alone and the last one all; 0: all are alike. ``text_of``: a file of this type has
    the text model in its ``text_config``. ``parallel_key`` and ``qk_norm_key`` switch parallel blocks and norms of
    queries and keys, where ``shared_norm`` is of parallel blocks alone; files that set a ``refused`` key are. ``adapt``
    gives a file's own keys in the common ones' form. Other fields are those of
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
    parallel: bool = False
    parallel_key: str = ""
    shared_norm: bool = False
    scaled_branches: bool = False
    scaled_logits: bool = False
    joint_up: bool = False
    head_bias: bool = False
    known_modules: bool = True
    sinks: bool = False
    sliced_projections: bool = False
    half_rotary: bool = False
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
    qk_norm_key: str = ""
    refused: tuple[str, ...] = ()
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

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

#: OLMo-2's norms stand behind its blocks; queries and keys are normed, all heads of a token together.
_OLMO2 = replace(
    _LLAMA,
    mlp_bias_key="",
    norm_place="after",
    norm_formula="mixed",
    qk_norm=True,
    qk_norm_whole=True,
    wide_rotary=True,
)

#: GLM's norms stand around its blocks, gate and up are one product, half of a head is rotated.
_GLM = Family(
    qkv_bias=True, attention_bias_key="attention_bias", rotary_fraction=0.5, norm_place="around", joint_up=True
)

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


def _falcon(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Falcon's key/value heads and norms: of the new architecture some and two norms, else one or all and one norm."""
    newer = data.get("new_decoder_architecture") is True
    heads = data.get("num_kv_heads") if newer else 1 if data.get("multi_query", True) else None
    norms = data.get("num_ln_in_parallel_attn") or (2 if newer else 1)
    return {**data, "num_kv_heads": heads, "shared_norm": norms == 1}


def _gptj(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """GPT-J's rotated share of a head, which its file has as values."""
    width, heads, rotated = (data.get(key) for key in ("n_embd", "n_head", "rotary_dim"))
    if not (isinstance(width, int) and isinstance(heads, int) and isinstance(rotated, int) and width):
        return data
    return {**data, "partial_rotary_factor": rotated * heads / width}


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
    "mistral3": Family(text_of="mistral"),
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
    "phi3": Family(joint=True, sliced_projections=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norm_place="around", period=2, defaults=_GEMMA2),
    "gemma3_text": replace(_GEMMA, norm_place="around", qk_norm=True, period=6, defaults=_GEMMA3),
    "gemma3": Family(text_of="gemma3_text"),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, period=4, defaults={"sliding_window": 4096}),
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
    "starcoder2": replace(
        _GPT_LAYER,
        tied=True,
        attention_bias_key="use_bias",
        output_follows=True,
        mlp_bias_key="use_bias",
        defaults={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "granite": replace(_LLAMA, scaled_embeddings=True, scaled_branches=True, scaled_logits=True),
    "gpt_oss": Family(
        qkv_bias=True,
        attention_bias_key="attention_bias",
        output_bias=True,
        output_follows=True,
        norm_formula="mixed",
        sinks=True,
        half_rotary=True,
        period=2,
        experts=ExpertKeys(count="num_local_experts", width="intermediate_size", bias=True),
        defaults={"head_dim": 64, "sliding_window": 128},
    ),
    "glm": replace(_GLM, norm_place="before"),
    "glm4": _GLM,
    "glm4_moe": Family(
        qkv_bias=False,
        attention_bias_key="attention_bias",
        qk_norm_key="use_qk_norm",
        rotary_fraction=0.5,
        experts=_DEEPSEEK_EXPERTS,
    ),
    "stablelm": Family(
        norm="layernorm",
        norm_bias=True,
        attention_bias_key="use_qkv_bias",
        rotary_fraction=0.25,
        parallel_key="use_parallel_residual",
        shared_norm=True,
        refused=("qk_layernorm",),
    ),
    "phi": replace(
        _GPT_LAYER,
        activation="gelu_new",
        rotary_fraction=0.5,
        parallel=True,
        shared_norm=True,
        head_bias=True,
        refused=("qk_layernorm",),
    ),
    "falcon": replace(
        _GPT_LAYER,
        keys={
            "num_key_value_heads": "num_kv_heads",
            "intermediate_size": "ffn_hidden_size",
            "hidden_act": "activation",
        },
        tied=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        attention_bias_key="bias",
        output_follows=True,
        mlp_bias_key="bias",
        ffn_multiple=4,
        parallel=True,
        parallel_key="parallel_attn",
        shared_norm=True,
        joint=True,
        known_modules=False,
        refused=("alibi",),
        adapt=_falcon,
    ),
    "cohere": Family(
        tied=True,
        norm="layernorm",
        attention_bias_key="attention_bias",
        output_follows=True,
        parallel=True,
        shared_norm=True,
        scaled_logits=True,
        known_modules=False,
        refused=("use_qk_norm",),
    ),
    "gptj": replace(
        _GPT_LAYER,
        keys=_GPT2_KEYS,
        activation="gelu_new",
        qkv_bias=False,
        output_bias=False,
        ffn_multiple=4,
        parallel=True,
        shared_norm=True,
        head_bias=True,
        known_modules=False,
        adapt=_gptj,
    ),
    "gpt_neox": replace(
        _GPT_LAYER,
        parallel=True,
        parallel_key="use_parallel_residual",
        attention_bias_key="attention_bias",
        output_follows=True,
        rotary_fraction=0.25,
        joint=True,
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
