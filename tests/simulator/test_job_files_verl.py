"""Jobs of verl as plans: GRPO by Hydra's overrides, supervised finetuning, and YAML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.errors import InputError

GRPO = """set -x
export VLLM_USE_V1=1
max_prompt=$((512 * 2))

ray job submit --no-wait --runtime-env=env.yaml -- python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/math.parquet \\
    data.train_batch_size=512 \\
    data.max_prompt_length=$max_prompt \\
    data.max_response_length=3072 \\
    actor_rollout_ref.model.path=$HOME/models/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    +actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation=False \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
SFT = """torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \\
    data.train_files=train.parquet data.max_length=2048 data.train_batch_size=64 data.micro_batch_size_per_gpu=8 \\
    optim.lr=1e-4 model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct trainer.project_name=sft trainer.total_epochs=1
"""
YAML = """defaults:
  - ppo_trainer
  - _self_
data: {train_batch_size: 64, max_prompt_length: 256, max_response_length: 768}
algorithm: {adv_estimator: rloo}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-1.5B, lora_rank: 16, use_fused_kernels: true}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 8, use_kl_loss: true}
  rollout: {n: 4, name: sglang, tensor_model_parallel_size: 1}
trainer: {n_gpus_per_node: 4}
"""
ACTOR = "actor_rollout_ref.actor"


def converted(tmp_path: Path, text: str, name: str = "job.sh", **options: Any) -> Any:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


def with_settings(*settings: str) -> str:
    return GRPO.replace(" $@", f" {' '.join(settings)}")


def test_grpo_is_the_plan_that_one_would_write(tmp_path: Path) -> None:
    by_hand = {
        "workload": {
            "model": "qwen2.5-7b",
            "sequence_length": 4096,
            "objective": "grpo",
            "reference": "copy",
            "old_log_probabilities": True,
            "completion_tokens": 3072,
            "micro_batch_size": 4,
            "global_batch_size": 128 * 8,
            "precision": "bf16",
            "rollout": {
                "num_generations": 8,
                "generation_batch_size": 512 * 8,
                "max_num_seqs": 153,
                "enable_sleep_mode": True,
            },
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 16},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "transformers",
            "attention_backend": "flash-attn-2",
            "log_probabilities": "chunked",
            "parameter_precision": "fp32",
            "gradient_clipping": True,
        },
    }
    found = converted(tmp_path, GRPO)
    assert found.tables == by_hand
    assert found.missing == {}
    assert not any("not known" in warning for warning in found.warnings)
    assert jc.predict(tomllib.loads(found.text)).to_dict() == jc.predict(by_hand).to_dict()


def test_room_is_the_engines_share_of_memory_without_its_weights(tmp_path: Path) -> None:
    of_token = 2 * 2 * 28 * 4 * 128  # keys and values in 16 bits, of 28 layers with 4 heads of 128
    memory = jc.gpu("h100-sxm").description.number("memory_bytes")
    room = 0.6 * memory - 2 * 7_615_616_512
    rollout = converted(tmp_path, GRPO).tables["workload"]["rollout"]
    assert rollout["max_num_seqs"] == int(room / (of_token * 4096))
    few = converted(tmp_path, with_settings("actor_rollout_ref.rollout.max_num_seqs=64"))
    assert few.tables["workload"]["rollout"]["max_num_seqs"] == 64


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        (f"{ACTOR}.use_kl_loss=False", "workload.reference", None),
        ("algorithm.rollout_correction.bypass_mode=True", "workload.old_log_probabilities", None),
        (f"{ACTOR}.ppo_epochs=2", "workload.num_iterations", 2),
        (f"{ACTOR}.fsdp_config.fsdp_size=8", "parallelism.fsdp_shard_size", 8),
        (f"{ACTOR}.fsdp_config.reshard_after_forward=False", "parallelism.fsdp_reshard_after_forward", False),
        (
            f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation=True",
            *("parallelism.fsdp_sync_each_batch", False),
        ),
        (f"{ACTOR}.fsdp_config.model_dtype=bfloat16", "implementation.parameter_precision", None),
        (f"{ACTOR}.fsdp_config.dtype=float16", "workload.precision", "fp16"),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", "schedule.recompute", None),
        (
            "+actor_rollout_ref.model.override_config.attn_implementation=flash_attention_3",
            *("implementation.attention_backend", "flash-attention-3"),
        ),
        ("actor_rollout_ref.model.use_liger=True", "implementation.liger_kernel", ["rms_norm", "rope", "swiglu"]),
        ("actor_rollout_ref.model.lora_rank=64", "workload.lora.rank", 64),
        ("actor_rollout_ref.model.lora_rank=64", "workload.lora.target_modules", "all-linear"),
        ("actor_rollout_ref.model.lora_rank=64", "workload.reference", "adapters-off"),
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=34000", "workload.micro_batch_size", 8),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=null {ACTOR}.ppo_micro_batch_size=32", "workload.micro_batch_size", 2),
        ("actor_rollout_ref.rollout.free_cache_engine=False", "workload.rollout.enable_sleep_mode", None),
        ("actor_rollout_ref.rollout.name=hf", "workload.rollout", None),
        ("trainer.total_training_steps=10", "workload.training_tokens", 10.0 * 512 * 8 * 4096),
        ("trainer.nnodes=1", "cluster.gpus", 8),
    ],
)
def test_settings_of_a_command(tmp_path: Path, settings: str, key: str, expected: Any) -> None:
    found: Any = converted(tmp_path, with_settings(settings))
    assert not any("not known" in warning for warning in found.warnings)
    found = found.tables
    for name in key.split("."):
        found = found.get(name) if found is not None else None
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator"),
        ("critic.enable=True", "critic.enable"),
        (f"{ACTOR}.strategy=megatron", f"{ACTOR}.strategy"),
        ("model_engine=torchtitan", "model_engine"),
        ("--config-name=ppo_megatron_trainer.yaml", "config_name"),
        (f"{ACTOR}.ulysses_sequence_parallel_size=4", f"{ACTOR}.ulysses_sequence_parallel_size"),
        (f"{ACTOR}.fsdp_config.offload_policy=True", f"{ACTOR}.fsdp_config.offload_policy"),
        ("actor_rollout_ref.model.enable_activation_offload=True", "actor_rollout_ref.model.enable_activation_offload"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        (f"{ACTOR}.ppo_mini_batch_size=1024", f"{ACTOR}.ppo_mini_batch_size"),
        (f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.ppo_mini_batch_size"),
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=4000", f"{ACTOR}.ppo_max_token_len_per_gpu"),
        (f"{ACTOR}.optim.optimizer=Muon", f"{ACTOR}.optim.optimizer"),
        (f"{ACTOR}.ppo_mini_batch_sise=64", f"{ACTOR}.ppo_mini_batch_sise"),
        ("actor_rollout_ref.model.lora_adapter_path=/a", "actor_rollout_ref.model.lora_adapter_path"),
        ("--config-name=mine --config-path=conf", "--config-name"),
    ],
)
def test_what_a_plan_cannot_say_is_refused(tmp_path: Path, settings: str, key: str) -> None:
    with pytest.raises(InputError) as error:
        converted(tmp_path, with_settings(settings))
    assert error.value.key == key


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("", "(1.9 GB of each GPU)"),  # of the reference: 4 bytes of 7.6 billion on 16 GPUs
        (f"{ACTOR}.fsdp_config.optimizer_offload=True", "(3.81 GB of each GPU)"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "not 2 with one"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.18", "has no room for a sequence"),
        ("actor_rollout_ref.hybrid_engine=False", "other GPUs generate"),
        ("algorithm.filter_groups.enable=True", "left out is not forecast"),
        ("reward_model.enable=True", "its scoring"),
        ("actor_rollout_ref.model.use_remove_padding=False", "samples are padded"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16", "scored in micro-batches as they are"),
        (f"{ACTOR}.brand_new=1", f"{ACTOR}.brand_new is not known"),
        ("actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B", "engines of models with experts"),
    ],
)
def test_what_a_plan_cannot_say_is_told(tmp_path: Path, settings: str, said: str) -> None:
    assert said in " ".join(converted(tmp_path, with_settings(settings)).warnings)


def test_logits_that_are_kept_are_counted_unless_they_are_not(tmp_path: Path) -> None:
    kept = 2 * 4 * 4096 * 152064 / 1e9
    assert f"{kept:.3g} GB more" in " ".join(converted(tmp_path, GRPO).warnings)
    fused = converted(tmp_path, with_settings("actor_rollout_ref.model.use_fused_kernels=True"))
    assert "GB more" not in " ".join(fused.warnings)


def test_a_yaml_is_read_alone_and_under_a_commands_overrides(tmp_path: Path) -> None:
    found = converted(tmp_path, YAML, "ppo.yaml")
    workload = found.tables["workload"]
    assert (workload["model"], workload["reference"], workload["global_batch_size"]) == (
        *("qwen2.5-1.5b", "adapters-off", 256),
    )
    assert found.tables["cluster"]["gpus"] == 4
    over = "python -m verl.trainer.main_ppo --config-path=. --config-name=ppo actor_rollout_ref.rollout.n=2"
    found = converted(tmp_path, over)
    assert found.tables["workload"]["global_batch_size"] == 128
    assert found.sources["workload.completion_tokens"] == "ppo.yaml:4 data.max_response_length"
    with pytest.raises(InputError, match="megatron trains this model"):
        converted(tmp_path, YAML.replace("ppo_trainer", "ppo_megatron_trainer"), "ppo.yaml")


def test_forks_are_known_by_their_settings(tmp_path: Path) -> None:
    found = converted(tmp_path, GRPO.replace("verl.trainer.main_ppo", "mine.main_ppo"))
    assert found.tables == converted(tmp_path, GRPO).tables


def test_supervised_finetuning(tmp_path: Path) -> None:
    found = converted(tmp_path, SFT)
    assert found.tables["workload"] == {
        "model": "qwen2.5-0.5b",
        "sequence_length": 2048,
        "micro_batch_size": 8,
        "global_batch_size": 64,
        "precision": "bf16",
    }
    assert found.tables["cluster"]["gpus"] == 4
    assert found.tables["parallelism"] == {"fsdp": True}
    assert "schedule" not in found.tables  # which it does not by default
    assert not any("not packed" in warning for warning in found.warnings)  # but padded
    assert jc.predict(found.tables).time_s > 0


def test_supervised_finetuning_on_engines_has_other_names_and_defaults(tmp_path: Path) -> None:
    job = SFT.replace("fsdp_sft_trainer", "sft_trainer").replace("partial_pretrain", "path")
    tables = converted(tmp_path, job).tables
    assert tables["workload"]["micro_batch_size"] == 4  # as 8192 tokens hold
    assert tables["schedule"] == {"recompute": "full"}
    assert tables["parallelism"]["fsdp_sync_each_batch"] is False
    with pytest.raises(InputError, match="kept on the host"):
        converted(tmp_path, job.replace("optim.lr=1e-4", "engine.optimizer_offload=True"))
