"""Settings of verl that no key of a plan stands for.

As ``verl/trainer/config`` has them (commit 01d4d766), and names of earlier versions that jobs still have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from joulecast.simulator.job_files.told import OFFLOADED, QUANTISED, SPLIT, by_name

#: Whole tables of what is read, logged, profiled, rewarded and learnt; a critic's are those of PPO, which is refused.
TABLES = (
    *("custom_reward_function", "reward_manager", "ray_init", "ray_kwargs", "global_profiler", "profiler", "hydra"),
    *("transfer_queue", "critic", "sandbox_fusion", "checkpoint", "defaults", "config_name", "config_path", "m"),
    *("trainer", "optim", "distillation", "reward_model", "reward", "hydra_searchpath", "searchpath", "tokenizer"),
)
#: Settings without effect on time, energy and memory of an iteration.
PASSED_OVER = re.compile(
    r"""data\.(?!train_batch_size|micro_batch|max_|use_dynamic|pad_mode)[\w.]+
    |data\.(max_samples|micro_batch_size)
    |algorithm\.(?!adv_estimator|use_kl_in_reward|filter_groups\.enable|rollout_correction\.bypass_mode)[\w.]+
    |actor_rollout_ref\.actor\.(clip_\w+|tau_\w+|policy_loss\.[\w.]+|kl_\w+|loss_\w+|entropy_\w+|calculate_\w+|shuffle
    |grad_clip|checkpoint\.[\w.]+|profiler\.[\w.]+|router_replay\.[\w.]+|data_loader_seed|rollout_n|global_batch_info[\w.]*
    |use_torch_compile|optim\.(?!optimizer)[\w.]+|sum_pi_\w+|use_rollout_log_probs|ppo_max_token_len_per_gpu|freeze_\w+
    |tis_\w+|behav_\w+|self_distillation[\w.]*)
    |actor_rollout_ref\.ref\.(?!log_prob_micro_batch_size_per_gpu|ulysses|megatron)[\w.]+
    |actor_rollout_ref\.rollout\.(temperature|top_\w|do_sample|seed|dtype|ignore_eos|enforce_eager|load_format|layered_\w+
    |cudagraph_\w+|disable_log_stats|enable_\w+|calculate_log_probs|skip_\w+|logprobs_mode|scheduling_policy|val_kwargs\.[\w.]+
    |engine_kwargs[\w.]*|agent\.[\w.]+|checkpoint_engine\.[\w.]+|trace\.[\w.]+|profiler\.[\w.]+|prometheus\.[\w.]+|prompt_length
    |response_length|max_num_batched_tokens|max_model_len|log_prob_\w+|multi_turn\.\w+|update_weights_\w+|multi_stage_wake_up
    |n_gpus_per_node|mode|limit_images|over_sample_rate|full_determinism|stop\w*|val_before_train|use_fire_\w+|max_tokens\w*)
    |actor_rollout_ref\.(nccl_timeout|hybrid_engine)
    |([\w.]+\.)?(fsdp_config|engine)\.(wrap_policy\.[\w.]+|use_orig_params|forward_prefetch|seed|full_determinism|use_torch_compile
    |forward_only|entropy_\w+|turbo_config\.[\w.]+|pad_to_\w+|checkpoint_input_offload|strategy|qat\.[\w.]+|cpu_offload|offload_params
    |_target_)
    |(actor_rollout_ref\.)?model\.(?!path|partial_pretrain|lora_rank|target_modules|enable_|use_)[\w.]+
    |(actor_rollout_ref\.)?model\.(use_shm|path_\w+)
    |([\w.]+\.)?_target_|use_legacy_worker_impl""",
    re.VERBOSE,
)
_EXPERTS = "an engine that splits layers or experts otherwise than by tensors is not known"
#: With these the forecast would be far off, where they are on or above one.
REFUSED: Mapping[str, str] = by_name(
    {
        "ulysses_sequence_parallel_size engine.ulysses_sequence_parallel_size "
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size "
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": SPLIT,
        "actor_rollout_ref.actor.fsdp_config.offload_policy engine.offload_policy "
        "actor_rollout_ref.actor.fsdp_config.checkpoint_input_offload "
        "actor_rollout_ref.model.enable_activation_offload model.enable_activation_offload "
        "engine.param_offload engine.optimizer_offload model.fsdp_config.cpu_offload "
        "model.fsdp_config.offload_params": OFFLOADED,
        "actor_rollout_ref.actor.qat.enable actor_rollout_ref.actor.fsdp_config.qat.enable": QUANTISED,
        "model.tiled_mlp.enabled actor_rollout_ref.model.tiled_mlp.enabled": "an MLP of tiles of tokens is not known",
        "distillation.enabled": "distillation beside rewards is not known",
        "actor_rollout_ref.model.mtp.enable_train": "modules of further tokens are not known of Hugging Face's layers",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size": _EXPERTS,
    }
)
_REWARDS = "its scoring, and its weights beside the others, are not forecast: each forward of it takes longer"
#: What these change, where a plan cannot say it.
WARNED: Mapping[str, str] = by_name(
    {
        "reward_model.enable reward.reward_model.enable": _REWARDS,
        "algorithm.filter_groups.enable": "what is generated and then left out is not forecast",
        "actor_rollout_ref.rollout.multi_turn.enable": "turns, and the tools that they wait for, are not forecast",
        "actor_rollout_ref.actor.use_prefix_grouper": "prompts are forecast with each of their completions, not once",
        "actor_rollout_ref.rollout.expert_parallel_size actor_rollout_ref.rollout.data_parallel_size": _EXPERTS,
        "actor_rollout_ref.rollout.quantization": "the engine is forecast in 16 bits",
    }
)
