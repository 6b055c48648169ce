"""DeepSpeed's configurations as plans."""

import json
import tomllib

import pytest

import joulecast as jc
from joulecast.errors import InputError

JOB = {
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "none"},
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "contiguous_gradients": True,
    },
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 4,
    "steps_per_print": 10,
}
LENGTH = "workload.sequence_length=4096"


def convert(tmp_path, changes=None, overrides=(LENGTH,), **options):
    tables = json.loads(json.dumps(JOB))
    for key, value in (changes or {}).items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(tables, indent=1), encoding="utf-8")
    given = {"gpu": "h100-sxm", "gpus": 8, "model": "llama-3.1-8b", **options}
    return jc.convert(path, overrides=overrides, **given)


def test_a_job_is_the_plan_that_one_would_write(tmp_path):
    by_hand = {
        "workload": {
            "model": "llama-3.1-8b",
            "micro_batch_size": 4,
            "global_batch_size": 64,
            "precision": "bf16",
            "sequence_length": 4096,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "transformers",
            "attention_backend": "cudnn",
            "gradient_clipping": True,
            "parameter_precision": "fp32",
            "gradient_precision": "bf16",
        },
    }
    found = convert(tmp_path, overrides=(LENGTH, "schedule.recompute=full"))
    assert found.tables == by_hand
    assert "# zero_optimization.stage (line 12)" in found.text
    assert set(found.passed_over) == {
        "optimizer.params",
        "zero_optimization.contiguous_gradients",
        "steps_per_print",
    }
    assert jc.predict(tomllib.loads(found.text)).to_dict() == jc.predict(by_hand).to_dict()


def test_what_a_script_says_is_missing(tmp_path):
    found = convert(tmp_path, overrides=(), model=None, gpus=None)
    wanted = {"workload.model", "workload.sequence_length", "cluster.gpus", "workload.global_batch_size"}
    assert set(found.missing) == wanted


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"train_batch_size": 128}, "workload.global_batch_size", 128),
        (
            {"train_batch_size": 128, "train_micro_batch_size_per_gpu": "auto"},
            "workload.micro_batch_size",
            8,
        ),
        ({"zero_optimization.stage": 2}, "parallelism.distributed_optimizer", True),
        ({"zero_optimization.stage": 1}, "overlap.grad_reduce", "overlapped"),
        (
            {"zero_optimization.stage": 1, "zero_optimization.reduce_bucket_size": 2**28},
            *("overlap.grad_bucket_mb", 512.0),
        ),
        (
            {"zero_optimization.stage": 1, "zero_optimization.reduce_bucket_size": 2**28, "bf16": "auto"},
            *("overlap.grad_bucket_mb", 1024.0),  # in fp32
        ),
        ({"zero_optimization": {"stage": 2, "overlap_comm": True}}, "overlap.grad_bucket_mb", 2 * 5e8 / 2**20),
        ({"zero_optimization.stage": 2}, "overlap.grad_bucket_mb", 2 * 4096**2 / 2**20),  # auto
        ({"zero_optimization": {"stage": 2, "overlap_comm": False}}, "overlap.grad_bucket_mb", None),
        ({"zero_optimization.stage": 0}, "overlap.grad_reduce", None),
        ({"zero_optimization.overlap_comm": False}, "overlap.fsdp_prefetch", False),
        ({"bf16.enabled": False}, "workload.precision", None),
        ({"gradient_clipping": 0}, "implementation.gradient_clipping", False),
        ({"zero_optimization.stage": 2}, "implementation.main_parameters", True),
        ({"zero_optimization.stage": 0}, "implementation.main_parameters", True),
        ({}, "implementation.main_parameters", None),
        ({}, "implementation.gradient_precision", "bf16"),
        ({"communication_data_type": "fp32"}, "implementation.gradient_precision", None),
        ({"zero_optimization.stage": 2}, "implementation.gradient_precision", None),
    ],
)
def test_keys_of_a_job(tmp_path, changes, key, expected):
    found = convert(tmp_path, changes).tables
    table, name = key.split(".")
    assert found.get(table, {}).get(name) == expected


def test_zero_without_a_stage_splits_nothing(tmp_path):
    """As DeepSpeed's documentation has it: stage 0 is the default, and disables ZeRO."""
    plain = convert(tmp_path, {"zero_optimization": {}}).tables
    assert "parallelism" not in plain
    assert plain == convert(tmp_path, {"zero_optimization": {"stage": 0}}).tables


@pytest.mark.parametrize(("stage", "warned"), [(0, False), (1, False), (2, True), (3, False)])
def test_gradients_that_the_second_stage_splits_are_told(tmp_path, stage, warned):
    found = convert(tmp_path, {"zero_optimization.stage": stage})
    assert any("as at stage 1" in warning for warning in found.warnings) is warned


@pytest.mark.parametrize(("stage", "kind", "warned"), [(2, "fp32", True), (2, "bf16", False), (3, "fp32", False)])
def test_gradients_that_are_reduced_in_another_type_are_told(tmp_path, stage, kind, warned):
    """Of stage 3 a key says it."""
    found = convert(tmp_path, {"zero_optimization.stage": stage, "communication_data_type": kind})
    assert any("communication_data_type" in warning for warning in found.warnings) is warned


@pytest.mark.parametrize(
    ("stage", "kind", "warned"), [(0, None, True), (2, None, False), (2, "fp32", True), (2, "bf16", False)]
)
def test_gradients_that_are_added_up_in_fp32_are_told(tmp_path, stage, kind, warned):
    changes = {"zero_optimization.stage": stage} | ({"data_types.grad_accum_dtype": kind} if kind else {})
    told = [words for words in convert(tmp_path, changes).warnings if "4 bytes a parameter" in words]
    assert bool(told) == warned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"zero_optimization.offload_optimizer.device": "cpu"},
            r"offload_optimizer.device\]: what is kept on the host",
        ),
        ({"zero_optimization.stag": 3}, r"zero_optimization.stag\]: there is no such key.*'stage'"),
        ({"zero_optimization.stage": 4}, r"ds.json:12 .*no stage 4"),
        ({"zero_optimization.stage": "3"}, r"'3' is not a whole number"),
        ({"optimizer.type": "Lion"}, r"optimizer.type.*Lion are not known"),
        ({"fp16.enabled": True}, r"both enabled"),
        ({"train_batch_size": 100}, r"train_batch_size.*global batch of 100 cannot be split"),
        ({"amp": {"enabled": True, "opt_level": "O1"}}, r"amp.enabled.*apex is not known.*bf16"),
        ({"tensor_parallel.autotp_size": 2}, r"autotp_size.*not known"),
    ],
)
def test_bad_jobs_get_one_line_that_says_where(tmp_path, changes, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama"}', "a model's configuration, not a job's.*its model with model"),
        ("[1]", "no job that is known"),
        ("{", "not valid JSON"),
    ],
)
def test_files_of_other_kinds(tmp_path, text, message):
    path = tmp_path / "ds.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(jc.InputError, match=message):
        jc.convert(path)


COMMAND = "deepspeed --num_gpus 8 main.py --model_name_or_path meta-llama/Llama-2-7b-hf --max_seq_len 512"


def test_scripts_may_switch_deepspeed_on_and_say_its_stage():
    found = jc.convert(f"{COMMAND} --dtype bf16 --zero_stage 3 --deepspeed --gradient_checkpointing", gpu="h100-sxm")
    assert found.tables["parallelism"]["fsdp"] is True
    assert found.missing == {} and not any("not regarded" in warning for warning in found.warnings)
    with pytest.raises(InputError, match="nothing says which of ZeRO's stages"):
        jc.convert(f"{COMMAND} --bf16 --deepspeed", gpu="h100-sxm")
    with pytest.raises(InputError, match=r"\[offload\]: what is kept on the host"):
        jc.convert(f"{COMMAND} --bf16 --zero_stage 3 --deepspeed --offload", gpu="h100-sxm")


def test_scripts_may_switch_deepspeed_on_and_name_its_configuration(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(JOB), encoding="utf-8")
    (tmp_path / "job.sh").write_text(f"{COMMAND} --bf16 --deepspeed --deepspeed_config ds.json\n", encoding="utf-8")
    found = jc.convert(tmp_path / "job.sh", gpu="h100-sxm")
    assert found.sources["parallelism.fsdp"].startswith("ds.json")


@pytest.mark.parametrize("name", ["ds_configs/stage3_no_offloading_accelerate.conf", "zero3-no-offload.json"])
def test_a_configuration_that_is_not_here_may_be_known_by_its_name(name):
    job = f"accelerate launch --num_processes 8 --use_deepspeed --deepspeed_config_file {name} x.py"
    job += " --model_name_or_path meta-llama/Llama-2-7b-hf --max_seq_length 512 --bf16"
    found = jc.convert(job, gpu="h100-sxm")
    assert found.tables["parallelism"]["fsdp"] is True
    assert any("by its name it is ZeRO's stage 3" in warning for warning in found.warnings)
    with pytest.raises(InputError, match="what is kept on the host"):
        jc.convert(job.replace("no_offloading", "offloading").replace("no-offload", "offload"), gpu="h100-sxm")
