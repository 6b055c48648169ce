"""Jobs of TRL, LLaMA-Factory, Axolotl and ms-swift that train on pairs of sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.plan_file.plan import plan_from_dict
from tests.support.trainer_jobs import AXOLOTL, FACTORY

TRL = "trl dpo --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --beta 0.1 --max_steps 10"
SCRIPT = TRL.replace("trl dpo", "accelerate launch --num_processes 4 scripts/dpo.py")
DPO = FACTORY.replace("stage: sft", "stage: dpo\npref_beta: 0.1")
SWIFT = "swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 --beta 0.1"
RL = AXOLOTL.replace("sample_packing: true", "rl: dpo").replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "")


def converted(tmp_path: Path, job: str) -> Any:
    if "\n" not in job:
        return jc.convert(job, gpu="h100-sxm", gpus=4)
    file = tmp_path / "job.yaml"
    file.write_text(job, encoding="utf-8")
    return jc.convert(file, gpu="h100-sxm", gpus=4)


@pytest.mark.parametrize(
    ("job", "objective", "reference", "log_probabilities"),
    [
        (TRL, "dpo", "copy", "chunked"),
        (f"{TRL} --use_peft", "dpo", "adapters-off", "chunked"),
        (f"{TRL} --precompute_ref_log_probs", "dpo", "precomputed", "chunked"),
        (f"{TRL} --use_peft --ref_model other/model", "dpo", "copy", "chunked"),
        (SCRIPT, "dpo", "copy", "chunked"),
        (SCRIPT.replace("dpo.py", "orpo.py"), "orpo", None, "whole"),
        (DPO, "dpo", "copy", "whole"),
        (DPO.replace("full", "lora"), "dpo", "adapters-off", "whole"),
        (f"{DPO}pref_loss: simpo\n", "simpo", None, "whole"),
        (f"{DPO}pref_loss: hinge\n", "dpo", "copy", "whole"),
        (RL, "dpo", "copy", "chunked"),
        (RL.replace("dpo", "ipo"), "dpo", "copy", "chunked"),
        (RL.replace("dpo", "simpo"), "simpo", None, "whole"),
        (SWIFT, "dpo", "adapters-off", "whole"),
        (f"{SWIFT} --train_type full", "dpo", "copy", "whole"),
        (SWIFT.replace("rlhf_type dpo", "rlhf_type cpo"), "simpo", None, "whole"),
        (TRL.replace("dpo", "kto"), "kto", "copy", "chunked"),
        (f"{TRL} --use_peft --precompute_ref_log_probs".replace("dpo", "kto"), "kto", "precomputed", "chunked"),
        (DPO.replace("stage: dpo", "stage: kto"), "kto", "copy", "whole"),
        (RL.replace("dpo", "kto"), "kto", "copy", "chunked"),
        (SWIFT.replace("rlhf_type dpo", "rlhf_type kto"), "kto", "adapters-off", "whole"),
        (TRL.replace("trl dpo", "trl reward"), "reward", None, None),
        (SCRIPT.replace("dpo.py", "reward_modeling.py"), "reward", None, None),
        (DPO.replace("stage: dpo", "stage: rm"), "reward", None, None),
        (RL.replace("rl: dpo", "reward_model: true"), "reward", None, None),
        (SWIFT.replace("rlhf_type dpo", "rlhf_type rm"), "reward", None, None),
    ],
)
def test_pairs_are_read(
    tmp_path: Path, job: str, objective: str, reference: str | None, log_probabilities: str | None
) -> None:
    found = converted(tmp_path, job)
    assert found.tables["workload"]["objective"] == objective
    assert found.tables["workload"].get("reference") == reference
    assert found.tables["implementation"].get("log_probabilities") == log_probabilities
    assert not any("not regarded" in warning for warning in found.warnings)
    plan_from_dict(found.tables)


def test_the_run_has_the_tokens_of_both_sequences(tmp_path: Path) -> None:
    found = converted(tmp_path, TRL).tables["workload"]
    assert found["sequence_length"] == 1024
    assert found["training_tokens"] == 10 * 2 * 4 * 2 * 1024


def test_a_run_of_single_sequences_has_their_tokens(tmp_path: Path) -> None:
    found = converted(tmp_path, TRL.replace("trl dpo", "trl kto")).tables["workload"]
    assert found["training_tokens"] == 10 * 2 * 4 * 1024


def test_dropout_is_off(tmp_path: Path) -> None:
    found = converted(tmp_path, f"{TRL} --use_peft --lora_dropout 0.1").tables["workload"]
    assert found["lora"]["dropout"] == 0.0


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (f"{TRL} --bf16 --deepspeed zero3.json", "bf16"),
        (f"{TRL} --accelerate_config zero3", "bf16"),
        (f"{TRL} --fp16 --deepspeed zero3.json".replace("dpo", "kto"), "fp16"),
        (f"{TRL} --deepspeed zero3.json --max_prompt_length 512".replace("dpo", "grpo"), "bf16"),
        (f"{TRL} --deepspeed zero2.json", None),
        (f"{TRL} --accelerate_config fsdp2", None),
        (f"{TRL} --deepspeed zero3.json --precompute_ref_log_probs", None),
        (f"{TRL} --deepspeed zero3.json --use_peft", None),
        (f"{TRL} --deepspeed zero3.json".replace("dpo", "reward"), None),
        (DPO, "bf16"),
        (DPO.replace("full", "lora"), None),
    ],
)  # fmt: skip
def test_a_reference_that_is_kept_narrow_is_forecast_so(tmp_path: Path, job: str, expected: str | None) -> None:
    found = converted(tmp_path, job)
    assert found.tables["implementation"].get("reference_precision") == expected
    plan_from_dict(found.tables)


def test_what_cannot_be_said_is_told(tmp_path: Path) -> None:
    def told(job: str) -> str:
        return " ".join(converted(tmp_path, job).warnings)

    assert "completion_tokens" in told(TRL)
    assert "called after dpo is taken to run TRL's" in told(SCRIPT)
    assert "as large as the trained one" in told(f"{TRL} --ref_model other/model")
    assert "LLaMA-Factory's; other code" in told(SWIFT)
    assert "all logits beside their values" in told(DPO.replace("stage: dpo", "stage: rm"))
    assert "apo_zero_unpaired" in told(f"{TRL} --loss_type apo_zero_unpaired".replace("dpo", "kto"))


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "my/model"])
def test_ligers_losses_are_not_put_beside_pairs(tmp_path: Path, model: str) -> None:
    """Of a model that the catalogue has not they were put into a plan that refused them."""
    found = converted(tmp_path, f"{TRL} --use_liger_kernel".replace("meta-llama/Llama-3.1-8B", model))
    assert found.tables["implementation"]["liger_kernel"] == ["rms_norm", "rope", "swiglu"]
    assert not [line for line in found.warnings if "Liger" in line]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (TRL.replace("dpo", "ppo"), r"\[ppo\]: training on preferences"),
        (SCRIPT.replace("dpo.py", "gkd.py"), r"\[gkd\]: training on preferences"),
        (SWIFT.replace("rlhf_type dpo", "rlhf_type ppo"), r"\[rlhf_type\]: training on preferences"),
        (DPO.replace("stage: dpo", "stage: ppo"), r"\[stage\]: training on preferences.*kto, rm"),
        (RL.replace("rl: dpo", "rl: ppo"), r"\[rl\]: training on preferences.*simpo"),
    ],
)
def test_what_is_no_pair_is_refused(tmp_path: Path, job: str, message: str) -> None:
    with pytest.raises(jc.InputError, match=message) as raised:
        converted(tmp_path, job)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("job", "loss"),
    [
        (DPO + "enable_liger_kernel: true\n", "whole"),
        (RL + "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rms_norm: true\nliger_rope: true\n"
         "liger_glu_activation: true\nliger_fused_linear_cross_entropy: true\n", "chunked"),
    ],
)  # fmt: skip
def test_ligers_kernels_of_layers_stay_beside_the_loss_of_pairs(tmp_path: Path, job: str, loss: str) -> None:
    found = converted(tmp_path, job)
    run = found.tables["implementation"]
    assert (run["liger_kernel"], run["log_probabilities"]) == (["rms_norm", "rope", "swiglu"], loss)
    assert not any("Liger" in words for words in found.warnings)


@pytest.mark.parametrize(
    ("handed", "expected"),
    [
        ("--num_processes 4", {"cluster.gpus": 4, "overlap.grad_reduce": "overlapped"}),
        ("--num_processes 16 --num_machines 4", {"cluster.gpus": 16, "cluster.gpus_per_node": 4}),
        ("--accelerate_config zero2", {"cluster.gpus": 8, "parallelism.distributed_optimizer": True}),
        ("--accelerate_config zero3 --num_processes 2", {"cluster.gpus": 2, "parallelism.fsdp": True}),
        ("--accelerate_config fsdp2", {"parallelism.fsdp": True, "implementation.parameter_precision": "fp32"}),
        ("--accelerate_config single_gpu", {"cluster.gpus": 1, "overlap.grad_reduce": None}),
        ("--accelerate_config own.yaml", {"cluster.gpus": 6, "parallelism.fsdp": True}),
    ],
)
def test_trl_hands_processes_and_a_configuration_to_accelerate(
    tmp_path: Path, handed: str, expected: dict[str, Any]
) -> None:
    own = "distributed_type: FSDP\nnum_processes: 6\nfsdp_config:\n  fsdp_reshard_after_forward: FULL_SHARD\n"
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    job = tmp_path / "job.sh"
    for command in (TRL, TRL.replace("trl dpo", "trl sft").replace(" --beta 0.1", "")):
        seen = "CUDA_VISIBLE_DEVICES=0,1,2 " if "num_processes" in handed else ""
        job.write_text(f"{seen}{command} {handed}\n", encoding="utf-8")
        found = jc.convert(job, gpu="h100-sxm")
        for key, value in expected.items():
            table, name = key.split(".")
            assert found.tables.get(table, {}).get(name) == value, key
        assert not any("not regarded" in words for words in found.warnings)


def test_a_configuration_that_trl_does_not_have_is_named_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "dpo.yaml").write_text("model_name_or_path: meta-llama/Llama-3.1-8B\n", encoding="utf-8")
    job = tmp_path / "job.sh"
    job.write_text("trl dpo --config dpo.yaml \\\n  --accelerate_config zero4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"job.sh:2 \[accelerate_config\]: no such file: zero4"):
        jc.convert(job, gpu="h100-sxm")


def test_settings_of_pairs_without_their_command_are_told(tmp_path: Path) -> None:
    alone = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 1\nmax_length: 1024\nbf16: true\n"
    )
    found = converted(tmp_path, f"{alone}beta: 0.1\nmax_prompt_length: 512\n")
    assert "objective" not in found.tables["workload"]
    assert any(words.startswith("beta, max_prompt_length: settings of training on pairs") for words in found.warnings)
    for job in (alone, DPO, f"{FACTORY}max_prompt_length: 9\n"):
        assert not any("settings of training on pairs" in words for words in converted(tmp_path, job).warnings)
