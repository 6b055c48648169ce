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


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ("NPROC_PER_NODE=8", 8),
        ("NNODES=2 NPROC_PER_NODE=8", 16),
        ("NNODES=2 CUDA_VISIBLE_DEVICES=0,1,2,3", 8),
        ("CUDA_VISIBLE_DEVICES=0,1", 2),
        ("NNODES=2", None),
        ("FORCE_TORCHRUN=1", None),
    ],
)
def test_llama_factory_starts_what_its_environment_says(tmp_path, environment, gpus):
    (tmp_path / "job.yaml").write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nbf16: true\n")
    (tmp_path / "job.sh").write_text(f"{environment} llamafactory-cli train job.yaml\n")
    found = jc.convert(tmp_path / "job.sh", gpu="h100-sxm")
    assert found.tables["cluster"].get("gpus") == gpus
    assert found.tables["workload"].get("global_batch_size") == (gpus and 8 * gpus)
    assert ("cluster.gpus" in found.missing) is (gpus is None)


@pytest.mark.parametrize(
    ("launcher", "told"),
    [("python", True), ("uv run python3 -u", True), ("torchrun --nproc_per_node 4", False), ("srun python", False)],
)
@pytest.mark.parametrize(("seen", "asked"), [("CUDA_VISIBLE_DEVICES=0,1,2,3 ", {}), ("", {"gpus": 4})])
def test_one_process_with_several_gpus_is_told(launcher, told, seen, asked):
    job = "train.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 2048 --per_device_train_batch_size 1 --bf16"
    found = jc.convert(f"{seen}{launcher} {job}", gpu="h100-sxm", **asked)
    assert found.tables["cluster"]["gpus"] == 4
    assert any("DataParallel" in said for said in found.warnings) is told
    sharded = jc.convert(f"{seen}{launcher} {job} --fsdp full_shard", gpu="h100-sxm", **asked)
    assert any("one GPU alone" in said for said in sharded.warnings) is told


@pytest.mark.parametrize(
    ("said", "workers"), [("", 8), ("dataloader_num_workers: 2", 2), ("dataloader_pin_memory: true", 0)]
)
def test_axolotl_reads_data_in_as_many_workers_as_there_are_processes(tmp_path, said, workers):
    (tmp_path / "job.yml").write_text(f"base_model: Qwen/Qwen3-8B\nbf16: true\n{said}\n")
    found = jc.convert(tmp_path / "job.yml", gpu="h100-sxm", gpus=8)
    assert found.tables["implementation"]["dataloader_num_workers"] == workers


@pytest.mark.parametrize("name", ["max_seq_length", "max_length"])
@pytest.mark.parametrize("start", ["trl sft", "trl dpo", "accelerate launch dpo.py", "accelerate launch sft.py"])
def test_lengths_are_read_by_any_name(start, name):
    job = f"{start} --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --{name} 4096"
    found = jc.convert(job, gpu="h100-sxm", gpus=2)
    assert found.tables["workload"]["sequence_length"] == 4096
    assert found.sources["workload.sequence_length"].startswith(name)


def test_trls_own_length_counts_where_none_is_given():
    found = jc.convert(SFT, gpu="h100-sxm")
    assert found.sources["workload.sequence_length"] == "default without max_length"


@pytest.mark.parametrize(("script", "on"), [("sft.py", True), ("train.py", False)])
def test_a_script_of_trls_trainer_has_what_its_configuration_has_on(script, on):
    job = f"accelerate launch --num_processes 2 {script} --model_name_or_path Qwen/Qwen3-8B --max_length 1024 "
    job += "--per_device_train_batch_size 1"
    found = jc.convert(job, gpu="h100-sxm")
    assert found.tables["workload"]["precision"] == ("bf16" if on else "fp32")
    assert ("schedule" in found.tables) is on
    assert any("nothing says bf16 or fp16" in said for said in found.warnings) is not on
    off = jc.convert(f"{job} --bf16 false --fp16 true --gradient_checkpointing false", gpu="h100-sxm")
    assert "schedule" not in off.tables and off.tables["workload"]["precision"] == "fp16"


@pytest.mark.parametrize(
    ("more", "early"),
    [
        ("", False),
        ("gradient_checkpointing_kwargs:\n  use_reentrant: false\n", True),
        ("gradient_checkpointing_kwargs:\n  use_reentrant: true\n", False),
        ("rl: dpo\n", True),
    ],
)
def test_axolotl_computes_layers_again_to_their_end(tmp_path, more, early):
    (tmp_path / "job.yml").write_text(
        "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"
        f"gradient_checkpointing: true\n{more}"
    )
    found = jc.convert(tmp_path / "job.yml", gpu="h100-sxm", gpus=1)
    assert found.tables["schedule"]["recompute"] == "full"
    assert found.tables["schedule"].get("recompute_stops_early", True) is early


def test_settings_inside_a_program_are_said_not_to_be_read(tmp_path):
    (tmp_path / "qlora.py").write_text("args = SFTConfig(per_device_train_batch_size=4)\n")
    with pytest.raises(jc.InputError, match=r"this is Python, which is not read.*--per_device_train_batch_size"):
        jc.convert(tmp_path / "qlora.py")
    (tmp_path / "job.sh").write_text("cd work\naccelerate launch --num_processes 2 qlora.py\n")
    with pytest.raises(jc.InputError, match=r"job.sh:2.*qlora.py is started without settings.*--model_name_or_path"):
        jc.convert(tmp_path / "job.sh")


def test_what_set_answers_is_no_longer_told(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 4096\npacking: true\n"
        "neat_packing: true\nbf16: true\nflash_attn: fa2\n"
    )
    plain = jc.convert(tmp_path / "job.yaml", gpu="h100-sxm", gpus=1)
    assert [said.partition(":")[0] for said in plain.warnings] == ["neat_packing"]
    answered = ["workload.document_tokens=400", "workload.document_packing=whole"]
    assert jc.convert(tmp_path / "job.yaml", gpu="h100-sxm", gpus=1, overrides=answered).warnings == ()
