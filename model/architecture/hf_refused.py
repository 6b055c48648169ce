"""Models whose layers nothing here describes, told by their ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping

_LINEAR = "linear attention in most of their layers"
_DELTA = "linear attention by the gated delta rule"
_MAMBA = "state-space (Mamba) layers"
_OLDER = "state-space layers of the first Mamba"
_BESIDE = "state-space layers beside attention in one layer, or attention that layers share"
_SPARSE = "sparse attention, whose indexer picks the tokens that a query sees"
_UNEQUAL = "layers of different sizes (block_configs)"
#: Keys that only files of models with such layers set, whatever type they give.
FOREIGN: Mapping[str, str] = {
    "linear_attn_config": _LINEAR,
    **dict.fromkeys(("linear_conv_kernel_dim", "full_attention_interval"), _DELTA),
    **dict.fromkeys(("hybrid_override_pattern", "mamba_d_state", "ssm_state_size"), _MAMBA),
    "index_topk": _SPARSE,
    "block_configs": _UNEQUAL,
}
#: Layers of families with such mixers, whose files may set these keys.
OWN: Mapping[str, str] = {"M": _MAMBA, "G": _DELTA}
#: Types of models that are known for layers which nothing here describes, and what those are.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("kimi_linear", "minimax", "minimax_text_01", "minimax_m1", "olmo_hybrid"), _LINEAR),
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba"), _OLDER),
    **dict.fromkeys(("falcon_h1", "zamba", "zamba2"), _BESIDE),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), _SPARSE),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "embeddings in every layer and several residual streams"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "convolutions in most of their layers"),
    "apertus": "an activation with weights of its own in every layer (xIELU)",
    **dict.fromkeys(("bailing_hybrid", "bailing_moe_linear"), _LINEAR),
    **dict.fromkeys(("nemotron-nas", "deci"), _UNEQUAL),
    **dict.fromkeys(("recurrent_gemma", "rwkv"), "recurrent layers"),
}
