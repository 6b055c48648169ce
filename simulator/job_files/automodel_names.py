"""Settings of NeMo AutoModel that no key of a plan stands for: without effect, told or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from joulecast.simulator.job_files.settings_file import Matching, dotted
from joulecast.simulator.job_files.told import OFFLOADED, PREFERENCES, QUANTISED

#: Tables of what is read, saved, logged, validated and waited for.
TABLES = Matching(
    re.compile(
        r"recipe|dist_env|rng|seed|checkpoint|validation_\w+|dataset|dataloader|tokenizer|processor|lr_scheduler|wandb"
        r"|mlflow|comet|nvtx|benchmark|ci|logger|prewarm|moe_metrics|neftune|slurm|skypilot|nemo_run|config|c"
        r"|nproc_per_node|embedding_row_repair|clip_grad_norm|optimizer|loss_fn"
    )
)
#: Keys of other tables without effect on time, energy and memory, as far as it is forecast.
PASSED = dotted(
    {
        "step_scheduler": "num_epochs ckpt_every_steps val_every_steps save_checkpoint_every_epoch gc_every_steps "
        "validate_on_checkpoint log_remote_every_steps loss_average_window_steps start_step start_epoch "
        "preemption_signal",
        "model": "_target_ trust_remote_code cache_dir use_cache output_hidden_states config._target_ "
        "config.trust_remote_code use_sdpa_patching revision token force_hf backend._target_ backend.linear "
        "backend.rms_norm backend.rope backend.rope_fusion backend.enable_deepep backend.dispatcher backend.experts "
        "backend.fake_balanced_gate backend.enable_hf_state_dict_adapter backend.enable_fsdp_optimizations "
        "backend.gate_precision backend.experts_backend",
        "distributed": "_target_ timeout_minutes backend broadcast_buffers find_unused_parameters static_graph "
        "bucket_cap_mb gradient_as_bucket_view overlap_grad_reduce overlap_param_gather check_for_nan_in_grad "
        "report_nan_in_param_grad average_in_collective init_fsdp_with_meta_device megatron_fsdp_unit_modules "
        "patch_is_packed_sequence activation_checkpointing_scope enable_fsdp2_prefetch use_hf_tp_plan tp_plan "
        "fsdp2_backward_prefetch_depth fsdp2_forward_prefetch_depth mp_policy._target_ mp_policy.output_dtype "
        "mp_policy.cast_forward_inputs pipeline.scale_grads_in_schedule pipeline.pp_batch_size pipeline.dtype "
        "pipeline.patch_inner_model pipeline.patch_causal_lm_model pipeline.pp_recv_buffer_pool "
        "pipeline.pp_recv_buffer_pool_slack pipeline.round_virtual_stages_to_pp_multiple pipeline.pp_seq_len",
        "distributed_config": "_target_",
        "parallelizer": "_target_",
        "autopipeline": "_target_ scale_grads_in_schedule patch_inner_model patch_causal_lm_model",
        "packed_sequence": "packing_strategy max_packs drop_long_samples split_across_pack",
        "peft": "_target_ alpha lora_A_init dropout_position",
        "compile": "mode fullgraph dynamic backend options dynamo_cache_size_limit",
        "fp8": "precompute_float8_dynamic_scale_for_fsdp force_recompute_fp8_weight_in_bwd filter_fqns emulate",
        "quantization": "_target_ bnb_4bit_compute_dtype bnb_4bit_quant_storage",
    }
)
#: With these the forecast would be far off.
REFUSED: Mapping[str, str] = {
    "distributed.offload_policy": OFFLOADED,
    "teacher_model": PREFERENCES,
    "qat.enabled": "training with quantised weights is not known",
    "quantization.load_in_8bit": QUANTISED,
    "model.backend.te_fp8": "FP8 of Transformer Engine is not known of PyTorch's layers",
    "peft.use_dora": "adapters of another kind than LoRA's are not known",
    "freeze_config": "weights that are frozen cannot be said in a plan, which has gradients and states of all weights",
}
#: What these change, where a plan cannot say it.
WARNED: Mapping[str, str] = {
    "peft.exclude_modules": "adapters are forecast beside all that the job targets",
    "peft.use_triton": "adapters are forecast in PyTorch's products, not in AutoModel's fused ones",
    "model.use_kernels": "layers are forecast in transformers' own kernels",
}
#: Words in the names of recipes and classes of other training than on texts.
OTHER_TRAINING = re.compile(
    r"(?i)\.kd\b|distill|classification|encoder|retrieval|diffusion|eagle|dflash|\bvlm\b|imagetext"
)
#: Models of the catalogue whose layers are AutoModel's own classes (``_transformers/registry.py``): Llama and Qwen2.
OWN_CODE = re.compile(r"(code|tiny)?llama-(?!4).*|smollm2.*|falcon3.*|yi-.*|qwen2\.5-(?!vl).*|deepseek-r1-distill-.*")
