"""Layers with many options, and their launches in words, for tests of what was accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.lora import Lora
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Attention, Gemm, Operator, RowTile, Scan, Streaming, Tile

CLUSTER = Fabric(4, None, 1e11, 0.9, 5e-6)
MOE = {
    "model_type": "qwen2_moe", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32001, "max_position_embeddings": 4096,
    "num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1536,
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16, "ffn_dim": 4096,
    "vocab_size": 50257, "max_position_embeddings": 2048,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "intermediate_size": 4096, "vocab_size": 50432, "max_position_embeddings": 2048, "attention_bias": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 1600, "n_layer": 3, "n_head": 25, "vocab_size": 50257, "n_positions": 1024,
    "tie_word_embeddings": True,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024, "vocab_size": 32001, "num_local_experts": 16,
    "num_experts_per_tok": 3, "layer_types": ["full_attention"] * 3,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 3, "num_heads": 32, "head_dim": 64,
    "state_size": 64, "n_groups": 4, "vocab_size": 32000, "chunk_size": 128, "residual_in_fp32": False,
}  # fmt: skip
GRANITE = {
    "model_type": "granitemoehybrid", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 512, "shared_intermediate_size": 1536, "vocab_size": 32001,
    "num_local_experts": 16, "num_experts_per_tok": 3, "layer_types": ["mamba"] * 3, "mamba_n_heads": 32,
    "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_proj_bias": True,
}  # fmt: skip
QWEN_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2816, "vocab_size": 32001, "num_experts": 16,
    "num_experts_per_tok": 3, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1536,
    "linear_num_key_heads": 4, "linear_num_value_heads": 12, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN_3_5 = {
    **{key: value for key, value in QWEN_NEXT.items() if "expert" not in key and key != "moe_intermediate_size"},
    "model_type": "qwen3_5_text", "full_attention_interval": 1,
}  # fmt: skip
TRANSFORMERS: dict[str, Any] = {"modules": "transformers"}
TITAN: dict[str, Any] = {"modules": "torchtitan"}
LORA: dict[str, Any] = {"modules": "transformers", "lora": Lora(16, ("query", "value", "down"), 0.05)}
FIRST_ADAPTERS: dict[str, Any] = {
    "modules": "transformers", "lora": Lora(8, ("key", "up"), dtype="bf16", input_gradient=False),
}  # fmt: skip
NF4: dict[str, Any] = {
    "modules": "transformers", "lora": Lora(8, ("query", "output", "up"), 0.05, "fp32", "nf4", True, prepared=True),
}  # fmt: skip
AUTOCAST: dict[str, Any] = {"parameters": "fp32"}
SPLIT: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True}
MEGATRON: dict[str, Any] = {"framework": "megatron", **SPLIT}
FEWER_BITS: dict[str, Any] = {
    "framework": "megatron", "narrow": Narrow("blockwise"), "stores_activation_input": True,
    "packs_attention_output": True, "narrow_dispatch": True, "expert_parallel": 16, "expert_dispatcher": "flex",
    "recompute": "selective", "recompute_modules": ("layernorm", "mla_up_proj", "moe_act"),
}  # fmt: skip
UNFUSED: dict[str, Any] = {"attention_backend": "unfused", "dropout": 0.1}
EXPERTS: dict[str, Any] = {
    "expert_parallel": 4, "expert_tensor_parallel": 2, "expert_fabric": CLUSTER, "expert_tensor_fabric": Fabric(),
    "expert_load": 1.25,
}  # fmt: skip
TILES = (("linear", Tile(64, 128)), ("up.wgrad", Tile(128, 64, split_k=2)), ("norm1", RowTile(2, 0, 8)))
#: Model, options, micro-batch and sequence. Sizes that are no powers of two show what is rounded.
LAYERS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "llama alone": ("llama-3.1-8b", {}, 3, 1536),
    "llama split": ("llama-3.1-8b", {**SPLIT, "ctas": 8, "threads": 256, "dtype": "fp16"}, 2, 2048),
    "llama split, streams whole": ("llama-3.1-8b", {"tensor_parallel": 4, "shard_head": False}, 1, 4096),
    "llama again": ("llama-3.1-8b", {**SPLIT, "recompute": "full"}, 1, 2048),
    "llama in tiles": ("llama-3.1-8b", {"tiles": TILES}, 1, 2048),
    "llama without rotation, tied": ("llama-3.2-3b", {"rotary": False, "tie_embeddings": True}, 1, 1024),
    "qwen 3": ("qwen3-8b", SPLIT, 1, 2048),
    "qwen 2.5": ("qwen2.5-1.5b", {}, 2, 2048),
    "opt": ("opt", {}, 2, 1024),
    "opt split": ("opt", {"tensor_parallel": 2}, 5, 1024),
    "neox": ("neox", {"tensor_parallel": 2}, 1, 2048),
    "nemotron": ("nemotron-4-15b", {}, 1, 1024),
    "eager experts": ("moe", {}, 2, 1024),
    "eager experts split": ("moe", {"expert_parallel": 4, "expert_fabric": CLUSTER, "expert_load": 1.5}, 3, 1024),
    "eager experts again": ("moe", {"recompute": "full"}, 1, 1024),
    "few tokens": ("qwen2.5-0.5b", {}, 1, 128),
    "few tokens split": ("qwen2.5-0.5b", {"tensor_parallel": 2}, 1, 128),
    "few keys": ("qwen2.5-3b", {"framework": "megatron", "tensor_parallel": 4, "fused_loss": True}, 1, 3072),
    "more tokens than are scattered at once": ("opt", {"tie_embeddings": False}, 1, 3073),
    "megatron": ("llama-3.1-8b", MEGATRON, 3, 1536),
    "state spaces in megatron": ("mamba2", {**MEGATRON, "narrow": Narrow()}, 2, 1024),
    "state spaces in megatron again": ("mamba2", {"framework": "megatron", "recompute": "full"}, 1, 1024),
    "state spaces and experts in megatron": ("granitemoehybrid", {"framework": "megatron", **EXPERTS}, 2, 1024),
    "state spaces in transformers": ("mamba2", TRANSFORMERS, 2, 1024),
    "state spaces and experts in transformers": ("granitemoehybrid", {**TRANSFORMERS, "recompute": "full"}, 1, 1024),
    "linear attention and experts": ("next", TRANSFORMERS, 2, 1024),
    "linear attention and experts again": ("next", {**TRANSFORMERS, "recompute": "full"}, 1, 1000),
    "gated attention": ("text", TRANSFORMERS, 1, 1024),
    "megatron, streams whole": ("llama-3.1-8b", {"framework": "megatron", "tensor_parallel": 2}, 1, 2048),
    "megatron, one rank": ("qwen3-8b", {"framework": "megatron", "fused_loss": True}, 1, 2048),
    "megatron gpt": ("gpt-22b", {**MEGATRON, **UNFUSED, "recompute": "selective"}, 2, 2048),
    "megatron llama, unfused without dropout": ("llama-3.1-8b", {**MEGATRON, **UNFUSED, "dropout": 0.0}, 1, 1024),
    "megatron gpt, scores kept": ("gpt-22b", {"framework": "megatron", **UNFUSED}, 1, 1024),
    "megatron opt": ("opt", {**MEGATRON, "gradients": "bf16"}, 2, 1024),
    "megatron all again": ("llama-3.1-8b", {**MEGATRON, "recompute": "full", "tp_comm_overlap": True}, 1, 4096),
    "megatron parts again": (
        "llama-3.1-8b",
        {**MEGATRON, "recompute": "selective", "recompute_modules": ("layernorm", "mlp")},
        1,
        4096,
    ),
    "steps": ("llama-3.1-70b", {**MEGATRON, "tensor_parallel": 4, "tp_comm_overlap": True, "ctas": 4}, 1, 4096),
    "fp8 delayed": ("llama-3.1-8b", {**MEGATRON, "narrow": Narrow()}, 1, 4096),
    "fp8 delayed, steps": ("llama-3.1-8b", {**MEGATRON, "narrow": Narrow(), "tp_comm_overlap": True}, 1, 4096),
    "fp8 tensorwise": ("qwen3-8b", {"framework": "megatron", "narrow": Narrow("tensorwise", parameters=True)}, 1, 2048),
    "kept and sent in fewer bits": ("deepseek-v3", FEWER_BITS, 1, 2048),
    "kept in fewer bits, dense": (
        "llama-3.1-8b",
        {**FEWER_BITS, "narrow_dispatch": False, "expert_parallel": 1, "recompute": "none"},
        1,
        2048,
    ),
    "fp8 blockwise": ("llama-3.1-8b", {**MEGATRON, "narrow": Narrow("blockwise"), "attention_fp8": True}, 1, 4096),
    "mxfp8": ("llama-3.1-8b", {**MEGATRON, "narrow": Narrow("mxfp8", False), "attention_fp8": True}, 1, 4096),
    "nvfp4": ("llama-3.1-8b", {**MEGATRON, "narrow": Narrow("nvfp4"), "gradients": "bf16"}, 1, 4096),
    "ring": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 4, "context_fabric": CLUSTER}, 1, 8192),
    "rings": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 4, "cp_comm_type": "a2a"}, 1, 8192),
    "gathered context": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 2, "cp_comm_type": "all_gather"}, 2, 4096),
    "megatron head whole": ("llama-3.1-8b", {**MEGATRON, "shard_head": False}, 1, 1024),
    "megatron loss fused": ("llama-3.1-8b", {**MEGATRON, "fused_loss": True}, 1, 1024),
    "steps between nodes": (
        "llama-3.1-8b",
        {**MEGATRON, "tensor_parallel": 8, "tensor_domains": 2, "tp_comm_overlap": True},
        1,
        4096,
    ),
    "compiled": ("llama-3.1-8b", {"compiled": True}, 2, 2048),
    "compiled gpt": ("opt", {"compiled": True}, 2, 1024),
    "transformers": ("llama-3.1-8b", {**TRANSFORMERS, "added_share": 0.5}, 2, 2048),
    "transformers again": ("qwen2.5-1.5b", {**TRANSFORMERS, "recompute": "full"}, 1, 2048),
    "transformers, adapters": ("qwen3-8b", {**LORA, "added_share": 0.5}, 2, 1536),
    "transformers, adapters again": ("llama-3.2-1b", {**LORA, **AUTOCAST, "recompute": "full"}, 1, 2048),
    "transformers, adapters of the first layer": ("llama-3.1-8b", FIRST_ADAPTERS, 1, 2048),
    "transformers, normed heads": ("qwen3-8b", {**TRANSFORMERS, "added_share": 0.0}, 1, 2048),
    "transformers in autocast": ("llama-3.2-1b", {**TRANSFORMERS, **AUTOCAST}, 2, 2048),
    "transformers compiled": ("llama-3.1-8b", {**TRANSFORMERS, "compiled": True}, 2, 2048),
    "transformers compiled in autocast": ("qwen2.5-1.5b", {**TRANSFORMERS, **AUTOCAST, "compiled": True}, 1, 2048),
    "gpt-2": ("gpt2", TRANSFORMERS, 3, 1024),
    "gpt-2 with dropout": ("gpt2", {**TRANSFORMERS, "dropout": 0.1}, 2, 1024),
    "gpt-2 with dropout in autocast": ("gpt2", {**TRANSFORMERS, **AUTOCAST, "dropout": 0.1}, 2, 1024),
    "gpt-2 compiled": ("gpt2", {**TRANSFORMERS, "compiled": True}, 2, 1024),
    "gpt-2 compiled in autocast": ("gpt2", {**TRANSFORMERS, **AUTOCAST, "compiled": True}, 2, 1024),
    "torchtitan": ("llama-3.1-8b", TITAN, 2, 2048),
    "torchtitan again": ("llama-3.1-8b", {**TITAN, "recompute": "full"}, 1, 2048),
    "torchtitan in autocast": ("llama-3.1-8b", {**TITAN, **AUTOCAST}, 2, 2048),
    "torchtitan compiled": ("llama-3.1-8b", {**TITAN, "compiled": True}, 2, 2048),
    "torchtitan compiled in autocast": ("llama-3.1-8b", {**TITAN, **AUTOCAST, "compiled": True}, 2, 2048),
    "torchtitan split": ("llama-3.1-8b", {**TITAN, **SPLIT}, 1, 2048),
    "torchtitan, normed heads": ("qwen3-8b", TITAN, 1, 1024),
    "transformers, a window as a mask": ("mistral-7b", TRANSFORMERS, 1, 4608),
    "transformers, sliced projections": ("phi-3-mini", TRANSFORMERS, 2, 1024),
    "transformers, experts with biases": ("oss", TRANSFORMERS, 1, 1024),
    "transformers, grouped experts": ("glm-4.5-air", TRANSFORMERS, 1, 1024),
    "transformers, adapters beside 4 bits": ("qwen2.5-1.5b", {**NF4, **AUTOCAST}, 2, 1024),
    "eager ring": ("llama-3.1-8b", {**SPLIT, "context_parallel": 3, "context_fabric": CLUSTER}, 2, 6144),
    "ring in fp8": (
        "llama-3.1-8b",
        {"framework": "megatron", "context_parallel": 4, "narrow": Narrow("tensorwise"), "attention_fp8": True},
        2,
        8192,
    ),
    "gathered context of three": (
        "llama-3.1-8b",
        {"framework": "megatron", "context_parallel": 3, "cp_comm_type": "all_gather"},
        1,
        6144,
    ),
    "ring of whole streams": (
        "gpt-22b",
        {
            "framework": "megatron",
            "tensor_parallel": 2,
            "context_parallel": 3,
            "attention_backend": "flash-attention-2",
        },
        1,
        6144,
    ),
    "mixtral": ("mixtral-8x7b", {**MEGATRON, **EXPERTS}, 1, 4096),
    "mixtral fp8": ("mixtral-8x7b", {"framework": "megatron", "expert_parallel": 8, "narrow": Narrow()}, 1, 2048),
    "permuted in steps": ("moe", {**MEGATRON, **EXPERTS, "fused_permutation": False}, 1, 1024),
    "shared experts": ("moe", {"framework": "megatron", "expert_parallel": 2, "expert_dispatcher": "flex"}, 1, 2048),
    "shared experts split": ("moe", {**MEGATRON, **EXPERTS, "recompute": "selective"}, 2, 1024),
    "deepseek": ("deepseek-v3", {**MEGATRON, **EXPERTS, "expert_dispatcher": "flex", "expert_parallel": 16}, 1, 4096),
    "deepseek fp8": (
        "deepseek-v3",
        {
            "framework": "megatron",
            "expert_parallel": 64,
            "narrow": Narrow("blockwise"),
            "recompute": "selective",
            "recompute_modules": ("mla_up_proj", "moe_act", "shared_experts", "layernorm"),
        },
        1,
        4096,
    ),
    "deepseek experts again": (
        "deepseek-v3",
        {**MEGATRON, **EXPERTS, "recompute": "selective", "recompute_modules": ("moe",)},
        1,
        2048,
    ),
}


@lru_cache(maxsize=16)
def model_of(name: str) -> ModelConfig:
    for config in (MOE, OPT, NEOX, GPT2, GPT_OSS, MAMBA2, GRANITE, QWEN_NEXT, QWEN_3_5):
        if name == str(config["model_type"]).rpartition("_")[2]:
            return parse_config(config, name=name, file=name)
    found = load_model(name)
    return replace(found, mtp_layers=1) if found.nextn_layers else found


def told(launch: Launch, *, order_only: bool = False) -> str:
    """A launch in words: its work and all that is not as usual; ``order_only`` leaves the work out."""
    operator = launch.operator
    said, known = [operator.name, *([] if order_only else _work(operator))], ("operator", "name", "stream", *_TOLD)
    for one in (launch,) if order_only else (operator, launch):
        for field in fields(one):
            value = getattr(one, field.name)
            if field.name not in known and value != field.default:
                said.append(_word(field.name, value))
    return " ".join(said)


#: Fields that :func:`_work` tells.
_TOLD = (
    "m", "n", "k", "pattern", "bytes_read", "bytes_written", "elements", "kind", "bytes", "gpus", "footprint_bytes",
    "batch", "heads", "kv_heads", "sequence", "head_dim",
)  # fmt: skip


def _work(operator: Operator) -> list[str]:
    if isinstance(operator, Gemm):
        return [f"{operator.batch}*{operator.m}*{operator.n}*{operator.k}"]
    if isinstance(operator, Attention):
        heads = f"{operator.batch}*{operator.heads}/{operator.kv_heads}"
        return [f"{heads}*{operator.sequence}*{operator.head_dim}"]
    if isinstance(operator, Streaming):
        read, written, values = operator.bytes_read, operator.bytes_written, operator.elements
        return [operator.pattern, f"{read:.8g}+{written:.8g} of {values:.8g}"]
    if isinstance(operator, Scan):
        return [f"{operator.batch}*{operator.sequence}*{operator.heads}*{operator.head_dim}"]
    return [operator.kind, f"{operator.bytes:.8g}", f"over {operator.gpus}"]


def _word(name: str, value: object) -> str:
    if isinstance(value, Fabric):
        return f"domains={value.domains}"
    if isinstance(value, float):
        return f"{name}={value:.8g}"
    return name if value is True else f"{name}={value}"


def lines(launches: Iterable[Launch], *, order_only: bool = False) -> list[str]:
    """Launches in words, runs of equal ones once."""
    runs = [(said, len(list(same))) for said, same in groupby(told(x, order_only=order_only) for x in launches)]
    return [said if count == 1 else f"{count} x {said}" for said, count in runs]
