"""Jobs of Hugging Face's trainers, NeMo and torchtune, which several tests convert."""

FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: false
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
COMMAND = """export RUN=demo
accelerate launch --config_file fsdp.yaml train.py \\
  --model_name_or_path meta-llama/Llama-3.1-8B-Instruct \\
  --max_seq_length 4096 --packing \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --bf16 True --gradient_checkpointing True --attn_implementation flash_attention_2 \\
  --optim adamw_torch_fused --max_steps 100 --learning_rate 2e-5 --output_dir out/$RUN
"""
SFT = """model_name_or_path: Qwen/Qwen3-8B-Base
dtype: bfloat16
bf16: true
packing: true
max_length: 4096
per_device_train_batch_size: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: true
learning_rate: 1.0e-05
"""
AXOLOTL = """base_model: NousResearch/Meta-Llama-3.1-8B
datasets:
  - path: some/data
    type: alpaca
sequence_len: 8192
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 2
optimizer: adamw_torch_fused
bf16: auto
flash_attention: true
gradient_checkpointing: true
deepspeed: deepspeed_configs/zero3_bf16.json
lora_r:
adapter:
"""
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
template: qwen
bf16: true
per_device_train_batch_size: 1
"""
NEMO = """trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
  max_steps: 100
exp_manager:
  name: demo
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:3584, 4}
  num_attention_heads: 32
  num_query_groups: 8
  hidden_dropout: 0.0
  attention_dropout: 0.0
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  activations_checkpoint_granularity: selective
  sequence_parallel: true
  fp8: false
  fp8_hybrid: true
  optim:
    name: distributed_fused_adam
    overlap_grad_sync: true
    overlap_param_sync: true
  data:
    data_prefix: [0.5, {a: b}]
"""
TORCHTUNE = """output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.qwen2_5.qwen2_5_tokenizer
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: True
model:
  _component_: torchtune.models.qwen2_5.qwen2_5_7b_instruct
batch_size: 2
gradient_accumulation_steps: 8
epochs: 1
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 5e-6
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
clip_grad_norm: null
compile: False
optimizer_in_bwd: False
enable_activation_checkpointing: True
enable_activation_offloading: False
dtype: bf16
"""
TRL_DPO = """trl dpo --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name some/pairs \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 1024 --beta 0.1 \\
  --dtype bfloat16 --bf16 true --optim adamw_bnb_8bit --attn_implementation flash_attention_2 \\
  --use_peft --lora_r 32 --lora_alpha 16 --max_steps 200 --gradient_checkpointing
"""
SWIFT_DPO = """NPROC_PER_NODE=2 swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --train_type lora \\
  --dataset some/pairs --torch_dtype bfloat16 --per_device_train_batch_size 1 --max_length 2048 \\
  --gradient_accumulation_steps 8 --lora_rank 8 --target_modules all-linear --rpo_alpha 0.1 --deepspeed zero2
"""
FACTORY_DPO = """model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
pref_beta: 0.1
pref_loss: sigmoid
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
optim: adamw_8bit
bf16: true
"""
AXOLOTL_DPO = """base_model: meta-llama/Llama-3.2-1B
plugins:
  - axolotl.integrations.liger.LigerPlugin
liger_rope: true
liger_rms_norm: true
liger_glu_activation: true
rl: dpo
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adafactor
bf16: true
attn_implementation: sdpa
gradient_checkpointing: true
"""
