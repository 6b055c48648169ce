"""Jobs of Hugging Face's trainers as plans: commands of accelerate, torchrun and DeepSpeed, and YAML of tools."""

import tomllib

import pytest
from trainer_jobs import AXOLOTL, COMMAND, FACTORY, FSDP, SFT

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.job_files.hub_names import hub_model

#: Each anchor repeats the one before it ten times.
BOMB = "a: &a [x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)


def convert(tmp_path, text, name="job.sh", config=FSDP, **options):
    (tmp_path / "fsdp.yaml").write_text(config, encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


def test_an_accelerate_job_is_the_plan_that_one_would_write(tmp_path):
    by_hand = {
        "workload": {
            "model": "llama-3.1-8b",
            "sequence_length": 4096,
            "micro_batch_size": 2,
            "global_batch_size": 128,
            "precision": "bf16",
            "training_tokens": 100.0 * 128 * 4096,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 16},
        "parallelism": {"fsdp": True, "fsdp_sync_each_batch": False},
        "schedule": {"recompute": "full"},
        "implementation": {
            "framework": "pytorch-eager",
            "modules": "transformers",
            "training_loop": "trainer",
            "dataloader_num_workers": 0,
            "attention_backend": "flash-attn-2",
            "gradient_clipping": True,
            "parameter_precision": "fp32",
            "gradient_precision": "bf16",
        },
    }
    found = convert(tmp_path, COMMAND)
    assert found.tables == by_hand
    assert found.missing == {}
    assert jc.predict(tomllib.loads(found.text)).to_dict() == jc.predict(by_hand).to_dict()


RUN_CLM = (
    "torchrun --nproc_per_node 1 run_clm.py --model_name_or_path openai-community/gpt2-medium --bf16 --block_size 512"
)


@pytest.mark.parametrize(
    ("more", "dropout", "told"),
    [
        ("", 0.1, False),
        (" --gradient_checkpointing", 0.1, False),
        (" --config_overrides resid_pdrop=0.0,attn_pdrop=0.0,embd_pdrop=0.0", None, False),
        (" --torch_compile", None, True),
        (" --attn_implementation flash_attention_2", None, True),
        (" --model_name_or_path Qwen/Qwen2.5-1.5B", None, False),
    ],
)
def test_gpt2_has_the_dropout_of_its_configuration(tmp_path, more, dropout, told):
    found = convert(tmp_path, RUN_CLM + more)
    assert found.tables["implementation"].get("dropout") == dropout
    assert any("has dropout" in one for one in found.warnings) is told
    jc.predict(found.tables)


def test_every_key_says_its_file_and_line(tmp_path):
    found = convert(tmp_path, COMMAND)
    assert found.sources["workload.sequence_length"] == "max_seq_length (line 4)"
    assert found.sources["cluster.gpus"] == "fsdp.yaml:9 num_processes"
    assert found.sources["parallelism.fsdp"] == "fsdp.yaml:5 fsdp_config.fsdp_sharding_strategy"
    assert {"learning_rate", "output_dir"} <= set(found.passed_over)
    (warning,) = found.warnings
    assert warning.startswith("packing: ")
    assert "--set workload.document_tokens=TOKENS" in warning


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("--bf16 True", "--fp16 true", "workload.precision", "fp16"),
        ("--bf16 True", "", "workload.precision", "bf16"),  # accelerate says it
        ("--max_seq_length 4096", "--block_size 1024", "workload.sequence_length", 1024),
        ("--attn_implementation flash_attention_2", "", "implementation.attention_backend", "cudnn"),
        (
            "--attn_implementation flash_attention_2",
            "--attn_implementation=eager",
            *("implementation.attention_backend", "unfused"),
        ),
        ("--attn_implementation flash_attention_2", "--torch_compile", "implementation.compile", True),
        ("--config_file fsdp.yaml", "--num_processes 4", "cluster.gpus", 4),
        ("--config_file fsdp.yaml", "--num_processes 4", "overlap.grad_reduce", "overlapped"),
        ("--config_file fsdp.yaml", "--num_processes 4", "implementation.parameter_precision", "fp32"),
        ("--config_file fsdp.yaml", "--num_processes 4 --use_deepspeed --zero_stage 3", "parallelism.fsdp", True),
        ("--config_file fsdp.yaml", "--num_processes 4 --use_deepspeed", "implementation.main_parameters", True),
        ("--config_file fsdp.yaml", "--num_processes 4 --use_deepspeed", "implementation.parameter_precision", None),
        ("--packing", "--dtype bfloat16", "implementation.parameter_precision", "fp32"),  # FSDP casts them
        ("--packing", '--fsdp "hybrid_shard auto_wrap"', "parallelism.fsdp_shard_size", 8),
        (
            "accelerate launch --config_file fsdp.yaml train.py",
            "torchrun --nproc_per_node 4 train.py --fsdp hybrid_shard",
            *("parallelism.fsdp_shard_size", 4),
        ),
        ("--packing", '--deepspeed \'{"zero_optimization": {"stage": 1}}\'', "parallelism.distributed_optimizer", True),
        ("accelerate launch --config_file fsdp.yaml", "torchrun --nproc_per_node 8 --nnodes 4", "cluster.gpus", 32),
        ("accelerate launch --config_file fsdp.yaml", "deepspeed --include=localhost:0,3", "cluster.gpus", 2),
        (
            "accelerate launch --config_file fsdp.yaml train.py",
            "deepspeed --num_gpus 4 --module a.b",
            "cluster.gpus",
            4,
        ),
        ("accelerate launch --config_file fsdp.yaml", "CUDA_VISIBLE_DEVICES=0,1 deepspeed", "cluster.gpus", 2),
        ("adamw_torch_fused", "adamw_hf", "implementation.optimizer", "adamw-for-loop"),
        ("--learning_rate 2e-5", "--max_grad_norm 0", "implementation.gradient_clipping", False),
    ],
)
def test_settings_of_a_command(tmp_path, old, new, key, expected):
    assert old in COMMAND
    tables = convert(tmp_path, COMMAND.replace(old, new)).tables
    table, name = key.split(".")
    assert tables[table].get(name) == expected


@pytest.mark.parametrize(
    ("gpu", "backend"),
    [
        ("h200-sxm", "cudnn"),
        ("b300", "cudnn"),
        ("a100-sxm-80gb", "flash-attention-2"),
        ("l40s", "flash-attention-2"),
        ("rtx-pro-6000-blackwell", "flash-attention-2"),
        (None, "flash-attention-2"),
    ],
)
@pytest.mark.parametrize("words", ["", " --attn_implementation sdpa"])
def test_pytorch_chooses_kernels_of_attention_by_the_gpu(gpu, backend, words):
    command = "torchrun --nproc_per_node 1 train.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 true "
    command += f"--per_device_train_batch_size 1{words}"
    found = jc.convert(command.split(), gpu=gpu)
    assert found.tables["implementation"]["attention_backend"] == backend
    if not words:
        assert "what PyTorch chooses" in found.sources["implementation.attention_backend"]


def test_parameters_of_a_job_without_sharding_are_as_they_are_loaded(tmp_path):
    plain = COMMAND.replace("--config_file fsdp.yaml", "--num_processes 8")
    loaded = convert(tmp_path, plain.replace("--packing", "--packing --dtype bfloat16"))
    assert "parameter_precision" not in loaded.tables["implementation"]
    assert any("no dtype" in warning for warning in convert(tmp_path, plain).warnings)
    whole = convert(tmp_path, plain.replace("--packing", "--packing --dtype float32"))
    assert whole.tables["implementation"]["parameter_precision"] == "fp32"
    assert not any("no dtype" in warning for warning in whole.warnings)


def test_parameters_that_are_multiplied_as_they_are_loaded_are_kept_so(tmp_path):
    pure = convert(tmp_path, FACTORY.replace("bf16: true", "pure_bf16: true"), "factory.yaml", gpus=8)
    sharded = convert(tmp_path, COMMAND.replace("--bf16 True", "--dtype bfloat16"), config=FSDP.replace("bf16", "no"))
    for found in (pure, sharded):
        assert found.tables["workload"]["precision"] == "bf16"
        assert "parameter_precision" not in found.tables["implementation"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Math-1.5B", "qwen2.5-1.5b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
        ("allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b"),
        ("allenai/OLMo-2-0425-1B", "olmo-2-1b"),
        ("google/gemma-1.1-7b-it", "gemma-7b"),
        ("google/codegemma-7b", "gemma-7b"),
        ("microsoft/Phi-4-reasoning-plus", "phi-4"),
        ("HuggingFaceTB/SmolLM-135M", "smollm2-135m"),
        ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", "tinyllama-1.1b"),
        ("lmsys/vicuna-7b-v1.5", "llama-2-7b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("NousResearch/Hermes-3-Llama-3.2-3B", "llama-3.2-3b"),
        ("HuggingFaceH4/mistral-7b-sft-beta", "mistral-7b"),
        ("allenai/Llama-3.1-Tulu-3-8B-SFT", "llama-3.1-8b"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama-3.1-70b"),
        ("allenai/OLMo-2-0325-32B-SFT", "olmo-2-32b"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"),
        ("01-ai/Yi-1.5-34B-Chat-16K", "yi-34b"),
        ("01-ai/Yi-6B", "yi-6b"),
        ("codellama/CodeLlama-7b-Instruct-hf", "codellama-7b"),
        ("codellama/CodeLlama-13b-Python-hf", "llama-2-13b"),
        ("codellama/CodeLlama-70b-Python-hf", "codellama-70b"),
        ("tiiuae/Falcon3-10B-Instruct", "falcon3-10b"),
        ("microsoft/Phi-3.5-mini-instruct", "phi-3.5-mini"),
        ("microsoft/Phi-3-mini-128k-instruct", "phi-3.5-mini"),
        ("microsoft/Phi-3-medium-4k-instruct", "phi-3-medium"),
        ("unsloth/Phi-4-mini-instruct", "phi-4-mini"),
        ("ibm-granite/granite-3.3-2b-instruct", "granite-3.1-2b"),
        ("ibm-granite/granite-4.0-h-tiny-base", "granite-4.0-h-tiny"),
        ("unsloth/tinyllama", "tinyllama-1.1b"),
        # Of another shape: another window, another vocabulary, weights in 4 bits.
        ("microsoft/Phi-3-medium-128k-instruct", None),
        ("NousResearch/Hermes-2-Pro-Llama-3-8B", None),
        ("unsloth/llama-3-8b-bnb-4bit", None),
    ],
)
def test_models_that_are_often_finetuned_have_their_shape(name, known):
    assert hub_model(name) == known


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("microsoft/Phi-3.5-minx-instruct", "--model phi-3.5-mini"),
        ("x/zzzzzz", "a name of `joulecast models` (--model)"),
    ],
)
def test_a_model_that_is_not_known_is_answered_with_the_nearest(name, near):
    job = f"accelerate launch --num_processes 2 x.py --model_name_or_path {name} --max_length 1024"
    missing = jc.convert(job, gpu="h100-sxm").missing["workload.model"]
    assert missing.startswith(f"{name} is not in the catalogue; ") and near in missing
    assert "config.json from its page of the hub: --model PATH" in missing


_FOUR_BITS = "accelerate launch --num_processes 2 x.py --bf16 --max_length 1024 --model_name_or_path unsloth/"


def test_weights_that_a_repository_stores_in_4_bits_stay_so():
    tables = jc.convert(f"{_FOUR_BITS}Meta-Llama-3.1-8B-bnb-4bit --use_peft", gpu="h100-sxm").tables
    assert tables["workload"]["model"] == "llama-3.1-8b"
    assert tables["workload"]["lora"]["base_precision"] == "nf4"
    assert tables["workload"]["lora"]["double_quantisation"] is True
    dynamic = jc.convert(f"{_FOUR_BITS}Qwen3-14B-unsloth-bnb-4bit --use_peft", gpu="h100-sxm")
    assert dynamic.tables["workload"]["model"] == "qwen3-14b"
    assert any("some of its layers are stored in 16 bits" in warning for warning in dynamic.warnings)
    with pytest.raises(InputError, match="Name the model in 16 bits to forecast the training of all weights"):
        jc.convert(f"{_FOUR_BITS}Qwen3-14B-bnb-4bit", gpu="h100-sxm")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("TheBloke/Mistral-7B-v0.1-AWQ", "TheBloke/Mistral-7B-v0.1,"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct,"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B,"),
        ("mlx-community/Qwen3-8B-4bit", "mlx-community/Qwen3-8B,"),
    ],
)
def test_weights_that_a_repository_stores_in_other_few_bits_are_refused(name, whole):
    job = f"accelerate launch --num_processes 2 x.py --model_name_or_path {name} --use_peft --max_length 1024"
    with pytest.raises(InputError, match=f"such as {whole}") as error:
        jc.convert(job, gpu="h100-sxm")
    assert name in str(error.value)


@pytest.mark.parametrize("script", ["x.py", "-m own.training"])
def test_a_model_tells_a_script_that_accelerate_launches(script):
    job = f"accelerate launch --num_processes 2 {script} --model_name_or_path Qwen/Qwen3-8B"
    found = jc.convert(job, gpu="h100-sxm")
    assert (found.tables["workload"]["model"], found.tables["cluster"]["gpus"]) == ("qwen3-8b", 2)
    assert set(found.missing) == {"workload.sequence_length"}
    # One of images, and one that may only read what was trained, say too little.
    for other in (
        job.replace("model_name_or_path", "pretrained_model_name_or_path"),
        f"python {script} --model_name_or_path Qwen/Qwen3-8B",
    ):
        with pytest.raises(jc.InputError):
            jc.convert(other, gpu="h100-sxm")


def test_a_list_of_hosts_is_not_one_node(tmp_path):
    launched = COMMAND.replace("accelerate launch --config_file fsdp.yaml", "deepspeed --hostfile hosts --num_gpus 8")
    assert "cluster.gpus" in convert(tmp_path, launched).missing
    counted = convert(tmp_path, launched.replace("--num_gpus 8", "--num_gpus 8 --num_nodes 2"))
    assert counted.tables["cluster"]["gpus"] == 16


def test_a_recipe_may_stand_alone_or_be_named_by_a_command_whose_options_win(tmp_path):
    alone = convert(tmp_path, SFT, "sft.yaml", gpus=16)
    command = "accelerate launch --config_file fsdp.yaml run_sft.py sft.yaml --per_device_train_batch_size=2\n"
    named = convert(tmp_path, command)
    assert alone.tables["workload"]["micro_batch_size"] == 4
    assert named.tables["workload"]["micro_batch_size"] == 2
    assert named.sources["workload.micro_batch_size"] == "per_device_train_batch_size (line 1)"
    assert named.sources["workload.model"] == "sft.yaml:1 model_name_or_path Qwen/Qwen3-8B-Base"
    assert alone.tables["schedule"] == {"recompute": "full", "recompute_stops_early": False}
    assert alone.sources["workload.sequence_length"] == "max_length (line 5)"


def test_axolotl(tmp_path):
    found = convert(tmp_path, AXOLOTL, "axolotl.yml", gpus=8)
    assert found.tables["workload"] == {
        "model": "llama-3.1-8b",
        "sequence_length": 8192,
        "micro_batch_size": 1,
        "global_batch_size": 16,
        "precision": "bf16",
    }
    assert found.tables["parallelism"] == {"fsdp": True}
    assert found.sources["implementation.attention_backend"] == "attn_implementation (line 11)"
    assert any("by its name it is ZeRO's stage 3" in warning for warning in found.warnings)
    for command in ("axolotl train", "accelerate launch --num_processes 8 -m axolotl.cli.train"):
        launched = convert(tmp_path, f"{command} axolotl.yml --micro-batch-size 2 --deepspeed ds_z2.json\n", gpus=8)
        assert launched.sources["parallelism.distributed_optimizer"] == "deepspeed (line 1)"
        assert launched.tables["workload"]["global_batch_size"] == 32


def test_parameters_of_axolotl_are_loaded_as_they_are_computed_with(tmp_path):
    text = AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "")
    found = convert(tmp_path, text, "axolotl.yml", gpus=8)
    assert "parameter_precision" not in found.tables["implementation"]
    assert "dtype" not in " ".join(found.warnings)


def test_llama_factory_computes_activations_again_unless_told_not_to(tmp_path):
    found = convert(tmp_path, FACTORY, "factory.yaml", gpus=8)
    assert found.tables["workload"]["sequence_length"] == 2048
    assert found.tables["schedule"]["recompute"] == "full"
    assert found.sources["schedule.recompute"] == "default without gradient_checkpointing"
    assert found.tables["schedule"]["recompute_stops_early"] is False
    early = convert(tmp_path, FACTORY + "use_reentrant_gc: false\n", "factory.yaml", gpus=8)
    assert early.tables["schedule"] == {"recompute": "full"}
    kept = convert(tmp_path, FACTORY + "disable_gradient_checkpointing: true\n", "factory.yaml", gpus=8)
    assert "recompute" not in kept.tables.get("schedule", {})


def test_trl_has_defaults_of_its_own(tmp_path):
    found = convert(tmp_path, "trl sft --model_name_or_path Qwen/Qwen3-8B --packing\n", gpus=8)
    assert found.tables["workload"]["precision"] == "bf16"
    assert found.tables["workload"]["sequence_length"] == 1024
    assert found.tables["workload"]["micro_batch_size"] == 8
    half = convert(tmp_path, "trl sft --model_name_or_path Qwen/Qwen3-8B --packing --fp16\n", gpus=8)
    assert half.tables["workload"]["precision"] == "fp16"


def test_what_a_job_does_not_say_is_missing(tmp_path):
    command = "deepspeed train.py --model_name_or_path some/model --per_device_train_batch_size 2\n"
    found = convert(tmp_path, command)
    wanted = {"workload.model", "workload.sequence_length", "workload.global_batch_size", "cluster.gpus"}
    assert set(found.missing) == wanted
    assert found.missing["workload.model"].startswith("some/model is not in the catalogue")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--packing", "--use_peft --use_dora", r"job.sh:4 \[use_dora\]: adapters of another kind"),
        ("--packing", "--lora_r 8 --lora_modules_to_save lm_head", r"\[lora_modules_to_save\]: what is trained whole"),
        ("--packing", "--load_in_8bit True --lora_r 8", r"\[load_in_8bit\]: weights in 4 or 8 bits"),
        ("--packing", "--use_peft --lora_target_modules c_attn", r"\[lora_target_modules.*'c_attn': no linear layer"),
        ("--packing", "--load_in_4bit true", r"\[load_in_4bit\]: weights in 4 or 8 bits"),
        ("adamw_torch_fused", "ademamix_8bit", r"job.sh:7 \[optim\]: the step and the states of ademamix_8bit"),
        ("adamw_torch_fused", "adamw_bnb_8bit", r"job.sh:7 \[optim, in.*adamw-8bit does not step the shards of FSDP"),
        ("--packing", '--fsdp "full_shard offload"', r"\[fsdp\]: what is kept on the host"),
        ("--packing", "--fsdp half_shard --fsdp_config no.json", r"no such file: no.json"),
        ("--packing", "--deepspeed ds/zero3_offload.json", r"\[deepspeed\]: what is kept on the host"),
        ("--packing", "--deepspeed ds/mine.json", r"job.sh:4 \[deepspeed\]: no such file: ds/mine.json"),
        ("--config_file fsdp.yaml", "--config_file other.yaml", r"job.sh:2 \[--config_file\]: no such file"),
        ("--config_file fsdp.yaml", "--config_file $1", r"the value is \$1, which the script does not set"),
        (
            "_accumulation_steps 4",
            "_accumulation_steps four",
            r"\[gradient_accumulation_steps\]: 'four' is not a whole",
        ),
        ("_accumulation_steps 4", "_acumulation_steps 4", r"Did you mean 'gradient_accumulation_steps'"),
        ("--bf16 True", "--bf16 --fp16", r"bf16 and fp16 are both on"),
        ("train.py", "train_ppo.py", r"job.sh:2 \[ppo\]: training on preferences"),
        ("--packing", "--per_device_train_batch_size $SIZE", r"\$SIZE, which the script does not set"),
        ("--packing", "--vision_tower some/clip", r"models that see more than text"),
    ],
)
def test_bad_jobs_get_one_line_that_says_where(tmp_path, old, new, message):
    text = COMMAND.replace(old, new).replace(
        "--per_device_train_batch_size 2", "" if "$SIZE" in new else "--per_device_train_batch_size 2"
    )
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FSDP, "this says where a job runs, not what it trains.*accelerate launch"),
        ("name: something\n", "no job that is known"),
        (AXOLOTL.replace("adapter:", "adapter: qlora"), r"job.yaml:15 .*weights in 4 bits under FSDP"),
        (AXOLOTL.replace("bf16: auto", "bf16: auto\ncontext_parallel_size: 2"), "splits of Hugging Face's layers"),
        (FACTORY.replace("full", "lora\nquantization_bit: 8"), r"job.yaml:4 \[quantization_bit\]: weights in 4 or 8"),
        (FACTORY.replace("full", "lora\nquantization_method: hqq"), r"job.yaml:4 \[quantization_method\]: weights in"),
        (FACTORY.replace("full", "freeze"), r"job.yaml:3 \[finetuning_type\]: the job trains with freeze"),
        (FACTORY.replace("full", "lora\nadditional_target: lm_head"), r"job.yaml:4 .*what is trained whole"),
        (SFT.replace("4096", "[4096]"), r"job.yaml:5 \[max_length\]: \[4096\] is not a whole number"),
        (SFT.replace("4096", "-1"), "-1 is below 1"),
        ("- a\n- b\n", "no table of names and values"),
        ("a: [1, 2\nb: 3\n", r"job.yaml:2: not valid YAML"),
        ("a: &a [*a]\nbase_model: gpt2\n", "nested too deeply"),
        (BOMB, "more values than any job"),
        ("seed: " + "9" * 100 + "\nbase_model: gpt2\n", "too large for a whole number"),
    ],
)  # fmt: skip
def test_bad_yaml_gets_one_line_that_says_where(tmp_path, text, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, text, "job.yaml", gpus=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("sharding_strategy: FULL_SHARD", "reshard_after_forward: true", "parallelism.fsdp", True),
        ("sharding_strategy: FULL_SHARD", "sharding_strategy: 1", "parallelism.fsdp", True),
        ("sharding_strategy: FULL_SHARD", "sharding_strategy: NO_SHARD", "overlap.grad_reduce", "overlapped"),
        ("offload_params: false", "activation_checkpointing: true", "schedule.recompute", "full"),
        ("distributed_type: FSDP", "distributed_type: MULTI_GPU", "overlap.grad_reduce", "overlapped"),
        ("distributed_type: FSDP", "distributed_type: NO", "overlap.grad_reduce", "overlapped"),
        ("distributed_type: FSDP", "dynamo_config: {dynamo_backend: INDUCTOR}", "implementation.compile", True),
    ],
)
def test_settings_of_accelerate(tmp_path, old, new, key, expected):
    command = COMMAND.replace("--gradient_checkpointing True --attn_implementation flash_attention_2", "")
    assert old in FSDP
    found = convert(tmp_path, command, config=FSDP.replace(old, new))
    table, name = key.split(".")
    assert found.tables[table][name] == expected
    assert not any("stay gathered" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "kept", ["sharding_strategy: SHARD_GRAD_OP", "sharding_strategy: 2", "reshard_after_forward: false"]
)
def test_parameters_that_stay_gathered(tmp_path, kept):
    """A plan says so; of experts it cannot, which is told."""
    config = FSDP.replace("sharding_strategy: FULL_SHARD", kept)
    found, usual = convert(tmp_path, COMMAND, config=config), convert(tmp_path, COMMAND, config=FSDP)
    assert found.tables["parallelism"] == usual.tables["parallelism"] | {"fsdp_reshard_after_forward": False}
    assert not any("stay gathered" in warning for warning in found.warnings)
    mixtral = COMMAND.replace("meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1")
    experts = convert(tmp_path, mixtral, config=config)
    assert experts.tables["parallelism"] == usual.tables["parallelism"]
    assert any("stay gathered" in warning for warning in experts.warnings)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "offload_params: false",
            "offload_params: true",
            r"fsdp.yaml:6 \[fsdp_config.fsdp_offload_params\]: what is kept",
        ),
        ("FULL_SHARD", "SOME_SHARD", r"fsdp.yaml:5 .*'SOME_SHARD' is no sharding strategy"),
        ("type: FSDP", "type: MEGATRON_LM", "Megatron-LM and TPUs are not known"),
        ("processes: 16", "processes: many", r"fsdp.yaml:9 \[num_processes\]: 'many' is not a whole number"),
    ],
)
def test_bad_settings_of_accelerate_say_where(tmp_path, old, new, message):
    with pytest.raises(jc.InputError, match=message):
        convert(tmp_path, COMMAND, config=FSDP.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("deepspeed: deepspeed_configs/zero3_bf16.json", "fsdp_config: {reshard_after_forward: true}", *("fsdp", True)),
        ("bf16: auto", "bf16: full", "fsdp", True),
        ("bf16: auto", "bf16: full\nloss_watchdog_threshold: 5.0\neot_tokens: [a]", "fsdp", True),
        ("sequence_len: 8192", "<<: {sequence_len: 8192}", "fsdp", True),
    ],
)
def test_other_ways_to_say_it_in_axolotl(tmp_path, old, new, key, expected):
    found = convert(tmp_path, AXOLOTL.replace(old, new), "axolotl.yml", gpus=8)
    assert found.tables["parallelism"][key] == expected
    assert found.tables["workload"]["precision"] == "bf16"
    assert found.tables["workload"]["sequence_length"] == 8192


@pytest.mark.parametrize(
    ("plugins", "told"),
    [
        ("\n  - axolotl.integrations.liger.LigerPlugin", []),
        (" axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin", ["cut_cross_entropy: the loss"]),
        ("\n  - our.plugins.Thing", ["not regarded: Thing"]),
        ("", []),
    ],
)
def test_plugins_of_axolotl_are_told(tmp_path, plugins, told):
    plain = convert(tmp_path, AXOLOTL, "axolotl.yml", gpus=8)
    found = convert(tmp_path, f"{AXOLOTL}plugins:{plugins}\n", "axolotl.yml", gpus=8)
    added = [words for words in found.warnings if words not in plain.warnings]
    assert [any(words.startswith(start) for words in added) for start in told] == [True] * len(added)
    assert set(found.passed_over) == set(plain.passed_over)


@pytest.mark.parametrize(
    ("written", "model", "expected"),
    [
        ("use_liger_kernel: true", "Qwen/Qwen2.5-7B", True),
        ("enable_liger_kernel: true", "Qwen/Qwen2.5-7B", True),
        ("use_liger_kernel: false", "Qwen/Qwen2.5-7B", None),
        (
            "use_liger_kernel: true\nliger_kernel_config:\n  rope: false\n  fused_linear_cross_entropy: false\n"
            "  cross_entropy: true",
            "google/gemma-7b",
            ["cross_entropy", "geglu", "rms_norm"],
        ),
    ],
)
def test_ligers_switch_becomes_its_kernels(tmp_path, written, model, expected):
    job = f"model_name_or_path: {model}\nper_device_train_batch_size: 1\nmax_length: 1024\nbf16: true\n{written}\n"
    found = convert(tmp_path, job, "sft.yaml", gpus=1)
    assert found.tables["implementation"].get("liger_kernel") == expected
    assert not any("liger" in words.lower() for words in found.warnings)
    assert "liger_kernel_config" not in found.passed_over


def test_axolotls_switches_each_swap_a_kernel(tmp_path):
    plugin = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
    some = f"{AXOLOTL}{plugin}liger_rope: true\nliger_glu_activation: true\nliger_layer_norm: true\n"
    found = convert(tmp_path, some, "axolotl.yml", gpus=8)
    assert found.tables["implementation"]["liger_kernel"] == ["rope", "swiglu"]
    assert not any("liger" in words for words in found.warnings)


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", "dtype: bfloat16\n", "experts"),
        ("meta-llama/Llama-3.2-1B", "torch_compile: true\n", "compiled"),
    ],
)
def test_where_ligers_kernels_are_not_known_it_is_told(tmp_path, model, more, why):
    job = f"model_name_or_path: {model}\nper_device_train_batch_size: 1\nmax_length: 1024\nbf16: true\n{more}"
    found = convert(tmp_path, f"{job}use_liger_kernel: true\n", "sft.yaml", gpus=1)
    assert "liger_kernel" not in found.tables["implementation"]
    (told,) = (words for words in found.warnings if words.startswith("use_liger_kernel: Liger's kernels"))
    assert why in told


def test_a_model_may_be_a_folder_above_the_job(tmp_path):
    (tmp_path / "weights").mkdir()
    sizes = (
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096}'
    )
    (tmp_path / "weights" / "config.json").write_text(sizes, encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "fsdp.yaml").write_text(FSDP, encoding="utf-8")
    job = tmp_path / "run" / "job.sh"
    job.write_text(COMMAND.replace("meta-llama/Llama-3.1-8B-Instruct", "weights"), encoding="utf-8")
    found = jc.convert(job, gpu="h100-sxm")
    assert found.tables["workload"]["model"] == str(tmp_path / "weights" / "config.json")


def test_the_launcher_counts_more_than_what_a_job_may_see(tmp_path):
    found = convert(
        tmp_path, COMMAND.replace("accelerate launch", "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 4")
    )
    assert found.tables["cluster"]["gpus"] == 4


def test_what_deepspeed_leaves_to_the_trainer_is_the_trainers(tmp_path):
    config = '{"zero_optimization": {"stage": 2, "overlap_comm": "auto"}, "bf16": {"enabled": "auto"}}'
    (tmp_path / "ds.json").write_text(config, encoding="utf-8")
    found = convert(tmp_path, COMMAND.replace("--packing", "--deepspeed ds.json"))
    assert found.tables["parallelism"] == {"distributed_optimizer": True}
    assert "overlap" not in found.tables
    assert found.sources["parallelism.distributed_optimizer"] == "ds.json:1 zero_optimization.stage"
    assert found.tables["workload"]["precision"] == "bf16"


SWIFT = "swift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048"


@pytest.mark.parametrize(
    ("command", "key", "expected"),
    [
        (SWIFT, "workload.lora.rank", 8),
        (SWIFT, "workload.lora.target_modules", "all-linear"),
        (SWIFT, "workload.precision", "bf16"),
        (SWIFT, "workload.sequence_length", 2048),
        (SWIFT, "workload.global_batch_size", 16),
        (SWIFT, "schedule.recompute", "full"),
        (SWIFT, "cluster.gpus", 1),
        (f"NPROC_PER_NODE=8 NNODES=2 {SWIFT}", "cluster.gpus", 16),
        (f"NPROC_PER_NODE=8 NNODES=4 {SWIFT}", "workload.global_batch_size", 32),
        (f"{SWIFT} --gradient_accumulation_steps 4", "workload.global_batch_size", 4),
        (f"{SWIFT} --train_type full", "workload.lora", None),
        (f"{SWIFT} --tuner_type full --torch_dtype bfloat16", "implementation.parameter_precision", None),
        (f"{SWIFT} --train_type full --torch_dtype float16", "workload.precision", "fp16"),
        (f"{SWIFT} --train_type full --torch_dtype float16", "implementation.parameter_precision", "fp32"),
        (f"{SWIFT} --attn_impl flash_attn", "implementation.attention_backend", "flash-attn-2"),
        (f"{SWIFT} --quant_method bnb --quant_bits 4", "workload.lora.base_precision", "nf4"),
        (f"NPROC_PER_NODE=8 {SWIFT} --train_type full --deepspeed zero3", "parallelism.fsdp", True),
        (f"swift pt --bf16 true {SWIFT.removeprefix('swift sft ')}", "workload.precision", "bf16"),
    ],
)
def test_ms_swifts_settings(command, key, expected):
    found = jc.convert(f"{command} --dataset x", gpu="h100-sxm").tables
    for name in key.split("."):
        found = found.get(name, {}) if name != key.rpartition(".")[2] else found.get(name)
    assert found == expected


def test_ms_swift_without_processes_starts_one_which_has_the_layers_on_all_cards():
    found = jc.convert(f"CUDA_VISIBLE_DEVICES=0,1 {SWIFT}", gpu="h100-sxm")
    assert found.tables["cluster"]["gpus"] == 1
    assert any("one process spreads layers over 2 GPUs" in words for words in found.warnings)
    four = jc.convert(f"CUDA_VISIBLE_DEVICES=0,1 {SWIFT}", gpu="h100-sxm", gpus=4)
    assert "gpus_per_node" not in four.tables["cluster"]
    assert not any("one process" in words for words in four.warnings)


def test_ms_swifts_types_are_not_told_as_unknown():
    told = jc.convert(f"{SWIFT} --torch_dtype bfloat16", gpu="h100-sxm")
    assert not any("not regarded" in warning for warning in told.warnings)
    assert told.sources["workload.precision"].startswith("torch_dtype")


@pytest.mark.parametrize("kind", ["adalora", "longlora"])
def test_other_tuners_of_ms_swift_are_refused(kind):
    with pytest.raises(jc.InputError, match=f"tuner_type.*trains with {kind}"):
        jc.convert(f"{SWIFT} --train_type {kind}", gpu="h100-sxm")


def test_ms_swifts_preferences_are_refused():
    with pytest.raises(jc.InputError, match="preferences"):
        jc.convert(f"swift rlhf --rlhf_type ppo {SWIFT.removeprefix('swift sft ')}", gpu="h100-sxm")


@pytest.mark.parametrize("named", [True, False])
def test_llama_factorys_version_1_is_told(tmp_path, named):
    job = tmp_path / "fsdp2.yaml"
    job.write_text("model: Qwen/Qwen3-0.6B\nmicro_batch_size: 1\ndist_config:\n  name: fsdp2\n", encoding="utf-8")
    with pytest.raises(jc.InputError, match=r"dist_config\]: .*version 1.*version 0"):
        jc.convert(f"USE_V1=1 llamafactory-cli sft {job}" if named else job, gpu="h100-sxm")


def test_a_launcher_with_a_model_alone_starts_a_trainer():
    found = jc.convert("torchrun --nproc_per_node 8 x.py --model_name_or_path 01-ai/Yi-1.5-9B-Chat", gpu="h100-sxm")
    assert (found.tables["workload"]["model"], found.tables["cluster"]["gpus"]) == ("yi-9b", 8)
    assert list(found.missing) == ["workload.sequence_length"]
    with pytest.raises(InputError, match="started without settings that are known"):
        jc.convert("python x.py --model_name_or_path 01-ai/Yi-1.5-9B-Chat", gpu="h100-sxm")


def test_a_launched_script_may_have_its_settings_in_a_yaml(tmp_path):
    (tmp_path / "job.yaml").write_text(SFT, encoding="utf-8")
    (tmp_path / "other.yaml").write_text("step_scheduler:\n  local_batch_size: 8\n", encoding="utf-8")
    found = convert(tmp_path, "torchrun --nproc_per_node=4 scripts/x.py --config job.yaml\n")
    assert (found.tables["workload"]["model"], found.tables["workload"]["global_batch_size"]) == ("qwen3-8b", 16)
    with pytest.raises(InputError, match="started without settings that are known"):
        convert(tmp_path, "torchrun --nproc_per_node=4 scripts/x.py --config other.yaml\n")


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("--launcher torchrun -- --nproc_per_node=4 --nnodes=2", 8),
        ("--launcher=accelerate -- --num_processes 2", 2),
        ("-- --config_file fsdp.yaml", 16),
        ("--num-processes 4", 4),
    ],
)
def test_what_axolotl_hands_on_to_its_launcher(tmp_path, launcher, gpus):
    (tmp_path / "axolotl.yml").write_text(AXOLOTL, encoding="utf-8")
    found = convert(tmp_path, f"axolotl train axolotl.yml {launcher}\n")
    assert found.tables["cluster"]["gpus"] == gpus
    assert not any("not regarded" in warning for warning in found.warnings)


def test_axolotl_fuses_adapters_without_dropout_unless_told_otherwise(tmp_path):
    lora = AXOLOTL.replace("lora_r:\nadapter:", "lora_r: 16\nlora_target_linear: true\nadapter: lora").replace(
        "deepspeed: deepspeed_configs/zero3_bf16.json\n", ""
    )

    def fused(more):
        found = convert(tmp_path, f"{lora}{more}", "axolotl.yml", gpus=8)
        return any("Axolotl's own kernels of adapters are fused" in warning for warning in found.warnings)

    assert fused("lora_dropout: 0\n")
    for more in ("", "lora_dropout: 0.05\n", "lora_dropout: 0\ntrust_remote_code: true\n"):
        assert not fused(more)
    assert not fused("lora_dropout: 0\nlora_mlp_kernel: false\nlora_qkv_kernel: false\n")
    assert fused("lora_dropout: 0.05\nlora_mlp_kernel: true\n")


def test_scripts_called_after_unsloth_are_told_of_its_kernels():
    job = "python unsloth-cli.py --model_name unsloth/llama-3-8b --max_seq_length 8192 --r 64 --lora_dropout 0"
    found = jc.convert(f"{job} --per_device_train_batch_size 4", gpu="h100-sxm", gpus=1)
    assert found.tables["workload"]["lora"] == {"rank": 64, "target_modules": "all-linear", "dropout": 0.0}
    assert found.tables["workload"]["precision"] == "bf16"
    assert any(warning.startswith("Unsloth's kernels are not known") for warning in found.warnings)


@pytest.mark.parametrize(
    ("job", "what"),
    [
        ("NPROC_PER_NODE=8 megatron sft --load a --micro_batch_size 1", "ms-swift's Megatron"),
        ("nemo llm pretrain --factory llama3_8b trainer.devices=8 trainer.num_nodes=1", "recipes of NeMo 2"),
    ],
)
def test_tools_of_which_other_jobs_are_known_are_named(job, what):
    with pytest.raises(InputError, match=what):
        jc.convert(job, gpu="h100-sxm")


def test_checkpoints_that_unsloth_moves_to_the_host_are_refused(tmp_path):
    assert convert(tmp_path, f"{FACTORY}use_unsloth_gc: false\n", "factory.yaml", gpus=8).missing == {}
    with pytest.raises(InputError, match=r"use_unsloth_gc\]: what is kept on the host"):
        convert(tmp_path, f"{FACTORY}use_unsloth_gc: true\n", "factory.yaml", gpus=8)


COPIES = AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json", "fsdp_config: {reshard_after_forward: true}")


@pytest.mark.parametrize(
    ("said", "gpus", "shard"),
    [
        ("dp_shard_size: 4", 8, 4),
        ("dp_shard_size: 4\ndp_replicate_size: 2", 8, 4),
        ("dp_replicate_size: 4", 8, 2),
        ("dp_shard_size: 8", 8, None),
        ("dp_replicate_size: 1", 8, None),
    ],
)
def test_copies_of_what_axolotl_shards(tmp_path, said, gpus, shard):
    found = convert(tmp_path, f"{COPIES}{said}\n", "axolotl.yml", gpus=gpus)
    assert found.tables["parallelism"].get("fsdp_shard_size") == shard
    assert not any(word in told for told in found.warnings for word in ("dp_shard", "dp_replicate"))


def test_copies_of_an_unknown_number_of_gpus_are_missing(tmp_path):
    found = convert(tmp_path, f"{COPIES}dp_replicate_size: 2\n", "axolotl.yml", gpus=None)
    assert "parallelism.fsdp_shard_size" in found.missing


def test_axolotls_older_words(tmp_path):
    text = AXOLOTL.replace("bf16: auto", "float16: true").replace("gradient_accumulation_steps: 2", "batch_size: 3")
    found = convert(tmp_path, text, "axolotl.yml", gpus=8)
    assert found.tables["workload"]["precision"] == "fp16"
    assert found.tables["workload"]["global_batch_size"] == 24
    assert not any("batch_size" in told or "float16" in told for told in found.warnings)


@pytest.mark.parametrize("size", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
def test_llama_factorys_megatron_is_refused(tmp_path, size):
    text = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nbf16: true\nper_device_train_batch_size: 1\n"
    assert not convert(tmp_path, f"{text}{size}: 1\n", "job.yaml", gpus=8).missing
    with pytest.raises(InputError, match="splits of Hugging Face's layers"):
        convert(tmp_path, f"{text}{size}: 2\n", "job.yaml", gpus=8)


def test_gpus_that_the_user_says_stand_in_for_processes_that_only_a_run_tells(tmp_path):
    job = "N=$(nvidia-smi -L | wc -l)\naccelerate launch --num_processes $N --num_machines $M train.py --bf16 "
    job += "--model_name_or_path Qwen/Qwen3-8B --max_length 4096 --per_device_train_batch_size 1\n"
    assert convert(tmp_path, job, gpus=16).tables["cluster"]["gpus"] == 16
    with pytest.raises(InputError, match="only a run of the script could tell"):
        convert(tmp_path, job, gpus=None)


def test_experts_under_autocast_say_what_would_be_known(tmp_path):
    text = "model_name_or_path: Qwen/Qwen3-30B-A3B\nfinetuning_type: full\nbf16: true\ncutoff_len: 4096\n"
    with pytest.raises(InputError, match=r"Mixture of Experts under torch.autocast.*Set parallelism.fsdp = true"):
        convert(tmp_path, text + "per_device_train_batch_size: 1\n", "job.yaml", gpus=16)


@pytest.mark.parametrize("folder", ["$MODELS/", "${HOME}/models/", "/cache/models--Qwen--Qwen3-8B/snapshots/0123abcd"])
def test_models_in_folders_are_known_by_their_names(folder):
    name = folder if "snapshots" in folder else f"{folder}Qwen3-8B"
    job = f"torchrun --nproc_per_node 8 train.py --model_name_or_path {name} --bf16 --max_length 4096"
    found = jc.convert(f"{job} --per_device_train_batch_size 1\n", gpu="h200-sxm")
    assert found.tables["workload"]["model"] == "qwen3-8b"


def test_other_losses_of_ms_swift_are_refused():
    job = "swift sft --model Qwen/Qwen3-8B --tuner_type full --max_length 2048 --task_type "
    assert not jc.convert(job + "causal_lm", gpu="h200-sxm").missing
    with pytest.raises(InputError, match=r"task_type.*other losses than of next tokens"):
        jc.convert(job + "embedding", gpu="h200-sxm")
