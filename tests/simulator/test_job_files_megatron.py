"""Launch scripts of Megatron-LM as plans: the same as plans written by hand, and errors that say where."""

import tomllib

import pytest
from megatron_jobs import DEEPSEEK, GPT, LLAMA, MIXTRAL

import joulecast as jc
from joulecast.model.architecture.hf import load_model
from joulecast.simulator.plan_file.plan import plan_from_dict


def script(tmp_path, text):
    path = tmp_path / "train.sh"
    path.write_text(text, encoding="utf-8")
    return path


def convert(tmp_path, text, **options):
    return jc.convert(script(tmp_path, text), **{"gpu": "h100-sxm", **options})


def test_a_llama_job_is_the_plan_that_one_would_write(tmp_path):
    by_hand = {
        "workload": {
            "model": "llama-3.1-8b",
            "sequence_length": 8192,
            "micro_batch_size": 1,
            "global_batch_size": 64,
            "precision": "bf16",
            "training_tokens": 1000.0 * 64 * 8192,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 16},
        "parallelism": {
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "sequence_parallel": True,
            "distributed_optimizer": True,
        },
        "schedule": {"name": "1f1b"},
        "overlap": {"grad_reduce": "overlapped", "param_gather": "overlapped"},
        "implementation": {
            "framework": "megatron",
            "generation": "megatron-core",
            "attention_backend": "cudnn",
            "average_in_collective": False,
        },
    }
    found = convert(tmp_path, LLAMA)
    assert found.tables == by_hand
    assert found.missing == {} and found.warnings == ()
    assert jc.predict(tomllib.loads(found.text)).to_dict() == jc.predict(by_hand).to_dict()


def test_a_conversion_is_shown_in_a_line(tmp_path):
    (job := tmp_path / "job.sh").write_text(LLAMA)
    assert repr(jc.convert(job)).endswith("missing: cluster.gpu)") and "\n" not in repr(jc.convert(job))


def test_every_key_says_its_flag_and_line(tmp_path):
    text = convert(tmp_path, LLAMA).text
    for key, source in (
        ("sequence_length = 8192", "--seq-length (line 25)"),
        ("tensor_model_parallel_size = 2", "--tensor-model-parallel-size (line 34)"),
        ("param_gather", "--overlap-param-gather (line 41)"),
        ("average_in_collective = false", "Megatron's default without --ddp-average-in-collective"),
        ('model = "llama-3.1-8b"', "its shape: --num-layers and "),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(key)]
        assert f"# {source}" in line
    assert "# Passed over, without effect on time, energy and memory:\n# - --lr, --save" not in text
    assert "--lr" in text and "--save" in text


@pytest.mark.parametrize(
    ("text", "name"),
    [(LLAMA, "llama-3.1-8b"), (GPT, "gpt3-175b"), (MIXTRAL, "mixtral-8x7b"), (DEEPSEEK, "deepseek-v3")],
)
def test_flags_have_the_parameters_of_the_models_that_they_are_of(tmp_path, text, name):
    assert convert(tmp_path, text).tables["workload"]["model"] == name
    # A vocabulary that no model of the catalogue has: all sizes are written into the plan.
    tables = convert(tmp_path, text.replace("--micro-batch-size", "--padded-vocab-size 1024 --micro-batch-size")).tables
    assert tables["workload"]["model"]["vocab_size"] == 1024
    tables["workload"]["model"]["vocab_size"] = load_model(name).vocab
    assert plan_from_dict(tables).workload.model.parameters == load_model(name).parameters


def test_gpt_has_megatrons_defaults(tmp_path):
    tables = convert(tmp_path, GPT).tables
    assert tables["schedule"] == {"name": "interleaved-1f1b", "recompute": "selective"}
    assert tables["parallelism"]["virtual_pipeline_model_parallel_size"] == 2
    assert tables["workload"]["precision"] == "fp16"
    assert tables["cluster"] == {"gpu": "h100-sxm", "gpus": 512}
    assert "overlap" not in tables


def test_deepseek_has_its_stages_recipe_and_states(tmp_path):
    tables = convert(tmp_path, DEEPSEEK).tables
    assert tables["parallelism"]["stage_layers"] == [*[4] * 15, 1]
    assert tables["cluster"]["gpus"] == 1024
    assert (tables["workload"]["precision"], tables["workload"]["fp8_recipe"]) == ("fp8", "blockwise")
    assert tables["workload"]["moe_load_imbalance"] == 1.0
    assert tables["schedule"] == {
        "name": "1f1b",
        "recompute": "selective",
        "recompute_modules": ["mla_up_proj", "layernorm"],
    }
    run = tables["implementation"]
    assert (run["moe_token_dispatcher_type"], run["moe_router_dtype"]) == ("flex", "fp32")
    assert run["optimizer_precision"] == "bf16"


def test_an_activations_input_in_fp8_is_kept_so_unless_a_checkpoint_keeps_it_whole(tmp_path):
    flag, key = "--activation-func-fp8-input-store", "activation_func_fp8_input_store"
    text = DEEPSEEK.replace("--recompute-granularity", f"{flag} --recompute-granularity")
    found = convert(tmp_path, text)
    assert found.tables["implementation"][key] is True
    found = convert(tmp_path, text.replace("mla_up_proj layernorm", "mla_up_proj moe_act"))
    assert key not in found.tables["implementation"]
    assert [told for told in found.warnings if flag in told and "moe_act" in told]


def test_attention_is_what_transformer_engine_chooses(tmp_path):
    text = LLAMA.replace("--attention-backend fused", "")
    chosen = {
        gpu: convert(tmp_path, text, gpu=gpu).tables["implementation"]["attention_backend"]
        for gpu in ("h100-sxm", "a100-sxm-80gb")
    }
    assert chosen == {"h100-sxm": "cudnn", "a100-sxm-80gb": "flash-attn-2"}
    text = text.replace("TP=2", "TP=2\nexport NVTE_FUSED_ATTN=0")
    assert convert(tmp_path, text).tables["implementation"]["attention_backend"] == "flash-attn-2"


def test_what_is_missing_stands_as_a_line_to_fill_in(tmp_path):
    found = jc.convert(script(tmp_path, LLAMA))
    assert list(found.missing) == ["cluster.gpu"]
    assert "# gpu = ...  # ADD: " in found.text
    with pytest.raises(jc.InputError, match=r"cluster.gpu.*missing"):
        jc.predict(tomllib.loads(found.text))
    text = LLAMA.replace("--nproc_per_node $PER_NODE", "").replace("--global-batch-size $(($NODES * PER_NODE * 4))", "")
    found = convert(tmp_path, text)
    assert list(found.missing) == ["cluster.gpus", "workload.global_batch_size"]
    assert convert(tmp_path, text, gpus=32).tables["workload"]["global_batch_size"] == 8


def test_a_vocabulary_that_only_a_tokenizer_knows(tmp_path):
    text = LLAMA.replace("--vocab-size 128256", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model some/where")
    found = convert(tmp_path, text)
    assert found.tables["workload"]["model"] == "llama-3.1-8b"
    assert any("vocabulary is taken from llama-3.1-8b" in warning for warning in found.warnings)
    other = text.replace("--ffn-hidden-size 14336", "--ffn-hidden-size 14080")
    assert list(convert(tmp_path, other).missing) == ["workload.model.vocab_size"]
    set_ = convert(tmp_path, other, overrides=["workload.model.vocab_size=32000"])
    assert set_.missing == {} and jc.predict(tomllib.loads(set_.text)).time_s > 0


@pytest.mark.parametrize(
    ("named", "rows"),
    [
        ("meta-llama/Llama-3.1-8B", 128256),
        ("'/models/Meta-Llama-3-8B-Instruct/'", 128256),
        ("$DATA/Llama-2-7b-hf/tokenizer.model", 32000),
        ("$TOKENIZER", None),
    ],
)
def test_a_vocabulary_of_the_model_whose_tokenizer_is_named(tmp_path, named, rows):
    text = LLAMA.replace("--vocab-size 128256", f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {named}")
    text = text.replace("--ffn-hidden-size 14336", "--ffn-hidden-size 14080")
    found = convert(tmp_path, text)
    assert found.tables["workload"]["model"].get("vocab_size") == (rows and -(-rows // 256) * 256)
    assert (found.missing == {}) is (rows is not None)
    if rows:
        assert found.sources["workload.model.vocab_size"].startswith("--tokenizer-model")


def test_options_that_nothing_tells_are_none_of_a_flags_values(tmp_path):
    text = LLAMA.replace("--micro-batch-size 1 ", "--micro-batch-size 1 $MORE $(cat more) ")
    found = convert(tmp_path, text)
    assert found.tables["workload"]["micro_batch_size"] == 1
    assert sum("is taken as empty" in told for told in found.warnings) == 2
    for wrong in ("--micro-batch-size $MORE 1 ", "--micro-batch-size 1 2 $MORE "):
        with pytest.raises(jc.InputError, match="values"):
            convert(tmp_path, LLAMA.replace("--micro-batch-size 1 ", wrong))


def test_fewer_layers_of_a_known_model_and_a_model_by_name(tmp_path):
    fewer = convert(tmp_path, LLAMA.replace("--num-layers 32", "--num-layers 8")).tables["workload"]
    assert (fewer["model"], fewer["layers"]) == ("llama-3.1-8b", 8)
    named = convert(tmp_path, LLAMA.replace("--hidden-size 4096", ""), model="qwen2.5-14b").tables["workload"]
    assert (named["model"], named["layers"]) == ("qwen2.5-14b", 32)


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("--seq-length $LENGTH", "--seq-length $LENGTH --no-rope-fusion", "--no-rope-fusion"),
        ("--attention-dropout 0 ", "", "dropout of 0.1"),
        ("--seq-length $LENGTH", "--seq-length $LENGTH --deepspeed_config ds.json", "this file is not read"),
        ("--seq-length $LENGTH", "--seq-length $LENGTH --our-own-thing 3", "--our-own-thing is not known"),
        ("--save $CHECKPOINTS", "--save $CHECKPOINTS $MORE", ""),
    ],
)
def test_what_a_plan_cannot_say_is_told(tmp_path, old, new, warning):
    found = convert(tmp_path, LLAMA.replace(old, new))
    assert [warning in told for told in found.warnings] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "--sequence-parallel",
            "--sequence-paralel",
            r"train.sh:36 \[--sequence-paralel\].*no such flag.*--sequence-p",
        ),
        ("--hidden-size 4096", "--hidden-size", r"train.sh:16 \[--hidden-size\]: has no value"),
        ("--hidden-size 4096", "--hidden-size big", r"'big' is not a whole number"),
        ("--hidden-size 4096", "--hidden-size=---2", r"'---2' is not a whole number"),
        ("--hidden-size 4096", "--hidden-size ²", r"'²' is not a whole number"),
        ("--hidden-size 4096", "--hidden-size 4096 1", r"has 2 values"),
        ("--hidden-size 4096", "", r"the job has no --hidden-size"),
        ("--swiglu", "--swiglu yes", r"\[--swiglu\]: takes no value"),
        ("TP=2", "", r"train.sh:33 \[--tensor-model-parallel-size\].*\$TP, which the script does not set.*--env TP="),
        ("TP=2", "TP=$(nproc)", r"depends on \$\(nproc\), which only a run"),
        ("TP=2", "TP=3", r"train.sh:\d+ \[.*\]: 16 GPUs cannot be split into tensor 3 x pipeline 2"),
        ("TP=2", "TP=64", r"64 x pipeline 2 = 128"),
        ("--vocab-size 128256", "--vocab-size 128256 --num-layers-per-virtual-pipeline-stage 5", r"cannot be cut into"),
        ("--num-query-groups 8", "--num-query-groups 5", r"--num-query-groups.*32 attention heads cannot share 5"),
        ("--vocab-size 128256", "--hybrid-override-pattern MXM", r"--hybrid-override-pattern.*no pattern of layers"),
        ("--vocab-size 128256", "--optimizer-cpu-offload", r"--optimizer-cpu-offload.*host"),
        ("--vocab-size 128256", "--optimizer lion", r"states of lion are not known"),
        ("pretrain_gpt.py", "pretrain_mamba.py", r"layers of a hybrid are known by their pattern"),
        ("--normalization RMSNorm", "--normalization RMSnorm", r"Did you mean 'RMSNorm'"),
        ("then", "", r"train.sh:39: what begins here has no 'then'"),
        ('"${LAUNCH[@]}"', '"${LAUNCH[@]', r"train.sh:\d+: .* is not closed"),
        (")\nTRAIN=(", "\nTRAIN=(", r"is not closed|array"),
        ("torchrun", "echo", r"starts no training job that is known"),
    ],
)
def test_bad_jobs_get_one_line_that_says_where(tmp_path, old, new, message):
    text = LLAMA.replace(old, new, 1) if old != "TP=2" else LLAMA.replace("TP=2\n", f"{new}\n" if new else "", 1)
    assert text != LLAMA
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "empty"), (b" \n", "empty"), (b"\x7fELF\x00\x01\xff\xfe", "not UTF-8"), (b"a\x00b", "no text")],
)
def test_files_that_are_no_scripts(tmp_path, data, message):
    path = tmp_path / "train.sh"
    path.write_bytes(data)
    with pytest.raises(jc.InputError, match=message):
        jc.convert(path)
    with pytest.raises(jc.InputError, match="no such file"):
        jc.convert(tmp_path / "absent.sh")


def test_a_command_as_text_and_as_words():
    flags = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    command = f"torchrun --nproc_per_node 1 pretrain_gpt.py {flags} --micro-batch-size 1 --vocab-size 1000 --bf16"
    one, other = jc.convert(command, gpu="h100-sxm"), jc.convert(command.split(), gpu="h100-sxm")
    assert one.tables == other.tables
    assert one.tables["workload"]["model"]["vocab_size"] == 1024
    assert one.tables["workload"]["global_batch_size"] == 1


@pytest.mark.parametrize(
    ("launcher", "gpus", "per_node"),
    [
        ("mpirun --np 16 -N 4", 16, 4),
        ("mpiexec -n 16 -ppn 8", 16, None),  # nodes of eight are the usual ones
        ("mpirun -npernode 8", None, None),
        ("srun -N2 --ntasks-per-node=4", 8, 4),
        ("srun -N 4 -n16", 16, 4),
    ],
)
def test_launchers_of_tasks_say_how_many_gpus_there_are(launcher, gpus, per_node):
    flags = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    command = f"{launcher} python pretrain_gpt.py {flags} --micro-batch-size 1 --vocab-size 1000 --bf16"
    cluster = jc.convert(command, gpu="h100-sxm").tables["cluster"]
    assert (cluster.get("gpus"), cluster.get("gpus_per_node")) == (gpus, per_node)


@pytest.mark.parametrize(
    ("batch", "launcher", "gpus", "per_node"),
    [
        ("--nodes=4\n#SBATCH --ntasks-per-node=8", "srun", 32, None),
        ("-N 4\n#SBATCH --ntasks-per-node 8", "srun -N 2", 16, None),
        ("--nodes=4\n#SBATCH --ntasks=16", "srun --mpi=pmix", 16, 4),
        ("--nodes=4\n#SBATCH --ntasks-per-node=8", "srun -n 8", 8, 2),
        ("--nodes=4\n#SBATCH --ntasks-per-node=1", "srun torchrun --nproc_per_node 8", 32, None),
        ("--nodes=4\n#SBATCH --ntasks-per-node=8", "", None, None),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_srun_starts_the_tasks_of_its_batch(tmp_path, batch, launcher, gpus, per_node, as_text):
    flags = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
    python = "" if "torchrun" in launcher else "python"
    command = f"{python} pretrain_gpt.py {flags} --micro-batch-size 1 --vocab-size 1000 --bf16"
    started = f'bash -c "cd here; {command}"' if as_text and "torchrun" not in launcher else command
    cluster = convert(tmp_path, f"#!/bin/bash\n#SBATCH {batch}\n{launcher} {started}\n").tables["cluster"]
    assert (cluster.get("gpus"), cluster.get("gpus_per_node")) == (gpus, per_node)


def test_the_environment_may_be_said(tmp_path):
    text = LLAMA.replace("NODES=2\n", "")
    found = convert(tmp_path, text, environment={"NODES": "4"})
    assert found.tables["cluster"]["gpus"] == 32


@pytest.mark.parametrize("text", [LLAMA, GPT, MIXTRAL, DEEPSEEK], ids=["llama", "gpt", "mixtral", "deepseek"])
def test_a_model_of_the_catalogue_is_forecast_as_its_sizes_are(tmp_path, text):
    """What tells models of one shape apart in other code changes nothing in Megatron's."""
    named = convert(tmp_path, text).tables
    sizes = convert(tmp_path, text.replace("--micro-batch-size", "--padded-vocab-size 1024 --micro-batch-size")).tables
    sizes["workload"]["model"]["vocab_size"] = load_model(named["workload"]["model"]).vocab
    one, other = jc.predict(named), jc.predict(sizes)
    assert (one.time_s, one.energy_j) == (other.time_s, other.energy_j)
