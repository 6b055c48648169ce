"""A job's own configuration as a PLAN.toml: the file's kind is found, and what comes of it is checked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import exists
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, counted
from joulecast.files import read_text
from joulecast.simulator.job_files.accelerate import refuse_alone
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.automodel import (
    automodel_command_draft,
    automodel_yaml_draft,
    is_automodel_command,
    is_automodel_yaml,
)
from joulecast.simulator.job_files.deepspeed import deepspeed_draft
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.kubernetes import is_manifest, job_document, pod_job
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.litgpt import (
    is_litgpt_command,
    is_litgpt_yaml,
    litgpt_command_draft,
    litgpt_yaml_draft,
)
from joulecast.simulator.job_files.megatron import megatron_commands, megatron_draft, yaml_draft
from joulecast.simulator.job_files.megatron_yaml import is_megatron_yaml
from joulecast.simulator.job_files.named_files import written_by_script
from joulecast.simulator.job_files.nemo import is_nemo_command, is_nemo_yaml, nemo_command_draft, nemo_yaml_draft
from joulecast.simulator.job_files.openrlhf import is_openrlhf_command, openrlhf_draft
from joulecast.simulator.job_files.plan_text import plan_text
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Script, read_script
from joulecast.simulator.job_files.torchtitan import (
    is_torchtitan_command,
    torchtitan_command_draft,
    torchtitan_draft,
)
from joulecast.simulator.job_files.torchtune import (
    is_torchtune_command,
    is_torchtune_yaml,
    torchtune_command_draft,
    torchtune_draft,
)
from joulecast.simulator.job_files.trainer_jobs import (
    is_launched_trainer,
    is_trainer_command,
    is_trainer_yaml,
    trainer_command_draft,
    trainer_yaml_draft,
)
from joulecast.simulator.job_files.verl import is_verl_command, is_verl_yaml, verl_command_draft, verl_yaml_draft
from joulecast.simulator.job_files.yaml_tables import SUFFIXES, parse_yaml
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.source import apply_overrides

#: How a command that is given as such is named in errors and in the plan.
COMMAND = "command"
REMEDY = (
    "Give a launch script, command or configuration of Megatron-LM, NeMo, AutoModel, torchtitan, torchtune, LitGPT, "
    "verl, OpenRLHF, DeepSpeed or Hugging Face's trainers (accelerate, TRL, LLaMA-Factory, Axolotl, ms-swift)."
)

#: What is said of settings that are in a program alone.
IN_PYTHON = (
    "Say its settings behind it, such as --model_name_or_path NAME --max_length TOKENS --per_device_train_batch_size N "
    "--bf16 --gradient_checkpointing, or write a plan of them."
)
#: By a tool and what it is told to do, why that is not read and what is.
_UNREAD = {
    ("megatron", "sft", "pt", "rlhf"): (
        "this is ms-swift's Megatron, whose options are not read",
        "Give the same job to Megatron-LM (torchrun … pretrain_gpt.py --seq-length …), with its model by --model.",
    ),
    ("nemo", "llm"): (
        "recipes of NeMo 2 are Python, and their settings are not read",
        "Give those of Megatron-Bridge: torchrun … run_recipe.py --recipe llama3_8b_pretrain_config seq_length=…",
    ),
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A job as a plan.

    Attributes
    ----------
    text
        The PLAN.toml.
    tables
        Its tables.
    sources
        By dotted key, what it was read from.
    warnings
        What the job asks for and a plan cannot say, and what that would change.
    passed_over
        Names without effect on time, energy and memory.
    missing
        By dotted key, what the job does not say; a plan is whole when nothing is missing.
    """

    text: str
    tables: Mapping[str, Any]
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    passed_over: tuple[str, ...]
    missing: Mapping[str, str]

    def __repr__(self) -> str:
        missing = ", ".join(self.missing) or "nothing"
        return (
            f"Conversion({counted(len(self.sources), 'key')}, {counted(len(self.warnings), 'warning')}, "
            f"missing: {missing})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary."""
        return {
            "plan": self.tables,
            "sources": dict(self.sources),
            "warnings": list(self.warnings),
            "passed_over": list(self.passed_over),
            "missing": dict(self.missing),
        }


def convert_job(job: str | Path | Sequence[str], asked: Asked, overrides: Sequence[str]) -> Conversion:
    """A plan of a job's file or command.

    Parameters
    ----------
    job
        Path of the file; a command as one text with spaces, or as its words.
    asked
        What the user says beside it.
    overrides
        Settings of the form ``table.key=value`` that win over it.

    Raises
    ------
    InputError
        The job cannot be read, contradicts itself, or is one of which a forecast would be far off.
    """
    draft = _draft(job, asked)
    for override in overrides:
        _set(draft, override)
    _check(draft)
    return Conversion(
        text=plan_text(draft),
        tables=draft.tables(),
        sources={key: setting.comment for key, setting in draft.settings.items()},
        warnings=tuple(draft.warnings),
        passed_over=tuple(draft.passed),
        missing=dict(draft.missing),
    )


#: Stands in for a GPU that is missing where only the plan's sizes are checked.
_STAND_IN = "cluster.gpu=h100-sxm"
#: Where errors about sizes are.
_SIZES = ("parallelism", "cluster.gpus", "workload.global_batch_size", "workload.sequence_length", "workload.model")


def _check(draft: Draft) -> None:
    """Refuse a plan that cannot be, with the place in the job; without a GPU its sizes alone."""
    tables = draft.tables()
    if set(draft.missing) - {"cluster.gpu"}:
        return
    try:
        plan_from_dict(tables, None, [_STAND_IN, "cluster.gpus_per_node=1"] if draft.missing else [])
    except InputError as error:
        if not draft.missing or (error.key or "").startswith(_SIZES):
            raise draft.placed(error) from None


def _is_script(job: str) -> bool:
    """Whether a text is a command or script and no path; ``exists`` also takes what is too long for one."""
    return not job.strip() or (re.search(r"\s", job.strip()) is not None and not exists(job))


def _checked(text: str, place: str) -> str:
    """A text that may be a job."""
    if not text.strip():
        raise InputError("nothing is given" if place == COMMAND else "the file is empty", file=place, remedy=REMEDY)
    if re.search("[\0-\x08]", text):
        raise InputError("this is no text", file=place, remedy=REMEDY)
    return text


def _draft(job: str | Path | Sequence[str], asked: Asked) -> Draft:
    if not isinstance(job, str | Path):
        return _script(shlex.join(job), COMMAND, asked)
    if isinstance(job, str) and _is_script(job):
        return _script(_checked(job, COMMAND), COMMAND, asked)
    path = Path(job)
    text = read_text(path, "launch script or configuration", missing="Check the path, or give the job's command.")
    _checked(text, str(path))
    if path.suffix == ".py":
        remedy = f"Give the command that starts it (joulecast convert -- python {path.name} …). {IN_PYTHON}"
        raise InputError("this is Python, which is not read", file=str(path), remedy=remedy)
    if path.suffix not in (".toml", ".json", *SUFFIXES):
        return _script(text, str(path), asked)
    if path.suffix in SUFFIXES:
        tables, lines = parse_yaml(job_document(text), str(path))
        if is_manifest(tables):
            return _manifest(tables, lines, str(path), asked)
        draft = _yaml(text, tables, lines, path, asked)
    else:
        draft = (torchtitan_draft if path.suffix == ".toml" else deepspeed_draft)(text, asked, str(path))
    if asked.environment:
        names = ", ".join(asked.environment)
        draft.warn(
            f"--env {names}: a {path.suffix[1:].upper()} has no variables; say what it means with --gpus or --set"
        )
    return draft


def _manifest(tables: Mapping[str, Any], lines: Mapping[str, int], file: str, asked: Asked) -> Draft:
    """What the pods of Kubernetes start, on all of their GPUs."""
    job = pod_job(tables, lines, file)
    asked = replace(asked, environment={**job.environment, **asked.environment})
    if asked.gpus is None and job.gpus:
        asked = replace(asked, gpus=job.gpus, counted="GPUs of all pods")
    return _script(job.text, file, asked)


def _yaml(text: str, tables: Mapping[str, Any], lines: Mapping[str, int], path: Path, asked: Asked) -> Draft:
    if is_torchtune_yaml(tables):
        return torchtune_draft(SettingsFile(str(path), text, tables, lines=lines), Launch(), asked, str(path))
    if is_litgpt_yaml(tables):
        return litgpt_yaml_draft(tables, lines, asked, str(path))
    if is_verl_yaml(tables):
        return verl_yaml_draft(tables, lines, asked, str(path))
    if is_automodel_yaml(tables):
        return automodel_yaml_draft(tables, lines, asked, str(path))
    if is_nemo_yaml(tables):
        return nemo_yaml_draft(tables, lines, asked, str(path))
    if is_trainer_yaml(tables):
        return trainer_yaml_draft(tables, lines, asked, str(path))
    if "distributed_type" in tables:
        raise refuse_alone(str(path))
    if not is_megatron_yaml(tables):
        raise InputError("this YAML is no job that is known", file=str(path), remedy=REMEDY)
    return yaml_draft(path, asked)


def _script(text: str, file: str, asked: Asked) -> Draft:
    script = read_script(text, file, asked.environment)
    _refuse_unread(script, file)
    with written_by_script(script.written):
        return _of_script(script, asked, file)


def _of_script(script: Script, asked: Asked, file: str) -> Draft:
    readers = (
        (megatron_commands(script), megatron_draft),
        ([command for command in script.commands if is_torchtune_command(command)], torchtune_command_draft),
        ([command for command in script.commands if is_litgpt_command(command)], litgpt_command_draft),
        ([command for command in script.commands if is_torchtitan_command(command)], torchtitan_command_draft),
        ([command for command in script.commands if is_verl_command(command)], verl_command_draft),
        ([command for command in script.commands if is_openrlhf_command(command)], openrlhf_draft),
        ([command for command in script.commands if is_automodel_command(command, file)], automodel_command_draft),
        ([command for command in script.commands if is_nemo_command(command)], nemo_command_draft),
        ([command for command in script.commands if is_trainer_command(command)], trainer_command_draft),
        ([command for command in script.commands if is_launched_trainer(command, file)], trainer_command_draft),
    )
    found, reader = next((pair for pair in readers if pair[0]), ([], megatron_draft))
    if not found:
        raise _unknown(script, file)
    draft = reader(found[0], asked, file)
    first, lines = found[0].line, [command.line for command in found]
    if lines.count(first) > 1:
        draft.warn(f"the command on line {first} is started {lines.count(first)} times: the plan is of the first")
    for line in dict.fromkeys(lines):
        if line != first:
            draft.warn(f"the command on line {line} is left out: the plan is of the one on line {first}")
    for name, line in script.absent.items():
        draft.warn(f"source {name} (line {line}): there is no such file here, and what it sets is not known")
    for name, line in script.unset.items():
        if name.isidentifier():
            draft.assumed.append(f"${name} (line {line})")
    return draft


def _refuse_unread(script: Script, file: str) -> None:
    """Refuse commands of tools whose other jobs are known, with what can be given in their place."""
    for command in script.commands:
        for (tool, *own), (what, remedy) in _UNREAD.items():
            names = [word.text.rpartition("/")[2] for word in command.words]
            if any(name == tool and after in own for name, after in pairwise(names)):
                raise InputError(what, file=file, line=command.line, remedy=remedy)


def _unknown(script: Script, file: str) -> InputError:
    """What is wrong with a script that starts no job, or one whose settings are in a program."""
    words = ((word, command.line) for command in script.commands for word in command.words)
    found = next(((word.text, line) for word, line in words if word.text.endswith(".py")), None)
    if found is None:
        return InputError("starts no training job that is known", file=file, remedy=REMEDY)
    name, line = found
    what = f"{name} is started without settings that are known, and those in its own text are not read"
    return InputError(what, file=file, line=line, remedy=IN_PYTHON)


def _set(draft: Draft, override: str) -> None:
    """Apply one ``table.key=value``."""
    tables, keys = apply_overrides({}, [override])
    for key in keys:
        value: Any = tables
        for name in key.split("."):
            value = value[name]
        draft.settings = {old: kept for old, kept in draft.settings.items() if not old.startswith(f"{key}.")}
        draft.put(key, value, "--set")
        draft.missing.pop(key, None)
        draft.warnings = [said for said in draft.warnings if f"--set {key}=" not in said]  # which it answers
