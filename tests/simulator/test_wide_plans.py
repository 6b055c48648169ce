"""Plans in fp32 and TF32: what runs, what is refused, and what jobs say of it."""

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict

WORK = {"model": "llama-3.2-1b", "sequence_length": 1024, "micro_batch_size": 1, "global_batch_size": 1}
RUN = {"framework": "pytorch-eager", "modules": "transformers"}


def tables(precision, work=None, **run):
    return {
        "workload": {**WORK, "precision": precision, **(work or {})},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {**RUN, **run},
    }


def operators(precision, **run):
    (rank,) = plan_program(plan_from_dict(tables(precision, **run))).ranks
    return [one.operator for i in rank.order for one in rank.types[i]]


def test_tf32_is_fp32_but_for_its_products():
    wide, fast = (operators(precision) for precision in ("fp32", "tf32"))
    assert [one.name for one in wide] == [one.name for one in fast]
    changed = {(type(a).__name__, a.dtype, b.dtype) for a, b in zip(wide, fast, strict=True) if a != b}
    assert changed == {("Gemm", "fp32", "tf32")}
    slow, quick = (jc.predict(tables(precision)) for precision in ("fp32", "tf32"))
    assert 3.0 < slow.time_s / quick.time_s < 5.0
    assert [s["memory_bytes"] for s in slow.to_dict()["stages"]] == [
        s["memory_bytes"] for s in quick.to_dict()["stages"]
    ]


def test_parameters_are_as_wide_as_products_in_tf32():
    """Which is no mixed precision: nothing is cast."""
    assert jc.predict(tables("tf32", parameter_precision="fp32")).to_dict()["time_s"] == pytest.approx(
        jc.predict(tables("tf32")).time_s
    )


@pytest.mark.parametrize(
    ("work", "run", "key", "says"),
    [
        ({}, {"attention_backend": "flash-attn-2"}, "implementation.attention_backend", "in flash-attn-2"),
        ({}, {"compile": True}, "workload.precision", "of shared keys in compiled modules"),
        ({}, {"modules": "joint"}, "workload.precision", "of shared keys in joint modules"),
        ({"document_tokens": 256}, {}, "workload.precision", "with documents"),
        ({"model": "mistral-7b", "sequence_length": 8192}, {}, "workload.precision", "with windows"),
        ({}, {"framework": "megatron", "modules": "joint"}, "workload.precision", "Megatron's products in TF32"),
    ],
)
def test_what_is_not_known_is_refused(work, run, key, says):
    with pytest.raises(InputError, match=says) as caught:
        plan_from_dict(tables("tf32", work, **run))
    assert caught.value.key == key
    assert "Set " in str(caught.value)


def test_torchtitans_attention_in_fp32_keeps_all_scores():
    """Its kernels are those of transformers' code, as PyTorch is called alike."""
    found = [operators("tf32", modules=modules) for modules in ("transformers", "torchtitan")]
    ours, theirs = ([one for one in of if one.name.startswith("attention.softmax")] for of in found)
    assert ours == theirs and len(ours) > 10
    memory = [
        jc.predict(tables("tf32", modules=m)).to_dict()["stages"][0]["memory_bytes"]
        for m in ("torchtitan", "transformers")
    ]
    assert memory[0] == pytest.approx(memory[1], rel=0.05)


def test_separate_kernels_take_masks_in_fp32():
    work = {"model": "mistral-7b", "layers": 2, "sequence_length": 8192}
    assert jc.predict(tables("tf32", work, attention_backend="unfused")).time_s > 0


def test_adapters_in_fp32_are_as_wide_as_the_model():
    found = jc.predict(tables("tf32", {"lora": {"rank": 8, "target_modules": "all-linear"}}))
    assert not any("casts to" in one for one in found.to_dict()["assumptions"])


@pytest.mark.parametrize(
    ("flags", "precision"), [("--tf32 True", "tf32"), ("--tf32 True --bf16 True", "bf16"), ("", "fp32")]
)
def test_the_trainers_word(tmp_path, flags, precision):
    """Which says nothing of products of 16 bits."""
    path = tmp_path / "job.sh"
    path.write_text(
        "torchrun --nproc_per_node 1 train.py --model_name_or_path meta-llama/Llama-3.2-1B --max_seq_length 1024 "
        f"--packing --per_device_train_batch_size 1 {flags}\n"
    )
    found = jc.convert(path, gpu="h100-sxm")
    assert found.tables["workload"]["precision"] == precision
    assert "tf32" not in found.passed_over
