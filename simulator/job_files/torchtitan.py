"""Jobs of torchtitan: a TOML of its ``JobConfig``, or a command that names one, as a plan.

Names and defaults are those of ``torchtitan/config/job_config.py`` (commit 6404b932 of 2025), and names of before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.files import is_whole, parse_toml
from joulecast.model.architecture.hf import load_model, model_names
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import USUAL, put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import untold
from joulecast.simulator.job_files.launcher import Launch, read_launch
from joulecast.simulator.job_files.named_files import named_path, named_text
from joulecast.simulator.job_files.settings_file import SettingsFile, dotted
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.shell_values import marks
from joulecast.simulator.job_files.torchtitan_run import of_flavor, read_run

#: Tables that say what is logged, saved, validated or waited for.
PASSED_TABLES = (
    *("job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation", "experimental"),
    *("memory_estimation", "debug"),
)
#: Keys of other tables without effect on time, energy and memory.
PASSED = dotted(
    {
        "model": "tokenizer_path hf_assets_path print_after_conversion norm_type",
        "optimizer": "lr beta1 beta2 eps weight_decay",
        "training": "dataset dataset_path gc_freq gc_debug seed deterministic warmup_steps",
        "activation_checkpoint": "per_op_sac_force_recompute_mm_shapes_by_fqns early_stop",
        "compile": "backend",
        "float8": "filter_fqns precompute_float8_dynamic_scale_for_fsdp force_recompute_fp8_weight_in_bwd moe_fqns "
        "moe_fqns_prototype",
        "fault_tolerance": "replica_id group_size min_replica_size process_group",
    }
)
#: The catalogue's names of models by torchtitan's.
FAMILIES = {
    "llama3": "llama-3.1-{}",
    "llama3_ft": "llama-3.1-{}",
    "simple_fsdp.llama3": "llama-3.1-{}",
    "qwen3": "qwen3-{}",
    "deepseek_v3": "deepseek-v3",
    "llama4": "llama-4-{}",
    "gpt_oss": "gpt-oss-{}",
}
#: Its module, script and shell script, and the option that names a TOML.
_SCRIPT = re.compile(r"torchtitan\.train|(?:.*/)?torchtitan/train\.py|(?:.*/)?run_(?:llama_)?train\.sh")
_NAMED = "job.config_file"
_FLAVORS = {"17bx16e": "scout", "17bx128e": "maverick", "1b": "llama-3.2-1b", "3b": "llama-3.2-3b"}


def is_torchtitan(tables: Mapping[str, Any]) -> bool:
    """Whether a TOML is torchtitan's: it trains a model of a flavor, or has its tables."""
    model = tables.get("model")
    return "training" in tables and (isinstance(model, Mapping) or "parallelism" in tables)


def is_torchtitan_command(command: Command) -> bool:
    """Whether a command starts torchtitan: by its module, or by its shell script, whose name others have too."""
    place = _place(command)
    named = "CONFIG_FILE" in command.environment or any(_NAMED in word.text for word in command.words)
    return place is not None and (named or not command.words[place].text.endswith(".sh"))


def _place(command: Command) -> int | None:
    """Where torchtitan's script stands."""
    return next((at for at, word in enumerate(command.words) if _SCRIPT.fullmatch(word.text)), None)


def torchtitan_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making: a TOML, over which its options win.

    Raises
    ------
    InputError
        As :func:`torchtitan_draft` does, or it names no TOML that is here.
    """
    place = _place(command) or 0
    script, line = command.words[place].text, command.words[place].line
    options, _ = command_settings(command.words[place + 1 :], file)
    name = options.raw(_NAMED) or command.environment.get("CONFIG_FILE")
    if isinstance(name, str) and marks(name):
        what, remedy = untold(name)
        raise InputError(what, file=file, line=line, key=_NAMED, remedy=remedy)
    path = named_path(str(name), file) if name else None
    if path is None:
        what = f"no such file: {name}" if name else "torchtitan is started without a TOML"
        remedy = f"Put it beside the job's file, and name it with CONFIG_FILE or --{_NAMED}."
        raise InputError(what, file=file, line=line, remedy=remedy)
    text = named_text(path, "TOML")
    converters = options.raw("model.converters")
    if isinstance(converters, str):
        options = replace(options, tables={**options.tables, "model": {**options.tables["model"]}})
        options.tables["model"]["converters"] = converters.split(",")
    config = SettingsFile(str(path), text, parse_toml(text, str(path)), over=options, named=path.name)
    options.asked = config.asked
    launch = read_launch(command.words[:place], command.environment)
    if script.endswith(".sh"):
        given = command.environment.get("NGPU", str(USUAL))
        launch = Launch(int(given), None, "NGPU", line) if is_whole(given) and int(given) else Launch()
    draft = _draft(config, asked, launch, file)
    options.rest(draft, PASSED_TABLES, PASSED)
    return draft


def torchtitan_draft(text: str, asked: Asked, file: str) -> Draft:
    """A torchtitan job as a plan in the making.

    Raises
    ------
    InputError
        The file cannot be used, or is of a job of which a forecast would be far off.
    """
    tables = parse_toml(text, file)
    if not is_torchtitan(tables):
        if "workload" in tables:
            remedy = "`joulecast predict` forecasts it, `joulecast sweep` if it is a space."
            raise InputError("this is a plan already, not a job", file=file, remedy=remedy)
        what = "this TOML is no job that is known: it has no [training] with [model] or [parallelism]"
        raise InputError(what, file=file, remedy="Give a configuration of torchtitan, or a launch script.")
    return _draft(SettingsFile(file, text, tables), asked, Launch(), file)


def _draft(config: SettingsFile, asked: Asked, launch: Launch, file: str) -> Draft:
    draft = Draft(file)
    model = _model(config, draft, asked)
    gpus = launch if launch.gpus else _gpus(config, asked)
    architecture = put_cluster(draft, asked, gpus)
    read_run(config, draft, architecture, model)
    config.rest(draft, PASSED_TABLES, PASSED)
    return draft


def _model(config: SettingsFile, draft: Draft, asked: Asked) -> ModelConfig:
    """Put the model into the plan."""
    name = config.value("model.name", str, "llama3")
    flavor = config.value("model.flavor", str, "debugmodel")
    if asked.model is not None:
        draft.put("workload.model", asked.model, "--model")
        return asked.named_model()
    family = FAMILIES.get(name.rpartition("models.")[2])
    short = of_flavor(flavor)[0].lower()
    found = _FLAVORS.get(short, short)
    known = found if found in model_names() else (family or "").format(found)
    if family is None or known not in model_names() or (name == "deepseek_v3" and short != "671b"):
        what = f"the catalogue has no model for flavor {flavor!r} of {name!r}"
        raise config.error(what, "model.flavor", "Give one by its name or config.json: --model.")
    draft.put("workload.model", known, "model.flavor", config.line("model.flavor"))
    return load_model(known)


def _gpus(config: SettingsFile, asked: Asked) -> Launch:
    """The GPUs that the degrees multiply to, where none of them takes what is left."""
    names = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel")
    degrees = [config.value(f"parallelism.{name}_degree", int, -1 if "shard" in name else 1) for name in names]
    degrees.append(config.value("parallelism.context_parallel_degree", int, 1))
    if -1 in degrees or asked.gpus is not None:
        return Launch()
    product = 1
    for degree in degrees:
        product *= degree
    return Launch(product, None, "the degrees of [parallelism]", config.line("parallelism"))
