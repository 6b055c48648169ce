"""Jobs of OpenRLHF as plans: supervised finetuning, DPO, reward models, and completions without a critic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.errors import InputError

DPO = """set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_dpo \\
   --save_path ./checkpoint \\
   --train_batch_size 256 --micro_train_batch_size 2 \\
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \\
   --bf16 --max_epochs 1 --max_len 4096 --zero_stage 3 --learning_rate 5e-7 --beta 0.1 \\
   --dataset mixture --apply_chat_template --chosen_key chosen --rejected_key rejected \\
   --flash_attn --load_checkpoint --gradient_checkpointing --packing_samples
EOF
deepspeed --include localhost:0,1,2,3,4,5,6,7 --module $training_commands
"""
SFT = """deepspeed --num_gpus 8 --module openrlhf.cli.train_sft \\
   --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\
   --data.dataset orca --data.input_key question --data.max_len 4096 --data.max_samples 50000 \\
   --train.batch_size 256 --train.micro_batch_size 2 --train.max_epochs 1 \\
   --ds.zero_stage 2 --ds.param_dtype bf16 --ds.packing_samples --adam.lr 5e-6 \\
   --ckpt.output_dir ./out --logger.logging_steps 1 --model.gradient_checkpointing_enable
"""
RL = """ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/openrlhf"}' \\
   -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --ref_num_nodes 1 --ref_num_gpus_per_node 8 \\
   --vllm_num_engines 8 --vllm_tensor_parallel_size 1 --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep \\
   --colocate_all_models --advantage_estimator group_norm --init_kl_coef 1e-3 --use_kl_loss \\
   --pretrain Qwen/Qwen2.5-7B-Instruct --remote_rm_url /reward.py --save_path /out \\
   --micro_train_batch_size 4 --train_batch_size 128 --rollout_batch_size 128 --n_samples_per_prompt 8 \\
   --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 3 --bf16 --actor_learning_rate 5e-7 \\
   --prompt_data mixture --input_key messages --normalize_reward --gradient_checkpointing --packing_samples
"""
NEWER_RL = """python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.model_name_or_path Qwen/Qwen2.5-7B --actor.num_gpus_per_node 8 --actor.gradient_checkpointing_enable \\
   --actor.adam.lr 5e-7 --vllm.num_engines 8 --vllm.gpu_memory_utilization 0.6 --vllm.enable_sleep \\
   --train.colocate_all --train.batch_size 64 --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 \\
   --data.max_len 6144 --rollout.max_new_tokens 4096 --data.prompt_dataset math --ds.zero_stage 3 \\
   --algo.advantage.estimator reinforce --algo.kl.init_coef 0 --reward.remote_url /reward.py
"""

LIGERS = ["rms_norm", "rope", "swiglu"]


def converted(tmp_path: Path, text: str, **options: Any) -> Any:
    path = tmp_path / "job.sh"
    path.write_text(text, encoding="utf-8")
    found = jc.convert(path, **{"gpu": "h100-sxm", **options})
    assert not any("is not known" in warning for warning in found.warnings), found.warnings
    return found


def test_dpo_of_a_text_that_the_script_reads_into_a_variable(tmp_path: Path) -> None:
    found = converted(tmp_path, DPO)
    assert found.missing == {}
    assert found.tables == {
        "workload": {
            "model": "llama-3.1-8b",
            "sequence_length": 4096,
            "objective": "dpo",
            "reference": "copy",
            "micro_batch_size": 2,
            "global_batch_size": 256,
            "precision": "bf16",
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "transformers",
            "attention_backend": "flash-attn-2",
            "log_probabilities": "whole",
            "parameter_precision": "fp32",
            "gradient_precision": "bf16",
            "reference_precision": "bf16",
            "gradient_clipping": True,
        },
    }
    assert jc.predict(found.tables).time_s > 0


def test_reward_models(tmp_path: Path) -> None:
    found = converted(tmp_path, DPO.replace("train_dpo", "train_rm"))
    assert found.tables["workload"]["objective"] == "reward"
    assert "reference" not in found.tables["workload"]
    assert "log_probabilities" not in found.tables["implementation"]


def test_newer_names_say_the_same(tmp_path: Path) -> None:
    found = converted(tmp_path, SFT)
    older = (
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --max_len 4096 "
        "--train_batch_size 256 --micro_train_batch_size 2 --zero_stage 2 --bf16 --gradient_checkpointing"
    )
    assert found.tables == converted(tmp_path, older).tables
    assert found.sources["workload.micro_batch_size"] == "train.micro_batch_size (line 4)"
    assert found.tables["parallelism"] == {"distributed_optimizer": True}
    assert found.tables["implementation"]["main_parameters"] is True


@pytest.mark.parametrize(
    ("job", "old", "new", "key", "expected"),
    [
        (SFT, "--ds.zero_stage 2", "", "parallelism.distributed_optimizer", True),
        (SFT, "--ds.zero_stage 2", "--ds.zero_stage 3", "parallelism.fsdp", True),
        (SFT, "--ds.packing_samples", "--ds.overlap_comm", "overlap.grad_reduce", "overlapped"),
        (SFT, "--ds.packing_samples", "--ds.lora.rank 16", "workload.lora.rank", 16),
        (SFT, "--ds.packing_samples", "--ds.lora.rank 16", "workload.lora.target_modules", "all-linear"),
        (SFT, "--ds.packing_samples", "--ds.lora.rank 16", "workload.lora.precision", "bf16"),
        (SFT, "--ds.packing_samples", "--ds.lora.rank 0 --ds.lora.alpha 16", "workload.lora", None),
        (SFT, "--ds.packing_samples", "--ds.use_liger_kernel", "implementation.liger_kernel", LIGERS),
        (SFT, "--ds.packing_samples", "--ds.attn_implementation eager", "implementation.attention_backend", "unfused"),
        (SFT, "--data.max_len 4096", "", "workload.sequence_length", 2048),
        (SFT, "--train.micro_batch_size 2", "", "workload.micro_batch_size", 8),
        (DPO, "--max_len 4096", "", "workload.sequence_length", 512),
        (DPO, "--bf16", "--param_dtype fp16", "workload.precision", "fp16"),
        (RL, "--init_kl_coef 1e-3", "--init_kl_coef 0", "workload.reference", None),
        (RL, "--generate_max_len 3072", "", "workload.completion_tokens", 1024),
        (RL, "--micro_train_batch_size 4", "", "workload.micro_batch_size", 4),
        (RL, "--micro_train_batch_size 4", "--use_dynamic_batch", "workload.micro_batch_size", 2),
        (RL, "--input_key messages", "--max_epochs 2", "workload.num_iterations", 2),
        (RL, "--vllm_enable_sleep", "", "workload.rollout.enable_sleep_mode", None),
        (RL, "--colocate_all_models", "", "workload.rollout", None),
        (RL, "--colocate_all_models", "", "workload.reference", None),
        (RL, "--colocate_all_models", "--colocate_actor_ref", "workload.reference", "copy"),
        (NEWER_RL, "--train.batch_size 64", "--train.batch_size 64", "workload.micro_batch_size", 1),
    ],
)  # fmt: skip
def test_settings_of_a_command(tmp_path: Path, job: str, old: str, new: str, key: str, expected: Any) -> None:
    assert old in job
    found: Any = converted(tmp_path, job.replace(old, new)).tables
    for name in key.split("."):
        found = found.get(name) if found is not None else None
    assert found == expected


def test_completions_are_scored_and_generated_on_the_gpus_that_train(tmp_path: Path) -> None:
    found = converted(tmp_path, RL)
    workload = found.tables["workload"]
    assert (workload["sequence_length"], workload["completion_tokens"]) == (4096, 3072)
    assert (workload["global_batch_size"], workload["micro_batch_size"], workload["reference"]) == (128, 4, "copy")
    assert workload["rollout"] == {
        "num_generations": 8,
        "generation_batch_size": 1024,
        "max_num_seqs": 117,
        "enable_sleep_mode": True,
    }
    assert found.tables["cluster"]["gpus"] == 8
    assert jc.predict(found.tables).time_s > 0
    newer = converted(tmp_path, NEWER_RL).tables["workload"]
    assert (newer["sequence_length"], newer["completion_tokens"], newer["rollout"]["generation_batch_size"]) == (
        *(6144, 4096, 512),
    )
    assert "reference" not in newer
    unsaid = converted(tmp_path, NEWER_RL.replace("--rollout.max_new_tokens 4096", ""))
    assert "within 6144" in unsaid.missing["workload.completion_tokens"]


@pytest.mark.parametrize(
    ("job", "old", "new", "said"),
    [
        (RL, "--colocate_all_models", "", "other GPUs generate"),
        (RL, "--colocate_all_models", "--colocate_all_models --async_train", "other GPUs generate"),
        (RL, "--colocate_all_models", "", "the reference scores on GPUs of its own"),
        (RL, "--vllm_num_engines 8", "", "transformers' own loop"),
        (RL, "--vllm_tensor_parallel_size 1", "--vllm_tensor_parallel_size 2", "not 2 with one"),
        (RL, "--remote_rm_url /reward.py", "--reward_pretrain a/rm", "the reward model's weights"),
        (RL, "--input_key messages", "--ref_reward_offload", "the reference's weights are kept on the host"),
        (RL, "--input_key messages", "--dynamic_filtering", "left out is not forecast"),
        (DPO, "--load_checkpoint", "--ref_offload", "the reference's weights are kept on the host"),
    ],
)
def test_what_a_plan_cannot_say_is_told(tmp_path: Path, job: str, old: str, new: str, said: str) -> None:
    assert old in job
    assert said in " ".join(converted(tmp_path, job.replace(old, new)).warnings)


@pytest.mark.parametrize(
    ("job", "old", "new", "key"),
    [
        (RL, "--advantage_estimator group_norm", "", "advantage_estimator"),
        (SFT, "--ds.packing_samples", "--ds.adam_offload", "ds.adam_offload"),
        (SFT, "--ds.packing_samples", "--ds.ring_attn_size 2", "ds.ring_attn_size"),
        (SFT, "--ds.packing_samples", "--ds.tensor_parallel_size 4", "ds.tensor_parallel_size"),
        (SFT, "--ds.packing_samples", "--optim muon", "optim"),
        (SFT, "--train.micro_batch_size 2", "--train.micro_batch_size 3", "train.micro_batch_size"),
        (SFT, "--train.micro_batch_size 2", "--train.micro_batch_sise 2", "train.micro_batch_sise"),
        (SFT, "--train.batch_size 256", "--train.batch_size 100", "train.batch_size"),
        (DPO, "train_dpo", "train_kd", "train_kd"),
    ],
)
def test_what_would_be_far_off_is_refused(tmp_path: Path, job: str, old: str, new: str, key: str) -> None:
    assert old in job
    with pytest.raises(InputError) as error:
        converted(tmp_path, job.replace(old, new))
    assert error.value.key == key
