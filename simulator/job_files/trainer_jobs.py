"""Which tool's a trainer's job is, and where its settings stand: options of a command, a YAML, or both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from joulecast.errors import InputError
from joulecast.simulator.job_files.accelerate import accelerate_settings, trl_settings
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.launcher import Launch, read_launch, script_place
from joulecast.simulator.job_files.named_files import named_path, named_settings, named_text
from joulecast.simulator.job_files.preferences import OBJECTIVES, PAIRS
from joulecast.simulator.job_files.processes import FACTORY, processes, tell_processes
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.shell_values import Spot
from joulecast.simulator.job_files.supervised import runs_sft_trainer
from joulecast.simulator.job_files.told import PREFERENCES
from joulecast.simulator.job_files.trainer import PLAIN, SCRIPT, TELLING, TRL, UNSLOTH, Dialect, trainer_draft
from joulecast.simulator.job_files.trainer_dialects import (
    LLAMA_FACTORY,
    SWIFT,
    axolotl_dialect,
    axolotl_settings,
    swift_settings,
)
from joulecast.simulator.job_files.trainer_names import PREFERRING
from joulecast.simulator.job_files.yaml_tables import SUFFIXES, parse_yaml
from joulecast.simulator.plan_file.pairs import GRPO

#: Commands of tools, and what they are given to train.
_TOOLS = {
    "axolotl": ("train",),
    "llamafactory-cli": ("train", "sft"),
    "lmf": ("train", "sft"),
    "trl": ("sft", "dpo", "kto", "reward", "grpo", "rloo"),
    "swift": ("sft", "pt", "rlhf"),
}
#: Those that hand on to accelerate how many processes it starts.
_HANDING = ("trl", "axolotl")
#: The setting by which a script that accelerate launches is seen to train a language model.
_MODEL = "model_name_or_path"
#: Settings that LLaMA-Factory alone has.
_FACTORY = ("finetuning_type", "cutoff_len", "dataset_dir", "template")
_AXOLOTL = ("axolotl", "axolotl.cli.train")
#: Settings that ms-swift alone has, and those of LLaMA-Factory's version 1.
_SWIFT = ("tuner_type", "train_type", "sft_type", "attn_impl")
_FACTORY_1 = ("dist_config", "kernel_config", "train_dataset")
#: Those that the commands of TRL (1.16) alone have, and two that no other has together.
_TRL = (
    *("use_peft", "lora_task_type", "use_bnb_nested_quant", "dataset_train_split", "dataset_test_split"),
    *("dataset_text_field", "completion_only_loss", "assistant_only_loss", "packing_strategy", "eval_packing"),
    *("chat_template_path", "accelerate_config"),
)
_TRL_TOGETHER = (("packing", "max_length"), (_MODEL, "dataset_name"))
#: Settings of transformers' examples, which its commands have not, and of TRL's training on completions.
_EXAMPLES = ("do_train", "dataset_config_name", "train_file")
_REWARDED = ("reward_funcs", "num_generations")
#: TRL's own script of supervised finetuning.
_OF_TRL = re.compile(r"(?:.*/)?(?:trl|examples)/scripts/sft\.py|trl\.scripts\.sft")
#: Launchers that start a process on each GPU, which nobody needs for less than training.
_LAUNCHERS = ("torchrun", "deepspeed", "torch.distributed.run", "torch.distributed.launch")


def is_trainer_command(command: Command) -> bool:
    """Whether a command starts a trainer's job."""
    texts = [word.text.rpartition("/")[2] for word in command.words]
    names = {text.partition("=")[0].strip("-").replace("-", "_") for text in texts if text.startswith("--")}
    if names & {"per_device_train_batch_size", "per_gpu_train_batch_size"} or len(names & TELLING) > 1:
        return True
    if any(name in texts for name in (*_TOOLS, "axolotl.cli.train")):
        return True
    if not ("accelerate" in texts and "launch" in texts):
        return False
    configured = "config" in names or any(text.endswith(SUFFIXES) for text in texts[1:])
    return configured or _MODEL in names


def is_launched_trainer(command: Command, file: str) -> bool:
    """Whether a launcher starts a script that names a model as trainers do, or a YAML of a trainer's settings."""
    texts = [word.text for word in command.words]
    if not any(text.rpartition("/")[2] in _LAUNCHERS for text in texts):
        return False
    if any(text.partition("=")[0].strip("-") == _MODEL for text in texts):
        return True
    paths = [named_path(text, file) for text in texts if text.endswith(SUFFIXES)]
    return any(is_trainer_yaml(parse_yaml(named_text(path, "YAML"), str(path))[0]) for path in paths if path)


def trainer_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making.

    Raises
    ------
    InputError
        As :func:`joulecast.simulator.job_files.trainer.trainer_draft` does, or a file that it names is missing.
    """
    words = command.words
    place = _place(command)
    tool = words[place].text.rpartition("/")[2]
    words, handed = _handed(words, tool)
    started = _objective([word.text for word in words[: place + 2]], words[place].line, file)
    options, loose = command_settings(words[place + 1 :], file)
    options = _switched_off(options)
    launch_options, _ = command_settings(handed or words[:place], file)
    name = next((spot for spot in loose if spot.text.endswith((*SUFFIXES, ".json"))), None)
    configured = options.raw("config")
    settings = options
    if name is not None or (isinstance(configured, str) and configured.endswith(SUFFIXES)):
        text, line = (name.text, name.line) if name else (str(configured), options.line("config"))
        settings = replace(named_settings(text, file, "the job's configuration", line), over=options)
    launched = any(word.text == "accelerate" for word in (*words, *handed))
    accelerate = accelerate_settings(launch_options, file) if launched else []
    accelerate = [*(trl_settings(settings, file) if tool in _HANDING else []), *accelerate]
    given = tool in _HANDING and accelerate[0].given("num_processes")
    launch = read_launch(handed, command.environment) if handed else processes(command, place, tool, otherwise=given)
    draft = _draft(settings, tool, launch, accelerate, asked, file, started, _of_script(command, place, file))
    tell_processes(command, place, tool, draft)
    return draft


def _handed(words: tuple[Spot, ...], tool: str) -> tuple[tuple[Spot, ...], tuple[Spot, ...]]:
    """A command's own words, and Axolotl's launcher with what stands behind ``--`` for it."""
    texts = [word.text for word in words]
    if tool != "axolotl" or "--" not in texts:
        return words, ()
    cut = texts.index("--")
    named = [after for before, after in pairwise(words[:cut]) if before.text == "--launcher"]
    named += [Spot(text.partition("=")[2], words[0].line) for text in texts[:cut] if text.startswith("--launcher=")]
    return words[:cut], (*(named or [Spot("accelerate", words[0].line)])[:1], *words[cut + 1 :])


def _of_script(command: Command, place: int, file: str) -> Dialect:
    """The dialect of a script, which no tool of its own starts."""
    name = command.words[place].text
    if "unsloth" in name.rpartition("/")[2].lower():
        return UNSLOTH
    if not runs_sft_trainer(command, place, file):
        return PLAIN
    return TRL if _OF_TRL.fullmatch(name) else SCRIPT


def trainer_yaml_draft(tables: Mapping[str, Any], lines: Mapping[str, int], asked: Asked, file: str) -> Draft:
    """A YAML of a trainer's settings without the command that names it, as a plan in the making."""
    settings = SettingsFile(file, "", tables, lines=lines)
    told = _trl_keys(tables)
    if not told:
        return _draft(settings, "", Launch(), [], asked, file)
    rewarded = any(settings.given(key) for key in _REWARDED)
    supervised = not rewarded and not any(settings.given(key) for key in PAIRS)
    plain, started = (TRL if supervised else replace(TRL, supervises="")), GRPO if rewarded else ""
    draft = _draft(settings, "", Launch(), trl_settings(settings, file), asked, file, started, plain)
    kind = " of trl grpo" if rewarded else " of trl sft" if supervised else ""
    draft.warn(
        f"{', '.join(told)}: keys of TRL's commands, whose defaults are taken (bf16, gradient_checkpointing, lora_r "
        f"16){kind}; where another starts the job give that, such as trl dpo --config FILE or accelerate launch "
        "train.py --config FILE"
    )
    return draft


def _trl_keys(tables: Mapping[str, Any]) -> list[str]:
    """Keys by which a YAML without its command is seen to be of TRL's; none where another tool's are there."""
    if {"base_model", *_SWIFT, *_FACTORY, *_FACTORY_1} & set(tables):
        return []
    if found := [key for key in (*_TRL, *_REWARDED) if key in tables]:
        return found
    together = () if set(_EXAMPLES) & set(tables) else _TRL_TOGETHER
    return next((list(keys) for keys in together if set(keys) <= set(tables)), [])


def is_trainer_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML has a trainer's settings."""
    return bool({"base_model", *_SWIFT, *_FACTORY_1, *TELLING} & set(tables))


def _draft(
    settings: SettingsFile,
    tool: str,
    launch: Launch,
    accelerate: list[SettingsFile],
    asked: Asked,
    file: str,
    started: str = "",
    plain: Dialect = PLAIN,
) -> Draft:
    dialect = plain
    if newer := next((key for key in _FACTORY_1 if settings.given(key)), None):
        what = "this is a configuration of LLaMA-Factory's version 1, whose keys are not read"
        remedy = "Say the job in the keys of version 0, such as model_name_or_path and per_device_train_batch_size."
        raise settings.error(what, newer, remedy)
    if tool in _AXOLOTL or settings.given("base_model"):
        settings, dialect = axolotl_settings(settings), axolotl_dialect(settings)
    elif tool == "swift" or any(settings.given(key) for key in _SWIFT):
        settings = swift_settings(settings)
        dialect = replace(SWIFT, pure=settings.raw("dtype") != "float32")
    elif tool in FACTORY or any(settings.given(key) for key in _FACTORY):
        dialect = LLAMA_FACTORY
    elif tool == "trl" or started:
        dialect = TRL
    draft = trainer_draft(settings, dialect, launch, accelerate, asked, file, started)
    if dialect is TRL and started and tool not in ("", "trl"):
        draft.warn(f"a script called after {started} is taken to run TRL's trainer, with its defaults")
    if plain is UNSLOTH:
        draft.warn(
            "Unsloth's kernels are not known: layers, adapters and loss are forecast in transformers' own, with which "
            "the iteration is longer and takes more memory"
        )
    return draft


def _switched_off(options: SettingsFile) -> SettingsFile:
    """Options such as ``--no_gradient_checkpointing``: so ``HfArgumentParser`` turns off what is on by default."""
    names = {key: key.removeprefix("no_") for key, value in options.tables.items() if value is True}
    off = {key: own for key, own in names.items() if own != key and own not in options.tables}
    tables = {off.get(key, key): False if key in off else value for key, value in options.tables.items()}
    lines = {off.get(key, key): line for key, line in (options.lines or {}).items()}
    return replace(options, tables=tables, lines=lines)


def _place(command: Command) -> int:
    """Where the script or the tool's own command stands."""
    for place, word in enumerate(command.words[:-1]):
        name = word.text.rpartition("/")[2]
        if name in _TOOLS and command.words[place + 1].text in _TOOLS[name]:
            return place
    return script_place(command.words)


def _objective(words: list[str], line: int, file: str) -> str:
    """The objective on pairs that a script or a tool's recipe is called after, empty where it trains on texts.

    Raises
    ------
    InputError
        It is called after one that is not known.
    """
    names = [word.rpartition("/")[2].lower() for word in words[-2:]]
    parts = {part.rstrip("0123456789") for name in names for part in re.split(r"[\W_]", name)}
    if "swift" in names and "rlhf" in names:
        return ""  # which its rlhf_type says
    if found := sorted(parts & PREFERRING - set(OBJECTIVES)):
        raise InputError(
            PREFERENCES, file=file, line=line, key=found[0], remedy="Give the command of training on texts."
        )
    return next(iter(sorted(parts & set(OBJECTIVES))), "")
