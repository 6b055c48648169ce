"""Training on a model's own completions: GRPO and its kin, as TRL's trainers, Axolotl and ms-swift are told.

Settings are those of TRL's ``GRPOConfig`` and ``RLOOConfig`` (1.16), which the others take over, Axolotl in a table
``trl``.
"""

from __future__ import annotations

from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.rollouts import MEASURED, OTHER_GPUS, OWN_LOOP, tell_lengths, tell_split
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import words

BETA, GENERATIONS, BATCH = ("beta", "rl_beta"), "num_generations", "generation_batch_size"
ITERATIONS, STEPS, COMPLETION, PROMPT = (
    *("num_iterations", "steps_per_generation", "max_completion_length", "max_prompt_length"),
)
_ACCUMULATED = "gradient_accumulation_steps"
#: Of rewards, of sampling and of the loss's arithmetic: they change no kernel that is forecast.
_PASSED = words(
    """
    epsilon epsilon_high delta loss_type scale_rewards advantage_estimator importance_sampling_level reward_funcs
    reward_func reward_weights reward_plugin external_plugins mask_truncated_completions temperature top_p top_k
    min_p repetition_penalty generation_kwargs top_entropy_quantile vllm_gpu_memory_utilization
    vllm_max_model_length vllm_max_model_len vllm_server_host vllm_server_port vllm_server_timeout
    vllm_server_base_url vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_importance_sampling_cap vllm_importance_sampling_clip_max dynamic_sample num_completions_to_print
    entropy_coef normalize_advantages reward_clip_range num_generations_eval stop_words overlong_filter
    max_resample_times vllm_enable_prefix_caching soft_max_length
    """
)
#: By the objective's own name: what the loss is weighed against a reference model by default, as TRL has it.
_BETAS = {"rloo": 0.05}


def put_completions(config: SettingsFile, draft: Draft, started: str, *, adapted: bool) -> None:
    """Put completions, who scores them and how they are generated into the plan.

    Parameters
    ----------
    started
        The setting or name that says the objective.
    adapted
        Whether adapters are trained, without which the model is then its own reference.
    """
    config.know((*_PASSED, GENERATIONS, BATCH, "vllm_tensor_parallel_size", "vllm_enable_sleep_mode", "vllm_mode"))
    kin = str(config.raw(started) or started).lower()
    key = config.first(BETA)
    if config.value(key, (int, float), _BETAS.get(kin, 0.0)):
        draft.put("workload.reference", "adapters-off" if adapted else "copy", *config.source(key))
    iterations, micro_steps = config.whole(ITERATIONS, 1) or 1, config.whole(_ACCUMULATED, 1) or 1
    draft.put("workload.num_iterations", iterations if iterations > 1 else None, *config.source(ITERATIONS))
    steps = config.whole(STEPS, micro_steps) or 1
    vllm = config.on("use_vllm")
    if kin == "rloo" or vllm or micro_steps % (steps * iterations):
        draft.put("workload.old_log_probabilities", True, "log-probabilities are taken before training")
    _lengths(config, draft)
    if not vllm:
        draft.warn(f"{OWN_LOOP}; {MEASURED}")
    elif config.word("vllm_mode", ("colocate", "server"), "colocate") == "server":
        draft.warn(f"vllm_mode: {OTHER_GPUS}; {MEASURED}")
    else:
        draft.put("workload.rollout.num_generations", config.whole(GENERATIONS, 8), *config.source(GENERATIONS))
        draft.put("workload.rollout.generation_batch_size", config.whole(BATCH), *config.source(BATCH))
        split, sleeps = "vllm_tensor_parallel_size", "vllm_enable_sleep_mode"
        tell_split(draft, split, config.whole(split, 1) or 1)
        if config.value(sleeps, bool, False) is True:
            draft.put("workload.rollout.enable_sleep_mode", True, *config.source(sleeps))


def _lengths(config: SettingsFile, draft: Draft) -> None:
    """Tokens of completions, and with prompts' those of samples."""
    completion, prompt = config.whole(COMPLETION, 512) or 512, config.whole(PROMPT)
    draft.put("workload.completion_tokens", completion, *config.source(COMPLETION))
    tell_lengths(draft, COMPLETION, completion)
    if prompt is not None:
        draft.missing.pop("workload.sequence_length", None)
        draft.put("workload.sequence_length", prompt + completion, *config.source(PROMPT))
    elif "workload.sequence_length" in draft.missing:
        draft.missing["workload.sequence_length"] = f"tokens of a prompt and of its completion, {completion} of these"
