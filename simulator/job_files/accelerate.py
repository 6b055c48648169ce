"""How the jobs of Hugging Face's trainers are split over GPUs: by DDP, FSDP or DeepSpeed.

Their own arguments say it, or accelerate's ``config.yaml`` and the options of ``accelerate launch`` (accelerate 1.15).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import USUAL
from joulecast.simulator.job_files.deepspeed import STAGE, put_zero, read_zero, without_auto
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.kept_gathered import keep_gathered
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.named_files import named_path, named_settings
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell_values import marks
from joulecast.simulator.job_files.told import OFFLOADED

#: Sharding strategies of FSDP by their numbers in PyTorch.
_STRATEGIES = {1: "full_shard", 2: "shard_grad_op", 3: "no_shard", 4: "hybrid_shard", 5: "hybrid_shard_zero2"}
#: Configurations that TRL has by name (``trl/accelerate_configs``), and what its command hands on to accelerate.
_OF_TRL: dict[str, dict[str, Any]] = {
    "single_gpu": {"num_processes": 1},
    "multi_gpu": {"num_processes": 8},
    **{
        f"fsdp{n}": {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"reshard_after_forward": True}}
        for n in (1, 2)
    },
    **{
        f"zero{n}": {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {"zero_stage": n}}
        for n in (1, 2, 3)
    },
}
_HANDED = ("num_processes", "num_machines")
_SYNC = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
_STAGE = re.compile(r"(?:z(?:ero)?[_-]?(?:stage)?|stage)[_-]?([0-3])")
#: Where the trainer's arguments name DeepSpeed's configuration; the first is a switch of scripts that start it by hand.
_CONFIGS = ("deepspeed", "deepspeed_config", "ds_config", "ds_file")
#: Tables of accelerate's configuration, and the options of its launch that stand in them.
_TABLES = {
    "fsdp_config": re.compile(r"fsdp_\w+"),
    "deepspeed_config": re.compile(r"zero_stage|zero3_\w+|deepspeed_\w+|offload_\w+|gradient_clipping"),
}
#: As DeepSpeed's examples and accelerate call ZeRO's stage.
_ZERO_STAGE = "zero_stage"


def configured_launch(launch: Launch, settings: Sequence[SettingsFile], asked: Asked) -> Launch:
    """The GPUs of a job: its launcher's, else accelerate's configuration's, on as many machines as either says."""
    for config in settings:
        if asked.gpus and isinstance(told := config.raw("num_processes"), str) and marks(told):
            config.know(["num_processes"])  # which the user says in its place
            continue
        processes, machines = config.whole("num_processes"), config.whole("num_machines") or 1
        if processes and launch.gpus is None:
            source, line = config.source("num_processes")
            return Launch(processes, processes // machines or None, source, line)
        if processes and launch.gpus == processes and machines > 1:
            return replace(launch, gpus_per_node=processes // machines or None)
    return launch


def read_sharding(arguments: SettingsFile, accelerate: Sequence[SettingsFile], draft: Draft, *, mixed: bool) -> int:
    """Put what is split over the replicas into the plan.

    Parameters
    ----------
    arguments
        Of the trainer.
    accelerate
        Options of its launch and its configuration, those that win first.
    mixed
        Whether products are computed in another type than the parameters' own.

    Returns
    -------
    int
        The stage of DeepSpeed's ZeRO, 0 without.

    Raises
    ------
    InputError
        A file that is missing, a value that cannot be, or one of which a forecast would be far off.
    """
    named = next((key for key in _CONFIGS if arguments.raw(key) not in (None, "", False, True)), None)
    arguments.asked |= {"fsdp", "fsdp_config", *_CONFIGS}
    if named is not None:
        return _deepspeed(arguments, named, draft)
    if arguments.given(_ZERO_STAGE):
        return _accelerate_deepspeed(arguments, draft)
    if arguments.raw(_CONFIGS[0]) is True:
        what = "this switches DeepSpeed on, and nothing says which of ZeRO's stages"
        raise arguments.error(what, _CONFIGS[0], f"Name its configuration, or add --{_ZERO_STAGE} N.")
    arguments.know([_SYNC])
    if arguments.raw("fsdp") or arguments.given("fsdp_config"):
        _fsdp(arguments, draft, mixed=mixed)
        _copies(arguments, draft)
        _sum_whole(arguments, draft)
        return 0
    for config in accelerate:
        kind = str(config.value("distributed_type", (str, bool), "")).upper()
        if kind in ("MEGATRON_LM", "TPU", "XLA") or config.raw("use_megatron_lm"):
            what = "accelerate's Megatron-LM and TPUs are not known"
            raise config.error(what, "distributed_type", "Give the job's own command.")
        if kind == "DEEPSPEED" or config.raw("use_deepspeed"):
            return _accelerate_deepspeed(config, draft)
        if kind == "FSDP" or config.raw("use_fsdp"):
            _fsdp(config, draft, mixed=mixed)
            _sum_whole(arguments, draft)
            return 0
    if draft.value("cluster.gpus") != 1:
        draft.put("overlap.grad_reduce", "overlapped", "PyTorch's DDP reduces beside the backward")
    return 0


def _deepspeed(config: SettingsFile, key: str, draft: Draft) -> int:
    """DeepSpeed's own configuration, in place or by the name of its file."""
    found = config.value(key, (str, dict))
    if isinstance(found, dict):
        return read_zero(SettingsFile(config.file, config.text, without_auto(found), named=config.own(key)), draft)
    name = found.rpartition("/")[2].lower()
    if named_path(found, config.file) is None and (stage := _STAGE.search(name)):
        if re.search(r"(?<!no)(?<!no[_-])offload", name):
            raise config.error(OFFLOADED, key, "Name a configuration without it to forecast that.")
        draft.warn(f"{found} is not here: by its name it is ZeRO's stage {stage[1]}, with DeepSpeed's defaults")
        own = config.own(key)
        return put_zero(replace(config.last(key), tables={own: int(stage[1])}, names={STAGE: own}), draft)
    zero = named_settings(found, config.file, config.own(key), config.line(key))
    zero.tables = without_auto(zero.tables)
    return read_zero(zero, draft)


def _accelerate_deepspeed(config: SettingsFile, draft: Draft) -> int:
    file, stage, *devices = (
        config.first((f"deepspeed_config.{name}", name))
        for name in ("deepspeed_config_file", _ZERO_STAGE, "offload_optimizer_device", "offload_param_device")
    )
    if config.given(file):
        return _deepspeed(config, file, draft)
    for key in devices:
        if str(config.value(key, str, "none")).lower() != "none":
            raise config.error(OFFLOADED, key, "Set it to none to forecast the job without it.")
    return put_zero(replace(config, names={STAGE: stage}, defaults={stage: 2}), draft)


def _fsdp(config: SettingsFile, draft: Draft, *, mixed: bool) -> None:
    """FSDP of the trainer's ``fsdp`` and ``fsdp_config``, or of accelerate's ``fsdp_config``."""
    nested = config
    if isinstance(file := config.raw("fsdp_config"), str):
        nested = named_settings(file, config.file, "fsdp_config", config.line("fsdp_config"))

    def name(option: str) -> str:
        return nested.first(
            tuple(f"{table}{prefix}{option}" for table in ("fsdp_config.", "") for prefix in ("", "fsdp_"))
        )

    words = _words(config.raw("fsdp"))
    offload, checkpointing = name("offload_params"), name("activation_checkpointing")
    if "offload" in words:
        raise config.error(OFFLOADED, "fsdp", "Leave out offload to forecast the job without it.")
    if _on(nested, offload):
        raise nested.error(OFFLOADED, offload, "Set it to false to forecast the job without it.")
    if _on(nested, checkpointing):
        draft.put("schedule.recompute", "full", *nested.source(checkpointing))
    place, key, chosen = config, "fsdp", next((word for word in words if word in _STRATEGIES.values()), None)
    if chosen is None:
        place, key = nested, name("sharding_strategy")
        if not nested.given(key):
            key = name("reshard_after_forward")
        chosen = _strategy(nested, key)
    _put_fsdp(draft, chosen, place.own(key), place.source(key), mixed=mixed)


def _strategy(config: SettingsFile, key: str) -> str:
    """A sharding strategy by its name or number, or by whether parameters are kept after the forward."""
    value = config.value(key, (str, int, bool), True)
    if isinstance(value, bool):
        return "full_shard" if value else "shard_grad_op"
    text = _STRATEGIES.get(value, str(value)) if isinstance(value, int) else value.lower()
    text = {"true": "full_shard", "false": "shard_grad_op"}.get(text, text)
    if text not in _STRATEGIES.values():
        known = ", ".join(_STRATEGIES.values())
        raise config.error(f"{value!r} is no sharding strategy", key, f"Known: {known}.")
    return text


def _put_fsdp(draft: Draft, strategy: str, key: str, source: tuple[str, int | None], *, mixed: bool) -> None:
    if strategy == "no_shard":
        draft.put("overlap.grad_reduce", "overlapped", *source)
        return
    draft.put("parallelism.fsdp", True, *source)
    if strategy.startswith("hybrid"):
        draft.put("parallelism.fsdp_shard_size", _of_a_node(draft), *source)
    if strategy in ("shard_grad_op", "hybrid_shard_zero2"):
        keep_gathered(draft, f"{key} {strategy}", source)
    if mixed:
        precision = draft.value("workload.precision")
        if not draft.value("workload.lora.rank"):  # of frozen ones it casts none
            draft.put("implementation.parameter_precision", "fp32", "accelerate casts parameters for FSDP to fp32")
        draft.put("implementation.gradient_precision", precision, "accelerate's FSDP reduces as it multiplies")


def _copies(arguments: SettingsFile, draft: Draft) -> None:
    """Copies of what FSDP shards, as Axolotl says them: GPUs of one, or how many copies there are."""
    shard, copies = arguments.whole("dp_shard_size"), arguments.whole("dp_replicate_size", 1) or 1
    gpus = draft.value("cluster.gpus")
    key = "dp_shard_size" if shard else "dp_replicate_size"
    if not draft.value("parallelism.fsdp") or (not shard and copies == 1):
        return
    ranks = shard or (gpus and gpus // copies)
    if ranks is None:
        draft.missing["parallelism.fsdp_shard_size"] = f"the GPUs of one of {copies} copies ({key})"
    elif ranks != gpus:
        draft.put("parallelism.fsdp_shard_size", ranks, *arguments.source(key))


def _sum_whole(arguments: SettingsFile, draft: Draft) -> None:
    """Gradients of accumulated micro-batches, which the Trainer adds up whole unless it is told not to.

    It runs all of them but the last under accelerate's ``no_sync``; ``sync_each_batch`` is a setting of its own.
    """
    if draft.value("parallelism.fsdp") and not arguments.on(_SYNC):
        draft.put("parallelism.fsdp_sync_each_batch", False, "default without accelerate's sync_each_batch")


def _of_a_node(draft: Draft) -> int:
    """GPUs of a node, which is one copy of hybrid sharding."""
    found: int = draft.value("cluster.gpus_per_node") or min(USUAL, draft.value("cluster.gpus", USUAL))
    return found


def _on(config: SettingsFile, key: str) -> bool:
    """A switch that may be written as a text, as accelerate's options are."""
    found = config.value(key, (bool, str), False)
    return found is True or (isinstance(found, str) and found.lower() == "true")


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.lower().replace(",", " ").split()
    return [str(word).lower() for word in value] if isinstance(value, list) else []


def accelerate_settings(options: SettingsFile, file: str) -> list[SettingsFile]:
    """The options of ``accelerate launch``, which win over the configuration that they name."""
    name = options.raw("config_file")
    if not isinstance(name, str):
        return [options]
    config = named_settings(name, file, "--config_file", options.line("config_file"))
    return [replace(config, over=_nested(options))]


def _nested(options: SettingsFile) -> SettingsFile:
    """Options in the tables that a configuration has for them."""
    tables: dict[str, Any] = {}
    lines = {}
    for name, value in options.tables.items():
        table = next((table for table, own in _TABLES.items() if own.fullmatch(name)), "")
        (tables.setdefault(table, {}) if table else tables)[name] = value
        lines[f"{table}.{name}".lstrip(".")] = options.line(name)
    return replace(options, tables=tables, lines={key: line for key, line in lines.items() if line})


def trl_settings(settings: SettingsFile, file: str) -> list[SettingsFile]:
    """What TRL's command hands on to accelerate: processes, and a configuration by its name or its path."""
    found = [_alone(settings, _HANDED)]
    settings.asked |= set(_HANDED)
    name = settings.value("accelerate_config", str)
    if name in _OF_TRL:
        found.append(SettingsFile(file, "", _OF_TRL[name], named=f"TRL's {name}"))
    elif name is not None:
        said = settings.last("accelerate_config")
        found.append(named_settings(name, said.file, "accelerate_config", said.line("accelerate_config")))
    return found


def _alone(settings: SettingsFile, keys: Sequence[str]) -> SettingsFile:
    """Settings of these keys alone."""
    over = None if settings.over is None else _alone(settings.over, keys)
    return replace(
        settings, tables={key: settings.tables[key] for key in keys if key in settings.tables}, asked=set(), over=over
    )


def refuse_alone(file: str) -> InputError:
    """An accelerate configuration says where a job runs, not what it trains."""
    remedy = "Give the job's command, such as: joulecast convert -- accelerate launch --config_file FILE train.py …"
    return InputError("this says where a job runs, not what it trains", file=file, remedy=remedy)
