"""torchtitan's configurations as plans."""

import tomllib

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.plan_file.plan import plan_from_dict

JOB = """
[job]
dump_folder = "outputs"

[model]
name = "llama3"
flavor = "70B"   # of four
converters = []

[optimizer]
name = "AdamW"
lr = 1e-4

[training]
local_batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 500

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8

[activation_checkpoint]
mode = "full"

[compile]
enable = true
"""


def convert(tmp_path, text=JOB, **options):
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", "gpus": 64, **options})


def test_a_job_is_the_plan_that_one_would_write(tmp_path):
    by_hand = {
        "workload": {
            "model": "llama-3.1-70b",
            "sequence_length": 8192,
            "micro_batch_size": 2,
            "global_batch_size": 16,
            "precision": "bf16",
            "training_tokens": 500.0 * 16 * 8192,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 64},
        "parallelism": {"tensor_model_parallel_size": 8, "sequence_parallel": True, "fsdp": True},
        "schedule": {"name": "none", "recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "attention_backend": "flash-attention-2",
            "modules": "torchtitan",
            "compile": True,
            "parameter_precision": "fp32",
            "gradient_clipping": True,
        },
    }
    found = convert(tmp_path)
    assert found.tables == by_hand
    assert found.passed_over == ("job", "optimizer.lr") and found.warnings == ()
    assert "# parallelism.tensor_parallel_degree (line 23)" in found.text
    assert jc.predict(tomllib.loads(found.text)).to_dict() == jc.predict(by_hand).to_dict()


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("replicate_degree = 1", "replicate_degree = 2", "parallelism.fsdp_shard_size", 4),
        ("tensor_parallel_degree = 8", "context_parallel_degree = 4", "parallelism.cp_comm_type", "all_gather"),
        ('mode = "full"', 'mode = "selective"', "schedule.recompute_interval", 2),
        ('mode = "full"', 'mode = "selective"\nselective_ac_option = "4"', "schedule.recompute_interval", 4),
        ('mode = "full"', 'mode = "selective"\nselective_ac_option = "op"', "schedule.recompute", "operators"),
        ('mode = "full"', 'mode = "none"', "schedule.recompute", None),
        ("steps = 500", "steps = 500\nglobal_batch_size = 64", "workload.global_batch_size", 64),
        ('name = "AdamW"', 'name = "AdamW"\nimplementation = "for-loop"', "implementation.optimizer", "adamw-for-loop"),
        ("tensor_parallel_degree = 8", "pipeline_parallel_degree = 2", "workload.micro_batch_size", 1),
        ("tensor_parallel_degree = 8", "pipeline_parallel_degree = 4", "parallelism.stage_layers", [20, 21, 20, 19]),
    ],
)
def test_keys_of_a_job(tmp_path, old, new, key, expected):
    found = convert(tmp_path, JOB.replace(old, new)).tables
    table, name = key.split(".")
    assert found[table].get(name) == expected


def test_interleaved_stages_are_shared_out(tmp_path):
    text = JOB.replace(
        "tensor_parallel_degree = 8", 'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"'
    )
    text = text.replace("local_batch_size = 2", "local_batch_size = 8")
    found = convert(tmp_path, text)
    assert found.tables["schedule"]["name"] == "Interleaved1F1B"
    assert found.tables["parallelism"]["virtual_pipeline_model_parallel_size"] == 2
    assert sum(found.tables["parallelism"]["stage_layers"]) == 80
    assert found.tables["parallelism"]["fsdp_reshard_after_forward"] is False and not found.warnings


def test_float8_runs_in_torchtitans_layers(tmp_path):
    text = JOB.replace("converters = []", 'converters = ["float8"]').replace("tensor_parallel_degree = 8", "")
    found = convert(tmp_path, text + '[float8]\nrecipe_name = "rowwise"\nfilter_fqns = ["output"]\n')
    assert (found.tables["workload"]["precision"], found.tables["workload"]["fp8_recipe"]) == ("fp8", "rowwise")
    assert found.tables["implementation"]["modules"] == "torchtitan"


def test_fsdp_gathers_in_float8(tmp_path):
    text = JOB.replace("converters = []", 'converters = ["float8"]')
    gathered = (
        text + "[float8]\nenable_fsdp_float8_all_gather = true\nprecompute_float8_dynamic_scale_for_fsdp = true\n"
    )
    assert "fp8_param_gather" not in convert(tmp_path, text).tables["workload"]
    found = convert(tmp_path, gathered)
    assert found.tables["workload"]["fp8_param_gather"] is True and not found.warnings


def test_a_model_of_experts(tmp_path):
    text = JOB.replace('"llama3"', '"qwen3"').replace('"70B"', '"30B-A3B"').replace("enable = true", "")
    text = text.replace("tensor_parallel_degree = 8", "expert_parallel_degree = 8")
    found = convert(tmp_path, text, gpus=8)
    assert found.tables["workload"]["model"] == "qwen3-30b-a3b"
    assert found.tables["implementation"]["moe_row_operator"] == "scatter_add"


@pytest.mark.parametrize(
    ("components", "compiled"),
    [('["model", "loss"]', True), ('["model"]', True), ('["loss"]', None), ('"loss"', None), ("[]", None)],
)
def test_what_is_compiled_may_be_the_loss_alone(tmp_path, components, compiled):
    found = convert(tmp_path, f"{JOB}components = {components}\n")
    assert found.tables["implementation"].get("compile") is compiled
    assert any("the loss alone is compiled" in told for told in found.warnings) is (
        "loss" in components and not compiled
    )
    experts = JOB.replace('"llama3"', '"qwen3"').replace('"70B"', '"30B-A3B"')
    experts = experts.replace("tensor_parallel_degree = 8", "expert_parallel_degree = 8")
    assert not convert(tmp_path, f'{experts}components = ["loss"]\n', gpus=8).missing


def test_degrees_say_how_many_gpus_there_are(tmp_path):
    text = JOB.replace("shard_degree = -1", "shard_degree = 4")
    assert convert(tmp_path, text, gpus=None).tables["cluster"]["gpus"] == 32
    assert list(convert(tmp_path, gpus=None).missing) == ["cluster.gpus", "workload.global_batch_size"]


def test_degrees_that_a_job_does_not_name_are_torchtitans(tmp_path):
    """One copy, shards over what is left."""
    text = "".join(line for line in JOB.splitlines(keepends=True) if "data_parallel" not in line)
    for gpus in (None, 64):
        bare, named = convert(tmp_path, text, gpus=gpus), convert(tmp_path, gpus=gpus)
        assert (bare.tables, set(bare.missing)) == (named.tables, set(named.missing))


def test_a_job_is_known_by_its_tables_where_its_model_is_said_beside_it(tmp_path):
    head, model, rest = JOB.partition("[model]")
    text = head + rest[rest.index("[optimizer]") :]
    assert model and convert(tmp_path, text, model="llama-3.1-70b").tables["workload"]["model"] == "llama-3.1-70b"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "seq_len = 8192",
            "seq_length = 8192",
            r"job.toml:16 \[training.seq_length\]: there is no such key.*'seq_len'",
        ),
        ("seq_len = 8192", 'seq_len = "8192"', r"job.toml:16 \[training.seq_len\].*is not a whole number"),
        ("seq_len = 8192", "seq_len = 0", r"0 is below 1"),
        ('mode = "full"', 'mode = "ful"', r"\[activation_checkpoint.mode\].*Did you mean 'full'"),
        ('"70B"', '"71B"', r"\[model.flavor\].*no model for flavor '71B'.*model"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 5", r"64 GPUs cannot be split"),
        ("shard_degree = -1", "shard_degree = 3", r"8 data-parallel ranks are not 1 copies of 3 shards"),
        ("steps = 500", "enable_cpu_offload = true", r"training.enable_cpu_offload.*host"),
        ('name = "AdamW"', 'name = "Muon"', r"optimizer.name.*Muon are not known"),
        ("converters = []", 'converters = ["mx"]', r"model.converters.*'mx' is not known"),
        ("[training]", "[trainig]", r"no job that is known"),
        ("[training]", "[training", r"not valid TOML"),
    ],
)
def test_bad_jobs_get_one_line_that_says_where(tmp_path, old, new, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, JOB.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("degree", "dtype", "precision"), [(8, "float32", "fp32"), (1, "float32", "bf16"), (8, "bfloat16", "bf16")]
)
def test_precision_is_mixed_by_fsdp_or_plain_ddp_alone(tmp_path, degree, dtype, precision):
    """Without FSDP torchtitan mixes none beside tensor or pipeline parallelism."""
    text = JOB.replace("shard_degree = -1", "shard_degree = 1").replace("replicate_degree = 1", "replicate_degree = 8")
    text = text.replace("tensor_parallel_degree = 8", f"tensor_parallel_degree = {degree}")
    text = text.replace("enable = true", f"enable = {str(precision == 'bf16').lower()}")  # which fp32 is not known of
    found = convert(tmp_path, text.replace("[training]", f'[training]\ndtype = "{dtype}"'), gpus=8 * degree)
    assert found.tables["workload"]["precision"] == precision
    assert found.tables["overlap"] == {"grad_reduce": "overlapped"}


def test_degrees_that_leave_no_shards_are_plain_copies(tmp_path):
    text = JOB.replace("replicate_degree = 1", "replicate_degree = 8").replace("tensor_parallel_degree = 8", "")
    found = convert(tmp_path, text, gpus=8)
    assert "parallelism" not in found.tables and found.tables["overlap"] == {"grad_reduce": "overlapped"}


def test_accumulated_batches_of_a_pipeline_are_told(tmp_path):
    text = JOB.replace("tensor_parallel_degree = 8", "pipeline_parallel_degree = 2")
    accumulated = convert(tmp_path, text.replace("steps = 500", "steps = 500\nglobal_batch_size = 256"))
    assert any("drains the pipeline anew" in warning for warning in accumulated.warnings)
    assert not convert(tmp_path, text).warnings


def test_a_folded_pipeline_by_torchtitans_name(tmp_path):
    """Of copies alone: with sharded parameters the plan is refused, and the message names the job's key."""
    text = JOB.replace(
        "tensor_parallel_degree = 8", 'pipeline_parallel_degree = 8\npipeline_parallel_schedule = "ZBVZeroBubble"'
    )
    text = text.replace("local_batch_size = 2", "local_batch_size = 16").replace("enable = true", "")
    with pytest.raises(jc.InputError, match=r"pipeline_parallel_schedule.*does not go with FSDP"):
        convert(tmp_path, text)
    text = text.replace("shard_degree = -1", "shard_degree = 1").replace("replicate_degree = 1", "replicate_degree = 8")
    found = convert(tmp_path, text)
    assert found.tables["schedule"]["name"] == "ZBVZeroBubble"
    assert found.tables["parallelism"]["virtual_pipeline_model_parallel_size"] == 2


@pytest.mark.parametrize(
    ("ending", "backend"), [("_flex", "flex"), ("_flex_attn", "flex"), ("_varlen", "flash-attention-2")]
)
def test_flavors_that_keep_documents_apart_ask_for_their_lengths(tmp_path, ending, backend):
    found = convert(tmp_path, JOB.replace('"70B"', f'"70B{ending}"'))
    assert found.tables["workload"]["model"] == "llama-3.1-70b"
    assert found.tables["implementation"]["attention_backend"] == backend
    assert any("workload.document_tokens=TOKENS" in warning for warning in found.warnings)
    found.tables["workload"]["document_tokens"] = 900
    assert plan_from_dict(found.tables).workload.packed.documents is not None


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("torchrun --nproc_per_node=8 --nnodes=2 -m torchtitan.train --job.config_file job.toml", 16),
        ("torchrun --nproc_per_node=8 torchtitan/train.py --job.config-file=job.toml", 8),
        ("NGPU=16 CONFIG_FILE=./job.toml ./run_train.sh", 16),
        ("CONFIG_FILE=job.toml bash run_train.sh", 8),
    ],
)
def test_a_command_names_a_configuration_over_which_its_options_win(tmp_path, command, gpus):
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    (tmp_path / "job.sh").write_text(
        f"{command} --training.seq_len 4096 --model.converters quantize.linear.float8\n", encoding="utf-8"
    )
    found = jc.convert(tmp_path / "job.sh", gpu="h100-sxm")
    assert found.tables["cluster"]["gpus"] == gpus
    assert found.tables["workload"]["sequence_length"] == 4096
    assert found.tables["workload"]["micro_batch_size"] == 2
    assert found.tables["workload"]["precision"] == "fp8"
    assert found.sources["workload.micro_batch_size"].startswith("job.toml:")
    assert not any("not known" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("torchrun --nproc_per_node=8 -m torchtitan.train", "torchtitan is started without a TOML"),
        ("CONFIG_FILE=other.toml ./run_train.sh", "no such file: other.toml"),
        ("./run_train.sh", "starts no training job that is known"),
    ],
)
def test_a_command_without_a_configuration_is_refused(command, what):
    with pytest.raises(InputError, match=what):
        jc.convert(f"{command} --training.seq_len 4096", gpu="h100-sxm")
