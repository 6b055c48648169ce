"""What Hugging Face's code fixes for each ``model_type`` and its ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.model.architecture.hf_family import ExpertKeys, Family
from joulecast.model.architecture.hf_gpt_families import GPT_FAMILIES
from joulecast.model.architecture.hf_hybrid_families import HYBRID_FAMILIES

_DEEPSEEK_EXPERTS = ExpertKeys(
    count="n_routed_experts",
    shared="n_shared_experts",
    dense="first_k_dense_replace",
    every="moe_layer_freq",
    from_first=True,
    router="grouped sigmoid",
)

_LLAMA = Family(attention_bias_key="attention_bias", mlp_bias_key="mlp_bias")

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
    qkv_bias=True,
    attention_bias_key="attention_bias",
    output_follows=False,
    rotary_fraction=0.5,
    norm_place="around",
    joint_up=True,
)

#: What files of LLaVA leave out of a Llama: defaults of transformers 5.17.
_VICUNA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}

#: Gemma's norms multiply by 1 + weight, its embeddings are scaled, its gate is a GELU.
_GEMMA = Family(
    tied_embeddings=True,
    activation="gelu",
    attention_bias_key="attention_bias",
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

_QWEN3 = Family(attention_bias_key="attention_bias", qk_norm=True, defaults=_QWEN)
#: ERNIE rotates neighbouring values, and has biases nowhere unless its file says so.
_ERNIE = replace(
    _LLAMA, attention_bias_key="use_bias", mlp_bias_key="use_bias", paired_rotary=True, tied_embeddings=True
)
#: Hunyuan norms queries and keys, behind their rotation.
_HUNYUAN = Family(attention_bias_key="attention_bias", mlp_bias_key="mlp_bias", qk_norm=True)
#: Ling's layers, whose first versions have no norms of queries and keys, and rotate whole heads.
_LING = Family(
    attention_bias_key="use_qkv_bias",
    output_follows=False,
    qk_norm_key="use_qk_norm",
    experts=replace(_DEEPSEEK_EXPERTS, count="num_experts", shared="num_shared_experts", every=""),
)

_COHERE = Family(
    tied_embeddings=True,
    norm="layernorm",
    attention_bias_key="attention_bias",
    parallel_residual=True,
    shared_norm=True,
    scaled_logits=True,
    norm_formula="centred",
    paired_rotary=True,
    refused=("use_qk_norm",),
)


def _minimax_m2(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """MiniMax M2's rotated share of a head, which its file has as values."""
    width, rotated = data.get("head_dim"), data.get("rotary_dim")
    if not (isinstance(width, int) and isinstance(rotated, int) and width):
        return data
    return {**data, "partial_rotary_factor": rotated / width}


def _hunyuan(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hunyuan's experts, whose numbers its file has for each layer, all of them alike."""

    def of(key: str, default: object) -> object:
        value = data.get(key, default)
        alike = isinstance(value, list) and value and value.count(value[0]) == len(value)
        return value[0] if alike else value

    width = of("moe_intermediate_size", data.get("intermediate_size"))
    active, shared = of("moe_topk", 1), of("num_shared_expert", 1)
    return {**data, "moe_intermediate_size": width, "num_experts_per_tok": active, "n_shared_experts": shared}


def _ernie(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """ERNIE's number of experts of a token by its common name; behind the last layer with experts there is none."""
    last = data.get("num_hidden_layers", 0)
    end = data.get("moe_layer_end_index")
    if isinstance(last, int) and end not in (None, -1, last - 1):
        without = list(range(end + 1, last)) if isinstance(end, int) and end >= 0 else end
        data = {**data, "mlp_only_layers": without}
    return {**data, "num_experts_per_tok": data.get("moe_k", 6)}


def _llama4(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Llama 4's one shared expert, and whether queries are scaled, which a file may say with a number."""
    return {**data, "n_shared_experts": 1, "attn_temperature_tuning": bool(data.get("attn_temperature_tuning", True))}


#: Supported ``model_type`` values.
FAMILIES: Mapping[str, Family] = {
    **GPT_FAMILIES,
    **HYBRID_FAMILIES,
    "llama": _LLAMA,
    "llava": Family(text_of="llama", defaults=_VICUNA),
    "mistral": Family(),
    "mistral3": Family(text_of="mistral"),
    "ministral": Family(),
    "ministral3": Family(scaled_queries=True),
    "mistral4": Family(
        experts=_DEEPSEEK_EXPERTS,
        latent=True,
        scaled_queries=True,
        defaults={"n_shared_experts": 1},
    ),
    "smollm3": replace(
        _LLAMA,
        tied_embeddings=True,
        plain_layers="listed",
        defaults={"use_sliding_window": False, "no_rope_layer_interval": 4, "num_key_value_heads": 4},
    ),
    "exaone4": Family(
        norm_place="after", qk_norm=True, period=4, plain_layers="beside windows", defaults={"sliding_window": 4096}
    ),
    "llama4_text": Family(
        keys={"intermediate_size": "intermediate_size_mlp", "sliding_window": "attention_chunk_size"},
        attention_bias_key="attention_bias",
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
        defaults=_LLAMA4,
        adapt=_llama4,
    ),
    "llama4": Family(text_of="llama4_text"),
    "minimax_m2": Family(
        qk_norm=True,
        qk_norm_whole=True,
        experts=ExpertKeys(count="num_local_experts", width="intermediate_size", router="sigmoid"),
        adapt=_minimax_m2,
    ),
    "qwen2": Family(qkv_bias=True, defaults=_QWEN),
    "qwen2_5_vl_text": Family(qkv_bias=True, defaults=_QWEN),
    "qwen2_5_vl": Family(text_of="qwen2_5_vl_text"),
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, defaults={**_QWEN, "head_dim": 128}),
    "qwen3_vl": Family(text_of="qwen3_vl_text"),
    "mixtral": Family(experts=ExpertKeys(count="num_local_experts", width="intermediate_size", router="wide softmax")),
    "qwen2_moe": Family(
        qkv_bias=True, experts=ExpertKeys(shared_width="shared_expert_intermediate_size"), defaults=_QWEN
    ),
    "qwen3_moe": replace(_QWEN3, experts=ExpertKeys()),
    "qwen3_vl_moe_text": replace(_QWEN3, experts=ExpertKeys(), defaults={**_QWEN, "head_dim": 128}),
    "qwen3_vl_moe": Family(text_of="qwen3_vl_moe_text"),
    "deepseek_v2": Family(experts=replace(_DEEPSEEK_EXPERTS, router="softmax"), latent=True),
    "deepseek_v3": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "kimi_k2": Family(experts=_DEEPSEEK_EXPERTS, latent=True),
    "kimi_k25": Family(text_of="kimi_k2"),
    "dots1": Family(attention_bias_key="attention_bias", qk_norm=True, experts=_DEEPSEEK_EXPERTS),
    "seed_oss": Family(
        qkv_bias=True, attention_bias_key="attention_bias", output_follows=False, mlp_bias_key="mlp_bias"
    ),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(
        _ERNIE,
        experts=ExpertKeys(
            count="moe_num_experts",
            shared="moe_num_shared_experts",
            dense="moe_layer_start_index",
            every="moe_layer_interval",
            from_first=True,
            router="wide softmax",
        ),
        defaults={"moe_layer_start_index": 1},
        adapt=_ernie,
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": replace(
        _HUNYUAN, experts=ExpertKeys(shared="n_shared_experts", router="wide softmax"), adapt=_hunyuan
    ),
    "bailing_moe": _LING,
    "bailing_moe_v2": replace(_LING, qk_norm=True, rotary_fraction=0.5),
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
        mlp_bias_key="mlp_bias",
        rotary_fraction=0.5,
    ),
    "granite": replace(_LLAMA, scaled_embeddings=True, scaled_branches=True, scaled_logits=True),
    "gpt_oss": Family(
        qkv_bias=True,
        attention_bias_key="attention_bias",
        output_bias=True,
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
        attention_bias_key="attention_bias",
        output_follows=False,
        qk_norm_key="use_qk_norm",
        rotary_fraction=0.5,
        experts=_DEEPSEEK_EXPERTS,
    ),
    "stablelm": Family(
        norm="layernorm",
        norm_bias=True,
        attention_bias_key="use_qkv_bias",
        output_follows=False,
        rotary_fraction=0.25,
        parallel_key="use_parallel_residual",
        shared_norm=True,
        refused=("qk_layernorm",),
    ),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, period=4, plain_layers="global", defaults={"sliding_window": 4096}),
}
