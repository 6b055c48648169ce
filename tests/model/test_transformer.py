"""Launch lists against profiles of the kernels that PyTorch really launched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from paths import SHARED_DATA

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.model.training.data_parallel import gradient_reduction, gradient_sizes, overlapped_gradient_reduction
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.pipeline_stage import split_backward, step_epilogue
from joulecast.model.training.step import (
    embedding_backward,
    head_backward,
    layer_backward,
    layer_forward,
    single_gpu_training_step,
)

PROFILES = SHARED_DATA / "h200_sxm" / "kernel_profiles.jsonl"

#: Real kernels that are one operator's helpers, or too small to list.
HELPERS = ("Memset", "compute_dot_do_o", "convert_dq", "fmha_reduce_head")

#: The first match names the kind of a real kernel.
KINDS = (
    ("nvjet", "gemm"),
    ("flash_fprop", "attention.forward"),
    ("flash_bprop", "attention.backward"),
    ("vectorized_gather", "embedding"),
    ("layer_norm_grad_input", "norm_backward"),
    ("vectorized_layer_norm", "rmsnorm"),
    ("GammaBetaBackward", "gamma_backward"),
    ("silu_backward", "strided_silu_backward"),
    ("silu_kernel", "strided_unary"),
    ("void at::native::elementwise_kernel<128, 4", "strided_binary"),
    ("CatArray", "cat"),
    ("CUDAFunctor_add", "add"),
    ("MulFunctor", "mul"),
    ("FillFunctor", "fill"),
    ("cunn_SoftMaxForward", "log_softmax"),
    ("cunn_SoftMaxBackward", "log_softmax_backward"),
    ("nll_loss_forward", "nll_loss"),
    ("nll_loss_backward", "nll_loss_backward"),
    ("DeviceRadixSort", "embedding_sort"),
    ("arange", "embedding_sort"),
    ("DeviceUnique", "embedding_segments"),
    ("DeviceCompact", "embedding_segments"),
    ("DeviceScan", "embedding_segments"),
    ("partial", "embedding_segments"),
    ("compute_grad_weight", "embedding_backward"),
    ("sum_and_scatter", "embedding_backward"),
    ("FusedOptimizer", "adamw"),
)

#: Values that one block of an element-wise kernel handles, by kind.
BLOCK_ELEMENTS = {
    "add": 1024,
    "mul": 1024,
    "fill": 1024,
    "strided_unary": 512,
    "strided_binary": 512,
    "strided_silu_backward": 512,
}


@cache
def cases() -> dict[str, list[dict[str, Any]]]:
    if not PROFILES.exists():
        pytest.skip("kernel_profiles.jsonl is not here")
    found: dict[str, list[dict[str, Any]]] = {}
    for line in PROFILES.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["case"], []).append(row)
    return found


def kind_of(kernel: str) -> str:
    for mark, kind in KINDS:
        if mark in kernel:
            return kind
    if "multi_tensor_apply" in kernel:
        return "multi_tensor"
    raise AssertionError(f"unexpected kernel {kernel}")


def real_kernels(case: str) -> list[tuple[str, list[int]]]:
    rows = [r for r in cases()[case] if not any(h in r["kernel"] for h in HELPERS)]
    return [(kind_of(r["kernel"]), r["grid"]) for r in rows]


def kinds(launches: Iterable[Launch]) -> list[tuple[str, Launch]]:
    pairs = []
    for launch in launches:
        operator = launch.operator
        if isinstance(operator, Gemm):
            pairs.append(("gemm", launch))
        elif isinstance(operator, Attention):
            pairs.append((f"attention.{operator.direction}", launch))
        elif isinstance(operator, Streaming):
            pairs.append((operator.pattern, launch))
    return pairs


def block_of(row: dict[str, Any]) -> ModelConfig:
    hidden, heads = row["hidden"], row["heads"]
    return ModelConfig(
        row["model"],
        hidden,
        row.get("layers", 1),
        heads,
        row["kv_heads"],
        hidden // heads,
        row["ffn"],
        row.get("vocab", 1),
    )


BLOCKS = [
    "block_fwd_llama8b_tp1_4x4096",
    "block_fwdbwd_llama8b_tp1_4x4096",
    "block_fwdbwd_llama8b_tp2_4x4096",
    "block_fwdbwd_llama8b_tp2_1x4096",
    "block_fwdbwd_llama70b_tp8_1x8192",
    "block_fwdbwd_llama3b_tp1_2x4096",
]


@pytest.mark.parametrize("case", BLOCKS)
def test_block_is_reproduced_kernel_by_kernel(case: str) -> None:
    row = cases()[case][0]
    implementation = Implementation(rotary=False, tensor_parallel=row["tp"])
    arguments = (block_of(row), implementation, row["B"], row["S"])
    launches = layer_forward(*arguments)
    if "fwdbwd" in case:
        launches += layer_backward(*arguments, leaf_input=True)
    # These cases ran one rank's share without its communication, whose place decides where the tiny sum goes.
    expected, real = kinds(launches), real_kernels(case)
    if row["tp"] > 1:
        expected = [p for p in expected if p[1].operator.name != "norm2.weight.accumulate"]
        expected = [p for p in expected if p[1].operator.name != "norm1.weight.accumulate"]
        real = [r for r in real if not (r[0] == "add" and r[1][0] <= 8)]
    assert [k for k, _ in expected] == [k for k, _ in real]
    check_grids(expected, real)


def check_grids(expected: list[tuple[str, Launch]], real: list[tuple[str, list[int]]]) -> None:
    for (kind, launch), (_, grid) in zip(expected, real, strict=True):
        operator = launch.operator
        if kind in BLOCK_ELEMENTS:
            assert isinstance(operator, Streaming)
            assert -(-operator.elements // BLOCK_ELEMENTS[kind]) == grid[0], operator
        elif kind in ("rmsnorm", "norm_backward", "embedding", "log_softmax"):
            assert isinstance(operator, Streaming)
            assert operator.rows == grid[0], operator
        elif kind == "gamma_backward":
            assert isinstance(operator, Streaming)
            assert operator.columns == 32 * grid[0], operator


def test_training_step_is_reproduced_kernel_by_kernel() -> None:
    case = "train_llama1b_2layers_4x2048"
    row = cases()[case][0]
    config = block_of(row)
    launches = single_gpu_training_step(config, Implementation(rotary=False), row["B"], row["S"])
    real = [r for r in real_kernels(case) if r[0] not in ("adamw", "multi_tensor")]
    # Many small kernels sort the indices and find their segments; they are one operator each here.
    merged: list[tuple[str, list[int]]] = []
    for kind, grid in real:
        if not (merged and kind.startswith("embedding_s") and merged[-1][0] == kind):
            merged.append((kind, grid))
    # The profiled model has no final norm.
    absent = ("norm", "norm.grad", "norm.gamma.grad", "norm.weight.accumulate")
    step = ("foreach_add", "adamw", "adamw_untouched", "zero_grad")
    expected = [p for p in kinds(launches) if p[0] not in step and p[1].operator.name not in absent]
    assert [k for k, _ in expected] == [k for k, _ in merged]
    check_grids(expected, merged)
    real_adam = sum(k == "adamw" for k, _ in real_kernels(case))
    assert abs(sum(p[1].repeat for p in kinds(launches) if "adamw" in p[0]) - real_adam) <= 1


def test_first_micro_batch_keeps_gradients_without_adding() -> None:
    arguments = (load_model("llama-3.1-8b"), Implementation(), 1, 4096)
    adds = layer_backward(*arguments)
    first = layer_backward(*arguments, accumulate=False)
    assert sum("accumulate" in x.operator.name for x in adds) == 6
    assert not any("accumulate" in x.operator.name for x in first)
    assert {x.completes for x in adds} == {x.completes for x in first}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "nemotron-4-15b", "gpt-7.5b"])
@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_products_are_six_flops_a_parameter_and_token(name: str, framework: str) -> None:
    config = load_model(name)
    implementation = Implementation(framework=framework)
    launches = layer_forward(config, implementation, 2, 512) + layer_backward(config, implementation, 2, 512)
    flops = sum(x.operator.flops for x in launches if isinstance(x.operator, Gemm))
    matrices = config.hidden * (config.qkv_width + config.attention_width + config.up_width + config.ffn)
    assert flops == 6.0 * 2 * 512 * matrices


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_layer_communicates_four_times(sequence_parallel: bool) -> None:
    config = load_model("llama-3.1-8b")
    implementation = Implementation(tensor_parallel=4, sequence_parallel=sequence_parallel)
    launches = layer_forward(config, implementation, 1, 4096) + layer_backward(config, implementation, 1, 4096)
    kinds_ = [x.operator.kind for x in launches if isinstance(x.operator, Collective)]
    if sequence_parallel:
        assert kinds_ == ["all_gather", "reduce_scatter"] * 4
    else:
        assert kinds_ == ["all_reduce"] * 4
    assert all(x.operator.bytes == 4096 * 4096 * 2 for x in launches if isinstance(x.operator, Collective))


def test_full_recomputation_stops_before_the_last_product() -> None:
    arguments = (load_model("llama-3.1-8b"), Implementation(recompute="full"), 1, 4096)
    names = [x.operator.name for x in layer_backward(*arguments)]
    assert names[0] == "norm1"
    assert "down" not in names
    assert "up" in names


def test_parameters_of_all_ranks_and_stages_add_up() -> None:
    config = load_model("llama-3.1-8b")
    one = Implementation()
    stages = [parameters_of_stage(config, one, 8, first=i == 0, last=i == 3) for i in range(4)]
    assert sum(p.elements for stage in stages for p in stage) == config.parameters
    tp = Implementation(tensor_parallel=4)
    rank = parameters_of_stage(config, tp, 32, first=True, last=True)
    assert sum(p.elements * (1 if p.replicated else 4) for p in rank) == config.parameters


def test_heads_not_divisible_by_the_degree_are_refused() -> None:
    with pytest.raises(InputError, match="tensor_model_parallel_size"):
        layer_forward(load_model("llama-3.1-8b"), Implementation(tensor_parallel=3), 1, 4096)


def test_megatron_hides_communication_behind_the_weight_gradient() -> None:
    implementation = Implementation(framework="megatron", tensor_parallel=2)
    launches = layer_backward(load_model("llama-3.1-8b"), implementation, 1, 4096)
    names = [x.operator.name for x in launches]
    at = names.index("up.grad.all_reduce")
    assert not launches[at].waits
    assert names[at - 1 : at + 3] == ["up.dgrad", "up.grad.all_reduce", "up.wgrad", "norm2.grad"]
    assert launches[at + 2].waits


def test_megatron_fuses_what_eager_launches_apart() -> None:
    config = load_model("llama-3.1-8b")
    count = {
        framework: len(layer_forward(config, Implementation(framework=framework), 1, 4096))
        for framework in ("pytorch-eager", "megatron")
    }
    assert count == {"pytorch-eager": 21, "megatron": 14}


def test_overlapped_reduction_sends_every_gradient_once() -> None:
    config, implementation = load_model("llama-3.2-3b"), Implementation(tie_embeddings=False)
    arguments = (config, implementation, 1, 2048)
    last = (
        *head_backward(*arguments),
        *layer_backward(*arguments) * config.layers,
        *embedding_backward(*arguments),
    )
    launches = overlapped_gradient_reduction(last, gradient_sizes(config, implementation), implementation, 4)
    sent = sum(x.operator.bytes for x in launches if isinstance(x.operator, Collective))
    parameters = parameters_of_stage(config, implementation, config.layers, first=True, last=True)
    assert sent == 2 * sum(p.elements for p in parameters)
    assert sum(isinstance(x.operator, Collective) for x in gradient_reduction(parameters, implementation, 4)) == len(
        parameters
    )
    waiting = [x for x in launches if x.stream == "communication" and x.waits]
    assert waiting == [launches[-1]]


def test_qwen_layers_norm_their_heads_and_llama_rotates() -> None:
    qwen = [x.operator.name for x in layer_forward(load_model("qwen3-8b"), Implementation(), 1, 1024)]
    assert qwen.index("query_norm") < qwen.index("rotary.query.cos") < qwen.index("attention.forward")
    plain = [x.operator.name for x in layer_forward(load_model("llama-3.1-8b"), Implementation(rotary=False), 1, 1024)]
    assert not any("rotary" in name for name in plain)


def test_gpt_block_sums_bias_gradients() -> None:
    backward = layer_backward(load_model("gpt3-175b"), Implementation(), 1, 2048)
    sums = [
        x.operator.name for x in backward if isinstance(x.operator, Streaming) and x.operator.pattern == "bias_reduce"
    ]
    assert sums == ["down.bias.grad", "up.bias.grad", "output.bias.grad", "qkv.bias.grad"]


def test_a_plan_may_tie_or_untie_the_head() -> None:
    tied, untied = (replace(load_model("llama-3.1-8b"), tied_embeddings=own) for own in (True, False))
    assert Implementation().tied(tied) and not Implementation().tied(untied)
    assert Implementation(tie_embeddings=True).tied(untied)
    assert not Implementation(tie_embeddings=False).tied(tied)


def test_building_all_lists_is_quick(calls_of: Callable[[Callable[[], object]], int]) -> None:
    """0.6 ms for all of them, because no list is made twice; a fifth of the calls are shards' short properties."""
    config, implementation = load_model("llama-3.1-405b"), Implementation(tensor_parallel=8)
    functions = (layer_forward, layer_backward, embedding_backward, head_backward)
    for function in functions:
        function.cache_clear()

    def build() -> None:
        for function in functions:
            function(config, implementation, 1, 8192)

    assert calls_of(build) < 640
    assert calls_of(build) < 30


@pytest.mark.parametrize(
    ("model", "implementation", "products"),
    [
        ("gpt3-175b", Implementation(tensor_parallel=2, sequence_parallel=True), 4),
        ("gpt3-175b", Implementation(framework="megatron", tensor_parallel=2, sequence_parallel=True), 4),
        ("qwen2.5-7b", Implementation(modules="transformers", parameters="fp32"), 7),
    ],
)
def test_split_backward_keeps_every_launch(model: str, implementation: Implementation, products: int) -> None:
    whole = layer_backward(load_model(model), implementation, 1, 2048, accumulate=False)
    inputs, weights = split_backward(whole)
    assert sorted(x.operator.name for x in whole) == sorted(x.operator.name for x in inputs + weights)
    assert {x.completes for x in weights} - {""} == {x.completes for x in whole} - {""}
    assert sum(x.operator.name.endswith(".wgrad") for x in weights) == products
    assert not [x.operator.name for x in inputs if ".wgrad" in x.operator.name or ".gamma" in x.operator.name]


def test_last_stage_merges_its_logits_and_scales_gradients() -> None:
    config, implementation = load_model("llama-3.1-8b"), Implementation(shard_head=False)
    parameters = parameters_of_stage(config, implementation, 8, first=False, last=True)
    launches = step_epilogue(config, implementation, 1, 4096, parameters=parameters, micro_batches=8, last=True)
    merge = launches[-1].operator
    assert isinstance(merge, Streaming)
    assert merge.bytes_written == 8 * 4096 * config.vocab * 2
    assert len(launches) == len(parameters) + 1
    megatron = Implementation(framework="megatron")
    assert step_epilogue(config, megatron, 1, 4096, parameters=parameters, micro_batches=8, last=True) == ()
