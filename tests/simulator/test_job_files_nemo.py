"""Jobs of NeMo and Megatron-Bridge as plans: the same as the Megatron options that they stand for."""

import pytest
from trainer_jobs import NEMO

import joulecast as jc

FLAGS = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --bf16 --train-iters 100 --micro-batch-size 1 \\
  --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
  --num-virtual-stages-per-pipeline-rank 4 --seq-length 4096 --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --hidden-dropout 0 \\
  --attention-dropout 0 --normalization RMSNorm --disable-bias-linear --swiglu --position-embedding-type rope \\
  --untie-embeddings-and-output-weights --recompute-granularity selective --sequence-parallel \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""
RECIPE = """python setup_experiment.py --account me -m llama -mr llama3_70b -ng 64 -c fp8_cs -tp 4 -pp 8 -vp 5 \\
  -mb 1 -gb 128 -sl 8192"""
BRIDGE = """torchrun --nproc_per_node 8 pretrain.py --config-file over.yaml model.tensor_model_parallel_size=4 \\
  train.micro_batch_size=2
"""
OVER = """ConfigContainer:
  model:
    num_layers: 32
    hidden_size: 4096
    ffn_hidden_size: 14336
    num_attention_heads: 32
    num_query_groups: 8
    add_bias_linear: false
    gated_linear_unit: true
    normalization: RMSNorm
    position_embedding_type: rope
    share_embeddings_and_output_weights: false
    tensor_model_parallel_size: 2
    hidden_dropout: 0.0
    attention_dropout: 0.0
    some_new_option: 3
  train:
    global_batch_size: 64
  dataset:
    sequence_length: 8192
  ddp:
    use_distributed_optimizer: true
    grad_reduce_in_fp32: false
  mixed_precision: bf16_with_fp8_current_scaling_mixed
"""


def convert(tmp_path, text, name="job.sh", **options):
    (tmp_path / "nemo.yaml").write_text(NEMO, encoding="utf-8")
    (tmp_path / "over.yaml").write_text(OVER, encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


def test_names_are_the_options_that_they_stand_for(tmp_path):
    named, flags = convert(tmp_path, NEMO, "job.yaml"), convert(tmp_path, FLAGS)
    expected = {**flags.tables, "implementation": {**flags.tables["implementation"], "generation": "nemo-2024"}}
    assert named.tables == expected
    assert named.tables["workload"]["model"] == "llama-3.1-8b"
    assert named.sources["workload.sequence_length"] == "model.encoder_seq_length (line 15)"
    assert named.sources["parallelism.distributed_optimizer"] == "model.optim.name (line 34)"
    assert "exp_manager.name" not in " ".join(named.warnings)


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("model.tensor_model_parallel_size=4", "parallelism.tensor_model_parallel_size", 4),
        ("trainer.precision=16", "workload.precision", "fp16"),
        ("model.fp8=True", "workload.precision", "fp8"),
        ("model.fp8=True model.fp8_params=True", "workload.fp8_param_gather", True),
        ("model.fp8_params=True", "workload.fp8_param_gather", None),
        ("model.virtual_pipeline_model_parallel_size=null", "parallelism.virtual_pipeline_model_parallel_size", None),
        (
            "model.optim.name=fused_adam ++model.optim.overlap_param_sync=false",
            "parallelism.distributed_optimizer",
            None,
        ),
        ("trainer.num_nodes=4", "cluster.gpus", 32),
        ("model.encoder_seq_length=8192", "workload.sequence_length", 8192),
        ("model.sequence_parallel=False", "parallelism.sequence_parallel", None),
    ],
)
def test_overrides_win_over_the_configuration(tmp_path, override, key, expected):
    command = f"python megatron_gpt_pretraining.py --config-path=. --config-name=nemo trainer.devices=8 {override}\n"
    found = convert(tmp_path, command).tables
    table, name = key.split(".")
    assert found[table].get(name) == expected


def test_a_container_of_megatron_bridge(tmp_path):
    found = convert(tmp_path, BRIDGE)
    assert found.tables["parallelism"] == {"tensor_model_parallel_size": 4, "distributed_optimizer": True}
    assert found.tables["workload"]["fp8_recipe"] == "tensorwise"
    assert found.tables["implementation"]["gradient_precision"] == "bf16"
    assert found.tables["implementation"]["generation"] == "megatron-bridge-2025"
    assert found.sources["workload.global_batch_size"] == "over.yaml:18 train.global_batch_size"
    assert found.sources["workload.micro_batch_size"] == "train.micro_batch_size (line 2)"
    assert "not regarded: over.yaml:16 model.some_new_option" in found.warnings


def test_a_recipe_has_what_all_recipes_have(tmp_path):
    found = convert(tmp_path, RECIPE)
    assert found.tables["workload"]["model"] == "llama-3.1-70b"
    assert found.tables["cluster"]["gpus"] == 64
    assert found.tables["workload"]["precision"] == "fp8"
    assert found.tables["parallelism"]["sequence_parallel"] is True
    assert found.tables["overlap"] == {"grad_reduce": "overlapped", "param_gather": "overlapped"}
    assert found.tables["implementation"]["fused_loss"] is True
    assert found.sources["parallelism.distributed_optimizer"] == "Megatron-Bridge's recipes"


def test_a_recipe_is_in_bf16_unless_told_otherwise():
    recipe = "torchrun --nproc_per_node=8 run_recipe.py --recipe qwen3_8b_pretrain_config train.micro_batch_size=1 "
    recipe += "model.seq_length=4096 train.global_batch_size=64 model.tensor_model_parallel_size=2 "
    recipe += "model.pipeline_model_parallel_size=1"
    assert jc.convert(recipe, gpu="h100-sxm").tables["workload"]["precision"] == "bf16"
    half = jc.convert(f"{recipe} mixed_precision=fp16_mixed", gpu="h100-sxm")
    assert half.tables["workload"]["precision"] == "fp16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECIPE.replace("-mb 1", ""), "the recipe's own micro_batch_size are not read. Write micro_batch_size="),
        (RECIPE.replace("llama3_70b", "nemotronh_56b"), "no model for the recipe 'nemotronh_56b'"),
        (RECIPE.replace("-tp 4", "-tp four"), r"tensor_model_parallel_size\]: 'four' is not a whole number"),
        (RECIPE + " --task lora", "peft lora.*adapters"),
        ("python t.py --config-name=no model.a=1 model.b=2", r"job.sh:1 .*no such file: no.yaml"),
        (BRIDGE.replace("=4", "=$TP"), r"\$TP, which the script does not set"),
        (BRIDGE.replace("model.tensor", "model.num_layers=0 model.tensor"), "num_layers.*0 is below 1"),
    ],
)
def test_bad_jobs_get_one_line_that_says_where(tmp_path, text, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("${.encoder_seq_length}", "${.max_position_embeddings}"),
        ("ffn_hidden_size: ${multiply:3584, 4}", "ffn_hidden_size: ${multiply:${.num_layers}, ${.ffn_hidden_size}}"),
        ("num_layers: 32", "num_layers: ${model.no.such}"),
        ("num_layers: 32", "num_layers: [1, [2]]"),
        ("hidden_size: 4096", "hidden_size: {a: 1}"),
    ],
)
def test_references_that_lead_nowhere_end(tmp_path, old, new):
    try:
        convert(tmp_path, NEMO.replace(old, new), "job.yaml")
    except jc.InputError as error:
        assert "\n" not in str(error)
