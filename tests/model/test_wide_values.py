"""Products and attention in fp32 and TF32, as an H200 ran them (`validate/recorded/wide_values`)."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from paths import ROOT

import joulecast as jc
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.framework.wide_values import in_tf32, values_dtype
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.attention import EFFICIENT, products_rate
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.transformer import core_attention, masked_attention, math_attention
from joulecast.validate import run_suite

RECORDED = ROOT / "validate" / "recorded" / "wide_values"


def errors(file: str) -> dict[str, tuple[float, float]]:
    """Relative errors of time and energy by the name of a row."""
    rows = run_suite("kernels", RECORDED / file).to_dict()["rows"]
    keys = ("time_s", "energy_j")
    return {r["name"]: tuple(r["predicted"][key] / r["measured"][key] - 1.0 for key in keys) for r in rows}


def test_products_by_type_and_layout() -> None:
    found = errors("products.jsonl")
    assert len(found) == 25

    def off(kind: str) -> tuple[float, float]:
        chosen = [time for name, (time, _) in found.items() if name.startswith(f"gemm_{kind}") and name.endswith("_1")]
        return mean(map(abs, chosen)), mean(chosen)

    assert off("tf32_tn")[0] < 0.04
    assert off("tf32_nn")[0] < 0.10 and abs(off("tf32_nn")[1]) < 0.03
    assert off("tf32_nt")[0] < 0.06
    assert off("fp32")[0] < 0.03


def test_a_turned_operand_costs_time_in_tf32_on_hopper_alone() -> None:
    def ratio(gpu: str, dtype: str) -> float:
        products = (Gemm(8192, 4096, 4096, dtype=dtype, layout=layout) for layout in ("tn", "nt"))
        along_k, turned = (jc.gpu(gpu).predict(one, clock_mhz=1380).time_s for one in products)
        return turned / along_k

    assert ratio("h200-sxm", "tf32") > 1.6 and ratio("h100-sxm", "tf32") > 1.6
    assert ratio("h200-sxm", "bf16") < 1.1
    assert ratio("a100-sxm-80gb", "tf32") < 1.1 and ratio("b200", "tf32") < 1.1


@pytest.mark.parametrize(
    ("file", "rows", "time", "energy"),
    [
        ("attention.jsonl", 12, (0.035, 0.09), (0.07, 0.14)),
        ("attention_second.jsonl", 10, (0.015, 0.05), (0.035, 0.12)),
    ],
)
def test_memory_efficient_attention(
    file: str, rows: int, time: tuple[float, float], energy: tuple[float, float]
) -> None:
    """The second has heads of 80 and 96, which run in the kernels of 128."""
    found = np.abs(list(errors(file).values()))
    assert len(found) == rows
    for of, (most_mean, most) in zip(found.T, (time, energy), strict=True):
        assert of.mean() < most_mean and of.max() < most


def test_attention_in_fp32_goes_by_tf32_where_a_card_has_it() -> None:
    with_it, without = (gpu_model(load_gpu(name)) for name in ("a100-sxm-80gb", "v100-sxm2-32gb"))
    assert products_rate(EFFICIENT, "fp32", with_it) == with_it.flops_per_cycle("tf32")
    assert products_rate(EFFICIENT, "fp32", without) == 5.0 * without.flops_per_cycle("fp32")
    assert products_rate("cudnn", "bf16", with_it) == with_it.flops_per_cycle("bf16")


def layer(kv_heads: int, dtype: str, backend: str = "cudnn") -> Shard:
    config = ModelConfig("layers", 1024, 2, 16, kv_heads, 64, 4096, 32000, gated_mlp=True)
    run = Implementation(framework="pytorch-eager", modules="transformers", attention_backend=backend, dtype=dtype)
    return shard(config, run, 2048, 2)


def backends(launches: tuple[Launch, ...]) -> list[str]:
    return [one.operator.backend for one in launches if isinstance(one.operator, Attention)]


def test_which_attention_runs_in_fp32() -> None:
    """A fused kernel where every query has its keys, none where queries share them; bf16 keeps cuDNN's."""
    assert backends(masked_attention.forward(layer(16, "fp32"))) == [EFFICIENT]
    assert backends(core_attention.core_attention(layer(16, "fp32"), "backward")) == [EFFICIENT]
    assert backends(masked_attention.forward(layer(4, "bf16"))) == ["cudnn"]
    shared = layer(4, "fp32")
    assert math_attention.applies(shared) and not math_attention.applies(layer(4, "fp32", "unfused"))
    for launches in (masked_attention.forward(shared), masked_attention.backward(shared)):
        assert backends(launches) == [] and sum(isinstance(one.operator, Gemm) for one in launches) in (2, 4)
    names = [one.operator.name for one in masked_attention.forward(shared)]
    assert "attention.softmax.where" in names and "attention.mask" not in names


def test_tf32_is_of_products_in_fp32_alone() -> None:
    launches = (
        Launch(Gemm(8, 8, 8, dtype="fp32", name="a")),
        Launch(Gemm(8, 8, 8, dtype="bf16", name="b")),
        Launch(Streaming("copy", 8.0, 8.0, 2, "fp32", name="c")),
    )
    assert [one.operator.dtype for one in in_tf32(launches)] == ["tf32", "bf16", "fp32"]
    assert [values_dtype(name) for name in ("tf32", "fp32", "fp8", "fp4", "fp16")] == [
        *("fp32", "fp32", "bf16", "bf16", "fp16")
    ]


@pytest.mark.parametrize("name", ["llama-gqa", "llama-mha"])
@pytest.mark.parametrize(("precision", "took"), [("fp32", (0.11619, 0.11176)), ("tf32", (0.033152, 0.030671))])
def test_kernels_of_two_layers(name: str, precision: str, took: tuple[float, float]) -> None:
    """Sums of kernels under a profiler; what PyTorch waits for, gaps included, is longer."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 8192}
    shared = name == "llama-gqa"
    model = {**sizes, "num_key_value_heads": 8 if shared else 32, "vocab_size": 32000, "tie_word_embeddings": shared}
    work = {"model": model, "sequence_length": 2048, "micro_batch_size": 2, "global_batch_size": 2}
    run = {"framework": "pytorch-eager", "modules": "transformers", "gradient_clipping": False}
    plan = {"workload": {**work, "precision": precision}, "cluster": {"gpu": "h200-sxm", "gpus": 1}}
    ratio = jc.predict({**plan, "implementation": run}).time_s / took[not shared]
    assert 1.0 < ratio < 1.09
