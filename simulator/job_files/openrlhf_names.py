"""Options of OpenRLHF: names since 0.10 by those before, and what no key of a plan stands for.

As ``openrlhf/cli/train_sft.py``, ``train_dpo.py``, ``train_rm.py`` and ``train_ppo_ray.py`` have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from joulecast.simulator.job_files.told import OFFLOADED, SPLIT, by_name

#: Of all commands; those of a model stand in a table ``model``, or ``actor`` where others are beside it.
NAMES: Mapping[str, str] = {
    "pretrain": "model.model_name_or_path",
    "ref_pretrain": "ref.model_name_or_path",
    "micro_train_batch_size": "train.micro_batch_size",
    "train_batch_size": "train.batch_size",
    "max_len": "data.max_len",
    "zero_stage": "ds.zero_stage",
    "param_dtype": "ds.param_dtype",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_kwargs.use_reentrant": "model.gradient_checkpointing_reentrant",
    "adam_offload": "ds.adam_offload",
    "attn_implementation": "ds.attn_implementation",
    "use_liger_kernel": "ds.use_liger_kernel",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "overlap_comm": "ds.overlap_comm",
    "deepcompile": "ds.deepcompile",
    "zpg": "ds.zpg",
    "packing_samples": "ds.packing_samples",
    "ring_attn_size": "ds.ring_attn_size",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size",
    "load_in_4bit": "ds.load_in_4bit",
    "lora_rank": "ds.lora.rank",
    "lora_dropout": "ds.lora.dropout",
    "target_modules": "ds.lora.target_modules",
    "max_norm": "max_norm",
    "optim": "optim",
    "ref_offload": "ref.offload",
    "ref_reward_offload": "ref.offload",
    "max_samples": "data.max_samples",
    "advantage_estimator": "algo.advantage.estimator",
    "init_kl_coef": "algo.kl.init_coef",
    "rollout_batch_size": "rollout.batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "micro_rollout_batch_size": "rollout.micro_batch_size",
    "generate_max_len": "rollout.max_new_tokens",
    "max_epochs": "train.max_epochs",
    "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "colocate_all_models": "train.colocate_all",
    "colocate_actor_ref": "train.colocate_actor_ref",
    "vllm_num_engines": "vllm.num_engines",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size",
    "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_enable_sleep": "vllm.enable_sleep",
    "deepspeed_enable_sleep": "ds.enable_sleep",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
    "async_train": "train.async_enable",
    "reward_pretrain": "reward.model_name_or_path",
    "remote_rm_url": "reward.remote_url",
    "agent_func_path": "train.agent_func_path",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "enable_ema": "train.enable_ema",
}
#: Tables of the newer names that ``NAMES`` leads to.
TABLES = ("model", "actor", "train", "data", "ds")
#: What is read, logged, saved, sampled and learnt, and what is of models that are not trained: older names, and newer.
PASSED_OVER = re.compile(
    r"""save_(path|steps|hf_ckpt|value_network)|logging_steps|eval_\w+|ckpt_path|disable_\w+|max_ckpt_\w+|load_checkpoint
    |use_(ds_universal_ckpt|wandb|tensorboard|ms|kl_loss)|wandb_\w+|seed|full_determinism|local_rank|dataloader_num_workers
    |(actor_|critic_)?learning_rate|lr_\w+|min_lr_ratio|l2|adam_betas|aux_loss_coef|nll_loss_coef|entropy_loss_coef|ptx_coef
    |dataset(_\w+)?|train_split|(input|output|label|prompt|chosen|rejected|image)_(key|template|data|data_probs|split)
    |apply_chat_template|tokenizer_chat_template|pretrain_mode|multiturn|beta|ipo|label_smoothing|margin_loss|compute_fp32_loss
    |loss|value_head_prefix|num_episodes|eps_\w+|dual_clip|value_clip|lambd|gamma|normalize_reward|reward_clip_range|top_p
    |temperature|freezing_actor_steps|kl_(target|horizon|estimator)|policy_loss_type|no_advantage_std_norm|overlong_\w+|perf
    |critic_\w+|(reward|ref)_num_\w+|colocate_critic_reward|vllm_(sync_\w+|is_\w+|generate_batch_size)|enable_prefix_caching
    |enforce_eager|enable_vllm_is_correction|async_queue_size|partial_rollout|rollout_(tasks|max_tokens)_per_gpu|ring_head_stride
    |actor_init_on_gpu|ema_beta|dynamic_filtering_reward_range|lora_alpha
    |(ckpt|logger|eval|critic|adam|muon)\.[\w.]+|algo\.(kl|advantage)\.\w+|algo\.dynamic_filtering_range|data\.\w+|ref\.num_\w+
    |actor\.((adam|muon)\.\w+|lr_\w+|min_lr_ratio|eps_\w+|dual_clip|policy_loss_type|aux_loss_coef|entropy_coef|freeze_\w+)
    |reward\.(num_\w+|offload|normalize_enable|clip_range|overlong_\w+|stop_\w+)|vllm\.(sync_\w+|enable_prefix_caching|enforce_eager)
    |train\.(seed|full_determinism_enable|num_episodes|ema_beta|async_queue_size|partial_rollout_enable|colocate_critic_reward)
    |rollout\.(top_p|temperature|vllm_generate_batch_size|max_tokens_per_gpu|tasks_per_gpu)
    |ds\.(lora\.alpha|ring_attn_head_stride|use_universal_ckpt|experts_implementation|value_head_prefix)
    |model\.(beta|gamma|ipo_enable|label_smoothing|nll_loss_coef|aux_loss_coef|pretrain_mode|margin_loss\w*|compute_fp32_loss\w*)""",
    re.VERBOSE,
)
#: With these the forecast would be far off.
REFUSED: Mapping[str, str] = by_name(
    {
        "adam_offload": OFFLOADED,
        "ring_attn_size ds_tensor_parallel_size": SPLIT,
    }
)
#: What these change, where a plan cannot say it.
WARNED: Mapping[str, str] = by_name(
    {
        "deepcompile": "layers are forecast as transformers' code runs them, not compiled",
        "enable_ema": "a second copy of the weights, and its steps, are not forecast",
        "dynamic_filtering": "what is generated and then left out is not forecast",
        "deepspeed_enable_sleep": "what is moved to the host and back between generation and training is not forecast",
    }
)
