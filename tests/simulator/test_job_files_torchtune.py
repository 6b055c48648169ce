"""torchtune's recipes as plans."""

import tomllib

import pytest
from trainer_jobs import TORCHTUNE as CONFIG

import joulecast as jc

COMMAND = "tune run --nproc_per_node 4 full_finetune_distributed --config full.yaml"


def convert(tmp_path, text, name="job.yaml", **options):
    (tmp_path / "full.yaml").write_text(CONFIG, encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


def test_a_recipe_is_the_plan_that_one_would_write(tmp_path):
    found = convert(tmp_path, CONFIG, gpus=8)
    assert found.tables == {
        "workload": {
            "model": "qwen2.5-7b",
            "sequence_length": 4096,
            "micro_batch_size": 2,
            "global_batch_size": 128,
            "precision": "bf16",
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "torchtitan",
            "attention_backend": "cudnn",
            "gradient_clipping": False,
        },
    }
    assert found.sources["workload.sequence_length"] == "tokenizer.max_seq_len (line 4)"
    assert {"output_dir", "epochs"} <= set(found.passed_over)


@pytest.mark.parametrize(
    ("component", "model"),
    [
        ("llama3.llama3_8b", "llama-3.1-8b"),
        ("llama3_2.llama3_2_1b", "llama-3.2-1b"),
        ("llama3_3.llama3_3_70b", "llama-3.3-70b"),
        ("qwen2_5.qwen2_5_0_5b", "qwen2.5-0.5b"),
        ("phi4.phi4_14b", "phi-4"),
        ("mistral.mistral_7b", "mistral-7b"),
    ],
)
def test_models(tmp_path, component, model):
    text = CONFIG.replace("qwen2_5.qwen2_5_7b_instruct", component)
    assert convert(tmp_path, text, gpus=8).tables["workload"]["model"] == model


def test_overrides_win_over_the_configuration(tmp_path):
    found = convert(tmp_path, f"{COMMAND} batch_size=4 tokenizer.max_seq_len=2048 compile=True\n", "job.sh")
    assert found.tables["workload"]["global_batch_size"] == 4 * 8 * 4
    assert found.tables["workload"]["sequence_length"] == 2048
    assert found.tables["implementation"]["compile"] is True
    assert found.sources["workload.precision"] == "full.yaml:24 dtype"
    single = convert(tmp_path, "tune run full_finetune_single_device --config full.yaml\n", "job.sh")
    assert single.tables["cluster"]["gpus"] == 1
    assert "parallelism" not in single.tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CONFIG.replace("qwen2_5_7b", "qlora_qwen2_5_7b"),
            r"job.yaml:9 \[model._component_\]: weights in 4.*lora_qwen",
        ),
        (
            CONFIG.replace("7b_instruct\n", "7b_instruct\n  use_dora: True\n"),
            r"\[model.use_dora\]: adapters of another kind",
        ),
        (CONFIG.replace("torch.optim.AdamW", "torchao.optim.AdamW4bit"), "AdamW4bit are not known"),
        (CONFIG.replace("offloading: False", "offloading: True"), "what is kept on the host"),
        (CONFIG.replace("modules.loss.CEWith", "rlhf.loss.DPO"), "training on preferences"),
        (CONFIG.replace("dtype: bf16", "dtype: bf17"), "unknown value 'bf17'"),
        (
            CONFIG.replace("batch_size: 2", "batch_size: two"),
            r"job.yaml:10 \[batch_size\]: 'two' is not a whole number",
        ),
        (CONFIG + "tensor_parallel_dim: 3\n", "8 GPUs cannot be split into tensor_parallel_dim = 3"),
    ],
)
def test_bad_recipes_get_one_line_that_says_where(tmp_path, text, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, text, gpus=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (COMMAND.replace("full_finetune", "lora_dpo"), r"lora_dpo_distributed\]: training on preferences"),
        (COMMAND.replace("full.yaml", "llama3_1/8B_full"), "tune cp llama3_1/8B_full"),
        (COMMAND.replace("full.yaml", "none.yaml"), "no such file: none.yaml"),
        ("tune run full_finetune_distributed", "own configuration, which is not here"),
    ],
)
def test_bad_commands_get_one_line_that_says_where(tmp_path, command, message):
    with pytest.raises(jc.InputError, match=message):
        convert(tmp_path, command, "job.sh")


def test_layers_that_are_computed_again_may_be_one_in_some(tmp_path):
    chosen = "ac_mode: selective\nac_option: 2\n"
    found = convert(tmp_path, CONFIG.replace("checkpointing: True", "checkpointing: False") + chosen, gpus=8)
    assert found.tables["schedule"] == {"recompute": "full", "recompute_interval": 2}
    both = convert(tmp_path, CONFIG + chosen, gpus=8)
    assert "schedule" not in both.tables
    assert any("computes nothing again" in warning for warning in both.warnings)
    assert convert(tmp_path, CONFIG + chosen, gpus=1).tables["schedule"] == {"recompute": "full"}


ADAPTERS = """  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
"""


def test_a_recipe_of_lora_trains_adapters_in_the_models_own_type(tmp_path):
    text = CONFIG.replace("qwen2_5_7b_instruct\n", f"lora_qwen2_5_7b_instruct\n{ADAPTERS}")
    (tmp_path / "lora.yaml").write_text(text, encoding="utf-8")
    command = COMMAND.replace("full_finetune", "lora_finetune").replace("full.yaml", "lora.yaml")
    found = convert(tmp_path, f"{command} model.lora_dropout=0.1\n", "job.sh")
    assert found.tables["workload"]["model"] == "qwen2.5-7b"
    assert found.tables["workload"]["lora"] == {
        "rank": 16,
        "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "dropout": 0.1,
        "precision": "bf16",
    }
    forecast = jc.predict(tomllib.loads(found.text))
    assert any("parameters are trained, in bf16; the rest is frozen" in said for said in forecast.assumptions)
