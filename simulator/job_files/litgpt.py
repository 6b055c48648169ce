"""Jobs of LitGPT as plans: a configuration (YAML), or ``litgpt pretrain``, ``finetune_full``, ``finetune_lora``.

Names and defaults are those of ``litgpt/pretrain.py``, ``litgpt/finetune`` and ``TrainArgs`` (LitGPT 0.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from joulecast.errors import InputError
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import put_named_model
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.named_files import named_settings
from joulecast.simulator.job_files.optimizers import CLASSES, put_optimizer
from joulecast.simulator.job_files.pytorch_attention import pytorch_attention
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.told import QUANTISED, other_optimizer, unpacked

LENGTH, MICRO, GLOBAL = "train.max_seq_length", "train.micro_batch_size", "train.global_batch_size"
PRECISION, QUANTIZE, OPTIMIZER = "precision", "quantize", "optimizer.class_path"
_CODE = "LitGPT's code"
_ADAMW = ("AdamW", "torch.optim.AdamW")
_PRECISIONS = ("bf16-mixed", "bf16-true", "16-mixed", "16-true", "32-true")
_TYPES = {"bf16": "bf16", "16": "fp16", "32": "fp32"}
#: Switches of adapters, and the linear layers that they stand for.
_TARGETS = {
    "lora_query": ("q_proj",),
    "lora_key": ("k_proj",),
    "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}
#: Tables and keys of what is read, saved, logged and learnt.
PASSED = (
    *("data", "out_dir", "eval", "logger_name", "log", "seed", "access_token", "resume", "tokenizer_dir", "config"),
    *("initial_checkpoint_dir", "lora_alpha", "train", "optimizer", "checkpoint_dir", "model_name", "io"),
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a command trains: its samples in a batch unless told, where its model is named, and what it is."""

    name: str
    model: str = "checkpoint_dir"
    batch: int = 16
    micro: int = 1

    @property
    def pretrains(self) -> bool:
        return self.name == "pretrain"


_LORA, _FULL = _Kind("finetune_lora"), _Kind("finetune_full")
_KINDS = {
    "pretrain": _Kind("pretrain", "model_name", 512, 4),
    "finetune": _LORA,
    "finetune_lora": _LORA,
    "finetune_full": _FULL,
    "finetune_adapter": _Kind("finetune_adapter"),
    "finetune_adapter_v2": _Kind("finetune_adapter_v2"),
}


def is_litgpt_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML is a configuration of LitGPT's."""
    train = tables.get("train")
    named = {"checkpoint_dir", "model_name", "model_config", "initial_checkpoint_dir"} & set(tables)
    return isinstance(train, Mapping) and bool(named) and bool({"micro_batch_size", "global_batch_size"} & set(train))


def is_litgpt_command(command: Command) -> bool:
    """Whether a command is one of ``litgpt`` that trains."""
    return _place(command) is not None


def litgpt_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command of ``litgpt`` starts, as a plan in the making.

    Raises
    ------
    InputError
        As :func:`litgpt_draft` does, or its configuration is not there.
    """
    place = _place(command) or 0
    kind = _KINDS[command.words[place].text]
    rest = command.words[place + 1 :]
    if rest[:1] and rest[0].text in ("lora", "full", "adapter", "adapter_v2"):  # as its first versions had it
        kind, rest = _KINDS[f"finetune_{rest[0].text}"], rest[1:]
    options, loose = command_settings(rest, file)
    if loose:
        options.tables = {kind.model: loose[0].text, **options.tables}
        options.lines = {kind.model: loose[0].line, **(options.lines or {})}
    config, name = options, options.raw("config")
    if isinstance(name, str):
        config = replace(named_settings(name, file, "--config", options.line("config")), over=options)
    return litgpt_draft(config, kind.name, asked, file)


def litgpt_yaml_draft(tables: Mapping[str, Any], lines: Mapping[str, int], asked: Asked, file: str) -> Draft:
    """A configuration without the command that names it, as a plan in the making."""
    adapters = any(name.startswith("lora_") for name in tables)
    kind = "finetune_lora" if adapters else "finetune_full" if "checkpoint_dir" in tables else "pretrain"
    return litgpt_draft(SettingsFile(file, "", tables, lines=lines), kind, asked, file)


def litgpt_draft(config: SettingsFile, command: str, asked: Asked, file: str) -> Draft:
    """A configuration as a plan in the making.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    draft, kind = Draft(file), _KINDS[command]
    _refuse(config, kind)
    config.know(["model_config"])
    name = None if config.given("model_config") else config.value(kind.model, str)
    hub = name and re.sub(r"^tiny-llama", "tinyllama", name.rpartition("/")[2], flags=re.IGNORECASE)
    put_named_model(draft, asked, hub, config.source(kind.model))
    launch, nodes = _launch(config, kind)
    architecture = put_cluster(draft, asked, launch)
    _workload(config, draft, kind)
    _put_adapters(config, draft, kind)
    _split(config, draft, kind, nodes)
    _kernels(config, draft, kind, architecture)
    draft.passed += [key for key in config.left() if key in PASSED or config.raw(key) in (None, False)]
    if unknown := [key for key in config.left() if key not in draft.passed]:
        draft.warn(f"not regarded: {', '.join(unknown)}")
    return draft


def _place(command: Command) -> int | None:
    """Where what ``litgpt`` is told to do stands."""
    for place, (tool, told) in enumerate(pairwise(word.text for word in command.words), 1):
        if tool.rpartition("/")[2] == "litgpt" and told in _KINDS:
            return place
    return None


def _refuse(config: SettingsFile, kind: _Kind) -> None:
    if "adapter" in kind.name:
        what = f"{kind.name} trains adapters of another kind than LoRA's, which are not known"
        raise InputError(what, file=config.file, remedy="Give the command of finetune_lora to forecast that.")
    if config.on("lora_head"):
        what = "an adapter beside the head is not known"
        raise config.error(what, "lora_head", "Set it to false to forecast the job without it.")
    if config.value(QUANTIZE, str) not in (None, "bnb.nf4", "bnb.nf4-dq"):
        raise config.error(QUANTISED, QUANTIZE, "Use bnb.nf4 to forecast that.")


def _launch(config: SettingsFile, kind: _Kind) -> tuple[Launch, int]:
    """The GPUs that LitGPT starts processes on, and on how many nodes."""
    devices, nodes = config.value("devices", (int, str), "auto" if kind.pretrains else 1), config.whole("num_nodes", 1)
    nodes = nodes or 1
    source, line = config.source("devices")
    if not isinstance(devices, int) or devices < 1:
        return Launch(), nodes
    return Launch(devices * nodes, devices, source if nodes == 1 else f"{source}, num_nodes", line), nodes


def _workload(config: SettingsFile, draft: Draft, kind: _Kind) -> None:
    """Batches, sequences and precision."""
    length, put = config.whole(LENGTH), draft.put
    if length is not None:
        put("workload.sequence_length", length, *config.source(LENGTH))
        if not kind.pretrains:
            draft.warn(unpacked(LENGTH, length))
    else:
        left = "the model's context" if kind.pretrains else "its data"
        draft.missing["workload.sequence_length"] = f"tokens of a sample ({LENGTH}), which the job leaves to {left}"
    micro, batch = config.whole(MICRO, kind.micro), config.whole(GLOBAL, kind.batch) or 1
    put("workload.micro_batch_size", micro, *config.source(MICRO))
    put("workload.global_batch_size", batch, *config.source(GLOBAL))
    tokens = config.value("train.max_tokens", (int, float))
    if kind.pretrains and tokens:
        put("workload.training_tokens", float(tokens), *config.source("train.max_tokens"))
    config.asked.add("train.max_tokens")
    put("workload.precision", _TYPES[_precision(config)[0]], *config.source(PRECISION))


def _precision(config: SettingsFile) -> tuple[str, bool]:
    """The type that products are in, and whether parameters stay in fp32."""
    kind, how = config.word(PRECISION, _PRECISIONS, "bf16-mixed").split("-")
    return kind, how == "mixed"


def _put_adapters(config: SettingsFile, draft: Draft, kind: _Kind) -> None:
    """Adapters, in the type of the model, and frozen weights in 4 bits."""
    config.know([*_TARGETS, "lora_r", "lora_dropout", "lora_alpha"])
    if kind is not _LORA:
        return
    usual = {"lora_query", "lora_value"}
    on = [key for key in _TARGETS if config.value(key, bool, key in usual)]
    put = draft.put
    put("workload.lora.rank", config.whole("lora_r", 8), *config.source("lora_r"))
    put("workload.lora.target_modules", [name for key in on for name in _TARGETS[key]], ", ".join(on))
    dropout = float(config.value("lora_dropout", (int, float), 0.05))
    put("workload.lora.dropout", dropout, *config.source("lora_dropout"))
    if not _precision(config)[1]:
        put("workload.lora.precision", draft.value("workload.precision"), "LitGPT keeps adapters as the model is")
    quantised = config.value(QUANTIZE, str)
    if quantised:
        put("workload.lora.base_precision", "nf4", *config.source(QUANTIZE))
        put("workload.lora.double_quantisation", quantised.endswith("-dq") or None, *config.source(QUANTIZE))


def _split(config: SettingsFile, draft: Draft, kind: _Kind, nodes: int) -> None:
    """FSDP on more than one GPU: finetuning's over all of them, with layers computed again, pretraining's in a node."""
    gpus, (_, mixed) = draft.value("cluster.gpus"), _precision(config)
    if mixed:
        draft.put("implementation.parameter_precision", "fp32", "mixed precision keeps parameters in fp32")
    if gpus == 1:
        return
    draft.put("parallelism.fsdp", True, "LitGPT's FSDPStrategy")
    if kind.pretrains and nodes > 1 and gpus and gpus % nodes == 0:
        draft.put("parallelism.fsdp_shard_size", gpus // nodes, "LitGPT's HYBRID_SHARD: copies on each node")
    draft.put("parallelism.fsdp_sync_each_batch", False, "LitGPT adds up accumulated gradients whole")
    if mixed:
        draft.put("implementation.gradient_precision", draft.value("workload.precision"), "Fabric's FSDP reduces so")
    if not kind.pretrains:
        draft.put("schedule.recompute", "full", "LitGPT computes blocks again in finetuning on several GPUs")


def _kernels(config: SettingsFile, draft: Draft, kind: _Kind, architecture: str | None) -> None:
    put = draft.put
    put("implementation.framework", "pytorch-eager", _CODE)
    modules = "transformers" if config.value(QUANTIZE, str) else "torchtitan"
    put("implementation.modules", modules, f"the nearest to {_CODE}")
    put("implementation.attention_backend", *pytorch_attention(architecture, "LitGPT"))
    clips = kind.pretrains and bool(config.value("train.max_norm", (int, float), 1.0))
    put("implementation.gradient_clipping", clips, *config.source("train.max_norm"))
    put("implementation.compile", kind.pretrains or None, "litgpt pretrain compiles the model")
    if config.value("train.tie_embeddings", bool, False):
        put("implementation.tie_embeddings", True, *config.source("train.tie_embeddings"))
    draft.warn(
        f"layers are forecast as those of {modules}: LitGPT's norms and rotary embedding run in fp32, in other "
        "kernels, and its loss takes the logits in chunks"
    )
    if config.value(QUANTIZE, str):
        put("implementation.optimizer", "adamw-32bit", "LitGPT's PagedAdamW beside weights in 4 bits")
        return
    named = isinstance(config.raw("optimizer"), str)
    key = "optimizer" if named else OPTIMIZER
    optimizer = config.value(key, str, "AdamW")
    if optimizer in _ADAMW:
        if not kind.pretrains:
            draft.warn("the optimizer is forecast in fused kernels, not in PyTorch's foreach, as LitGPT finetunes")
    elif not put_optimizer(config, draft, key, optimizer, CLASSES):
        raise config.error(other_optimizer(optimizer), key, "Set it to torch.optim.AdamW to forecast that instead.")
