"""Jobs of NeMo AutoModel as plans: the YAML of a recipe, or the command that names one.

Names and defaults are those of ``components/distributed/config.py`` (commit 013d1137 of 2026), ``StepSchedulerConfig``
(01004bcc), ``recipes/llm/train_ft.py`` (00a012b4) and ``_transformers/auto_model.py`` (004386c5), and names of before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.automodel_names import OTHER_TRAINING, PASSED, REFUSED, TABLES, WARNED
from joulecast.simulator.job_files.automodel_run import read_run
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import name_at, put_named_model
from joulecast.simulator.job_files.launcher import Launch, read_launch, script_place
from joulecast.simulator.job_files.named_files import named_path, named_settings, named_text
from joulecast.simulator.job_files.processes import seen_gpus
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.shell_values import Spot
from joulecast.simulator.job_files.told import PREFERENCES
from joulecast.simulator.job_files.yaml_tables import SUFFIXES, parse_yaml

#: Its command, by both of its names, and what may stand between that and its options.
_COMMANDS, _TOLD = ("automodel", "am"), ("finetune", "pretrain", "llm", "vlm")
_MODELS = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config")
_DEGREES = ("dp_size", "tp_size", "cp_size", "pp_size")


def is_automodel_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML is a recipe's of AutoModel: it counts steps its way, or names its classes."""
    model, steps = tables.get("model"), tables.get("step_scheduler")
    if not isinstance(model, Mapping):
        return False
    named = "nemo_automodel" in str(tables.get("recipe")) + str(model.get("_target_"))
    return named or (isinstance(steps, Mapping) and bool({"global_batch_size", "local_batch_size"} & set(steps)))


def is_automodel_command(command: Command, file: str) -> bool:
    """Whether a command is AutoModel's own, or starts a script with the YAML of one of its recipes."""
    names = [word.text.rpartition("/")[2] for word in command.words]
    yamls = [word.text for word in command.words if word.text.endswith(SUFFIXES)]
    if not yamls:
        return False
    if names[0] in _COMMANDS or "automodel" in names or any("nemo_automodel" in word.text for word in command.words):
        return True
    paths = [named_path(name, file) for name in yamls if any(text.endswith(".py") for text in names)]
    return any(is_automodel_yaml(parse_yaml(named_text(path, "YAML"), str(path))[0]) for path in paths if path)


def automodel_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making: a YAML, over which its options win.

    Raises
    ------
    InputError
        As :func:`automodel_yaml_draft` does, or it names no YAML that is here.
    """
    names = [word.text.rpartition("/")[2] for word in command.words]
    own = next((place for place, name in enumerate(names) if name in _COMMANDS), None)
    place = script_place(command.words) if own is None else own
    words = [word for word in command.words[place + 1 :] if word.text not in (*_TOLD, "-c", "--config")]
    yaml = next(word for word in words if word.text.endswith(SUFFIXES))
    options, _ = command_settings([word for word in words if word != yaml], file)
    config = named_settings(yaml.text, file, "--config", yaml.line)
    options = replace(options, tables=_without_none(options.tables))
    config = replace(config, tables=_without_none(config.tables), over=options)
    options.asked = config.asked
    launch = read_launch(command.words[:place], command.environment)
    if own is not None and launch.gpus is None:  # which starts torchrun itself, with a process on each GPU in sight
        launch = read_launch([Spot("torchrun", yaml.line), *command.words[place + 1 :]], command.environment)
        launch = launch if launch.gpus else seen_gpus(command) or Launch()
    draft = _draft(config, launch, asked, file)
    options.rest(draft, TABLES, PASSED)
    return draft


def automodel_yaml_draft(tables: Mapping[str, Any], lines: Mapping[str, int], asked: Asked, file: str) -> Draft:
    """A recipe's YAML without the command that names it, as a plan in the making.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    return _draft(SettingsFile(file, "", _without_none(tables), lines=lines), Launch(), asked, file)


def _draft(config: SettingsFile, launch: Launch, asked: Asked, file: str) -> Draft:
    draft = Draft(file)
    _refuse(config)
    config.know(_MODELS)
    key = next((name for name in _MODELS if isinstance(config.raw(name), str)), _MODELS[0])
    put_named_model(draft, asked, name_at(config, key), config.source(key))
    architecture = put_cluster(draft, asked, launch if launch.gpus else _gpus(config))
    read_run(config, draft, asked, architecture)
    for name, what in WARNED.items():
        if config.raw(name):
            draft.warn(f"{name}: {what}")
    config.know((*WARNED, *REFUSED))
    config.rest(draft, TABLES, PASSED)
    return draft


def _refuse(config: SettingsFile) -> None:
    for key in ("recipe", "recipe._target_", "model._target_"):
        found = config.raw(key)
        if isinstance(found, str) and OTHER_TRAINING.search(found):
            raise config.error(PREFERENCES, key, "Give a recipe of training on texts.")
    for key, what in REFUSED.items():
        if config.raw(key):
            raise config.error(what, key, "Leave it out to forecast the job without it.")


def _gpus(config: SettingsFile) -> Launch:
    """The GPUs that the degrees multiply to where data parallelism has one, or that a table for Slurm asks for."""
    degrees = [config.whole(f"distributed.{name}", 0 if name == "dp_size" else 1, least=0) or 0 for name in _DEGREES]
    each, nodes = config.whole("slurm.ntasks_per_node"), config.whole("slurm.nodes", 1) or 1
    if each:
        return Launch(each * nodes, each, *config.source("slurm.ntasks_per_node"))
    product = 1
    for degree in degrees:
        product *= degree
    return Launch(product, None, *config.source("distributed.dp_size")) if product else Launch()


def _without_none(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with the texts ``none`` as nothing, as AutoModel takes them (``translate_value``).

    >>> _without_none({"distributed": {"dp_size": "none", "tp_size": 1}})
    {'distributed': {'dp_size': None, 'tp_size': 1}}
    """
    return {key: _value(value) for key, value in tables.items()}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_none(value)
    return None if value in ("none", "None") else value
