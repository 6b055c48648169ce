"""Dialects of the trainer's settings: Axolotl's YAML, LLaMA-Factory's and ms-swift's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.trainer import Dialect

#: As LLaMA-Factory's arguments (0.9) are: it computes layers again, to their end, unless told not to, and trains
#: adapters unless told otherwise; of full training in mixed precision it casts parameters to fp32.
LLAMA_FACTORY = Dialect(
    names={
        "max_seq_length": "cutoff_len",
        "gradient_checkpointing_kwargs.use_reentrant": "use_reentrant_gc",
        "lora_r": "lora_rank",
        "lora_target_modules": "lora_target",
    },
    defaults={
        "cutoff_len": 2048,
        "finetuning_type": "lora",
        "gradient_checkpointing": True,
        "use_reentrant_gc": True,
        "dtype": "float32",
        "lora_target": "all",
        "double_quantization": True,
        "freeze_vision_tower": True,
        "freeze_multi_modal_projector": True,
    },
    loads_frozen_narrow=True,
)
#: As the schemas of Axolotl 0.19 have them; parameters are loaded in the type that products are computed in.
AXOLOTL = Dialect(
    names={
        "model_name_or_path": "base_model",
        "max_seq_length": "sequence_len",
        "per_device_train_batch_size": "micro_batch_size",
        "optim": "optimizer",
        "packing": "sample_packing",
        "pad_to_max_length": "pad_to_sequence_len",
    },
    defaults={"sequence_len": 512, "micro_batch_size": 1},
    pure=True,
    tiles_logits=True,
)
#: As the arguments of ms-swift (3.11) are: samples of a batch are at least 16, and its mixed precision is the type that
#: the model is loaded in, bf16 of most.
SWIFT = Dialect(
    names={
        "model_name_or_path": "model",
        "max_seq_length": "max_length",
        "attn_implementation": "attn_impl",
        "finetuning_type": "tuner_type",
        "lora_r": "lora_rank",
        "lora_target_modules": "target_modules",
        "quantization_bit": "quant_bits",
        "quantization_method": "quant_method",
        "bf16": "torch_dtype",
        "freeze_vision_tower": "freeze_vit",
        "freeze_multi_modal_projector": "freeze_aligner",
        "freeze_language_model": "freeze_llm",
        "image_max_pixels": "max_pixels",
    },
    defaults={
        "per_device_train_batch_size": 1,
        "gradient_checkpointing": True,
        "tuner_type": "lora",
        "lora_rank": 8,
        "lora_dropout": 0.05,
        "target_modules": "all-linear",
        "torch_dtype": "bfloat16",
        "bnb_4bit_use_double_quant": True,
        "dataloader_num_workers": 1,
        "freeze_vit": True,
        "freeze_aligner": True,
    },
    pure=True,
    loads_frozen_narrow=True,
    least_batch=16,
)
#: Axolotl's older names of kernels of attention, by those of ``attn_implementation``.
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
    "sage_attention": "sage",
}
#: The settings that packages of plugins stand for; all other plugins are told by their class.
_PLUGINS = {
    "axolotl.integrations.liger": "liger_plugin",
    "axolotl.integrations.cut_cross_entropy": "cut_cross_entropy",
}


def axolotl_dialect(config: SettingsFile) -> Dialect:
    """Axolotl's: of texts it computes layers again to their end unless its settings say how (``normalize_config``)."""
    table = "gradient_checkpointing_kwargs"
    if config.raw("rl") or config.given(table):
        return AXOLOTL
    return replace(AXOLOTL, defaults={**AXOLOTL.defaults, f"{table}.use_reentrant": True})


def axolotl_settings(config: SettingsFile) -> SettingsFile:
    """Axolotl's settings, what it says in its own way said in the trainer's."""
    tables: dict[str, Any] = dict(config.tables)
    lines = dict(config.lines or {})
    if isinstance(own := tables.pop("trl", None), dict):  # settings of TRL's trainers, in a table of their own
        tables = {**own, **tables}
        lines |= {key: lines.get(f"trl.{key}", lines.get("trl", 0)) for key in own}
    for key, value in _ATTENTION.items():
        if tables.pop(key, None) is True and "attn_implementation" not in tables:
            tables["attn_implementation"], lines["attn_implementation"] = value, lines.get(key, 0)
    if tables.get("float16") is True:  # its older switch
        tables["dtype"], lines["dtype"] = "float16", lines.get("float16", 0)
    tables.pop("float16", None)
    whole, micro = tables.get("batch_size"), tables.get("micro_batch_size", 1)
    if isinstance(whole, int) and isinstance(micro, int) and micro > 0:  # of a process, in accumulated steps
        tables.pop("batch_size")
        if not tables.get("gradient_accumulation_steps"):
            tables["gradient_accumulation_steps"] = max(1, whole // micro)
            lines["gradient_accumulation_steps"] = lines.get("batch_size", 0)
    plugins = tables.pop("plugins", None) or []
    for named in map(str, plugins if isinstance(plugins, list) else [plugins]):
        known = next((key for package, key in _PLUGINS.items() if named.startswith(package)), None)
        tables[known or named.rpartition(".")[2]] = True
    return replace(config, tables=tables, lines=lines)


def swift_settings(config: SettingsFile) -> SettingsFile:
    """ms-swift's settings by its present names; models in other types than bf16 are trained in fp16, kept in fp32."""
    tables, lines = dict(config.tables), config.lines
    for older in ("train_type", "sft_type"):
        if older in tables:
            tables["tuner_type"] = tables.pop(older)
            lines = lines and {**lines, "tuner_type": lines.get(older, 0)}
    if tables.get("bf16") is True:
        tables.pop("bf16")
    if tables.get("torch_dtype") in ("float16", "float32"):
        tables |= {"fp16": True, "dtype": "float32"}
        tables.pop("torch_dtype")
    return replace(config, tables=tables, lines=lines, over=config.over and swift_settings(config.over))
