"""Switches and processes of Hugging Face's tools whose defaults, or environment, say what is forecast."""

import pytest

import joulecast as jc

SFT = "trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name x --num_processes 2"


@pytest.mark.parametrize("option", ["--no_gradient_checkpointing", "--no-gradient-checkpointing"])
def test_options_that_turn_off_what_is_on_are_read(option):
    assert jc.convert(SFT, gpu="h100-sxm").tables["schedule"] == {"recompute": "full"}
    found = jc.convert(f"{SFT} {option} --no_remove_unused_columns", gpu="h100-sxm")
    assert "schedule" not in found.tables
    assert not any("not regarded" in said for said in found.warnings)
