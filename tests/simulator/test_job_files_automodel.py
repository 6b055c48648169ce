"""NeMo AutoModel's recipes as plans."""

import pytest

import joulecast as jc
from joulecast.errors import InputError, JoulecastError
from joulecast.simulator.plan_file.plan import plan_from_dict

JOB = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 64
  local_batch_size: 4
  max_steps: 200
  ckpt_every_steps: 50
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-8B
  torch_dtype: bf16
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 1
  activation_checkpointing: true
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
dataset:
  _target_: nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset
  seq_length: 4096
dataloader:
  num_workers: 4
optimizer:
  _target_: torch.optim.AdamW
  fused: true
"""
LORA = """peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: ["*.self_attn.q_proj", "*.v_proj"]
  dim: 16
"""
EIGHT_BITS = "fp8:\n  enabled: true\n  enable_fsdp_float8_all_gather: true\n"


def convert(tmp_path, *changes, job=JOB, **options):
    for old, new in changes:
        assert old in job
        job = job.replace(old, new)
    path = tmp_path / "job.yaml"
    path.write_text(job, encoding="utf-8")
    found = jc.convert(path, **{"gpu": "h100-sxm", "gpus": 8, **options})
    if not found.missing:
        plan_from_dict(dict(found.tables), "converted")
    return found


def test_a_job_is_the_plan_that_one_would_write(tmp_path):
    found = convert(tmp_path)
    assert found.tables == {
        "workload": {
            "model": "qwen3-8b",
            "sequence_length": 4096,
            "micro_batch_size": 4,
            "global_batch_size": 64,
            "precision": "bf16",
            "training_tokens": 200.0 * 64 * 4096,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"fsdp": True, "fsdp_sync_each_batch": False},
        "schedule": {"recompute": "full", "recompute_stops_early": False},
        "implementation": {
            "framework": "pytorch-eager",
            "attention_backend": "cudnn",
            "modules": "transformers",
            "gradient_clipping": True,
        },
    }
    assert [said.split(":")[0] for said in found.warnings] == [
        "samples are not packed",
        "distributed.mp_policy.reduce_dtype",
        "forecast without what AutoModel takes where it is installed",
    ]
    assert "dataloader" in found.passed_over


TWO = "tp_size: 2\n  pp_size: 2\n  sequence_parallel: true\n  pipeline:\n    pp_schedule: interleaved1f1b"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [("tp_size: 1", TWO), ("local_batch_size: 4", "local_batch_size: 8")],
            {
                "parallelism.tensor_model_parallel_size": 2,
                "parallelism.sequence_parallel": True,
                "parallelism.virtual_pipeline_model_parallel_size": 2,
                "parallelism.fsdp_reshard_after_forward": False,
                "parallelism.fsdp_sync_each_batch": None,
                "schedule.name": "interleaved1f1b",
                "workload.micro_batch_size": 1,
            },
        ),
        (
            [("tp_size: 1", "cp_size: 2\n  dp_replicate_size: 2"), ("checkpointing: true", "checkpointing: selective")],
            {
                "parallelism.context_parallel_size": 2,
                "parallelism.cp_comm_type": "all_gather",
                "parallelism.fsdp_shard_size": 4,
                "schedule.recompute": "operators",
                "implementation.attention_backend": "flash-attention-2",
                "implementation.modules": "torchtitan",
            },
        ),
        (
            [("strategy: fsdp2", "strategy: ddp")],
            {"parallelism": None, "overlap.grad_reduce": "overlapped", "workload.precision": "bf16"},
        ),
        (
            [("strategy: fsdp2", "_target_: nemo_automodel.components.distributed.ddp.DDPManager")],
            {"parallelism": None, "overlap.grad_reduce": "overlapped"},
        ),
        (
            [("torch_dtype: bf16", "torch_dtype: float32")],
            {"workload.precision": "bf16", "implementation.parameter_precision": "fp32"},
        ),
        (
            [("torch_dtype: bf16", "torch_dtype: float32"), ("tp_size: 1", "mp_policy:\n    reduce_dtype: bfloat16")],
            {"implementation.parameter_precision": "fp32", "implementation.gradient_precision": "bf16"},
        ),
        ([("tp_size: 1", "defer_fsdp_grad_sync: false")], {"parallelism": {"fsdp": True}}),
        (
            [("loss_fn:", f"{LORA}loss_fn:"), ("masked_ce.MaskedCrossEntropy", "linear_ce.FusedLinearCrossEntropy")],
            {
                "workload.lora": {
                    "rank": 16,
                    "target_modules": ["q_proj", "v_proj"],
                    "dropout": 0.0,
                    "precision": "bf16",
                },
                "implementation.log_probabilities": "chunked",
            },
        ),
        (
            [("loss_fn:", f"{EIGHT_BITS}compile:\n  enabled: true\nloss_fn:")],
            {
                "workload.precision": "fp8",
                "workload.fp8_recipe": "tensorwise",
                "workload.fp8_param_gather": True,
                "implementation.compile": True,
                "implementation.modules": "torchtitan",
            },
        ),
        (
            [("dataset:", "packed_sequence:\n  packed_sequence_size: 8192\ndataset:")],
            {"workload.sequence_length": 8192, "implementation.attention_backend": "flash-attn-2"},
        ),
        (
            [("torch_dtype: bf16", "torch_dtype: bf16\n  use_liger_kernel: true\n  attn_implementation: eager")],
            {
                "implementation.liger_kernel": ["rms_norm", "rope", "swiglu"],
                "implementation.attention_backend": "unfused",
            },
        ),
        (
            [("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"), ("tp_size: 1", "ep_size: 8")],
            {"parallelism.expert_model_parallel_size": 8, "implementation.modules": "joint"},
        ),
        (
            [("Qwen/Qwen3-8B", "meta-llama/Llama-3.2-1B")],
            {"schedule": {"recompute": "full"}, "implementation.modules": "transformers"},
        ),
    ],
)
def test_settings_become_keys(tmp_path, changes, expected):
    found = convert(tmp_path, *changes)
    for key, value in expected.items():
        table = found.tables
        for name in key.split("."):
            table = (table or {}).get(name)
        assert table == value, key


@pytest.mark.parametrize(
    "command",
    [
        "automodel finetune llm -c job.yaml --nproc-per-node 4 --step_scheduler.local_batch_size 2",
        "automodel job.yaml --nproc-per-node=4 --step_scheduler.local_batch_size=2",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 am job.yaml --step_scheduler.local_batch_size=2",
        "torchrun --nproc-per-node=4 examples/llm_finetune/finetune.py --config job.yaml "
        "--step_scheduler.local_batch_size 2",
        "uv run torchrun --nproc-per-node 4 -m nemo_automodel.cli.app job.yaml --step_scheduler.local_batch_size 2",
    ],
)
def test_commands_name_a_recipe_over_which_their_options_win(tmp_path, command):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "job.sh").write_text(f"{command}\n")
    found = jc.convert(tmp_path / "job.sh", gpu="h100-sxm")
    assert not found.missing
    assert found.tables["cluster"]["gpus"] == 4
    assert found.tables["workload"]["micro_batch_size"] == 2
    assert found.sources["workload.global_batch_size"] == "job.yaml:4 step_scheduler.global_batch_size"


def test_the_number_of_gpus_is_that_of_the_sizes_where_all_are_said(tmp_path):
    assert convert(tmp_path, ("dp_size: none", "dp_size: 4"), gpus=None).tables["cluster"]["gpus"] == 4
    slurm = ("model:", "slurm:\n  nodes: 2\n  ntasks_per_node: 8\nmodel:")
    assert convert(tmp_path, slurm, gpus=None).tables["cluster"]["gpus"] == 16
    assert "cluster.gpus" in convert(tmp_path, gpus=None).missing


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("tp_size: 1", "offload_policy:\n    _target_: torch.distributed.fsdp.CPUOffloadPolicy")], "host"),
        ([("recipe: Train", "teacher_model:\n  x: y\nrecipe: Train")], "training on preferences"),
        ([("TrainFinetuneRecipeForNextTokenPrediction", "nemo_automodel.recipes.llm.kd.Recipe")], "preferences"),
        ([("torch.optim.AdamW", "dion.Dion2")], "dion.Dion2"),
        ([("global_batch_size: 64", "global_batch_size: 40")], "40 samples are not split into 4 on each of 8"),
        ([("tp_size: 1", "tp_size: 3")], "8 GPUs cannot be split"),
        ([("tp_size: 1", "activation_checkpointin: true")], "activation_checkpointing"),
        ([("local_batch_size: 4", "local_batch_sizes: 4")], "local_batch_size"),
        ([("strategy: fsdp2", "strategy: megatron_fsdp\n  zero_dp_strategy: 1")], "zero_dp_strategy"),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_line(tmp_path, changes, said):
    with pytest.raises(JoulecastError) as error:
        convert(tmp_path, *changes)
    assert said in str(error.value)
    assert isinstance(error.value, InputError)
    assert "\n" not in str(error.value)


def test_keys_that_are_not_known_are_told(tmp_path):
    found = convert(tmp_path, ("tp_size: 1", "tp_size: 1\n  shiny: 3"))
    assert "distributed.shiny is not known, and what it does is not forecast" in found.warnings
