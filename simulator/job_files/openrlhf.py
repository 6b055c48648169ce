"""Jobs of OpenRLHF as plans: supervised finetuning, DPO, reward models, and ``train_ppo_ray`` without a critic.

Options and defaults are those of ``openrlhf/cli`` in OpenRLHF 0.9 and 0.10, whose names are others, and what it
configures DeepSpeed with those of ``openrlhf/utils/deepspeed/deepspeed_utils.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.simulator.job_files.adapters import put_precision, read_adapters
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.deepspeed import STAGE, ZERO, put_zero
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import name_at, put_named_model
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.micro_batches import put_micro_batch
from joulecast.simulator.job_files.openrlhf_names import NAMES, PASSED_OVER, REFUSED, TABLES, WARNED
from joulecast.simulator.job_files.openrlhf_rollouts import put_rollout, read_lengths
from joulecast.simulator.job_files.preferences import put_narrow_reference
from joulecast.simulator.job_files.processes import processes
from joulecast.simulator.job_files.rollouts import tell_reference_on_host
from joulecast.simulator.job_files.settings_file import Matching, SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.told import PREFERENCES, other_optimizer, unpacked
from joulecast.simulator.job_files.trainer_kernels import put_attention, put_recomputation
from joulecast.simulator.job_files.trainer_liger import read_liger

_MODULE = re.compile(r"(?:.*[./])?openrlhf[./](?:.*[./])?train_(\w+?)(?:\.py)?")
MICRO, BATCH = "micro_train_batch_size", "train_batch_size"
_CODE = "OpenRLHF trains transformers' layers"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a command trains.

    Attributes
    ----------
    objective
        As a plan has it.
    length
        Tokens of a sample where it does not say.
    """

    objective: str
    length: int


_KINDS = {
    "sft": _Kind("next-token", 2048),
    "dpo": _Kind("dpo", 512),
    "rm": _Kind("reward", 512),
    "ppo_ray": _Kind("grpo", 2048),
}


def is_openrlhf_command(command: Command) -> bool:
    """Whether a command starts a job of OpenRLHF."""
    return any(_MODULE.fullmatch(word.text) for word in command.words)


def openrlhf_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    place, module = next((n, found) for n, word in enumerate(command.words) if (found := _MODULE.fullmatch(word.text)))
    name, kind = module[1], _KINDS.get(module[1])
    if kind is None:
        remedy = f"Known are {', '.join(f'train_{name}' for name in _KINDS)}."
        raise InputError(PREFERENCES, file=file, line=command.line, key=f"train_{name}", remedy=remedy)
    config, _ = command_settings(command.words[place + 1 :], file)
    _name(config, rewarded=kind.objective == "grpo")
    launch = _workers(config) if kind.objective == "grpo" else processes(command, place, "", otherwise=False)
    return _draft(config, name, launch, asked, file)


def _name(config: SettingsFile, *, rewarded: bool) -> None:
    """Take newer names where the job has them, and OpenRLHF's own defaults."""
    newer = any(isinstance(config.tables.get(table), Mapping) for table in TABLES)
    names = {"gradient_checkpointing_kwargs.use_reentrant": "gradient_checkpointing_use_reentrant"}
    if newer:
        names = {
            key: re.sub("^model|^(?=max_norm|optim)", "actor" if rewarded else "model", own)
            for key, own in NAMES.items()
        }
        names = {key: own if "." in own else key for key, own in names.items()}
    names |= {
        "lora_r": names.get("lora_rank", "lora_rank"),
        "lora_target_modules": names.get("target_modules", "target_modules"),
        STAGE: names.get("zero_stage", "zero_stage"),
        f"{ZERO}.overlap_comm": names.get("overlap_comm", "overlap_comm"),
        f"{ZERO}.zero_hpz_partition_size": names.get("zpg", "zpg"),
        "data_types.grad_accum_dtype": names.get("grad_accum_dtype", "grad_accum_dtype"),
    }
    config.names = names
    config.defaults = {
        names.get("attn_implementation", "attn_implementation"): "flash_attention_2",
        names["lora_target_modules"]: "all-linear",
        names[STAGE]: 2,
        "use_bnb_nested_quant": True,
    }


def _workers(config: SettingsFile) -> Launch:
    """The GPUs that train, of those that Ray has."""
    each, nodes = "actor_num_gpus_per_node", "actor_num_nodes"
    gpus, count = config.whole(each, 8) or 8, config.whole(nodes, 1) or 1
    source, line = config.source(each)
    return Launch(gpus * count, gpus, f"{source}, {config.own(nodes)}", line)


def _draft(config: SettingsFile, name: str, launch: Launch, asked: Asked, file: str) -> Draft:
    draft, kind = Draft(file), _KINDS[name]
    for key, what in REFUSED.items():
        if config.value(key, (bool, int), False) not in (False, 1) or config.raw(key) is True:
            raise config.error(what, key, "Leave it out to forecast the job without it.")
    put_named_model(draft, asked, name_at(config, "pretrain"), config.source("pretrain"))
    architecture = put_cluster(draft, asked, launch)
    put = draft.put
    if kind.objective != "next-token":
        put("workload.objective", kind.objective, f"openrlhf.cli.train_{name}")
    if kind.objective == "grpo":
        read_lengths(config, draft)
    else:
        length = config.whole("max_len", kind.length) or kind.length
        put("workload.sequence_length", length, *config.source("max_len"))
        draft.warn(unpacked(config.own("max_len"), length))
    put("implementation.framework", "pytorch-eager", _CODE)
    put("implementation.modules", "transformers", _CODE)
    _precision(config, draft)
    put_attention(config, draft, architecture)
    if kind.objective in ("grpo", "dpo"):
        put("implementation.log_probabilities", "whole", "OpenRLHF takes all logits in fp32")
    put("implementation.gradient_clipping", config.value("max_norm", (int, float), 1.0) > 0, *config.source("max_norm"))
    put_recomputation(config, draft)
    adapted = bool(config.whole("lora_rank", 0, least=0)) and read_adapters(config, draft, None)
    stage = put_zero(config, draft)
    if adapted:
        put_precision(config, draft, loads_narrow=False)
    _optimizer(config)
    _batch(config, draft)
    if kind.objective == "dpo":
        put("workload.reference", "copy", *config.source("ref_pretrain"))
        if config.on("ref_offload"):
            tell_reference_on_host(draft, asked, config.own("ref_offload"))
    if kind.objective == "grpo":
        put_rollout(config, draft, asked)
    put_narrow_reference(config, draft, stage, mixed=True)
    read_liger(config, draft, asked, keeps_loss=True)
    _rest(config, draft)
    return draft


def _precision(config: SettingsFile, draft: Draft) -> None:
    """The type that DeepSpeed multiplies in: bf16 unless the job says another."""
    precision = config.word("param_dtype", ("bf16", "fp16"), "bf16")
    said = "bf16" if config.on("bf16") else "param_dtype"
    draft.put("workload.precision", precision, *config.source(said))


def _optimizer(config: SettingsFile) -> None:
    name = config.value("optim", str, "adam")
    if name != "adam":
        raise config.error(other_optimizer(name, "Adam"), "optim", "Leave it out to forecast that instead.")


def _batch(config: SettingsFile, draft: Draft) -> None:
    """Samples of a step, and of a micro-batch on each GPU."""
    batch, gpus = config.whole(BATCH, 128) or 128, draft.value("cluster.gpus")
    draft.put("workload.global_batch_size", batch, *config.source(BATCH))
    if not config.given(MICRO):
        least = 1 if "train.micro_batch_size" in config.names.values() else 4
        config.defaults = {
            **config.defaults,
            config.own(MICRO): least if draft.value("workload.completion_tokens") else 8,
        }
    if gpus is None:
        draft.put("workload.micro_batch_size", config.whole(MICRO), *config.source(MICRO))
        return
    if batch % gpus:
        what = f"{batch} samples are not split over {gpus} GPUs"
        raise config.error(what, BATCH, f"Use a multiple of {gpus}, or other --gpus.")
    most = ("train_max_tokens_per_gpu", 16192)
    put_micro_batch(config, draft, (MICRO,), ("use_dynamic_batch", False), most, batch // gpus)


def _rest(config: SettingsFile, draft: Draft) -> None:
    """What is told, passed over or not regarded."""
    for key, what in WARNED.items():
        if config.on(key):
            draft.warn(f"{config.own(key)}: {what}")
    config.know((*WARNED, *NAMES))
    config.rest(draft, (), Matching(PASSED_OVER))
