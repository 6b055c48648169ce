"""Families of Hugging Face's models: totals that their publishers state, from the keys that their files have."""

from __future__ import annotations

from typing import Any

import pytest

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.experts import Experts
from joulecast.model.architecture.hf import parse_config
from joulecast.model.architecture.hf_families import FAMILIES
from joulecast.model.architecture.hf_hybrid_families import HYBRID_FAMILIES
from joulecast.model.architecture.hf_refused import REFUSED
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.model_flops import matrix_elements, training_flops
from joulecast.model.framework.implementation import Implementation
from joulecast.model.training.parameters import parameters_of_stage

#: What the files of published models say of sizes, and their numbers of parameters on Hugging Face.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
    "pythia-160m": (
        {
            "model_type": "gpt_neox", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "vocab_size": 50304, "max_position_embeddings": 2048, "rotary_pct": 0.25,
        },
        162_322_944,
    ),
    "opt-125m": (
        {
            "model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048,
        },
        125_239_296,
    ),
    "gemma-2b": (
        {
            "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000,
            "max_position_embeddings": 8192,
        },
        2_506_172_416,
    ),
    "phi-3-mini": (
        {
            "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
        },
        3_821_079_552,
    ),
    "qwen1.5-moe-a2.7b": (
        {
            "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
            "intermediate_size": 5632, "vocab_size": 151936, "max_position_embeddings": 8192, "num_experts": 60,
            "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        },
        14_315_784_192,
    ),
    "deepseek-v2-lite": (
        {
            "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
            "intermediate_size": 10944, "vocab_size": 102400, "max_position_embeddings": 163840, "n_routed_experts": 64,
            "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
            "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        15_706_484_224,
    ),
}  # fmt: skip


#: Sizes of a small model of further families, and its parameters as transformers 5.17 counts them on the meta device.
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
FOUR = {**TINY, "num_hidden_layers": 4}
LLAMA4 = {**FOUR, "head_dim": 16, "intermediate_size_mlp": 112, "num_local_experts": 4, "attention_chunk_size": 64}
LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}  # fmt: skip
COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    "gemma 2": ({"model_type": "gemma2", **TINY, "head_dim": 32}, 193_856),
    "gemma 3": ({"model_type": "gemma3_text", **TINY, "head_dim": 32}, 194_048),
    "gemma 3 with pictures": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **TINY, "head_dim": 32}}, 194_048,
    ),
    "olmo 3": ({"model_type": "olmo3", **TINY}, 220_896),
    "mistral 3 with pictures": (
        {"model_type": "mistral3", "text_config": {"model_type": "mistral", **TINY, "head_dim": 32}}, 257_472,
    ),
    "granite": ({"model_type": "granite", **TINY}, 220_608),
    "starcoder 2": ({"model_type": "starcoder2", **TINY}, 139_680),
    "stable lm": ({"model_type": "stablelm", **TINY, "use_qkv_bias": True}, 221_440),
    "stable lm, parallel": ({"model_type": "stablelm", **TINY, "use_parallel_residual": True}, 220_672),
    "phi": ({"model_type": "phi", **TINY}, 204_296),
    "falcon 7b": ({"model_type": "falcon", **TINY}, 193_536),
    "falcon 40b": (
        {
            "model_type": "falcon", **TINY, "new_decoder_architecture": True, "num_kv_heads": 2,
            "bias": True,
        },
        201_600,
    ),
    "falcon, in turn": (
        {"model_type": "falcon", **TINY, "multi_query": False, "parallel_attn": False}, 212_352,
    ),
    "falcon, alibi": (
        {
            "model_type": "falcon", **TINY, "num_hidden_layers": 4, "multi_query": False, "parallel_attn": False,
            "bias": True, "alibi": True,
        },
        264_064,
    ),
    "bloom": ({"model_type": "bloom", "hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}, 214_208),
    "mpt": (
        {"model_type": "mpt", "d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 1000, "max_seq_len": 128},
        211_904,
    ),
    "command r": ({"model_type": "cohere", **TINY}, 156_416),
    "gpt-j": (
        {"model_type": "gptj", "n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8, "vocab_size": 1000}, 277_928,
    ),
    "glm": ({"model_type": "glm", **TINY, "head_dim": 32}, 258_240),
    "glm 4": ({"model_type": "glm4", **TINY, "head_dim": 32}, 258_624),
    "glm 4.5": (
        {
            "model_type": "glm4_moe", **TINY, "head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True,
            "attention_bias": True,
        },
        388_480,
    ),
    "gpt-oss": (
        {"model_type": "gpt_oss", **TINY, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2}, 653_220,
    ),
    "gpt-neox": ({"model_type": "gpt_neox", **TINY, "num_key_value_heads": 4}, 216_160),
    "smollm 3": ({"model_type": "smollm3", **FOUR}, 187_456),
    "command r7b": ({"model_type": "cohere2", **FOUR}, 187_200),
    "exaone 4": ({"model_type": "exaone4", **FOUR}, 251_584),
    "llama 4, experts in every other layer": (
        {"model_type": "llama4", "text_config": {**LLAMA4, "interleave_moe_layer_step": 2}},
        405_568,
    ),
    "llama 4, experts in listed layers": ({"model_type": "llama4_text", **LLAMA4, "moe_layers": [1, 2]}, 405_568),
    "minimax m2": (
        {"model_type": "minimax_m2", **FOUR, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2}, 819_520,
    ),
    "ministral": ({"model_type": "ministral", **FOUR, "head_dim": 32}, 300_608),
    "ministral 3": (
        {"model_type": "mistral3", "text_config": {"model_type": "ministral3", **FOUR, "head_dim": 32}}, 300_608,
    ),
    "mistral 4": ({"model_type": "mistral4", **FOUR, **LATENT}, 438_496),
    "kimi k2.5": ({"model_type": "kimi_k25", "text_config": {**FOUR, **LATENT, "n_shared_experts": 1}}, 438_496),
    "qwen 3, experts in every other layer": (
        {
            "model_type": "qwen3_moe", **FOUR, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48, "decoder_sparse_step": 2, "mlp_only_layers": [1],
        },
        356_672,
    ),
    "olmo 2": ({"model_type": "olmo2", **TINY}, 220_896),
}  # fmt: skip


def read(**keys: Any):
    """A model of a file with these keys."""
    return parse_config(keys, name="x", file="x.json")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name: str) -> None:
    keys, parameters = PUBLISHED[name]
    assert read(**keys).parameters == parameters


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_of_parameters_as_transformers_counts_them(name: str) -> None:
    keys, parameters = COUNTED[name]
    config = read(**keys)
    assert config.parameters == parameters
    run = Implementation(modules="transformers" if config.experts is None else "joint")
    tensors = parameters_of_stage(
        config, run, config.layers, first=True, last=True, others=config.others(0, config.layers)
    )
    assert sum(tensor.elements for tensor in tensors) == parameters


#: A small file of any family: heads of 32, a vocabulary of 1000.
SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96, "vocab_size": 1000,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "keys", "more"),
    [
        # Biases of queries, keys and values (3 x 64) and of the output (64), in each of two layers.
        ("llama", {"attention_bias": True}, 2 * (192 + 64)),
        ("llama", {"mlp_bias": True}, 2 * (2 * 96 + 64)),
        ("qwen3", {"attention_bias": True}, 2 * (192 + 64)),
        ("gpt_neox", {"attention_bias": False}, -2 * (192 + 64)),
        ("opt", {"ffn_dim": 96, "enable_bias": False}, -2 * (192 + 64 + 96 + 64)),
        ("nemotron", {"mlp_bias": True, "attention_bias": True}, 2 * (192 + 64 + 96 + 64)),
        ("mistral", {"attention_bias": True}, 0),  # whose code has no such key
        ("llama", {"tie_word_embeddings": True}, -64 * 1000),
        ("gemma", {"tie_word_embeddings": False}, 64 * 1000),
        ("nemotron", {"norm_bias": False}, -64 * 5),
    ],
)
def test_what_a_file_may_decide(kind: str, keys: dict[str, Any], more: int) -> None:
    usual = {"ffn_dim": 96} if kind == "opt" else {}
    before = read(model_type=kind, **SMALL, **usual).parameters
    assert read(**{"model_type": kind, **SMALL, **usual, **keys}).parameters - before == more


@pytest.mark.parametrize(
    ("kind", "fraction", "learned", "activation"),
    [
        ("llama", 1.0, 0, "silu"), ("nemotron", 0.5, 0, "relu2"), ("gpt_neox", 0.25, 0, "gelu"),
        ("opt", 1.0, 130, "relu"), ("gemma", 1.0, 0, "gelu"), ("phi3", 1.0, 0, "silu"),
    ],
)  # fmt: skip
def test_what_the_code_of_a_family_fixes(kind: str, fraction: float, learned: int, activation: str) -> None:
    config = read(model_type=kind, **SMALL, ffn_dim=96)
    assert (config.rotary_fraction, config.learned_positions, config.activation) == (fraction, learned, activation)
    assert config.rotary == (learned == 0)
    assert config.norm == ("layernorm" if kind in ("nemotron", "gpt_neox", "opt") else "rmsnorm")


def test_every_family_is_read() -> None:
    named = {str(keys["model_type"]) for keys, _ in PUBLISHED.values()}
    catalogued = {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "nemotron"}
    catalogued |= {"seed_oss", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "bailing_moe"}
    counted = {str(keys["model_type"]) for keys, _ in COUNTED.values()}
    seeing = {kind for kind in FAMILIES if kind.startswith(("qwen2_5_vl", "qwen3_vl", "llava"))}
    others = {"dots1", "kimi_k2", "ministral3", "bailing_moe_v2"} | set(HYBRID_FAMILIES)
    assert len(seeing) == 7 and set(FAMILIES) == named | catalogued | counted | seeing | others


def test_versions_of_lings_files_differ_in_what_they_say() -> None:
    """Of the first version heads are rotated whole and not normed, unless its file says otherwise."""
    ling: dict[str, Any] = {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    first, second = (read(**ling, model_type=kind) for kind in ("bailing_moe", "bailing_moe_v2"))
    assert (first.qk_norm, first.rotary_fraction) == (False, 1.0)
    assert (second.qk_norm, second.rotary_fraction) == (True, 0.5)
    assert read(**ling, model_type="bailing_moe", use_qk_norm=True, partial_rotary_factor=0.5) == second


def test_operations_of_a_step_worked_out() -> None:
    dense = read(model_type="llama", **SMALL)
    # Products of a layer: 64 x 192 and 64 x 64 of attention, three of 64 x 96; the head's 64 x 1000.
    weights = 2 * (64 * 192 + 64 * 64 + 3 * 64 * 96) + 64 * 1000
    assert 2 * matrix_elements(dense) + 64_000 == weights
    # Half of 2 x 4 x 64 operations for each of 10 earlier positions and layer; backward twice as many.
    assert training_flops(dense, 10, 7.0) == 3 * 7 * (2 * weights + 2 * 10 * 64 * 2)


def test_operations_count_the_experts_that_a_token_meets() -> None:
    keys = PUBLISHED["deepseek-v2-lite"][0]
    config = read(**keys)
    assert (config.qkv_width, config.attention_width, config.head_dim) == (16 * (2 * 192 + 128), 16 * 128, 160)
    # Latent attention: queries of 16 x 192, keys to 512 + 64, unfolded to 16 x 256, output of 16 x 128.
    attention = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    # A router, six experts of 64 and two shared ones of 1408; the first layer an MLP of 10944.
    experts = 2048 * 64 + 3 * 2048 * 1408 * (6 + 2)
    assert matrix_elements(config) == attention + experts
    whole = 27 * attention + 26 * experts + 3 * 2048 * 10944 + 2048 * 102400
    pairs = 2 * 128 * 16 * (192 + 128) // 2 * 27
    assert training_flops(config, 128, 1.0) == 3 * (2 * whole + pairs)


def test_a_model_built_by_hand_is_as_a_file_without_options() -> None:
    given = {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 2, "head_dim": 32, "ffn": 96, "vocab": 1000}
    assert ModelConfig(name="x", **given, max_positions=128) == read(model_type="mistral", **SMALL)


def test_parameters_of_experts_worked_out() -> None:
    """Router, matrices of every expert (or of those met), shared ones and their gate."""
    experts = Experts(count=4, active=2, ffn=8, shared_ffn=16, shared_gate=True)
    shared = 16 * 32
    assert experts.parameters(32, gated=True) == 4 * 32 + 3 * (4 * 8 * 32 + shared) + 32
    assert experts.parameters(32, gated=False) == 4 * 32 + 2 * (4 * 8 * 32 + shared) + 32
    assert experts.parameters(32, gated=False, active=True) == 4 * 32 + 2 * (2 * 8 * 32 + shared) + 32


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 64),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 64}, 0),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, 0),  # from layer 28 on
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, 64),
    ],
)
def test_a_window_is_read_where_it_is_used(keys: dict[str, Any], window: int) -> None:
    assert read(**SMALL, **keys).sliding_window == window


def test_an_unknown_family_is_not_taken_for_one_of_a_like_name() -> None:
    """Falcon's layers may be parallel to each other; those of Falcon Mamba have no attention at all."""
    with pytest.raises(InputError, match="layers of model_type 'falcon_perceiver' are not known") as caught:
        read(model_type="falcon_perceiver", **SMALL)
    assert "Did you mean" not in str(caught.value) and "gemma, gemma2" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("falcon_mamba", "state-space"), ("zamba2", "state-space"), ("minimax_m1", "linear attention"),
        ("kimi_linear", "linear attention"), ("deepseek_v32", "sparse attention"), ("gemma3n", "embeddings in every"),
    ],
)  # fmt: skip
def test_layers_that_are_not_modelled_are_refused_with_the_reason(kind: str, why: str) -> None:
    assert not set(REFUSED) & set(FAMILIES)
    with pytest.raises(NotYetError, match=f"models of type '{kind}' have {why}.*not implemented"):
        read(model_type=kind, **SMALL)
    with pytest.raises(NotYetError, match=r"text_config\.model_type"):
        read(model_type="mistral3", text_config={**SMALL, "model_type": kind})


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"model_type": "deepseek_v3", **FOUR, **LATENT, "index_topk": 2048}, "index_topk"),
        ({"model_type": "qwen3", **FOUR, "full_attention_interval": 4}, "full_attention_interval"),
        ({"model_type": "llama", **FOUR, "hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
    ],
)
def test_keys_of_layers_that_are_not_modelled_are_refused_under_any_type(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(NotYetError, match=f"a file with {key} is of a model that has"):
        read(**keys)
    assert read(**{name: value for name, value in keys.items() if name != key}).layers == 4


def test_types_of_layers_are_checked_without_a_window_too() -> None:
    with pytest.raises(InputError, match="layers of type 'linear_attention' are not known"):
        read(model_type="llama", **FOUR, layer_types=["linear_attention"] * 4)
    assert read(model_type="llama", **FOUR, layer_types=["full_attention"] * 4).sliding_window == 0


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_local_experts": 4}, "num_local_experts"),
    ],
)
def test_what_is_wrong_with_a_text_model_is_named_with_its_table(changed: dict[str, Any], key: str) -> None:
    text = {"model_type": "mistral", **FOUR, "sliding_window": 64}
    assert read(model_type="mistral3", text_config=text).layers == 4
    with pytest.raises(InputError) as caught:
        read(model_type="mistral3", text_config={**text, **changed})
    assert caught.value.key == f"text_config.{key}"


@pytest.mark.parametrize("given", [[1, 0], [1, 2], "none", {}])
def test_a_list_of_layers_without_rotary_embedding_is_checked(given: object) -> None:
    if not given:  # as none at all: every fourth layer has none
        assert read(model_type="smollm3", **FOUR, no_rope_layers=given).rotary_pattern == (True, True, True, False)
        return
    with pytest.raises(InputError, match="no_rope_layers"):
        read(model_type="smollm3", **FOUR, no_rope_layers=given)
