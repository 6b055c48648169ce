"""What single flags of Megatron's and Megatron-DeepSpeed's jobs become, by what their --help says of them."""

import functools
import operator

import pytest
from megatron_jobs import DEEPSEEK, GPT, LLAMA, MIXTRAL

import joulecast as jc


def convert(tmp_path, text):
    path = tmp_path / "train.sh"
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, gpu="h100-sxm")


def with_flags(text, flags):
    words = [f"'{word}'" if set(word) & set("|()[]*") else word for word in flags.split()]
    return text.replace("--micro-batch-size", f"{' '.join(words)} --micro-batch-size", 1)


def at(tables, key):
    return functools.reduce(operator.getitem, key.split("."), tables)


WITHOUT_ZERO1 = LLAMA.replace('"--use-distributed-optimizer" ', "")
OLD_ZERO = "--deepspeed --zero-stage"
FLEX, FLEX_KEY = MIXTRAL.replace("alltoall", "flex"), "implementation.moe_flex_dispatcher"
UNNAMED = MIXTRAL.replace("14336", "13312")
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("text", "flags", "key", "expected"),
    [
        # Four stages of 7, 8, 8 and 9 layers on two ranks: two virtual stages each.
        (LLAMA, f"{LAYOUT} Et*7|(t*8|)*2,t*9,L", "parallelism.stage_layers", [7, 8, 8, 9]),
        (LLAMA, f"{LAYOUT} Et*7|(t*8|)*2,t*9,L", "parallelism.virtual_pipeline_model_parallel_size", 2),
        (LLAMA, f"{LAYOUT} Et*7|(t*8|)*2,t*9,L", "schedule.name", "interleaved-1f1b"),
        (LLAMA, f"{LAYOUT} Et*15|t*17L", "parallelism.stage_layers", [15, 17]),
        (LLAMA, "--decoder-first-pipeline-num-layers 15", "parallelism.stage_layers", [15, 17]),
        (LLAMA, "--decoder-last-pipeline-num-layers 15", "parallelism.stage_layers", [17, 15]),
        (WITHOUT_ZERO1, f"{OLD_ZERO} 1", "parallelism.distributed_optimizer", True),
        (WITHOUT_ZERO1, f"{OLD_ZERO} 2", "parallelism.distributed_optimizer", True),
        (WITHOUT_ZERO1, f"{OLD_ZERO} 3", "parallelism.fsdp", True),
        (LLAMA, "--moe-layer-recompute --recompute-granularity selective", "schedule.recompute_modules", ["moe"]),
        (
            LLAMA,
            "--moe-layer-recompute --recompute-granularity selective --recompute-modules core_attn mlp",
            "schedule.recompute_modules",
            ["core_attn", "mlp", "moe"],
        ),
        (LLAMA, "--cross-entropy-loss-fusion", "implementation.fused_loss", "native"),
        (
            LLAMA,
            "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
            "implementation.fused_loss",
            True,
        ),
        # Without a size of its own the MLP is 4 hidden sizes wide, where it is gated two thirds of that in whole 64s:
        # 8 x 4096 / 3 = 10,922.67, of which 170 times 64 are 10,880.
        (LLAMA.replace("--ffn-hidden-size 14336", ""), "", "workload.model.intermediate_size", 10_880),
        (
            LLAMA.replace("--ffn-hidden-size 14336", "").replace("--swiglu", ""),
            "",
            "workload.model.intermediate_size",
            16_384,
        ),
        (LLAMA.replace("rope", "learned_absolute"), "", "workload.model.learned_positions", 8192),
        # GPT-2's 50,257 words, to the next multiple of 128 a tensor-parallel rank (8).
        (GPT.replace("--hidden-size 12288", "--hidden-size 6144"), "", "workload.model.vocab_size", 51_200),
        (
            GPT.replace("--hidden-size 12288", "--hidden-size 6144").replace("--vocab-file", "--merge-file"),
            "",
            "workload.model.vocab_size",
            51_200,
        ),
        (LLAMA, "--mtp-num-layers 2 --mtp-use-repeated-layer", "workload.mtp_use_repeated_layer", True),
        (MIXTRAL, "", "implementation.moe_router_fusion", False),
        (MIXTRAL, "--moe-router-fusion", "implementation.moe_router_fusion", True),
        (UNNAMED, "--moe-router-score-function sigmoid", "workload.model.moe_router_score_function", "sigmoid"),
        (FLEX, "", f"{FLEX_KEY}_backend", "deepep"),
        (FLEX, "--moe-deepep-num-sms 24", f"{FLEX_KEY}_num_sms", 24),
        (FLEX, "--moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32", f"{FLEX_KEY}_backend", "hybridep"),
        (FLEX, "--moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32", f"{FLEX_KEY}_num_sms", 32),
        (FLEX, "--moe-deepep-num-sms 24 --moe-flex-dispatcher-num-sms 12", f"{FLEX_KEY}_num_sms", 12),
    ],
)
def test_a_flag_becomes_a_key(tmp_path, text, flags, key, expected):
    assert at(convert(tmp_path, with_flags(text, flags)).tables, key) == expected


def test_the_other_kernels_sms_are_no_key(tmp_path):
    """Those of kernels that do not run, and of a dispatcher that has none."""
    for text in (with_flags(FLEX, "--moe-hybridep-num-sms 32"), with_flags(MIXTRAL, "--moe-deepep-num-sms 24")):
        assert "moe_flex_dispatcher_num_sms" not in convert(tmp_path, text).tables["implementation"]
    told = convert(tmp_path, with_flags(FLEX, "--moe-flex-dispatcher-backend ncclep"))
    assert "moe_flex_dispatcher_backend" not in told.tables["implementation"]
    assert any("ncclep" in warning for warning in told.warnings)


def test_a_stage_of_zero_without_deepspeed_splits_nothing(tmp_path):
    parallelism = convert(tmp_path, with_flags(GPT, "--zero-stage 3")).tables["parallelism"]
    assert "fsdp" not in parallelism and "distributed_optimizer" not in parallelism


@pytest.mark.parametrize(
    ("text", "flags", "warning"),
    [
        (WITHOUT_ZERO1, f"{OLD_ZERO} 1", None),
        (WITHOUT_ZERO1, f"{OLD_ZERO} 2", "--zero-stage 2: gradients are forecast whole"),
        (WITHOUT_ZERO1, f"{OLD_ZERO} 3", None),
        (LLAMA, "--cross-entropy-loss-fusion", None),
        (LLAMA, "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "fusion-impl linear"),
        (LLAMA, "--recompute-granularity full --recompute-method block --recompute-num-layers 4", "method block: 4"),
        (LLAMA, "--recompute-granularity full --recompute-method block --recompute-num-layers 16", None),
        (LLAMA, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", None),
        (LLAMA, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "one layer in 4"),
        (MIXTRAL, "", None),
        (MIXTRAL.replace("--moe-grouped-gemm", ""), "", "no --moe-grouped-gemm"),
        (MIXTRAL.replace("--moe-permute-fusion", ""), "", "no --moe-permute-fusion"),
    ],
)
def test_what_the_forecast_does_otherwise_is_told_there_alone(tmp_path, text, flags, warning):
    assert [warning in told for told in convert(tmp_path, with_flags(text, flags)).warnings] == [True] * bool(warning)


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (LLAMA, f"{LAYOUT} Et*15|x|t*17L", r"train.sh:\d+ \[--pipeline-model-parallel-layout\]"),
        (LLAMA, f"{LAYOUT} Et*15|t*16L", r"the layout has 31 layers \(t\), the model 32"),
        (LLAMA, f"{LAYOUT} Et*15|t*8|t*9L", r"3 stages of the layout cannot be shared by 2 pipeline ranks"),
        (LLAMA, f"{LAYOUT} Et*999999|L", r"more stages than any plan"),
        (LLAMA, "--decoder-first-pipeline-num-layers 33", r"leave -1 for 1 stages"),
        (MIXTRAL, "--moe-layer-freq [1]*31", r"the pattern has 31 layers, the model 32"),
        (MIXTRAL, "--moe-layer-freq ([0]*3+[1", r"is no pattern of layers"),
        (MIXTRAL, "--moe-layer-freq [2]*32", r"is no pattern of layers"),
    ],
)
def test_contradictions_are_refused_in_one_line(tmp_path, text, flags, message):
    with pytest.raises(jc.InputError, match=message) as caught:
        convert(tmp_path, with_flags(text, flags))
    assert "\n" not in str(caught.value)


def test_names_of_pai_megatron_patch(tmp_path):
    old = "--qk-nope-head-dim 64 --qk-rope-head-dim 32 --extra-vocab-size 9 --patch-tokenizer-type X --train-mode sft"
    found = convert(tmp_path, with_flags(DEEPSEEK, f"{old} --use-multi-token-prediction --num-mtp-predictor 1"))
    model = found.tables["workload"]["model"]
    assert (model["qk_nope_head_dim"], model["qk_rope_head_dim"]) == (64, 32)
    assert found.tables["workload"]["mtp_num_layers"] == 1
    assert not any("not known of Megatron-LM" in told for told in found.warnings)
