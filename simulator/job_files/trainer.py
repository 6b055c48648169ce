"""Jobs of Hugging Face's ``Trainer`` and of what is built on it, such as TRL and LLaMA-Factory: settings, as a plan.

Names and defaults are those of ``TrainingArguments`` in transformers 5.23; of the others, of their dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from joulecast.model.framework.wide_values import TF32
from joulecast.simulator.job_files.accelerate import configured_launch, read_sharding
from joulecast.simulator.job_files.adapters import put_precision, read_adapters
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import misspelt
from joulecast.simulator.job_files.hub_names import in_four_bits, name_at, put_named_model
from joulecast.simulator.job_files.images import read_images
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.preferences import objective_of, put_narrow_reference, put_pairs, tell_pairs
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.supervised import put_tiles
from joulecast.simulator.job_files.told import packed, unpacked
from joulecast.simulator.job_files.trainer_kernels import put_dropout, read_kernels
from joulecast.simulator.job_files.trainer_liger import read_liger
from joulecast.simulator.job_files.trainer_names import PASSED_OVER, REFUSED, WARNED
from joulecast.simulator.plan_file.pairs import GRPO
from joulecast.simulator.plan_file.parts import PAIRED

MICRO, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
#: What scripts call the model, and the most tokens of a sample.
MODELS = ("model_name_or_path", "model_name", "model_id", "pretrained_model_name_or_path", "model", "config_name")
LENGTHS = (
    *("max_seq_length", "max_length", "model_max_length", "block_size", "max_seq_len", "seq_length", "sequence_length"),
    *("seq_len", "max_len", "context_length"),
)
#: Settings by which a job is seen to be a trainer's.
TELLING = frozenset((MICRO, "per_gpu_train_batch_size", "model_name_or_path", "num_train_epochs", STEPS))
#: Those by the names of dialects that have a default, which is of texts.
_OF_TEXTS = ("max_length", "sequence_len")
_PACKS = ("neat_packing", "packing", "packed", "group_texts", "packing_strategy", "pad_to_max_length")
#: Types of parameters as they are loaded.
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one tool calls the trainer's settings.

    Attributes
    ----------
    names
        Its own names, by the trainer's.
    defaults
        Its own defaults, by its own names.
    full_length
        Whether samples fill the sequence: text is packed, or padded.
    pure
        Whether parameters are loaded in the type of the mixed precision.
    least_batch
        Samples of a batch that are accumulated at least where no number of steps is given.
    loads_frozen_narrow
        Whether those are that are frozen beside adapters.
    tiles_logits
        Whether log-probabilities of pairs are made of logits in tiles, as by TRL's own trainer.
    supervises
        By whom texts are trained on with TRL's own, which makes logits in tiles too: its command or a script; empty
        where by another.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    full_length: bool = False
    pure: bool = False
    least_batch: int = 0
    loads_frozen_narrow: bool = False
    tiles_logits: bool = False
    supervises: Literal["", "command", "script"] = ""


PLAIN = Dialect()
#: A script of TRL's ``SFTTrainer``: what its ``SFTConfig`` has on that the Trainer's arguments have not.
SCRIPT = Dialect(defaults={"bf16": True, "gradient_checkpointing": True}, supervises="script")
#: A script called after Unsloth, which multiplies in bf16 where the GPU can, and whose adapters are everywhere.
UNSLOTH = Dialect(defaults={"bf16": True, "lora_target_modules": "all-linear"})
#: ``trl sft`` and ``trl dpo``, whose configurations have defaults of their own.
TRL = Dialect(
    defaults={
        "bf16": True,
        "gradient_checkpointing": True,
        "max_length": 1024,
        "dtype": "float32",
        "lora_r": 16,
        "lora_dropout": 0.05,
    },
    tiles_logits=True,
    supervises="command",
)


def trainer_draft(
    arguments: SettingsFile,
    dialect: Dialect,
    launch: Launch,
    accelerate: Sequence[SettingsFile],
    asked: Asked,
    file: str,
    started: str,
) -> Draft:
    """A trainer's job as a plan in the making.

    Parameters
    ----------
    arguments
        Its settings, in whichever dialect.
    launch, accelerate
        What its launcher says, and accelerate's options and configuration.
    started
        The objective that its command or script is called after.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    arguments.names, arguments.defaults = dialect.names, dialect.defaults
    draft = Draft(file)
    _refuse(arguments)
    objective = objective_of(arguments, started)
    if objective is not None and objective[0] == GRPO:  # whose lengths are of prompts and completions
        arguments.defaults = {key: value for key, value in dialect.defaults.items() if key not in _OF_TEXTS}
    key = arguments.first(MODELS)
    named = name_at(arguments, key)
    put_named_model(draft, asked, named, arguments.source(key), four_bits=True)
    architecture = put_cluster(draft, asked, configured_launch(launch, accelerate, asked))
    mixed = _precision(arguments, accelerate, draft)
    _length(arguments, draft, dialect)
    adapted = read_adapters(arguments, draft, stored=key if in_four_bits(named) else None)
    read_images(arguments, draft, asked, adapted=adapted)
    read_kernels(arguments, accelerate, draft, architecture)
    stage = read_sharding(arguments, accelerate, draft, mixed=mixed)
    if objective is not None:
        put_pairs(arguments, draft, objective, adapted=adapted, tiled=dialect.tiles_logits)
        put_narrow_reference(arguments, draft, stage, mixed=mixed)
    elif dialect.supervises:
        put_tiles(arguments, draft, script=dialect.supervises == "script")
    else:
        tell_pairs(arguments, draft)
    read_liger(arguments, draft, asked)
    if adapted:
        put_precision(arguments, draft, loads_narrow=mixed and dialect.loads_frozen_narrow)
    if mixed and not dialect.pure:
        _parameters(arguments, draft)
    if objective is None:  # trainers on pairs and rewards turn it off
        put_dropout(arguments, draft)
    _batch(arguments, draft, dialect)
    _rest(arguments, draft, asked)
    for config in accelerate:
        read = {key.partition(".")[0] for key in config.asked}
        names = {**config.tables, **(config.over.tables if config.over else {})}
        draft.passed += [name for name in names if name not in read]
    return draft


def _refuse(config: SettingsFile) -> None:
    """Settings of which the forecast would be far off."""
    for key, what in REFUSED.items():
        found = config.raw(key)
        if found is True or (found and str(found).lower() not in ("1", "none", "full", "causal_lm")):
            raise config.error(what, key, "Leave it out to forecast the job without it.")
    config.know(REFUSED)


def _precision(config: SettingsFile, accelerate: Sequence[SettingsFile], draft: Draft) -> bool:
    """Put what products are computed in: the trainer's word, accelerate's, or the type of the parameters.

    Returns
    -------
    bool
        Whether precision is mixed: of the first two, not of the parameters' own type.
    """
    in_tf32 = config.value("tf32", (bool, str), False) is True  # which products of 16 bits do not ask for
    halves = [key for key in ("bf16", "fp16") if config.value(key, (bool, str), False) is not False]
    if len(halves) > 1 and not config.given("bf16"):
        halves = ["fp16"]  # as TRL's default of bf16 gives way
    if len(halves) > 1 and config.raw("bf16") != "auto":
        raise config.error("bf16 and fp16 are both on", "fp16", "Set one of them to false.")
    if halves:
        draft.put("workload.precision", halves[0], *config.source(halves[0]))
        return True
    for settings in accelerate:
        kind = settings.value("mixed_precision", (str, bool))  # YAML takes no for false
        if kind == "fp8":
            what = "FP8 is not known of Hugging Face's layers"
            raise settings.error(what, "mixed_precision", "Use bf16 to forecast the job without it.")
        if kind in ("bf16", "fp16"):
            draft.put("workload.precision", kind, *settings.source("mixed_precision"))
            return True
    key = config.first(("dtype", "torch_dtype", "pure_bf16", "bfloat16"))
    kind = config.value(key, (str, bool))
    if kind is None:
        draft.warn(
            "nothing says bf16 or fp16: forecast in fp32, as the Trainer then computes; TRL's own commands, such as "
            "trl sft --config FILE, take bf16, which --set workload.precision=bf16 says of other code"
        )
    precision = "bf16" if kind is True else _TYPES.get(str(kind), "fp32")
    if precision == "fp32" and in_tf32:
        precision, key = TF32, "tf32"
    draft.put("workload.precision", precision, *config.source(key))
    return False


def _parameters(config: SettingsFile, draft: Draft) -> None:
    """The type in which mixed precision keeps parameters, where sharding does not decide it: as they were loaded."""
    key = config.first(("dtype", "torch_dtype"))
    precision = draft.value("workload.precision")
    if draft.value("implementation.parameter_precision") or draft.value("implementation.main_parameters"):
        return
    kind = config.value(key, str)
    if kind == "auto" or _TYPES.get(str(kind)) == precision:
        return
    if not config.given(key) and key not in config.defaults:
        draft.warn(
            f"no {key}: parameters are taken to be loaded in fp32, as transformers does before version 5; if they are "
            f"loaded in {precision}, add --set implementation.parameter_precision={precision}"
        )
    draft.put("implementation.parameter_precision", "fp32", *config.source(key))


def _length(config: SettingsFile, draft: Draft, dialect: Dialect) -> None:
    """Tokens of a sample: as many as may be, which packing fills."""
    key = config.first(LENGTHS)
    config.know(_PACKS)
    if not config.given(key):
        key = next((name for name in LENGTHS if config.own(name) in config.defaults), key)
    length = config.whole(key)
    if length is None:
        draft.missing["workload.sequence_length"] = "tokens of a sample, which the job leaves to its data"
        return
    draft.put("workload.sequence_length", length, *config.source(key))
    packs = next((name for name in _PACKS if config.raw(name) not in (None, False)), None)
    if packs == "pad_to_max_length" or config.own(key) == "block_size" or dialect.full_length:
        return
    draft.warn(packed(config.own(packs)) if packs else unpacked(config.own(key), length))


def _batch(config: SettingsFile, draft: Draft, dialect: Dialect) -> None:
    """A micro-batch on each GPU, in accumulated steps, and the length of the run."""
    key = config.first((MICRO, "per_gpu_train_batch_size"))
    micro = config.whole(key, 8) or 8
    gpus, length = draft.value("cluster.gpus"), draft.value("workload.sequence_length")
    steps = config.whole(STEPS, max(1, -(-dialect.least_batch // (micro * (gpus or 1))))) or 1
    draft.put("workload.micro_batch_size", micro, *config.source(key))
    most = config.value("max_steps", int, -1)
    if gpus is None:
        draft.missing["workload.global_batch_size"] = (
            f"{micro * steps} on each GPU ({config.own(key)}, {config.own(STEPS)})"
        )
        return
    source = f"{config.own(key)} on {gpus} GPU{'s' if gpus > 1 else ''}"
    source += f", {config.own(STEPS)}" if steps > 1 else ""
    draft.put("workload.global_batch_size", micro * steps * gpus, source, config.source(key)[1])
    if most > 0 and length:
        sequences = most * micro * steps * gpus * (2 if draft.value("workload.objective") in PAIRED else 1)
        draft.put("workload.training_tokens", float(sequences * length), *config.source("max_steps"))


def _rest(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """What is told, passed over or not regarded; a name that is spelt nearly like one that counts is an error."""
    unknown, told = [], dict[str, list[str]]()
    counts = config.asked - set(REFUSED)
    for key in config.left():
        value = config.raw(key)
        if key in WARNED and value:
            told.setdefault(WARNED[key], []).append(key)
        elif key in WARNED or PASSED_OVER.fullmatch(key) or value in (None, False, "", []) or _own(key, asked):
            draft.passed.append(key)
        else:
            unknown.append(key)
    for what, keys in told.items():
        draft.warn(f"{', '.join(keys)}: {what}")
    for key in unknown:
        near = misspelt(key, counts)
        if near is not None and not config.given(near) and len(key) > 5:
            remedy = f"Did you mean {near!r}? If it is a setting of your own, add --pass-over=--{key}."
            raise config.error("there is no such setting", key, remedy)
    if unknown:
        draft.warn(f"not regarded: {', '.join(unknown)}")


def _own(key: str, asked: Asked) -> bool:
    """Whether the user says of a setting that it changes nothing."""
    return bool({f"--{key}", f"--{key.replace('_', '-')}"} & asked.passed_over)
