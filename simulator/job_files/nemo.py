"""Jobs of NeMo and Megatron-Bridge: YAML, overrides and arguments, as the Megatron options that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft, Setting
from joulecast.simulator.job_files.flags import Flags, Given
from joulecast.simulator.job_files.hub_names import hub_model
from joulecast.simulator.job_files.launcher import Launch, read_launch, script_place
from joulecast.simulator.job_files.megatron import put_job
from joulecast.simulator.job_files.megatron_yaml import flags_of, leaves, words_of
from joulecast.simulator.job_files.named_files import named_settings
from joulecast.simulator.job_files.nemo_names import FLAGS, PASSED, PASSED_TABLES, PRECISIONS, SHORT, VALUES
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.shell_values import Spot
from joulecast.simulator.job_files.told import ADAPTERS

_OVERRIDE = re.compile(r"\+{0,2}(model|trainer|train|ddp|mixed_precision)\.\w[\w.]*=.*", re.S)
#: Scripts of Megatron-Bridge's recipes, whose arguments are Megatron's names.
_PERFORMANCE = ("setup_experiment.py", "run_script.py", "run_recipe.py")
_PLAIN = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "dataset", "dist")
_FLAG = re.compile(r"--[a-z0-9][\w-]*")
_REFERENCE = re.compile(r"\$\{([.\w]+)\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
#: The line of what no file says.
NOWHERE = -1
#: Sources of keys that the user gives, beside the job.
_ASKED = ("--gpu", "--gpus", "--power-limit", "--model")
#: Most references that one value may go through, and letters of it.
MOST_LINKS, MOST_LETTERS = 8, 1000
#: What a recipe of Megatron-Bridge has by itself for each job, which is not read, and a command must say.
_NEEDED = (
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    *(f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline")),
)
#: What its recipes have in common, those of experts too, and its performance scripts besides.
_RECIPES = (
    *("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--ddp-average-in-collective"),
    *("--attention-dropout=0", "--hidden-dropout=0"),
)
_EXPERTS = ("--moe-grouped-gemm", "--moe-permute-fusion", "--moe-token-dispatcher-type=alltoall")
_SCRIPTS = ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl=te")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value of a configuration with its place: where the last word on it stands."""

    value: Any
    name: str
    line: int
    source: str


def is_nemo_command(command: Command) -> bool:
    """Whether a command starts a job of NeMo or Megatron-Bridge."""
    names = {word.text.rpartition("/")[2] for word in command.words}
    overrides = sum(bool(_OVERRIDE.fullmatch(word.text)) for word in command.words)
    return overrides > 1 or bool(names & set(_PERFORMANCE))


def is_nemo_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML is NeMo's or Megatron-Bridge's: a model beside how it is trained."""
    model = tables.get("model")
    return "ConfigContainer" in tables or (isinstance(model, Mapping) and ("trainer" in tables or "train" in tables))


def nemo_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making.

    Raises
    ------
    InputError
        As :func:`joulecast.simulator.job_files.megatron.megatron_draft` does, or a recipe's own values are needed.
    """
    place = script_place(command.words)
    words = [Spot(SHORT.get(word.text, word.text), word.line) for word in command.words[place + 1 :]]
    options, _ = command_settings(words, file)
    settings = [options]
    key = next((key for key in ("config_name", "config_file", "config") if options.given(key)), "config")
    name = options.raw(key)
    if isinstance(name, str):
        path = f"{str(options.raw('config_path') or '.').rstrip('/')}/{name}"
        path = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
        settings.insert(0, named_settings(path.removeprefix("./"), file, "the job's configuration", options.line(key)))
    return _draft(settings, read_launch(command.words[:place], command.environment), command.environment, asked, file)


def nemo_yaml_draft(tables: Mapping[str, Any], lines: Mapping[str, int], asked: Asked, file: str) -> Draft:
    """A YAML of NeMo's or Megatron-Bridge's alone, as a plan in the making."""
    return _draft([SettingsFile(file, "", tables, lines=lines)], Launch(), {}, asked, file)


def _draft(
    settings: list[SettingsFile], launch: Launch, environment: Mapping[str, str], asked: Asked, file: str
) -> Draft:
    """A plan of several settings, of which the last win."""
    found: dict[str, _Leaf] = {}
    for config in settings:
        found |= _leaves(config)
    found = {place: replace(leaf, value=_resolved(leaf.value, place, found)) for place, leaf in found.items()}
    plain = {place: leaf.value for place, leaf in found.items()}
    _refuse(plain, file)
    draft = Draft(file)
    flags = Flags(file, _given(found, draft), whole_configuration=True)
    recipe = plain.get("model_recipe_name") or plain.get("recipe")
    if recipe:
        asked = _put_recipe(flags, str(recipe), asked, performance="model_recipe_name" in plain)
    put_job(flags, [], draft, _launch(plain, launch), environment, asked)
    nemo = any(place.startswith("trainer.") for place in plain)
    generation = "nemo-2024" if nemo else "megatron-bridge-2025"
    draft.put("implementation.generation", generation, "NeMo's names" if nemo else "Megatron-Bridge's names")
    if recipe:
        draft.put("workload.model", asked.model, f"recipe {recipe}, or --model")
        draft.warn("the recipe itself is not read: what it has of its own, beside what all recipes have, is left out")
    _rename(draft, flags)
    return draft


def _leaves(config: SettingsFile) -> dict[str, _Leaf]:
    """Values by their places, without the tables that wrap all others."""
    found = {}
    for place, name, value in leaves(config.tables):
        line = config.line(place) or 0
        place = place.removeprefix("ConfigContainer.").removeprefix("training.")
        found[place] = _Leaf(value, name, line, f"{config.named}:{line} {place}" if config.named else place)
    return found


def _given(found: Mapping[str, _Leaf], draft: Draft) -> dict[str, Given]:
    """The flags that values stand for."""
    given: dict[str, Given] = {}
    formats = found.get("model.fp8")
    for place, leaf in found.items():
        if isinstance(leaf.value, list) and any(isinstance(one, dict | list) for one in leaf.value):
            continue
        words = words_of(leaf.value, draft.file, leaf.line, place)
        if place in ("model.fp8_hybrid", "model.fp8_e4m3") and formats is not None and formats.value is not True:
            words = None  # NeMo's formats count where fp8 is on
        flags = _flags(place, leaf.name, words)
        if not flags and _is_passed(place) and place.startswith(("model.", "ddp.", "train.")):
            draft.passed.append(place)
        given |= {flag: Given(flag, values, leaf.line, leaf.source) for flag, values in flags}
    return given


def _put_recipe(flags: Flags, recipe: str, asked: Asked, *, performance: bool) -> Asked:
    """Add what recipes have in common, where the command does not say it; what is asked for, with the recipe's model.

    Raises
    ------
    InputError
        What a recipe has of its own is needed, or its model is not known.
    """
    model = asked.model or hub_model(_recipe_model(recipe))
    if model is None:
        what = f"the catalogue has no model for the recipe {recipe!r}"
        raise InputError(what, file=flags.file, remedy="Give one by its name or config.json: --model.")
    needed = [name for name in _NEEDED if f"--{name.replace('_', '-')}" not in flags.given]
    if needed:
        what = f"the recipe's own {', '.join(needed)} are not read"
        raise InputError(what, file=flags.file, remedy=f"Write {'=… '.join(needed)}=… behind the command.")
    common = [*_RECIPES, *(_SCRIPTS if performance else ())]
    common += ["--sequence-parallel"] if flags.whole("--tensor-model-parallel-size") != 1 else []
    common += [] if {"--bf16", "--fp16"} & set(flags.given) else ["--bf16"]
    common += _EXPERTS if load_model(model).experts else []
    ours = {name: Given(name, values, NOWHERE, "Megatron-Bridge's recipes") for name, values in map(_flag, common)}
    flags.given = {**ours, **flags.given}
    return replace(asked, model=model)


def _is_passed(place: str) -> bool:
    low = place.lower()
    return place.partition(".")[0] in PASSED_TABLES or any(low == key or low.startswith(f"{key}.") for key in PASSED)


def _flags(place: str, name: str, values: tuple[str, ...] | None) -> list[tuple[str, tuple[str, ...]]]:
    """The flags of a key with its values; none where it is off or asks for nothing."""
    if values is None:
        return []
    word = values[0].lower() if len(values) == 1 else ""
    if place in ("mixed_precision", "compute_dtype"):
        return [_flag(flag) for flag in PRECISIONS.get(word.removeprefix("nemotron_h_"), ())]
    if place in VALUES:
        return [_flag(flag) for flag in VALUES[place].get(word, ())]
    if place in FLAGS:
        flag = FLAGS[place]
        return [(flag, () if word == "true" else values)] if flag and word != "false" else []
    if _is_passed(place):
        return []
    table, _, _ = place.partition(".")
    if name == "num_query_groups":
        return [("--group-query-attention", ()), ("--num-query-groups", values)]
    return flags_of(name, values) if table in _PLAIN or "." not in place else []


def _flag(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, value = text.partition("=")
    return name, (value,) if equals else ()


def _resolved(value: Any, place: str, found: Mapping[str, _Leaf]) -> Any:
    """A value with its references to others, and products of them, as OmegaConf has them."""
    for _ in range(MOST_LINKS):
        if not isinstance(value, str) or "${" not in value or len(value) > MOST_LETTERS:
            break
        if product := _PRODUCT.search(value):
            number = str(int(product[1]) * int(product[2]))
            value = value[: product.start()] + number + value[product.end() :]
        elif match := _REFERENCE.search(value):
            path = f"{place.rpartition('.')[0]}{match[1]}" if match[1].startswith(".") else match[1]
            leaf = found.get(path.removeprefix("training."))
            other = None if leaf is None else leaf.value
            value = other if match[0] == value else value[: match.start()] + str(other) + value[match.end() :]
    return value


def _refuse(plain: Mapping[str, Any], file: str) -> None:
    """Of what the forecast would be far off."""
    scheme = plain.get("model.peft.peft_scheme") or ("lora" if plain.get("task") == "lora" else None)
    if scheme not in (None, "none", "null", False):
        remedy = "Leave them out to forecast the training of all weights."
        raise InputError(ADAPTERS, file=file, key=f"peft {scheme}", remedy=remedy)


def _launch(plain: Mapping[str, Any], launch: Launch) -> Launch:
    """The GPUs: the launcher's, the trainer's, or those that a recipe's script is given."""
    devices, nodes = plain.get("trainer.devices"), plain.get("trainer.num_nodes", 1)
    if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 and nodes > 0:
        return Launch(devices * nodes, devices, "trainer.devices and trainer.num_nodes")
    count, per_node = plain.get("num_gpus"), plain.get("gpus_per_node")
    if launch.gpus is None and isinstance(count, int) and count > 0:
        return Launch(count, per_node if isinstance(per_node, int) and per_node > 0 else None, "num_gpus")
    return launch


def _recipe_model(recipe: str) -> str:
    """A model of the hub by a recipe's name, such as ``llama31_405b`` or ``qwen3_30b_a3b_pretrain_config``."""
    text = re.sub(r"_(pretrain|sft|finetune|config|performance)\b.*|_pretrain.*", "", Path(recipe).name.lower())
    text = re.sub(r"^llama3(\d)_", r"llama-3.\1-", text)
    return text.replace("_", "-")


def _rename(draft: Draft, flags: Flags) -> None:
    """Say keys in place of the flags that they stand for."""

    def named(match: re.Match[str]) -> str:
        key = flags.key(match[0])
        return key if key != match[0] else match[0].strip("-").replace("-", "_")

    def told(text: str) -> str:
        return _FLAG.sub(named, text)

    for key, setting in draft.settings.items():
        elsewhere = setting.line == NOWHERE or any(":" in flags.key(flag) for flag in _FLAG.findall(setting.source))
        source = setting.source if setting.source in _ASKED else told(setting.source)
        draft.settings[key] = Setting(setting.value, source, None if elsewhere else setting.line)
    draft.warnings = [told(text) for text in draft.warnings]
    draft.passed = list(dict.fromkeys(told(text) for text in draft.passed))
    draft.missing = {key: told(text) if "(--" not in text else text for key, text in draft.missing.items()}
