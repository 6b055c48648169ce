"""Layers as transformers and torchtitan write them: which kernels run, in which order, and what a layer keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from launched import names

from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm, Operator
from joulecast.model.memory.activations import layer_bytes, loss_transient_bytes
from joulecast.model.power.kernel_power import kernel_time_s
from joulecast.model.training.parameters import layer_parameters
from joulecast.model.training.step import (
    embedding_forward,
    head_backward,
    head_forward,
    layer_backward,
    layer_forward,
)
from joulecast.model.transformer import expert_weights, modules_activation, row_operators, unfused_norm

LLAMA = replace(load_model("llama-3.1-8b"), layers=2)
GPT = ModelConfig(
    "gpt",
    2048,
    2,
    16,
    16,
    128,
    8192,
    50304,
    gated_mlp=False,
    activation="gelu",
    gelu_formula=True,
    joint_projections=True,
    norm="layernorm",
    norm_bias=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    rotary=False,
    learned_positions=2048,
)
SIZE = (2, 4096)
TRANSFORMERS = Implementation(modules="transformers")
TITAN = Implementation(modules="torchtitan")


def time_s(*operators: Operator) -> float:
    """Time of kernels at the clock of the traces."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    return float(kernel_time_s(lower(operators, gpu), 1600.0, gpu).sum())


def products(launches: tuple[Launch, ...]) -> list[str]:
    return [launch.operator.name for launch in launches if isinstance(launch.operator, Gemm)]


@pytest.mark.parametrize("run", [TRANSFORMERS, TITAN])
def test_products_of_a_llama_layer_in_the_order_of_the_traces(run: Implementation) -> None:
    assert products(layer_forward(LLAMA, run, *SIZE)) == ["query", "key", "value", "output", "gate", "up", "down"]
    first = [f"{name}.{side}" for name in ("down", "up", "gate", "output", "value", "key", "query") for side in "wd"]
    expected = [f"{name.removesuffix('.w').removesuffix('.d')}.{name[-1]}grad" for name in first]
    assert products(layer_backward(LLAMA, run, *SIZE, accumulate=False)) == expected


def test_kernels_of_transformers_layer_are_as_many_as_were_traced() -> None:
    """Of kernels of 2.6 us or longer: 40 forward and 68 backward in each of eight layers."""
    forward, backward = (f(LLAMA, TRANSFORMERS, *SIZE) for f in (layer_forward, layer_backward))
    small = ("epsilon", "root", "power", "product", "half")
    counted = [n for n in names(forward) if not (n.startswith("norm") and n.endswith(small))]
    assert len(counted) == 2 * 6 + 7 + 10 + 1 + 2 + 2
    norm = [n for n in names(backward) if n.startswith("norm1")]
    assert norm.index("norm1.gamma.grad") < norm.index("norm1.grad.sum") < norm.index("norm1.grad.branches")
    assert norm[-2:] == ["norm1.grad.join", "norm1.weight.accumulate"]


def test_an_only_micro_batch_completes_every_parameter_once() -> None:
    for config, run in ((LLAMA, TRANSFORMERS), (LLAMA, TITAN), (GPT, TRANSFORMERS), (load_model("qwen3-8b"), TITAN)):
        for one in (run, replace(run, compiled=True), replace(run, parameters="fp32")):
            launches = layer_backward(config, one, *SIZE, accumulate=False)
            done = Counter(launch.completes for launch in launches if launch.completes)
            weights = {
                p.name for p in layer_parameters(config, one) if not p.name.startswith("norm") or "weight" in p.name
            }
            assert set(done) == weights, set(done) ^ weights
            assert max(done.values()) == 1


def test_parameters_of_users_modules_are_split_but_as_many() -> None:
    joint, split = (sum(p.elements for p in layer_parameters(LLAMA, run)) for run in (Implementation(), TITAN))
    assert joint == split == LLAMA.layer_parameters()
    kept = {p.name for p in layer_parameters(GPT, TRANSFORMERS)}
    assert "qkv.weight" in kept
    assert "query.weight" not in kept


def test_gelu_new_is_eight_kernels_forward_and_eleven_backward() -> None:
    forward, backward = (names(f(GPT, TRANSFORMERS, *SIZE)) for f in (layer_forward, layer_backward))
    assert sum(name.startswith("activation.") for name in forward) == 8
    assert sum(name.startswith("activation.") for name in backward) == 11
    fused = names(layer_forward(replace(GPT, gelu_formula=False), TRANSFORMERS, *SIZE))
    assert sum(name.startswith("activation.") for name in fused) == 1


def test_logits_are_widened_and_the_loss_is_in_fp32() -> None:
    for run in (TRANSFORMERS, TITAN):
        forward, backward = head_forward(LLAMA, run, *SIZE), head_backward(LLAMA, run, *SIZE)
        assert "loss.widen" in names(forward)
        assert {launch.operator.dtype for launch in forward if "softmax" in launch.operator.name} == {"fp32"}
        assert names(backward).index("loss.round") < names(backward).index("head.wgrad")
    compiled = replace(TRANSFORMERS, compiled=True)
    assert "loss.widen" not in names(head_forward(LLAMA, compiled, *SIZE))
    assert "loss.widen" in names(head_forward(LLAMA, replace(TITAN, compiled=True), *SIZE))


def test_dropout_has_a_kernel_for_each_branch_and_the_embedding() -> None:
    run = replace(TRANSFORMERS, dropout=0.1)
    assert [n for n in names(layer_forward(GPT, run, *SIZE)) if "dropout" in n] == ["output.dropout", "down.dropout"]
    assert names(embedding_forward(GPT, run, *SIZE))[-1] == "embedding.dropout"
    attention = [x.operator for x in layer_forward(GPT, run, *SIZE) if isinstance(x.operator, Attention)]
    assert [one.each_score for one in attention] == ["dropout"]
    plain = [x.operator for x in layer_forward(GPT, TRANSFORMERS, *SIZE) if isinstance(x.operator, Attention)]
    assert 1.8 < time_s(*attention) / time_s(*plain) < 2.3


def test_a_graph_of_the_whole_model_masks_the_square_and_repeats_keys() -> None:
    """Tracing turns the causal flag into a mask: 3.5 times as long as the causal kernel, as measured."""
    compiled = replace(TRANSFORMERS, compiled=True)
    eager, masked = (
        next(x.operator for x in layer_forward(LLAMA, run, *SIZE) if isinstance(x.operator, Attention))
        for run in (TRANSFORMERS, compiled)
    )
    assert (masked.causal, masked.kv_heads, masked.each_score) == (False, 32, "graph-mask")
    assert 3.0 < time_s(masked) / time_s(eager) < 3.7
    titan = layer_forward(LLAMA, replace(TITAN, compiled=True), *SIZE)
    assert next(x.operator for x in titan if isinstance(x.operator, Attention)).causal


@pytest.mark.parametrize(("config", "run"), [(LLAMA, TRANSFORMERS), (LLAMA, TITAN), (GPT, TRANSFORMERS)])
def test_compiling_adds_no_time_outside_attention(config: ModelConfig, run: Implementation) -> None:
    def others_s(one: Implementation) -> float:
        launches = (*layer_forward(config, one, *SIZE), *layer_backward(config, one, *SIZE, accumulate=False))
        return time_s(*(x.operator for x in launches if not isinstance(x.operator, Attention)))

    assert others_s(replace(run, compiled=True)) < others_s(run)


def test_autocast_rounds_every_weight_and_every_wide_input() -> None:
    """Of a Llama layer seven weights, and five inputs that come from norms; the residual stream stays in fp32."""
    run = replace(TRANSFORMERS, parameters="fp32")
    forward, backward = layer_forward(LLAMA, run, *SIZE), layer_backward(LLAMA, run, *SIZE, accumulate=False)
    rounded = [name for name in names(forward) if name.endswith(".round")]
    assert sum(name.endswith(".weight.round") for name in rounded) == 7
    assert [name for name in rounded if ".weight" not in name and "rotary" not in name] == [
        f"{name}.round" for name in ("query", "key", "value", "gate", "up")
    ]
    widened = [name for name in names(backward) if name.endswith(".widen")]
    assert sum(name.endswith(".wgrad.widen") for name in widened) == 7
    assert sum(name.endswith(".dgrad.widen") for name in widened) == 5
    stream = {x.operator.dtype for x in forward if x.operator.name.startswith(("norm", "residual"))}
    assert stream == {"fp32"}
    assert {x.operator.dtype for x in forward if isinstance(x.operator, Gemm)} == {"bf16"}
    assert embedding_forward(LLAMA, run, *SIZE)[0].operator.dtype == "fp32"


def test_autocast_rounds_biases_and_widens_their_gradients() -> None:
    """Four of GPT-2's linear layers have one; a graph's sums of a gradient give fp32 as they are."""
    run = replace(TRANSFORMERS, parameters="fp32")
    forward, backward = layer_forward(GPT, run, *SIZE), layer_backward(GPT, run, *SIZE, accumulate=False)
    widths = {"qkv": 3 * 2048, "output": 2048, "up": 8192, "down": 2048}
    rounded = [(x.operator.name, x.operator.elements) for x in forward if x.operator.name.endswith(".bias.round")]
    assert rounded == [(f"{name}.bias.round", width) for name, width in widths.items()]
    assert not [name for name in names(layer_forward(LLAMA, run, *SIZE)) if ".bias." in name]
    for name in widths:
        total, wide = (names(backward).index(f"{name}.bias.grad{end}") for end in ("", ".widen"))
        assert (backward[total].completes, backward[wide].completes, total < wide) == ("", f"{name}.bias", True)
    added = layer_backward(GPT, run, *SIZE, accumulate=True)
    assert {x.operator.name for x in added if x.completes} == {
        f"{x.completes}.accumulate" for x in added if x.completes
    }
    compiled = layer_backward(GPT, replace(run, compiled=True), *SIZE, accumulate=False)
    assert "up.bias.grad.widen" not in names(compiled)


def test_a_compiled_head_of_odd_words_is_padded() -> None:
    odd, run = replace(GPT, vocab=50257), replace(TRANSFORMERS, compiled=True)
    heads = [x.operator for x in head_forward(odd, run, *SIZE) if isinstance(x.operator, Gemm)]
    assert [head.n for head in heads] == [50264]
    assert "head.grad.pad" in names(head_backward(odd, run, *SIZE))
    assert "head.grad.pad" not in names(head_backward(GPT, run, *SIZE))


def test_bytes_that_a_layer_keeps() -> None:
    """Tensors that autograd saves, counted by hand for a token of a Llama layer and of GPT-2's."""
    tokens = SIZE[0] * SIZE[1]
    statistics = 4 * (2 + 32) * tokens
    attention_and_mlp = 2 * (6144 + 4096 + 4 * 14336)
    norms = 2 * 4096 * (4 + 2 + 2)
    assert layer_bytes(shard(LLAMA, TRANSFORMERS, *SIZE)) == tokens * (norms + attention_and_mlp) + statistics
    assert layer_bytes(shard(LLAMA, TITAN, *SIZE)) == tokens * (2 * 4096 * 4 + attention_and_mlp) + statistics
    gpt = tokens * 2 * (4 * 2048 + 4 * 2048 + 5 * 8192) + 4 * (4 + 16) * tokens
    assert layer_bytes(shard(GPT, TRANSFORMERS, *SIZE)) == gpt
    assert layer_bytes(shard(GPT, replace(TRANSFORMERS, dropout=0.1), *SIZE)) == gpt + 2 * 2048 * tokens
    autocast = replace(TRANSFORMERS, parameters="fp32")
    weights = 2 * 4096 * (6144 + 4096 + 3 * 14336)
    wide = tokens * 4096 * (2 * (4 + 4) + 5 * 2)
    kept = wide + tokens * attention_and_mlp + statistics + weights
    assert layer_bytes(shard(LLAMA, autocast, *SIZE)) == kept
    assert loss_transient_bytes(shard(LLAMA, TITAN, *SIZE)) == 2 * 4 * tokens * 128256


def test_full_recomputation_stops_before_the_last_product() -> None:
    for run in (TRANSFORMERS, replace(TITAN, compiled=True)):
        again = layer_backward(LLAMA, replace(run, recompute="full"), *SIZE)
        plain = layer_backward(LLAMA, run, *SIZE)
        assert products(again)[: -len(products(plain))] == ["query", "key", "value", "output", "gate", "up"]
        assert again[-len(plain) :] == plain


def test_a_value_of_two_types_costs_the_same_wherever_it_is_met() -> None:
    """One constant, not equal ones: residual streams, ``gelu_new``, norms and experts' weights move together."""
    users = (expert_weights, modules_activation, unfused_norm)
    assert all(module.MIXED is row_operators.MIXED for module in users)
