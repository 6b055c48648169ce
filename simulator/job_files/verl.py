"""Jobs of verl: commands with Hydra's overrides, and YAML, as plans: GRPO and its kin, and supervised finetuning.

Names and defaults are those of ``verl/trainer/config/ppo_trainer.yaml`` and what it is composed of (commit 01d4d766).
What a batch is, is that of ``verl/workers/fsdp_workers.py``: each of ``ppo_mini_batch_size`` prompts has ``rollout.n``
completions, and all of these are one step of the optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.command_settings import command_settings
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import name_at, put_named_model
from joulecast.simulator.job_files.launcher import Launch, read_launch
from joulecast.simulator.job_files.micro_batches import put_micro_batch
from joulecast.simulator.job_files.named_files import named_path, named_settings
from joulecast.simulator.job_files.rollouts import (
    OTHER_GPUS,
    OWN_LOOP,
    Engine,
    leave_out,
    parameter_bytes,
    put_generation,
    tell_lengths,
    tell_moved,
    tell_reference_on_host,
    tell_scoring,
)
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command
from joulecast.simulator.job_files.verl_engine import (
    Places,
    of_hydra,
    put_engine,
    refuse,
    refused_engine,
    tell_rest,
)
from joulecast.simulator.job_files.verl_sft import sft_draft
from joulecast.simulator.plan_file.pairs import UNKNOWN

ALL = "actor_rollout_ref"
ACTOR, ROLLOUT, REF = f"{ALL}.actor", f"{ALL}.rollout", f"{ALL}.ref"
PLACES = Places(f"{ALL}.model", f"{ACTOR}.fsdp_config", f"{ACTOR}.optim", f"{ALL}.model.path", f"{ACTOR}.strategy")
MINI, PROMPTS, GENERATIONS = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size", f"{ROLLOUT}.n"
MICRO = (f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
_MODULE = re.compile(
    r"(?:.*[./])?(?:verl|recipe)[./](?:.*[./])?(main_ppo|main_dapo|fsdp_sft_trainer|sft_trainer|sft_trainer_ray)(?:\.py)?"
)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z]\w*)\.\w[\w.]*=.*", re.S)
_SUPERVISED = ("fsdp_sft_trainer", "sft_trainer", "sft_trainer_ray")
_ENGINE = Engine(
    prompts=(PROMPTS, 1024),
    completions=GENERATIONS,
    live=(f"{ROLLOUT}.max_num_seqs", 256),
    share=(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
    split=(f"{ROLLOUT}.tensor_model_parallel_size", 2),
    sleeps=(f"{ROLLOUT}.free_cache_engine", True),
)
#: Engines that serve on the GPUs that train.
_ENGINES = ("vllm", "sglang", "trtllm")
#: verl's own configurations, whose defaults are known here.
_OWN = ("ppo_trainer", "sft_trainer", "sft_trainer_engine", "dapo_trainer")


def is_verl_command(command: Command) -> bool:
    """Whether a command starts a job of verl."""
    return _place(command) is not None


def _place(command: Command) -> int | None:
    """Where the module of a command stands: one of verl's, or the word in front of settings that verl alone has."""
    texts = [word.text for word in command.words]
    own = next((place for place, text in enumerate(texts) if _MODULE.fullmatch(text)), None)
    settings = [(place, found[1]) for place, text in enumerate(texts) if (found := _OVERRIDE.fullmatch(text))]
    if own is None and any(table == ALL for _, table in settings):
        return max(settings[0][0] - 1, 0)
    return own


def verl_command_draft(command: Command, asked: Asked, file: str) -> Draft:
    """The job that a command starts, as a plan in the making.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off, or a configuration that is not there.
    """
    place = _place(command) or 0
    options, _ = command_settings(command.words[place + 1 :], file)
    config = _configured(replace(options, tables=of_hydra(options.tables)), file)
    module = _MODULE.fullmatch(command.words[place].text)
    name = module[1] if module else ""
    if name in _SUPERVISED:
        launch = read_launch(command.words[:place], command.environment)
        launch = _launch(config, default=1) if name == "sft_trainer_ray" else launch
        return sft_draft(config, launch, asked, file, engines=name != "fsdp_sft_trainer")
    return rl_draft(config, asked, file)


def is_verl_yaml(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML has verl's settings."""
    data, model = tables.get("data"), tables.get("model")
    if ALL in tables or not isinstance(data, Mapping):
        return ALL in tables
    return isinstance(model, Mapping) and {"train_batch_size", "micro_batch_size_per_gpu"} <= set(data)


def verl_yaml_draft(tables: Mapping[str, Any], lines: Mapping[str, int], asked: Asked, file: str) -> Draft:
    """A YAML of verl's alone, as a plan in the making."""
    config = SettingsFile(file, "", tables, lines=lines)
    _own_defaults(config)
    if ALL in tables:
        return rl_draft(config, asked, file)
    return sft_draft(config, Launch(), asked, file, engines="partial_pretrain" not in tables["model"])


def _configured(options: SettingsFile, file: str) -> SettingsFile:
    """Overrides, over the configuration that they name unless it is verl's own."""
    name = str(options.raw("config_name") or "ppo_trainer").removesuffix(".yaml").rpartition("/")[2]
    if name in _OWN or "megatron" in name:
        if "megatron" in name:
            raise refused_engine("megatron", options, "config_name")
        return options
    folder = str(options.raw("config_path") or "").rstrip("/")
    paths = [f"{folder}/{name}.yaml".lstrip("/") if folder[:1] != "/" else f"{folder}/{name}.yaml", f"{name}.yaml"]
    path = next((path for path in paths if named_path(path, file)), paths[-1])
    config = replace(named_settings(path, file, "--config-name", options.line("config_name")), over=options)
    _own_defaults(config)
    return config


def _own_defaults(config: SettingsFile) -> None:
    """Refuse a configuration that begins with one of verl's own of another engine."""
    if "megatron" in str(config.tables.get("defaults", "")):
        raise refused_engine("megatron", config, "defaults")


def _launch(config: SettingsFile, default: int) -> Launch:
    """The GPUs of Ray's workers."""
    each, nodes = "trainer.n_gpus_per_node", "trainer.nnodes"
    gpus, count = config.whole(each, default) or default, config.whole(nodes, 1) or 1
    return Launch(gpus * count, gpus, f"{config.source(each)[0]}, {nodes}", config.source(each)[1])


def rl_draft(config: SettingsFile, asked: Asked, file: str) -> Draft:
    """A job of the trainer of PPO as a plan in the making, where it trains no critic.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    config.names, config.defaults = PLACES.names, PLACES.defaults
    refuse(config, PLACES)
    _refuse_critic(config)
    draft = Draft(file)
    put_named_model(draft, asked, name_at(config, PLACES.path), config.source(PLACES.path))
    architecture = put_cluster(draft, asked, _launch(config, default=8))
    draft.put("workload.objective", "grpo", *config.source("algorithm.adv_estimator"))
    _lengths(config, draft)
    put_engine(config, draft, asked, architecture, PLACES, "chunked")
    _batch(config, draft)
    _scoring(config, draft, asked)
    _generation(config, draft, asked)
    _tell(config, draft, asked)
    tell_rest(config, draft)
    return draft


def _refuse_critic(config: SettingsFile) -> None:
    """Refuse jobs that train a model of values too."""
    key, on = "algorithm.adv_estimator", config.value("critic.enable", bool)
    if on or (on is None and config.value(key, str, "gae") == "gae"):
        key = "critic.enable" if on else key
        remedy = "Set algorithm.adv_estimator to grpo, rloo or reinforce_plus_plus to forecast that."
        raise config.error(f"ppo {UNKNOWN['ppo']}", key, remedy)


def _lengths(config: SettingsFile, draft: Draft) -> None:
    """Tokens of prompts and completions."""
    prompt, completion = "data.max_prompt_length", "data.max_response_length"
    tokens = config.whole(completion, 512) or 512
    draft.put("workload.sequence_length", (config.whole(prompt, 512) or 512) + tokens, f"{prompt}, {completion}")
    draft.put("workload.completion_tokens", tokens, *config.source(completion))
    if config.value(f"{ALL}.model.use_remove_padding", bool, True):
        tell_lengths(draft, completion, tokens)
    else:
        draft.warn(
            f"use_remove_padding false: samples are padded to {completion}, and the engine is forecast to generate as "
            "many tokens; if completions are shorter add --set workload.completion_tokens=MEAN"
        )


def _batch(config: SettingsFile, draft: Draft) -> None:
    """Samples of a step and of a batch of completions, and how often these are trained on."""
    n, prompts, mini = (config.whole(key, default) or default for key, default in
                        ((GENERATIONS, 1), (PROMPTS, 1024), (MINI, 256)))  # fmt: skip
    gpus, epochs = draft.value("cluster.gpus"), f"{ACTOR}.ppo_epochs"
    if mini > prompts:
        raise config.error(f"{mini} prompts are more than a batch of {prompts}", MINI, f"Use at most {prompts}.")
    if mini * n % gpus:
        what = f"{mini} prompts with {n} completions each are not split over {gpus} GPUs"
        raise config.error(what, MINI, f"Use a number of which {n} times is a multiple of {gpus}.")
    source, line = config.source(MINI)
    draft.put("workload.global_batch_size", mini * n, f"{source} times {GENERATIONS}", line)
    put_micro_batch(
        config, draft, MICRO, (f"{ACTOR}.use_dynamic_bsz", False), (f"{ACTOR}.ppo_max_token_len_per_gpu", 16384),
        mini * n // gpus,
    )  # fmt: skip
    often = config.whole(epochs, 1) or 1
    draft.put("workload.num_iterations", often if often > 1 else None, *config.source(epochs))
    steps = config.whole("trainer.total_training_steps")
    if steps:
        tokens = float(steps * prompts * n * often * draft.value("workload.sequence_length"))
        draft.put("workload.training_tokens", tokens, *config.source("trainer.total_training_steps"))


def _scoring(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """Who scores completions before they are trained on."""
    bypass = "algorithm.rollout_correction.bypass_mode"
    if not config.on(bypass):
        draft.put("workload.old_log_probabilities", True, "verl takes log-probabilities before training")
    weighed = (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
    config.know(weighed)
    key = next((key for key in weighed if config.on(key)), None)
    if key is not None:
        adapted = draft.value("workload.lora.rank") is not None
        draft.put("workload.reference", "adapters-off" if adapted else "copy", *config.source(key))
        if not adapted:
            tell_reference_on_host(draft, asked, f"verl's CPUOffload of {REF}")
    micro, keys = draft.value("workload.micro_batch_size"), (ROLLOUT, REF)
    own = [f"{key}.log_prob_micro_batch_size_per_gpu" for key in keys]
    if told := [key for key in own if config.whole(key) not in (None, micro)]:
        tell_scoring(draft, ", ".join(told))


def _generation(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """Engines on the GPUs that train."""
    engine, separate = f"{ROLLOUT}.name", f"{ROLLOUT}.nnodes"
    config.know(_ENGINE.keys)
    name = config.value(engine, str, "vllm")
    if config.value(f"{ALL}.hybrid_engine", bool, True) is False or config.whole(separate, 0, least=0):
        leave_out(draft, f"{separate}, {ALL}.hybrid_engine: {OTHER_GPUS}")
        return
    if name not in _ENGINES:
        leave_out(draft, f"{engine} {name}: {OWN_LOOP}")
        return
    put_generation(config, draft, asked, _ENGINE)
    if str(config.value("algorithm.adv_estimator", str)) == "remax":
        draft.warn("remax: one more completion of each prompt, which it compares with, is not forecast")


def _tell(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """What a plan cannot say of how the model is trained."""
    moved = [f"{PLACES.fsdp}.{part}_offload" for part in ("param", "optimizer")]
    on = [key for key in moved if config.on(key)]
    if on:
        width = parameter_bytes(draft)
        moments = 0 if draft.value("workload.lora.rank") else 2 * width
        tell_moved(draft, asked, ", ".join(on), sum(width if key == moved[0] else moments for key in on))
    fused = config.on(f"{ALL}.model.use_fused_kernels")
    micro, length = draft.value("workload.micro_batch_size"), draft.value("workload.sequence_length")
    if not fused and micro and "workload.model" in draft.settings:
        logits = 2 * micro * length * draft.model(asked).vocab / 1e9
        draft.warn(
            f"logits are forecast in tiles that are not kept; without use_fused_kernels verl keeps those of a "
            f"micro-batch, {logits:.3g} GB more, twice that where it takes their entropy, and computes them once less"
        )
