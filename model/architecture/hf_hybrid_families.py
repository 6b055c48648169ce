"""What Hugging Face's code fixes for models with state-space mixers and their ``config.json`` leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.model.architecture.hf_family import ExpertKeys, Family, StateSpaceKeys

#: Nemotron-H's former key names, and the present ones.
_NEMOTRON_FORMER = {
    "attention_head_dim": "head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_chunk_size": "chunk_size",
    "mamba_conv_bias": "use_conv_bias",
}
#: What files of Bamba and of Granite 4 may leave out.
_MAMBA2_SIZES = {"mamba_n_heads": 128, "mamba_d_state": 256}


def _nemotron_h(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Former names, and the number of layers, which a file may leave to their list."""
    renamed = {now: data[former] for former, now in _NEMOTRON_FORMER.items() if former in data and now not in data}
    pattern = data.get("hybrid_override_pattern") or data.get("layers_block_type") or data.get("layer_types") or ()
    count = {"num_hidden_layers": len(pattern)} if isinstance(pattern, str | list) and pattern else {}
    return {**count, **data, **renamed}


def _mamba2(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mamba-2 alone, whose heads are those of the state space: no attention nor MLP has a size."""
    rest = {key: value for key, value in data.items() if key not in ("head_dim", "num_heads")}
    heads = {"mamba_n_heads": data.get("num_heads"), "mamba_d_head": data.get("head_dim")}
    return {**rest, **heads, "num_attention_heads": 1, "head_dim": 1, "intermediate_size": 1}


def _in_turns(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file's layers where it only says that every so many have attention."""
    layers, interval = data.get("num_hidden_layers"), data.get("full_attention_interval") or 4
    if data.get("layer_types") or not (isinstance(layers, int) and isinstance(interval, int) and interval > 0):
        return data
    kinds = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    return {**data, "layer_types": kinds}


#: What files of Qwen3-Next may leave out: defaults of transformers 5.17.
_QWEN3_NEXT_SIZES = {
    "head_dim": 256,
    "num_key_value_heads": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
#: Qwen3-Next's layers: linear attention, every fourth gated attention, experts behind either.
_QWEN3_NEXT = Family(
    attention_bias_key="attention_bias",
    norm_formula="shifted",
    qk_norm=True,
    gated_attention=True,
    rotary_fraction=0.25,
    experts=ExpertKeys(shared_width="shared_expert_intermediate_size"),
    state_space=StateSpaceKeys(mixer="G"),
    defaults=_QWEN3_NEXT_SIZES,
    adapt=_in_turns,
)
#: Qwen3.5's have products of their own for gates and for the numbers of heads.
_QWEN3_5 = replace(
    _QWEN3_NEXT, joint_delta=False, experts=None, defaults={**_QWEN3_NEXT_SIZES, "num_key_value_heads": 4}
)


def _qwen3_5_moe(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Qwen3.5 with experts in every layer, which has no width of an MLP."""
    return {"intermediate_size": data.get("moe_intermediate_size"), **_in_turns(data)}


#: Supported ``model_type`` values.
HYBRID_FAMILIES: Mapping[str, Family] = {
    "nemotron_h": Family(
        keys={"hidden_act": "mlp_hidden_act"},
        gated_mlp=False,
        activation="relu2",
        attention_bias_key="attention_bias",
        mlp_bias_key="mlp_bias",
        positions="none",
        experts=ExpertKeys(
            count="n_routed_experts",
            shared_width="moe_shared_expert_intermediate_size",
            shared_gate=False,
            every="",
            without="",
            router="grouped sigmoid",
            latent="moe_latent_size",
        ),
        state_space=StateSpaceKeys(
            heads="mamba_num_heads",
            head_dim="mamba_head_dim",
            state="ssm_state_size",
            groups="n_groups",
            conv="conv_kernel",
            chunk="chunk_size",
            expand="expand",
            conv_bias="use_conv_bias",
            bias="use_bias",
            pattern="layers_block_type",
            older=("hybrid_override_pattern", "layer_types"),
            followed=False,
        ),
        defaults={
            "head_dim": 128,
            "chunk_size": 128,
            "n_groups": 8,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
        },
        refused=("residual_in_fp32",),
        adapt=_nemotron_h,
    ),
    "bamba": Family(
        attention_bias_key="attention_bias",
        mlp_bias_key="mlp_bias",
        rotary_fraction=0.5,
        state_space=StateSpaceKeys(pattern="attn_layer_indices", indexed=True),
        defaults=_MAMBA2_SIZES,
    ),
    "granitemoehybrid": Family(
        keys={"intermediate_size": "shared_intermediate_size"},
        attention_bias_key="attention_bias",
        joint_up=True,
        positions="asked",
        scaled_embeddings=True,
        scaled_branches=True,
        scaled_logits=True,
        experts=ExpertKeys(
            count="num_local_experts",
            width="intermediate_size",
            shared_width="shared_intermediate_size",
            shared_gate=False,
            every="",
            without="",
        ),
        state_space=StateSpaceKeys(older=("layers_block_type",)),
        defaults={**_MAMBA2_SIZES, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "mamba2": Family(
        tied_embeddings=False,
        positions="none",
        state_space=StateSpaceKeys(
            state="state_size",
            groups="n_groups",
            conv="conv_kernel",
            chunk="chunk_size",
            expand="expand",
            conv_bias="use_conv_bias",
            bias="use_bias",
            pattern="",
            followed=False,
        ),
        refused=("residual_in_fp32",),
        defaults={"residual_in_fp32": True, "n_groups": 8},
        adapt=_mamba2,
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": Family(text_of="qwen3_5_text"),
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, joint_delta=False, adapt=_qwen3_5_moe),
    "qwen3_5_moe": Family(text_of="qwen3_5_moe_text"),
}
