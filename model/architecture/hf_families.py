"""What Hugging Face's code fixes for each ``model_type`` and its ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Key names of a Mixture of Experts in one family; an empty one does not exist there.

    ``shared`` counts shared experts of the same width as the others, ``shared_width`` is the width of one of their own;
    ``bias``: router and experts have biases; ``dense`` counts the leading layers without experts. Of the others every
    ``every``-th has experts, the first one among them ``from_first``, but for those that ``without`` names; or those
    alone that ``listed`` names.
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


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults and key names of one ``model_type``.

    ``keys`` maps the common key to this family's own; ``attention_bias_key`` and ``mlp_bias_key`` switch biases where
    the family lets the file decide (an empty key never occurs in a file, so the default holds). ``output_follows``: the
    attention output's bias follows ``attention_bias_key`` too. ``experts`` has the key names of a Mixture of Experts,
    ``latent`` says that attention is multi-head latent attention, ``joint_projections`` that queries, keys and values
    are one product, and gate and up. ``defaults`` are sizes that a file leaves out where they are the code's own. Of
    layers in turn ``period - 1`` see a window alone and the last one all; 0: all are alike. ``local_type`` is what
    ``layer_types`` calls a local layer; ``plain_layers`` says which have no rotary embedding: those that see all
    (``global``; ``beside windows`` if there are any), or those that ``no_rope_layers`` lists with a 0 (``listed``).
    ``text_of``: a file of this type has a text model in its ``text_config``, of this type unless it says another.
    ``parallel_key``, ``qk_norm_key``, ``scaled_key`` and ``alibi_key`` switch parallel blocks, norms of queries and
    keys, their scaling, and ALiBi, where ``shared_norm`` is of parallel blocks alone; files that set a ``refused`` key
    are. ``adapt`` gives a file's own keys in the common ones' form. Other fields are those of
    :class:`~joulecast.model.architecture.model_config.ModelConfig`.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    gated_mlp: bool = True
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
    own_code: str = ""
    attention_sinks: bool = False
    sliced_projections: bool = False
    half_rotary: bool = False
    wide_rotary: bool = False
    paired_rotary: bool = False
    embedding_norm: bool = False
    scaled_embeddings: bool = False
    alibi: bool = False
    alibi_key: str = ""
    rotary: bool = True
    rotary_fraction: float = 1.0
    ffn_multiple: int = 0
    extra_positions: int = 0
    qk_norm_plain: bool = False
    scaled_queries: bool = False
    chunked: bool = False
    local_type: str = "sliding_attention"
    plain_layers: str = ""
    experts: ExpertKeys | None = None
    latent: bool = False
    joint_projections: bool = False
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
    count="n_routed_experts",
    shared="n_shared_experts",
    dense="first_k_dense_replace",
    every="moe_layer_freq",
    from_first=True,
)

#: The layer of GPT-2 and those that followed it: layer norms, an MLP without a gate, biases everywhere.
_GPT_LAYER = Family(
    gated_mlp=False,
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


#: A common key, and MPT's kind of attention that its code in transformers has.
HEADS, MULTIHEAD = "num_attention_heads", "multihead_attention"


def _falcon(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Falcon's key/value heads and norms: of the new architecture some and two norms, else one or all and one norm."""
    newer = data.get("new_decoder_architecture") is True
    heads = data.get("num_kv_heads") if newer else 1 if data.get("multi_query", True) else None
    norms = data.get("num_ln_in_parallel_attn") or (2 if newer else 1)
    return {**data, "num_kv_heads": heads, "shared_norm": norms == 1}


def _bloom(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """BLOOM's sizes, which files spell in two ways."""
    found = {"hidden_size": data.get("n_embed"), "n_layer": data.get("num_hidden_layers"), "n_head": data.get(HEADS)}
    return {**{key: value for key, value in found.items() if value is not None}, **data}


def _mpt(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """MPT's width, and keys of its attention's own table."""
    table, width, ratio = data.get("attn_config"), data.get("d_model"), data.get("expansion_ratio", 4)
    own = {f"attn_config.{key}": value for key, value in table.items()} if isinstance(table, Mapping) else {}
    own["attn_config.attn_type"] = own.get("attn_config.attn_type", MULTIHEAD) != MULTIHEAD
    if isinstance(width, int) and isinstance(ratio, int):
        own["intermediate_size"] = ratio * width
    return {**data, **own}


def _gptj(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """GPT-J's rotated share of a head, which its file has as values."""
    width, heads, rotated = (data.get(key) for key in ("n_embd", "n_head", "rotary_dim"))
    if not (isinstance(width, int) and isinstance(heads, int) and isinstance(rotated, int) and width):
        return data
    return {**data, "partial_rotary_factor": rotated * heads / width}


def _minimax_m2(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """MiniMax M2's rotated share of a head, which its file has as values."""
    width, rotated = data.get("head_dim"), data.get("rotary_dim")
    if not (isinstance(width, int) and isinstance(rotated, int) and width):
        return data
    return {**data, "partial_rotary_factor": rotated / width}


def _llama4(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Llama 4's one shared expert, and whether queries are scaled, which a file may say with a number."""
    return {**data, "n_shared_experts": 1, "attn_temperature_tuning": bool(data.get("attn_temperature_tuning", True))}


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

#: The same of Llama 4.
_LLAMA4 = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 202048,
    "max_position_embeddings": 131072,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "intermediate_size_mlp": 16384,
    "no_rope_layer_interval": 4,
}

_COHERE = Family(
    tied=True,
    norm="layernorm",
    attention_bias_key="attention_bias",
    output_follows=True,
    parallel=True,
    shared_norm=True,
    scaled_logits=True,
    norm_formula="centred",
    paired_rotary=True,
    refused=("use_qk_norm",),
)

#: Supported ``model_type`` values.
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "mistral3": Family(text_of="mistral"),
    "ministral": Family(),
    "ministral3": Family(scaled_queries=True),
    "mistral4": Family(
        experts=_DEEPSEEK_EXPERTS,
        latent=True,
        scaled_queries=True,
        defaults={"n_shared_experts": 1},
        known_modules=False,
    ),
    "smollm3": replace(
        _LLAMA,
        tied=True,
        plain_layers="listed",
        defaults={"use_sliding_window": False, "no_rope_layer_interval": 4, "num_key_value_heads": 4},
    ),
    "exaone4": Family(
        norm_place="after", qk_norm=True, period=4, plain_layers="beside windows", defaults={"sliding_window": 4096}
    ),
    "llama4_text": Family(
        keys={"intermediate_size": "intermediate_size_mlp", "sliding_window": "attention_chunk_size"},
        attention_bias_key="attention_bias",
        output_follows=True,
        qk_norm_key="use_qk_norm",
        qk_norm_plain=True,
        scaled_key="attn_temperature_tuning",
        chunked=True,
        local_type="chunked_attention",
        plain_layers="listed",
        experts=ExpertKeys(
            count="num_local_experts",
            width="intermediate_size",
            shared="n_shared_experts",
            every="interleave_moe_layer_step",
            listed="moe_layers",
        ),
        known_modules=False,
        defaults=_LLAMA4,
        adapt=_llama4,
    ),
    "llama4": Family(text_of="llama4_text"),
    "minimax_m2": Family(
        qk_norm=True,
        qk_norm_whole=True,
        experts=ExpertKeys(count="num_local_experts", width="intermediate_size"),
        known_modules=False,
        adapt=_minimax_m2,
    ),
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
    "kimi_k25": Family(text_of="kimi_k2"),
    "phi3": Family(joint_projections=True, sliced_projections=True),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norm_place="around", period=2, defaults=_GEMMA2),
    "gemma3_text": replace(_GEMMA, norm_place="around", qk_norm=True, period=6, defaults=_GEMMA3),
    "gemma3": Family(text_of="gemma3_text"),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, period=4, defaults={"sliding_window": 4096}),
    "nemotron": Family(
        gated_mlp=False,
        activation="relu2",
        norm="layernorm",
        norm_formula="shifted",
        norm_bias=True,
        attention_bias_key="attention_bias",
        output_follows=True,
        mlp_bias_key="mlp_bias",
        rotary_fraction=0.5,
    ),
    "gpt2": replace(
        _GPT_LAYER,
        keys=_GPT2_KEYS,
        tied=True,
        activation="gelu_new",
        rotary=False,
        ffn_multiple=4,
        joint_projections=True,
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
        attention_sinks=True,
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
        joint_projections=True,
        own_code="falcon",
        alibi_key="alibi",
        adapt=_falcon,
    ),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, period=4, plain_layers="global", defaults={"sliding_window": 4096}),
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
        own_code="gptj",
        adapt=_gptj,
    ),
    "gpt_neox": replace(
        _GPT_LAYER,
        parallel=True,
        parallel_key="use_parallel_residual",
        attention_bias_key="attention_bias",
        output_follows=True,
        rotary_fraction=0.25,
        joint_projections=True,
    ),
    "bloom": replace(
        _GPT_LAYER,
        keys={"num_hidden_layers": "n_layer", HEADS: "n_head", "max_position_embeddings": "seq_length"},
        tied=True,
        alibi=True,
        embedding_norm=True,
        ffn_multiple=4,
        joint_projections=True,
        own_code="bloom",
        refused=("apply_residual_connection_post_layernorm",),
        adapt=_bloom,
    ),
    "mpt": Family(
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            HEADS: "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        tied=True,
        gated_mlp=False,
        activation="gelu",
        norm="layernorm",
        alibi=True,
        alibi_key="attn_config.alibi",
        joint_projections=True,
        own_code="mpt",
        refused=("attn_config.qk_ln", "attn_config.rope", "attn_config.attn_type"),
        adapt=_mpt,
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

_LINEAR = "linear attention in most of their layers"
_MAMBA = "state-space (Mamba) layers"
_SPARSE = "sparse attention, whose indexer picks the tokens that a query sees"
#: Keys that only files of models with such layers set, whatever type they give.
FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("linear_attn_config", "linear_conv_kernel_dim", "full_attention_interval"), _LINEAR),
    **dict.fromkeys(("hybrid_override_pattern", "mamba_d_state", "ssm_state_size"), _MAMBA),
    "index_topk": _SPARSE,
}
#: Types of models that are known for layers which nothing here describes, and what those are.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), _LINEAR),
    **dict.fromkeys(("kimi_linear", "minimax", "minimax_text_01", "minimax_m1", "olmo_hybrid"), _LINEAR),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h", "jamba", "bamba"), _MAMBA),
    **dict.fromkeys(("zamba", "zamba2", "granitemoehybrid"), _MAMBA),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), _SPARSE),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "embeddings in every layer and several residual streams"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "convolutions in most of their layers"),
    **dict.fromkeys(("nemotron-nas", "deci"), "layers of different sizes (block_configs)"),
    **dict.fromkeys(("recurrent_gemma", "rwkv"), "recurrent layers"),
}
