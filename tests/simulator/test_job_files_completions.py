"""Jobs of TRL, Axolotl and ms-swift that learn from a model's own completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.simulator.plan_file.plan import plan_from_dict
from tests.simulator.test_job_files_preferences import RL, SWIFT, converted

GRPO = (
    "trl grpo --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 4 --max_prompt_length 512 --max_completion_length 1024 --reward_funcs accuracy"
)
VLLM = f"{GRPO} --use_vllm"
AXOLOTL = RL.replace("rl: dpo", "rl: grpo\ntrl:\n  beta: 0.001\n  use_vllm: true\n  max_completion_length: 256\n"
                     "  num_generations: 2")  # fmt: skip
OWN_SWIFT = SWIFT.replace("rlhf_type dpo", "rlhf_type grpo --max_completion_length 512 --use_vllm true")


def workload(tmp_path: Path, job: str) -> dict[str, Any]:
    found = converted(tmp_path, job)
    assert not any("not regarded" in warning for warning in found.warnings), found.warnings
    plan_from_dict(found.tables)
    return dict(found.tables["workload"])


def test_lengths_are_of_prompts_and_completions(tmp_path: Path) -> None:
    found = workload(tmp_path, GRPO)
    assert (found["objective"], found["sequence_length"], found["completion_tokens"]) == ("grpo", 1536, 1024)
    assert "reference" not in found and "rollout" not in found
    assert found["global_batch_size"] == 4 * 4 * 4
    assert converted(tmp_path, GRPO).tables["implementation"]["log_probabilities"] == "chunked"


def test_a_job_without_a_prompts_length_is_asked_for_it() -> None:
    job = GRPO.replace(" --max_prompt_length 512", "")
    found = jc.convert(job, gpu="h100-sxm", gpus=4)
    assert "1024 of these" in found.missing["workload.sequence_length"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("--beta 0.04", {"reference": "copy"}),
        ("--beta 0.04 --use_peft", {"reference": "adapters-off"}),
        ("--beta 0.0", {"reference": None, "old_log_probabilities": None}),
        ("--num_iterations 2", {"num_iterations": 2, "old_log_probabilities": True}),
        ("--steps_per_generation 8", {"old_log_probabilities": True}),
        ("--steps_per_generation 4", {"old_log_probabilities": None}),
        ("--use_vllm", {"old_log_probabilities": True, "rollout": {"num_generations": 8}}),
        (
            "--use_vllm --num_generations 4 --generation_batch_size 128",
            {"rollout": {"num_generations": 4, "generation_batch_size": 128}},
        ),
        ("--use_vllm --vllm_enable_sleep_mode", {"rollout": {"num_generations": 8, "enable_sleep_mode": True}}),
        ("--use_vllm --vllm_mode server", {"old_log_probabilities": True, "rollout": None}),
    ],
)
def test_who_scores_and_generates_is_read(tmp_path: Path, changes: str, expected: dict[str, Any]) -> None:
    found = workload(tmp_path, f"{GRPO} {changes}")
    assert {key: found.get(key) for key in expected} == expected


def test_rloo_weighs_and_scores_by_default(tmp_path: Path) -> None:
    found = workload(tmp_path, GRPO.replace("trl grpo", "trl rloo"))
    assert (found["objective"], found["reference"], found["old_log_probabilities"]) == ("grpo", "copy", True)


def test_axolotl_has_trls_settings_in_a_table(tmp_path: Path) -> None:
    found = workload(tmp_path, AXOLOTL)
    assert (found["reference"], found["completion_tokens"]) == ("copy", 256)
    assert found["rollout"] == {"num_generations": 2}


def test_ms_swift_has_them_beside_its_own(tmp_path: Path) -> None:
    found = workload(tmp_path, OWN_SWIFT)
    assert (found["reference"], found["sequence_length"], found["completion_tokens"]) == ("adapters-off", 2048, 512)
    assert any("as TRL 1.16 makes them" in words for words in converted(tmp_path, OWN_SWIFT).warnings)


def test_what_cannot_be_said_is_told(tmp_path: Path) -> None:
    def told(job: str) -> str:
        return " ".join(converted(tmp_path, job).warnings)

    assert "transformers' own loop is not forecast" in told(GRPO)
    assert "vllm_mode: other GPUs generate" in told(f"{VLLM} --vllm_mode server")
    assert "whole engine, not 2" in told(f"{VLLM} --vllm_tensor_parallel_size 2")
    assert "the most there may be" in told(VLLM)
    with pytest.raises(jc.InputError, match=r"\[vllm_mode\].*serve"):
        told(f"{VLLM} --vllm_mode serve")
