"""Settings of Hugging Face's trainers, and of tools built on them, that no key of a plan stands for.

As ``transformers.TrainingArguments`` (5.23), TRL's ``SFTConfig`` and ``ModelConfig`` (1.16), LLaMA-Factory (0.9) and
Axolotl (0.19) have them, and names of earlier versions that jobs still have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from joulecast.simulator.job_files.told import ADAPTERS, OFFLOADED, PREFERENCES, QUANTISED, SPLIT, by_name, words

#: Of what is read, logged, saved, evaluated and learnt, not of what an iteration computes.
PASSED_OVER = re.compile(
    r"""(output_dir|overwrite_\w+|run_name|project|seed|strict|do_\w+|num_(train_)?epochs|cache_dir|hf_\w+|debug|plot_loss
    |\w*logging\w*|log_\w+|report_to|disable_tqdm|wandb\w*|use_(wandb|mlflow|comet|tensorboard|auth_token|fast\w*)
    |(mlflow|comet|swanlab|trackio|hub|push_to_hub|save|saves|eval|evals|evaluation|val|bench|profiler)(_\w+)?
    |\w*load_best_model\w*|metric_for_best_model|greater_is_better|early_stopping\w*|resume_\w+|auto_resume_\w+
    |learning_rate|lr(_\w+)?|warmup_\w+|cosine_\w+|weight_decay|adam_\w+|label_smoothing_factor|neftune_\w+|embedding_lr\w*
    |per_(device|gpu)_eval_\w+|data_?(set|sets|files|path|dir|seed|loader)?(_\w+)?|\w*dataset\w*|train_(file|data|split|on_\w+)
    |preprocessing_\w+|overwrite_cache|max_(train|eval)?_?samples|shuffle\w*|streaming|buffer_size|template|chat_template\w*
    |(image|video)_(folder|min_pixels|maxlen|fps)|conversation|special_tokens|tokens|eos_token|pad_token|tokenizer_\w+|model_type|processor_type|is_\w+_derived_model
    |trust_remote_code|model_revision|token|include_\w+|remove_unused_columns|label_names|local_rank|ddp_\w+|torchdistx_path
    |low_cpu_mem_usage|low_cpu_fsdp|completion_only_loss|assistant_only_loss|default_system_message|system|model_author|lazy_preprocess|use_cache
    |average_tokens_\w+|gradient_checkpointing_kwargs|bf16_full_eval|fp16_full_eval|skip_\w+|accelerator_config|full_determinism
    |ray_\w+|launcher|experiment_\w+|sample_packing_\w+|pad_to_multiple_of|min_sample_len|excess_length_strategy|resize_\w+
    |ignore_\w+|fsdp_(config|version|final\w*)|fsdp_transformer\w+|validation_\w+|text_column|adapter_name_or_path|lora(plus)?_\w+|peft_\w+|qlora_\w+
    |bnb_\w+|use_(bnb_nested_quant|dora|rslora)|enable_thinking|mask_history|torch_compile_\w+|flash_attn_fuse_\w+|config
    |loss_watchdog_\w+|eot_tokens|eta_min|tokenized_path|reinit_weights|num_labels|revision_of_model
    |(use_)?(otel|swanlab)_\w+|use_swanlab|SwanLabPlugin)""",
    re.VERBOSE,
)

_FROZEN = "weights that are frozen cannot be said in a plan, which has gradients and states of all weights"
#: With these the forecast would be far off.
REFUSED: Mapping[str, str] = by_name(
    {
        "relora relora_steps": ADAPTERS,
        "load_in_8bit use_8bit_quantization gptq qat quantization": QUANTISED,
        "unfrozen_parameters freeze_backbone lisa_n_layers use_llama_pro": _FROZEN,
        "use_galore use_badam use_apollo use_adam_mini": "its optimizer is not known",
        "vision_tower vision_tower_name mm_projector_type": "models that see more than text are not known",
        "process_reward_model": PREFERENCES,
        "activation_offloading layer_offloading enable_activation_offloading offload use_unsloth_gc": OFFLOADED,
        "tensor_parallel_size context_parallel_size sequence_parallel_degree": SPLIT,
        "expert_parallel_size sequence_parallel_size parallelism_config": SPLIT,
        "tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size": SPLIT,
        "task_type": "other losses than of next tokens, and of whole texts, are not known",
        "fp8": "FP8 is not known of Hugging Face's layers",
    }
)
#: What these change, where a plan cannot say it.
WARNED: Mapping[str, str] = by_name(
    {
        "group_by_length train_sampling_strategy": "tokens of samples decide; they are forecast all of one length",
        "auto_find_batch_size": "the forecast is of the batch that is written, not of a smaller one that is found",
        "torch_empty_cache_steps": "freeing and allocating memory is not forecast",
        "chunked_cross_entropy cut_cross_entropy": "the loss is forecast of all tokens at once, in more memory",
        "tiled_mlp": "the MLP is forecast of all tokens at once",
        "video_max_pixels": "videos are not forecast",
        "use_unsloth": "layers are forecast in transformers' own kernels",
    }
)
#: Words in the names of scripts and recipes that train on more than text.
PREFERRING = frozenset(words("rlhf dpo orpo kto ppo grpo rloo reward rm simpo cpo gkd xpo kd distillation"))
