"""What ``openrlhf.cli.train_ppo_ray`` generates and scores before it trains, without a critic: GRPO and its kin."""

from __future__ import annotations

from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.rollouts import (
    OTHER_GPUS,
    OWN_LOOP,
    Engine,
    leave_out,
    put_generation,
    tell_lengths,
    tell_reference_on_host,
    tell_scoring,
)
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.plan_file.pairs import UNKNOWN

_ESTIMATOR, _TOGETHER, _ENGINES = "advantage_estimator", "colocate_all_models", "vllm_num_engines"
_ENGINE = Engine(
    prompts=("rollout_batch_size", 1024),
    completions="n_samples_per_prompt",
    live=("max_num_seqs", None),
    share=("vllm_gpu_memory_utilization", 0.95),
    split=("vllm_tensor_parallel_size", 1),
    sleeps=("vllm_enable_sleep", False),
)


def read_lengths(config: SettingsFile, draft: Draft) -> None:
    """Put tokens of prompts and completions into the plan.

    Raises
    ------
    InputError
        The job trains a critic.
    """
    if config.value(_ESTIMATOR, str, "gae") == "gae":
        remedy = "Set it to group_norm, rloo or reinforce to forecast that."
        raise config.error(f"ppo {UNKNOWN['ppo']}", _ESTIMATOR, remedy)
    most, completion, prompt = "max_len", "generate_max_len", "prompt_max_len"
    newer = config.own(most) != most
    length = config.whole(most, 2048) if newer else config.whole(most)
    tokens = config.whole(completion, None if newer else 1024)
    if newer or config.given(most):
        draft.put("workload.sequence_length", length, *config.source(most))
    else:
        total = (config.whole(prompt, 1024) or 1024) + (tokens or 0)
        draft.put("workload.sequence_length", total, f"{config.source(prompt)[0]}, {completion}", config.line(prompt))
    config.know([prompt])
    if tokens is None:
        draft.missing["workload.completion_tokens"] = f"tokens of a completion, within {length} with its prompt"
        return
    draft.put("workload.completion_tokens", tokens, *config.source(completion))
    tell_lengths(draft, config.own(completion), tokens)


def put_rollout(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """Put who scores and generates completions into the plan."""
    together = config.on(_TOGETHER)
    draft.put("workload.old_log_probabilities", True, "OpenRLHF takes log-probabilities before training")
    epochs = config.whole("max_epochs", 1) or 1
    draft.put("workload.num_iterations", epochs if epochs > 1 else None, *config.source("max_epochs"))
    weighed, beside = "init_kl_coef", config.on("colocate_actor_ref")
    if config.value(weighed, (int, float), 0.01) > 0:
        if together or beside:
            draft.put("workload.reference", "copy", *config.source(weighed))
            if config.on("ref_reward_offload"):
                tell_reference_on_host(draft, asked, config.own("ref_reward_offload"))
        else:
            draft.warn(f"{config.own(weighed)}: the reference scores on GPUs of its own, which are not forecast")
    config.know(
        ["reward_pretrain", "remote_rm_url", "agent_func_path", "micro_rollout_batch_size", "ref_reward_offload"]
    )
    if config.raw("reward_pretrain") and not config.raw("remote_rm_url") and not config.raw("agent_func_path"):
        draft.warn(f"{config.own('reward_pretrain')}: the reward model's weights and scoring are not forecast")
    micro = config.whole("micro_rollout_batch_size")
    if micro not in (None, draft.value("workload.micro_batch_size")):
        tell_scoring(draft, config.own("micro_rollout_batch_size"))
    _generation(config, draft, asked, together=together)


def _generation(config: SettingsFile, draft: Draft, asked: Asked, *, together: bool) -> None:
    """Engines on the GPUs that train, or on others."""
    config.know(_ENGINE.keys)
    if not config.whole(_ENGINES, 0, least=0):
        leave_out(draft, OWN_LOOP)
        return
    if not together or config.on("async_train"):
        leave_out(draft, f"{config.own(_ENGINES)}: {OTHER_GPUS}")
        return
    put_generation(config, draft, asked, _ENGINE)
