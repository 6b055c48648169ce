"""LitGPT's configurations and commands as plans."""

import pytest

import joulecast as jc
from joulecast.errors import InputError

CONFIG = """checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3.1-8B
out_dir: out/lora
precision: bf16-true
quantize:
devices: 4
num_nodes: 1
lora_r: 32
lora_key: true
lora_mlp: true
lora_head: false
data:
  class_path: litgpt.data.Alpaca2k
train:
  global_batch_size: 16
  micro_batch_size: 2
  epochs: 2
  max_seq_length: 512
  max_norm:
eval:
  interval: 100
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 0.0002
"""
FULL = "\n".join(line for line in CONFIG.splitlines() if not line.startswith("lora_"))


def convert(tmp_path, job, config=CONFIG, **options):
    (path := tmp_path / "x.yaml").write_text(config, encoding="utf-8")
    if job is None:
        return jc.convert(path, **{"gpu": "h100-sxm", **options})
    (script := tmp_path / "job.sh").write_text(f"{job}\n", encoding="utf-8")
    return jc.convert(script, **{"gpu": "h100-sxm", **options})


def test_a_configuration_is_the_plan_that_one_would_write(tmp_path):
    found = convert(tmp_path, None)
    assert found.tables == {
        "workload": {
            "model": "llama-3.1-8b",
            "sequence_length": 512,
            "micro_batch_size": 2,
            "global_batch_size": 16,
            "precision": "bf16",
            "lora": {
                "rank": 32,
                "target_modules": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
                "dropout": 0.05,
                "precision": "bf16",
            },
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 4},
        "parallelism": {"fsdp": True, "fsdp_sync_each_batch": False},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "torchtitan",
            "attention_backend": "cudnn",
            "gradient_clipping": False,
        },
    }
    assert found.sources["workload.sequence_length"] == "train.max_seq_length (line 17)"
    assert not any("not regarded" in told for told in found.warnings)


@pytest.mark.parametrize(
    ("command", "key", "expected"),
    [
        ("finetune_full --config x.yaml --train.micro_batch_size 4", "workload.micro_batch_size", 4),
        ("finetune_full --config x.yaml --devices 1", "parallelism.fsdp", None),
        ("finetune_full --config x.yaml --devices 1", "schedule.recompute", None),
        ("finetune_full --config x.yaml --devices=4 --num_nodes 2", "cluster.gpus", 8),
        ("finetune_full --config x.yaml --precision bf16-mixed", "implementation.parameter_precision", "fp32"),
        ("finetune_full --config x.yaml --precision bf16-mixed", "implementation.gradient_precision", "bf16"),
        (
            "finetune_full --config x.yaml --devices 1 --optimizer torch.optim.SGD",
            "implementation.optimizer",
            "sgd",
        ),
        ("finetune_lora Qwen/Qwen2.5-7B --train.max_seq_length 512", "workload.global_batch_size", 16),
        ("finetune_lora Qwen/Qwen2.5-7B --train.max_seq_length 512", "cluster.gpus", 1),
        ("finetune full --config x.yaml --checkpoint_dir a/Llama-2-7b-hf", "workload.model", "llama-2-7b"),
        ("pretrain Llama-3.2-1B --devices 8 --num_nodes 2", "parallelism.fsdp_shard_size", 8),
        ("pretrain Llama-3.2-1B --devices 8", "parallelism.fsdp_shard_size", None),
        ("pretrain Llama-3.2-1B --devices 8", "schedule.recompute", None),
        ("pretrain Llama-3.2-1B --devices 8", "implementation.compile", True),
        ("pretrain Llama-3.2-1B --devices 8", "implementation.gradient_clipping", True),
        ("pretrain Llama-3.2-1B --devices 8", "workload.global_batch_size", 512),
        ("pretrain Llama-3.2-1B --train.max_tokens 1000000000", "workload.training_tokens", 1e9),
        ("pretrain Llama-3.2-1B", "cluster.gpus", None),
        ("pretrain tiny-llama-1.1b --devices 8", "workload.model", "tinyllama-1.1b"),
    ],
)
def test_settings_of_commands(tmp_path, command, key, expected):
    table, name = key.split(".")
    assert convert(tmp_path, f"litgpt {command}", FULL).tables.get(table, {}).get(name) == expected


def test_weights_in_4_bits(tmp_path):
    text = CONFIG.replace("quantize:", "quantize: bnb.nf4-dq").replace("devices: 4", "devices: 1")
    found = convert(tmp_path, None, text)
    lora = found.tables["workload"]["lora"]
    assert (lora["base_precision"], lora["double_quantisation"]) == ("nf4", True)
    assert found.tables["implementation"]["optimizer"] == "adamw-32bit"
    assert jc.predict(found.tables).time_s > 0


def test_a_configuration_of_pretraining_is_known_by_its_model(tmp_path):
    text = "model_name: Llama-3.2-1B\ndevices: 8\ntrain: {global_batch_size: 64, max_seq_length: 2048}\n"
    found = convert(tmp_path, None, text)
    assert found.tables["implementation"]["compile"] is True and found.missing == {}


def test_a_sample_without_a_length_is_missing(tmp_path):
    found = convert(tmp_path, "litgpt finetune_lora Qwen/Qwen2.5-7B")
    assert "train.max_seq_length" in found.missing["workload.sequence_length"]


@pytest.mark.parametrize(
    ("job", "old", "new", "message"),
    [
        (None, "lora_head: false", "lora_head: true", r"x\.yaml:10 \[lora_head\]: an adapter beside the head"),
        (None, "quantize:", "quantize: bnb.int8-training", r"x\.yaml:4 \[quantize\]: .*Use bnb\.nf4"),
        (None, "torch.optim.AdamW", "galore_torch.GaLoreAdamW", r"x\.yaml:\d+ \[optimizer\.class_path\]: the step"),
        (None, "bf16-true", "bf16-tru", r"x\.yaml:3 \[precision\]: .*bf16-true"),
        ("litgpt finetune_adapter --config x.yaml", "", "", r"adapters of another kind.*finetune_lora"),
        ("litgpt pretrain --config none.yaml", "", "", r"no such file: none\.yaml"),
    ],
)
def test_what_a_plan_cannot_say_is_refused_with_its_place(tmp_path, job, old, new, message):
    with pytest.raises(InputError, match=message):
        convert(tmp_path, job, CONFIG.replace(old, new) if old else CONFIG)
