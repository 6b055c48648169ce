"""Jobs of Hugging Face's trainers that train adapters, as plans."""

import tomllib

import pytest
from trainer_jobs import AXOLOTL, COMMAND, FACTORY, FSDP

import joulecast as jc

PLAIN = COMMAND.replace("--config_file fsdp.yaml", "--num_processes 8")


def convert(tmp_path, text, name="job.sh", **options):
    (tmp_path / "fsdp.yaml").write_text(FSDP, encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", "gpus": 8, **options})


def with_options(options, job=PLAIN):
    return job.replace("--packing", f"--packing --dtype bfloat16 {options}")


def test_a_job_with_adapters_is_a_plan_that_can_be_forecast(tmp_path):
    options = "--use_peft --lora_r 32 --lora_alpha 16 --lora_dropout 0.1 --lora_target_modules q_proj o_proj"
    found = convert(tmp_path, with_options(options))
    assert found.tables["workload"]["lora"] == {"rank": 32, "target_modules": ["q_proj", "o_proj"], "dropout": 0.1}
    assert found.sources["workload.lora.rank"] == "lora_r (line 4)"
    assert "parameter_precision" not in found.tables["implementation"]
    assert "lora_alpha" not in " ".join(found.warnings)
    forecast = jc.predict(tomllib.loads(found.text))
    assert any("parameters are trained, in fp32, which torch.autocast" in said for said in forecast.assumptions)


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        ("--use_peft", ["q_proj", "v_proj"]),
        ("--use_lora True --lora_target_modules all-linear", "all-linear"),
        ("--lora_enable True --lora_target all", "all-linear"),
        ("--lora_rank 8 --lora_target q_proj,v_proj,o_proj", ["q_proj", "v_proj", "o_proj"]),
        ("--lora_r 8 --lora_target_modules q_proj", ["q_proj"]),
        ("--use_peft_lora True --lora_target_modules all-linear --use_4bit_quantization False", "all-linear"),
    ],
)
def test_ways_to_ask_for_adapters(tmp_path, options, targets):
    found = convert(tmp_path, with_options(options))
    assert found.tables["workload"]["lora"] == {"rank": 8, "target_modules": targets, "dropout": 0.0}
    assert any("PEFT's choice" in warning for warning in found.warnings) == (options == "--use_peft")


@pytest.mark.parametrize("options", ["--use_peft False --lora_r 8", "--use_lora false --lora_rank 8 --lora_alpha 2"])
def test_a_switch_that_is_off_is_the_last_word(tmp_path, options):
    assert "lora" not in convert(tmp_path, with_options(options)).tables["workload"]


def test_trl_llama_factory_and_axolotl_have_names_and_defaults_of_their_own(tmp_path):
    trl = "trl sft --model_name_or_path Qwen/Qwen3-8B --packing"
    assert "lora" not in convert(tmp_path, f"{trl} --lora_r 8\n").tables["workload"]
    of_trl = convert(tmp_path, f"{trl} --use_peft\n").tables["workload"]["lora"]
    assert of_trl == {"rank": 16, "target_modules": ["q_proj", "v_proj"], "dropout": 0.05}
    for kind in ("finetuning_type: lora\n", ""):
        factory = convert(tmp_path, FACTORY.replace("finetuning_type: full\n", kind + "lora_rank: 64\n"), "job.yaml")
        assert factory.tables["workload"]["lora"] == {"rank": 64, "target_modules": "all-linear", "dropout": 0.0}
        assert factory.tables["implementation"]["parameter_precision"] == "bf16"
    pure = FACTORY.replace("full", "lora").replace("bf16: true", "pure_bf16: true")
    assert convert(tmp_path, pure, "job.yaml").tables["workload"]["lora"]["precision"] == "bf16"
    plain = AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "").replace("lora_r:", "lora_r: 16")
    assert "lora" not in convert(tmp_path, plain, "job.yaml").tables["workload"]
    adapted = plain.replace("adapter:", "adapter: lora\nlora_target_linear: true\nlora_dropout: 0.05")
    axolotl = convert(tmp_path, adapted, "job.yaml")
    assert axolotl.tables["workload"]["lora"] == {"rank": 16, "target_modules": "all-linear", "dropout": 0.05}
    assert "parameter_precision" not in axolotl.tables["implementation"]


def test_weights_in_4_bits_beside_adapters(tmp_path):
    narrow = {"base_precision": "nf4"}
    paged = PLAIN.replace("adamw_torch_fused", "paged_adamw_32bit")
    plain = convert(tmp_path, with_options("--q_lora True --lora_r 8", paged))
    assert plain.tables["workload"]["lora"].items() >= narrow.items()
    assert plain.tables["implementation"]["parameter_precision"] == "bf16"
    said = " ".join(plain.warnings)
    assert (
        "prepare_model_for_kbit_training, add --set workload.lora.prepared=true" in said
        and "paged_adamw_32bit: moments are forecast in the GPU's memory" in said
    )
    assert plain.tables["implementation"]["optimizer"] == "adamw-32bit"
    trl = "trl sft --model_name_or_path Qwen/Qwen3-8B --packing --use_peft --load_in_4bit --use_bnb_nested_quant\n"
    of_trl = convert(tmp_path, trl).tables
    assert of_trl["workload"]["lora"].items() >= (narrow | {"double_quantisation": True, "precision": "bf16"}).items()
    factory = convert(tmp_path, FACTORY.replace("full", "lora\nquantization_bit: 4"), "job.yaml")
    assert factory.tables["workload"]["lora"].items() >= (narrow | {"double_quantisation": True}).items()
    assert "prepare_model" not in " ".join(factory.warnings)
    assert not any("prepared" in found["workload"]["lora"] for found in (plain.tables, of_trl, factory.tables))
    wide = convert(tmp_path, FACTORY.replace("full", "lora\nquantization_bit: 4\nupcast_layernorm: true"), "job.yaml")
    assert wide.tables["workload"]["lora"]["prepared"] is True
    assert wide.sources["workload.lora.prepared"] == "upcast_layernorm (line 5)"
    assert factory.sources["workload.lora.double_quantisation"] == "default without double_quantization"
    peft = convert(tmp_path, with_options("--use_peft_lora True --use_4bit_quantization True --use_nested_quant True"))
    assert peft.tables["workload"]["lora"].items() >= (narrow | {"double_quantisation": True}).items()
    axolotl = AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "").replace("lora_r:", "lora_r: 16")
    adapted = convert(tmp_path, axolotl.replace("adapter:", "adapter: qlora\nload_in_4bit: true"), "job.yaml")
    assert adapted.tables["workload"]["lora"].items() >= (narrow | {"double_quantisation": True}).items()
    for found in (plain, factory, adapted):
        assert any("linear layers of the model in 4 bits" in said for said in predicted(found).assumptions)


def predicted(found):
    return jc.predict(tomllib.loads(found.text))


def test_what_is_frozen_stays_narrow_where_states_are_sharded(tmp_path):
    zero3 = convert(tmp_path, with_options("--use_peft --deepspeed zero3.json"))
    assert zero3.tables["parallelism"] == {"fsdp": True}
    assert zero3.tables["implementation"]["parameter_precision"] == "bf16"
    assert zero3.tables["implementation"]["gradient_precision"] == "bf16"
    zero2 = convert(tmp_path, with_options("--use_peft --deepspeed zero2.json"))
    assert zero2.tables["workload"]["lora"]["precision"] == "bf16"
    assert zero2.tables["implementation"]["main_parameters"] is True
    sharded = convert(tmp_path, with_options("--use_peft", COMMAND))
    assert sharded.tables["parallelism"] == {"fsdp": True, "fsdp_sync_each_batch": False}
    assert "parameter_precision" not in sharded.tables["implementation"]
    for found in (zero3, zero2, sharded):
        assert jc.predict(tomllib.loads(found.text)).time_s > 0.0


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("Qwen/Qwen3-8B", ["q_proj", "v_proj"]),
        ("microsoft/Phi-4-mini-instruct", ["qkv_proj"]),
        ("EleutherAI/pythia-6.9b", ["qkv_proj"]),
        ("my/model", ["q_proj", "v_proj"]),
    ],
)
def test_adapters_are_where_peft_has_them_of_a_model(model, targets):
    job = f"trl sft --model_name_or_path {model} --num_processes 1 --use_peft --dtype bfloat16"
    found = jc.convert(job, gpu="h100-sxm")
    assert found.tables["workload"]["lora"]["target_modules"] == targets
    assert any(f"adapters are forecast beside {' and '.join(targets)}" in warning for warning in found.warnings)
