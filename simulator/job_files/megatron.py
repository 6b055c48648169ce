"""Jobs of Megatron-LM: the command of a launch script, as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from joulecast.errors import InputError
from joulecast.simulator.job_files import megatron_model
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import Flags, misspelt, read_flags
from joulecast.simulator.job_files.launcher import Launch, read_launch, script_place
from joulecast.simulator.job_files.megatron_names import PASSED_OVER, REFUSED, WARNED
from joulecast.simulator.job_files.megatron_parallelism import read_parallelism
from joulecast.simulator.job_files.megatron_run import read_implementation, read_workload
from joulecast.simulator.job_files.megatron_yaml import YAML, read_yaml
from joulecast.simulator.job_files.shell import Command, Script
from joulecast.simulator.job_files.shell_values import Spot, marks

#: Options by which a command is seen to be Megatron's.
_TELLING = ("--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size")
#: Training scripts of models that are not known, by a part of their name.
_FOREIGN = {
    "t5": "models with an encoder",
    "bert": "BERT",
    "ict": "retrieval models",
    "retro": "retrieval models",
    "vlm": "models that see more than text",
    "vision": "models that see more than text",
    "mimo": "models that see more than text",
    "rl": "reinforcement learning",
}
#: Values with which a refused option asks for nothing.
_NEUTRAL = ("0", "0.0", "vanilla", "none", "None")
#: The same of one option: experts of which there is one are none in Megatron-DeepSpeed.
_ALONE = {"--moe-expert-parallel-size": ("1",)}
#: Refused options that say the model's shape, which a model given by name says too.
_OF_SHAPE = ("--window-size", "--window-attn-skip-freq", "--no-rope-freq", "--softmax-type")


def megatron_commands(script: Script) -> list[Command]:
    """The commands of a script that start Megatron, those with most options first."""
    found = [
        command
        for command in script.commands
        if _has(command, YAML) or sum(_has(command, name) for name in _TELLING) >= 2
    ]
    return sorted(found, key=lambda command: -len(command.words))


def _has(command: Command, name: str) -> bool:
    return any(word.text == name or word.text.startswith(f"{name}=") for word in command.words)


def megatron_draft(command: Command, asked: Asked, file: str) -> Draft:
    """A Megatron job as a plan in the making.

    Raises
    ------
    InputError
        A flag that is misspelt, contradicts another or has no usable value, or of which the forecast would be far off.
    """
    place = script_place(command.words)
    _refuse_script(command.words[place], file)
    flags, loose = read_flags(command.words[place + 1 :], file)
    _refuse_unnamed_mixers(command.words[place], flags, asked, file)
    draft = Draft(file)
    config = flags.text(YAML)
    if config is not None:  # then Megatron regards no other flag
        draft.passed += [name for name in flags.given if name != YAML]
        flags, draft.file = _yaml(config, file), config
    launch = read_launch(command.words[:place], command.environment)
    if config is not None:
        launch = replace(launch, line=None)  # lines are those of the YAML
    put_job(flags, loose, draft, launch, command.environment, asked)
    return draft


def put_job(
    flags: Flags,
    loose: Sequence[Spot],
    draft: Draft,
    launch: Launch,
    environment: Mapping[str, str],
    asked: Asked,
) -> None:
    """Put what a job's flags say into the plan.

    Parameters
    ----------
    loose
        Words that belong to no flag.
    launch, environment
        The GPUs that its launcher starts, and variables that it exports.
    """
    read_workload(flags, draft)
    layers, experts, latent = _model(flags, draft, asked)
    read_parallelism(flags, draft, layers)
    architecture = put_cluster(draft, asked, launch)
    read_implementation(flags, draft, environment, architecture, experts=experts, latent=latent)
    _rest(flags, loose, draft, asked)
    _batch(draft)


def yaml_draft(path: Path, asked: Asked) -> Draft:
    """A YAML of Megatron's without the command that names it, as a plan in the making."""
    command = Command((Spot("pretrain_gpt.py", 1), Spot(YAML, 1), Spot(str(path), 1)), {})
    return megatron_draft(command, asked, str(path))


def _yaml(config: str, file: str) -> Flags:
    beside = Path(file).parent / config
    flags = read_yaml(beside if beside.is_file() else Path(config))
    flags.known.add(YAML)
    return flags


def _model(flags: Flags, draft: Draft, asked: Asked) -> tuple[int, bool, bool]:
    """Put the model into the plan: its layers, and whether it has experts and latent attention."""
    if asked.model is None:
        megatron_model.read_model(flags, draft)
    else:
        model = asked.named_model()
        draft.put("workload.model", asked.model, "--model")
        said = flags.whole("--num-layers")
        if said is not None and said < model.layers:
            draft.put("workload.layers", said, "--num-layers", flags.line("--num-layers"))
        flags.known.update(megatron_model.SHAPE)
    named = draft.model(asked)
    return draft.value("workload.layers") or named.layers, named.experts is not None, named.latent is not None


def _refuse_script(word: Spot, file: str) -> None:
    name = word.text.rpartition("/")[2].removesuffix(".py")
    for part, what in _FOREIGN.items():
        if part in name.lower().split("_"):
            remedy = "Plans are of language models that are decoders alone."
            raise InputError(f"{what} are not known", file=file, line=word.line, key=word.text, remedy=remedy)


def _refuse_unnamed_mixers(word: Spot, flags: Flags, asked: Asked, file: str) -> None:
    """Scripts of hybrids say their layers in a pattern: without one all are state spaces, or shares of each are."""
    parts = word.text.rpartition("/")[2].removesuffix(".py").lower().split("_")
    said = asked.model is not None or flags.text(YAML) or any(flags.line(one) for one in megatron_model.PATTERNS)
    if {"mamba", "hybrid"} & set(parts) and not said:
        raise InputError(
            "the layers of a hybrid are known by their pattern",
            file=file,
            line=word.line,
            key=word.text,
            remedy=f"Write {megatron_model.PATTERNS[0]}, or give the model by its name or config.json: --model.",
        )


def _rest(flags: Flags, loose: Sequence[Spot], draft: Draft, asked: Asked) -> None:
    """What is passed over, told or refused; an unknown name that is like a known one is misspelt."""
    known = flags.known | PASSED_OVER | set(WARNED) | set(REFUSED) | set(megatron_model.SHAPE)
    unknown = []
    for name, given in flags.given.items():
        if name in flags.known:
            continue
        nothing = _ALONE.get(name, _NEUTRAL)
        neutral = bool(given.values) and all(value in nothing for value in given.values)
        if name in asked.passed_over or name in PASSED_OVER or (neutral and name in known):
            draft.passed.append(name)
        elif name in REFUSED and not (asked.model is not None and name in _OF_SHAPE):
            named = "Give the model by its name or config.json: --model."
            remedy = named if name in _OF_SHAPE else "Leave it out to forecast the job without it."
            raise flags.error(REFUSED[name], name, remedy)
        elif name in WARNED:
            draft.warn(f"{name}: {WARNED[name]}")
        elif name in known:  # of a feature that is off, such as sizes of experts without experts
            draft.passed.append(name)
        else:
            unknown.append(name)
    if flags.whole_configuration:
        names = ", ".join(flags.given[name].key or name.strip("-").replace("-", "_") for name in unknown)
        draft.warnings += [f"not regarded: {names}"] * bool(names)
    else:
        _unknown(flags, unknown, known, draft)
    for word in loose:
        if marks(word.text):
            draft.warn(f"{' '.join(f'${name}' for name in marks(word.text))} on line {word.line} is taken as empty")


def _unknown(flags: Flags, names: Sequence[str], known: set[str], draft: Draft) -> None:
    for name in names:
        near = misspelt(name, known)
        if near is not None:
            remedy = f"Did you mean {near!r}? If it is a flag of your own, add --pass-over={name}."
            raise flags.error("Megatron-LM has no such flag", name, remedy)
    for name in names:
        draft.warn(f"{name} is not known of Megatron-LM, and what it does is not forecast")


def _batch(draft: Draft) -> None:
    """Without a global batch Megatron takes one micro-batch on each replica."""
    if draft.value("workload.global_batch_size") is not None:
        return
    gpus = draft.value("cluster.gpus")
    split = [
        draft.value(f"parallelism.{name}_parallel_size", 1) for name in ("tensor_model", "pipeline_model", "context")
    ]
    ranks = split[0] * split[1] * split[2]
    if gpus is None or gpus % ranks:
        draft.missing["workload.global_batch_size"] = (
            "the job leaves it to the number of GPUs: micro-batch times replicas"
        )
        return
    micro = draft.value("workload.micro_batch_size")
    source = "Megatron's default without --global-batch-size: a micro-batch on each replica"
    draft.put("workload.global_batch_size", micro * (gpus // ranks), source)
