"""Jobs of supervised finetuning by TRL's trainer, whose logits are made in tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.simulator.plan_file.plan import plan_from_dict
from tests.support.trainer_jobs import AXOLOTL, FACTORY

OPTIONS = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --max_length 1024"
TRL = f"trl sft {OPTIONS}"
SCRIPT = f"accelerate launch --num_processes 4 scripts/sft.py {OPTIONS} --bf16 true"


def converted(job: str | Path) -> Any:
    return jc.convert(job, gpu="h100-sxm", gpus=4)


def told(job: str) -> str:
    return " ".join(converted(job).warnings)


def tiled(found: Any) -> bool:
    return found.tables["implementation"].get("log_probabilities") == "chunked"


@pytest.mark.parametrize(
    ("job", "there"),
    [
        (TRL, True),
        (f"{TRL} --use_peft --load_in_4bit --loss_type dft", True),
        (f"{TRL} --use_liger_kernel --loss_type chunked_nll", True),
        (f"{TRL} --label_smoothing_factor 0.0", True),
        (f"{TRL} --label_smoothing_factor 0.1", False),
        (f"{TRL} --label_smoothing_factor 0.1 --loss_type dft", True),
        (f"{TRL} --torch_compile", False),
        (f"{TRL} --packing", True),
        (SCRIPT, True),
        (SCRIPT.replace("scripts/sft.py", "-m trl.scripts.sft"), True),
        (SCRIPT.replace("sft.py", "run_sft.py"), True),
        (SCRIPT.replace("sft.py", "shift.py"), False),
        (SCRIPT.replace("sft.py", "train.py"), False),
        (f"swift sft {OPTIONS.replace('_name_or_path', '')}", False),
    ],
)
def test_who_makes_logits_in_tiles(job: str, there: bool) -> None:
    found = converted(job)
    assert tiled(found) is there
    assert not any("not regarded" in warning for warning in found.warnings)
    plan_from_dict(found.tables)


@pytest.mark.parametrize("job", [FACTORY, AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "")])
def test_other_trainers_keep_all_logits(tmp_path: Path, job: str) -> None:
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    assert not tiled(converted(tmp_path / "job.yaml"))


@pytest.mark.parametrize(
    ("name", "text", "there"),
    [
        ("finetune.py", "from trl import SFTTrainer\n", True),
        ("sft.py", "from transformers import Trainer\n", False),
    ],
)
def test_a_script_that_is_there_says_whose_trainer_it_runs(tmp_path: Path, name: str, text: str, there: bool) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    job = tmp_path / "job.sh"
    job.write_text(f"torchrun --nproc_per_node 4 {name} {OPTIONS} --bf16 true\n", encoding="utf-8")
    assert tiled(converted(job)) is there


def test_what_is_taken_is_told() -> None:
    assert "completion_tokens" in told(TRL)
    assert "completion_tokens" not in told(f"{TRL} --completion_only_loss false")
    assert "SFTTrainer" in told(SCRIPT)
    assert "SFTTrainer" not in told(TRL)
    assert "label_smoothing_factor makes TRL take them" in told(f"{TRL} --label_smoothing_factor 0.1")
    assert "compiled" in told(f"{TRL} --torch_compile")


def test_ligers_loss_gives_way() -> None:
    found = converted(f"{TRL} --use_liger_kernel")
    assert found.tables["implementation"]["liger_kernel"] == ["rms_norm", "rope", "swiglu"]
    other = converted(f"{TRL} --use_liger_kernel --label_smoothing_factor 0.1")
    assert other.tables["implementation"]["liger_kernel"] is True
    unnamed = converted(f"{TRL} --use_liger_kernel".replace("meta-llama/Llama-3.1-8B", "my/model"))
    assert unnamed.tables["implementation"]["liger_kernel"] == ["rms_norm", "rope", "swiglu"]


def test_a_version_that_keeps_its_logits_can_be_said() -> None:
    whole = jc.convert(TRL, gpu="h100-sxm", gpus=4, overrides=["implementation.log_probabilities=whole"])
    assert plan_from_dict(whole.tables).implementation.log_probabilities == ""


YAML = """model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: some/data
per_device_train_batch_size: 2
"""


@pytest.mark.parametrize(
    "keys", ["use_peft: true\n", "packing: true\nmax_length: 1024\n", "assistant_only_loss: true\nuse_peft: true\n"]
)
def test_a_yaml_with_keys_of_trl_is_what_its_command_makes_of_it(tmp_path: Path, keys: str) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(f"{YAML}{keys}num_processes: 2\n", encoding="utf-8")
    alone = jc.convert(file, gpu="h100-sxm")
    job = tmp_path / "job.sh"
    job.write_text("trl sft --config sft.yaml\n", encoding="utf-8")
    assert alone.tables == jc.convert(job, gpu="h100-sxm").tables
    assert alone.tables["workload"].get("lora", {}).get("rank") == (16 if "peft" in keys else None)
    assert (alone.tables["schedule"], alone.tables["cluster"]["gpus"]) == ({"recompute": "full"}, 2)
    assert any("keys of TRL's commands" in warning for warning in alone.warnings)


def test_a_yaml_of_trl_that_says_pairs_is_not_taken_for_texts_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "dpo.yaml"
    file.write_text(f"{YAML}use_peft: true\nbeta: 0.1\n", encoding="utf-8")
    found = jc.convert(file, gpu="h100-sxm", gpus=2)
    assert found.tables["workload"]["lora"]["rank"] == 16 and not tiled(found)
    assert any("settings of training on pairs" in warning for warning in found.warnings)


def test_a_yaml_of_a_model_and_texts_is_trls(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/Capybara\n", encoding="utf-8")
    found = jc.convert(file, gpu="h100-sxm", gpus=2)
    assert tiled(found) and found.missing == {}
    assert found.tables["workload"]["precision"] == "bf16"
    assert found.tables["workload"]["sequence_length"] == 1024
    assert found.tables["schedule"]["recompute"] == "full"
    assert any("keys of TRL's commands, whose defaults are taken" in warning for warning in found.warnings)
    assert not any("a script called after" in warning for warning in found.warnings)


def test_a_yaml_of_rewards_is_of_trls_training_on_completions(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nreward_funcs: [accuracy]\nnum_generations: 16\nuse_vllm: true\n"
        "max_prompt_length: 512\nmax_completion_length: 2048\n",
        encoding="utf-8",
    )
    found = jc.convert(file, gpu="h100-sxm", gpus=2)
    assert found.missing == {}
    assert found.tables["workload"]["objective"] == "grpo"
    assert found.tables["workload"]["sequence_length"] == 2560
    assert found.tables["workload"]["rollout"]["num_generations"] == 16
    assert any("of trl grpo" in warning for warning in found.warnings)


@pytest.mark.parametrize("script", ["trl/scripts/sft.py", "examples/scripts/sft.py", "-m trl.scripts.sft"])
def test_trls_own_script_has_all_its_defaults(script: str) -> None:
    model = "--model_name_or_path meta-llama/Llama-3.1-8B"
    own = converted(f"accelerate launch --num_processes 4 {script} {model} --packing --use_peft")
    assert own.tables["workload"]["sequence_length"] == 1024
    assert own.tables["workload"]["lora"]["rank"] == 16
    assert own.missing == {} and any(warning.startswith("packing: ") for warning in own.warnings)
    other = converted(f"accelerate launch --num_processes 4 my/sft.py {model} --packing")
    assert "workload.sequence_length" in other.missing
    assert not any("not regarded" in warning for warning in other.warnings)


def test_a_yaml_without_keys_of_trl_has_no_defaults_of_it(tmp_path: Path) -> None:
    for more in ("do_train: true\n", "finetuning_type: lora\npacking: true\nmax_length: 1024\n"):
        file = tmp_path / "job.yaml"
        file.write_text(f"{YAML}{more}", encoding="utf-8")
        found = jc.convert(file, gpu="h100-sxm", gpus=2)
        assert not tiled(found) and not any("TRL's commands, whose" in warning for warning in found.warnings)
