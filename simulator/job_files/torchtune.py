"""Jobs of torchtune: the YAML of a recipe of full training or of LoRA, or ``tune run`` with overrides, as a plan.

Names and defaults are those of ``full_finetune_distributed``, ``lora_finetune_distributed`` and those of one device
(torchtune 0.6.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from joulecast.errors import InputError
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import hub_model, put_named_model
from joulecast.simulator.job_files.kept_gathered import keep_gathered
from joulecast.simulator.job_files.launcher import Launch, read_launch
from joulecast.simulator.job_files.named_files import named_settings
from joulecast.simulator.job_files.optimizers import CLASSES, put_optimizer
from joulecast.simulator.job_files.pytorch_attention import pytorch_attention
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.told import (
    OFFLOADED,
    PREFERENCES,
    QUANTISED,
    other_optimizer,
    packed,
    unpacked,
)
from joulecast.simulator.job_files.trainer_names import PREFERRING
from joulecast.simulator.job_files.yaml_tables import SUFFIXES

MODEL, OPTIMIZER, LENGTH = "model._component_", "optimizer._component_", "tokenizer.max_seq_len"
#: Tables and keys of what is read, saved, logged and learnt.
PASSED = (
    *("output_dir", "checkpointer", "device", "seed", "resume_from_checkpoint", "metric_logger", "log_every_n_steps"),
    *("log_peak_memory_stats", "log_level", "shuffle", "epochs", "max_steps_per_epoch", "profiler", "lr_scheduler"),
    *("save_adapter_weights_only", "collate_fn", "custom_sharded_layers", "dataloader", "datasets", "config"),
    *("tokenizer", "dataset", "optimizer", "model", "loss", "tensor_parallel_plan", "low_cpu_ram"),
)
#: Settings of which the forecast would be far off.
_REFUSED = {
    "enable_activation_offloading": OFFLOADED,
    "fsdp_cpu_offload": OFFLOADED,
    "quantizer": "training with quantised weights is not known",
    "teacher_model": PREFERENCES,
    "policy_model": PREFERENCES,
}
#: The same of adapters.
_ADAPTERS_REFUSED = {
    "model.use_dora": "adapters of another kind than LoRA's are not known",
    "model.apply_lora_to_output": "an adapter beside the head is not known",
}
#: What torchtune calls the product behind attention.
_OUTPUT = {"output_proj": "o_proj"}
_CODE = "torchtune's code"


def is_torchtune_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML is a recipe's of torchtune, whose tables name components."""
    optimizer = tables.get("optimizer")
    return isinstance(optimizer, Mapping) and "_component_" in optimizer


def is_torchtune_command(command: Command) -> bool:
    """Whether a command is ``tune run``."""
    return ("tune", "run") in pairwise(word.text for word in command.words)


def torchtune_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that ``tune run`` starts, as a plan in the making.

    Raises
    ------
    InputError
        As :func:`torchtune_draft` does, or the recipe's configuration is not there.
    """
    texts = [word.text for word in command.words]
    place = texts.index("--config") if "--config" in texts else len(texts)
    recipe = texts[place - 1].rpartition("/")[2].removesuffix(".py")
    options, _ = command_settings(command.words[place:], file)
    name, line = str(options.raw("config")), command.words[0].line
    if set(re.split(r"[\W_]", recipe)) & {*PREFERRING, "qat"}:
        remedy = "Give the command of training on texts."
        raise InputError(PREFERENCES, file=file, line=line, key=recipe, remedy=remedy)
    if not name.endswith(SUFFIXES):
        remedy = f"Copy it beside the job (tune cp {name} FILE.yaml) and name the file."
        raise InputError(
            f"{name} is torchtune's own configuration, which is not here", file=file, line=line, remedy=remedy
        )
    config = replace(named_settings(name, file, "--config", options.line("config")), over=options)
    launch = (
        Launch(1, None, recipe, line)
        if recipe.endswith("single_device")
        else read_launch(command.words[:place], command.environment)
    )
    return torchtune_draft(config, launch, asked, file)


def torchtune_draft(config: SettingsFile, launch: Launch, asked: Asked, file: str) -> Draft:
    """A recipe's configuration as a plan in the making.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    draft = Draft(file)
    _refuse(config)
    component = config.value(MODEL, str, "")
    put_named_model(draft, asked, _hub_name(component), config.source(MODEL))
    architecture = put_cluster(draft, asked, launch)
    _workload(config, draft)
    _put_adapters(config, draft)
    _kernels(config, draft, architecture)
    for key in config.left():
        if key in PASSED or config.raw(key) in (None, False):
            draft.passed.append(key)
    unknown = [key for key in config.left() if key not in draft.passed]
    if unknown:
        draft.warn(f"not regarded: {', '.join(unknown)}")
    return draft


def _refuse(config: SettingsFile) -> None:
    for key, what in _REFUSED.items():
        if config.raw(key):
            raise config.error(what, key, "Leave it out to forecast the job without it.")
        config.asked.add(key)
    component = config.value(MODEL, str, "").rpartition(".")[2]
    if component.startswith("qlora_") or config.on("model.quantize_base"):
        raise config.error(QUANTISED, MODEL, f"Use {component.removeprefix('q')} to forecast that.")
    for key, what in _ADAPTERS_REFUSED.items():
        if config.on(key):
            raise config.error(what, key, "Set it to false to forecast the job without it.")
    if "rlhf" in config.value("loss._component_", str, ""):
        raise config.error(PREFERENCES, "loss._component_", "Give a recipe of training on texts.")
    optimizer = config.value(OPTIMIZER, str, "torch.optim.AdamW")
    if optimizer != "torch.optim.AdamW" and optimizer not in CLASSES:
        raise config.error(
            other_optimizer(optimizer), OPTIMIZER, "Set it to torch.optim.AdamW to forecast that instead."
        )


def _put_adapters(config: SettingsFile, draft: Draft) -> None:
    """Adapters that the model's component has, in its own type."""
    if not config.value(MODEL, str, "").rpartition(".")[2].startswith("lora_"):
        return
    key, mlp = "model.lora_attn_modules", "model.apply_lora_to_mlp"
    targets = [_OUTPUT.get(name, name) for name in config.value(key, list, [])]
    targets += ["gate_proj", "up_proj", "down_proj"] if config.on(mlp) else []
    source, line = config.source(key)
    draft.put("workload.lora.rank", config.whole("model.lora_rank", 8), *config.source("model.lora_rank"))
    draft.put("workload.lora.target_modules", targets, f"{source}, {mlp}" if config.on(mlp) else source, line)
    dropout = float(config.value("model.lora_dropout", (int, float), 0.0))
    draft.put("workload.lora.dropout", dropout, *config.source("model.lora_dropout"))
    draft.put("workload.lora.precision", draft.value("workload.precision"), "torchtune keeps adapters as the model is")


def _hub_name(component: str) -> str | None:
    """A model as the hub names it, by its family's module and its own name.

    >>> _hub_name("torchtune.models.qwen2_5.qwen2_5_1_5b_instruct"), _hub_name("torchtune.models.phi4.phi4_14b")
    ('qwen2.5-1.5b-instruct', 'phi-4')
    """
    *_, family, name = ("", *component.split("."))
    size = re.sub(r"^(\d+)_(\d+)b", r"\1.\2b", name.removeprefix("lora_").removeprefix(f"{family}_"))
    family = re.sub(r"^(llama|gemma|phi)(?=\d)", r"\1-", family.replace("_", "."))
    names = (f"{family}-{size}".replace("_", "-"), family)
    return next((short for short in names if hub_model(short)), names[0] if component else None)


def _workload(config: SettingsFile, draft: Draft) -> None:
    """Batches, sequences, precision and what is split."""
    length = config.whole(LENGTH)
    if length is None:
        draft.missing["workload.sequence_length"] = "tokens of a sample, which the job leaves to its data"
    draft.put("workload.sequence_length", length, *config.source(LENGTH))
    if config.on("dataset.packed"):
        draft.warn(packed("dataset.packed"))
    elif length is not None:
        draft.warn(unpacked(LENGTH, length))
    micro, steps = config.whole("batch_size", 1) or 1, config.whole("gradient_accumulation_steps", 1) or 1
    tensor, gpus = config.whole("tensor_parallel_dim", 1) or 1, draft.value("cluster.gpus")
    draft.put("workload.micro_batch_size", micro, *config.source("batch_size"))
    if tensor > 1:
        draft.put("parallelism.tensor_model_parallel_size", tensor, *config.source("tensor_parallel_dim"))
    if gpus is None:
        key, on = "workload.global_batch_size", f"{micro * steps} on each GPU"
        draft.missing[key] = f"{on} (batch_size, gradient_accumulation_steps)"
    elif gpus % tensor:
        what = f"{gpus} GPUs cannot be split into tensor_parallel_dim = {tensor}"
        raise config.error(what, "tensor_parallel_dim", f"Use a multiple of {tensor} GPUs (--gpus).")
    else:
        source = f"batch_size, gradient_accumulation_steps on {gpus} GPU{'s' if gpus > 1 else ''}"
        batch = micro * steps * (gpus // tensor)
        draft.put("workload.global_batch_size", batch, source, config.source("batch_size")[1])
    precision = config.word("dtype", ("bf16", "fp16", "fp32"), "bf16")
    draft.put("workload.precision", precision, *config.source("dtype"))
    if gpus != 1:
        draft.put("parallelism.fsdp", True, "torchtune's distributed recipe")
    if config.value("fsdp_reshard_after_forward", bool, True) is False and gpus != 1:
        keep_gathered(draft, "fsdp_reshard_after_forward false", config.source("fsdp_reshard_after_forward"))


def _kernels(config: SettingsFile, draft: Draft, architecture: str | None) -> None:
    put = draft.put
    put("implementation.framework", "pytorch-eager", _CODE)
    put("implementation.modules", "torchtitan", f"the nearest to {_CODE}")
    put("implementation.attention_backend", *pytorch_attention(architecture, "torchtune"))
    clipped = config.value("clip_grad_norm", (int, float), 0) > 0
    put("implementation.gradient_clipping", clipped, *config.source("clip_grad_norm"))
    draft.warn(
        "layers are forecast as torchtitan's: torchtune's norms and rotary embedding run in fp32, in some more "
        "kernels, and its loss takes the logits in chunks, which need less memory"
    )
    if config.on("compile"):
        put("implementation.compile", True, *config.source("compile"))
    _recomputation(config, draft)
    if config.on("optimizer_in_bwd"):
        draft.warn(
            "optimizer_in_bwd: each gradient is stepped and freed in the backward; all are forecast kept till its end"
        )
    optimizer = config.value(OPTIMIZER, str, "torch.optim.AdamW")
    if not put_optimizer(config, draft, OPTIMIZER, optimizer, CLASSES) and not config.on("optimizer.fused"):
        draft.warn("optimizer.fused is not true: the optimizer is forecast in fused kernels, not in PyTorch's foreach")


def _recomputation(config: SettingsFile, draft: Draft) -> None:
    """Layers that are computed again: all, or by ``ac_mode``, which the distributed recipe takes in place of the other.

    With both it computes none again (``_setup_model`` of ``full_finetune_distributed``); the recipe of one GPU has the
    first alone.
    """
    plain, key = "enable_activation_checkpointing", "ac_mode"
    mode = config.value(key, str)
    every = config.whole("ac_option", 1)
    on = config.on(plain)
    if draft.value("cluster.gpus") == 1:
        mode = None
    if on and mode:
        draft.warn(f"{plain} with {key}: torchtune then computes nothing again; set {plain} to false to have {key}")
    elif on or mode:
        draft.put("schedule.recompute", "full", *config.source(plain if on else key))
    if mode == "selective" and not on:
        draft.put("schedule.recompute_interval", every, *config.source("ac_option"))
