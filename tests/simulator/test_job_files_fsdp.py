"""Gradients of accumulated micro-batches under FSDP, as jobs of Hugging Face's trainers have them."""

import pytest

import joulecast as jc

COMMON = " train.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 4096 --bf16 --per_device_train_batch_size 1"
COMMON += " --gradient_accumulation_steps 4"
EACH = """ --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'"""


@pytest.mark.parametrize("own", ["", EACH])
@pytest.mark.parametrize("by", ["trainer", "accelerate"])
def test_they_add_up_whole_unless_told_otherwise(tmp_path, by, own):
    job, option = "torchrun --nproc_per_node 8", " --fsdp full_shard"
    if by == "accelerate":
        (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {}\n")
        job, option = f"accelerate launch --config_file {tmp_path}/fsdp.yaml", ""
    found = jc.convert(job + COMMON + option + own, gpu="h200-sxm")
    whole = {} if own else {"fsdp_sync_each_batch": False}
    assert found.tables["parallelism"] == {"fsdp": True, **whole}
    assert "accelerator_config" not in " ".join(found.warnings)
    gradients = jc.predict(found.tables).to_dict()["stages"][0]["memory_by_part_bytes"]["gradients"]
    assert gradients == pytest.approx(8.19e9 * (4 / 8 if own else 2), rel=0.1)


def test_deepspeed_splits_those_of_every_micro_batch(tmp_path):
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
    )
    found = jc.convert(f"accelerate launch --config_file {tmp_path}/acc.yaml{COMMON}", gpu="h200-sxm")
    assert found.tables["parallelism"] == {"fsdp": True}
