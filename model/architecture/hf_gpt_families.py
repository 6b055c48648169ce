"""Families whose layers are GPT-2's or come from it: layer norms, an MLP without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.model.architecture.hf_family import Family

_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}
_OPT_KEYS = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
#: A common key, and MPT's kind of attention that its code in transformers has.
HEADS, MULTIHEAD = "num_attention_heads", "multihead_attention"

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


#: By ``model_type``.
GPT_FAMILIES: Mapping[str, Family] = {
    "gpt2": replace(
        _GPT_LAYER,
        keys=_GPT2_KEYS,
        tied_embeddings=True,
        activation="gelu_new",
        rotary=False,
        ffn_multiple=4,
        joint_projections=True,
    ),
    "starcoder2": replace(
        _GPT_LAYER,
        tied_embeddings=True,
        attention_bias_key="use_bias",
        mlp_bias_key="use_bias",
        defaults={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "phi": replace(
        _GPT_LAYER,
        activation="gelu_new",
        rotary_fraction=0.5,
        parallel_residual=True,
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
        tied_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        attention_bias_key="bias",
        mlp_bias_key="bias",
        ffn_multiple=4,
        parallel_residual=True,
        parallel_key="parallel_attn",
        shared_norm=True,
        joint_projections=True,
        own_code="falcon",
        alibi_key="alibi",
        adapt=_falcon,
    ),
    "gptj": replace(
        _GPT_LAYER,
        keys=_GPT2_KEYS,
        activation="gelu_new",
        qkv_bias=False,
        output_bias=False,
        ffn_multiple=4,
        parallel_residual=True,
        shared_norm=True,
        head_bias=True,
        own_code="gptj",
        adapt=_gptj,
    ),
    "gpt_neox": replace(
        _GPT_LAYER,
        parallel_residual=True,
        parallel_key="use_parallel_residual",
        attention_bias_key="attention_bias",
        rotary_fraction=0.25,
        joint_projections=True,
        heads_joined=True,
    ),
    "bloom": replace(
        _GPT_LAYER,
        keys={"num_hidden_layers": "n_layer", HEADS: "n_head", "max_position_embeddings": "seq_length"},
        tied_embeddings=True,
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
        tied_embeddings=True,
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
        tied_embeddings=True,
        activation="relu",
        attention_bias_key="enable_bias",
        mlp_bias_key="enable_bias",
        rotary=False,
        extra_positions=2,
    ),
}
