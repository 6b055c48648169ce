"""Kernels of Megatron-Core with Transformer Engine beside traces of iterations on an H200."""

from __future__ import annotations

import pytest

import joulecast as jc
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.training.data_parallel import gradient_reduction
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer.head import embedding_backward, embedding_forward, head_backward, head_forward

MODEL, BATCH, SEQUENCE = load_model("llama-3.1-8b"), 2, 4096
FUSED = Implementation(framework="megatron", fused_loss=True)
BLOCKS = Implementation(framework="megatron", fused_loss=True, narrow=Narrow("blockwise"))


def launches(run: Implementation) -> dict[str, Launch]:
    """One layer, embedding and head of a micro-batch of two sequences, by name."""
    s = shard(MODEL, run, BATCH, SEQUENCE)
    found = [*layer_forward(MODEL, run, BATCH, SEQUENCE), *layer_backward(MODEL, run, BATCH, SEQUENCE)]
    found += [*embedding_forward(s), *embedding_backward(s, accumulate=True, head_here=True), *head_forward(s)]
    return {launch.operator.name: launch for launch in found}


@pytest.mark.parametrize(
    ("name", "clock_mhz", "measured_us"),
    [
        ("qkv.query.copy", 1485, 86.6),
        ("qkv.value.copy", 1485, 24.0),
        ("embedding.order", 1485, 87.0),
        ("embedding.weight.accumulate", 1500, 2203.0),
        ("attention.forward", 1485, 568.0),
        ("attention.backward", 1485, 1836.0),
        ("gate.silu", 1485, 166.0),
        ("gate.silu.grad", 1485, 541.0),
        ("loss.statistics", 1485, 857.0),
    ],
)
def test_kernels_take_as_long_as_traced(name: str, clock_mhz: float, measured_us: float) -> None:
    kernel = jc.gpu("h200-sxm").predict(launches(FUSED)[name].operator, clock_mhz=clock_mhz)
    assert 1e6 * kernel.time_s == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(
    ("name", "measured_ms"),
    [
        ("loss.to_fp32", 3.30),
        ("loss.subtract", 3.47),
        ("loss.exp", 1.98),
        ("loss.divide", 3.70),
        ("loss.scale.grad", 3.79),
        ("loss.from_fp32", 1.44),
    ],
)
def test_megatrons_own_loss(name: str, measured_ms: float) -> None:
    """Of 8,192 rows of 128,256 logits."""
    s = shard(MODEL, Implementation(framework="megatron"), BATCH, SEQUENCE)
    found = {x.operator.name: x for x in (*head_forward(s), *head_backward(s, accumulate=True, embedding_here=True))}
    kernel = jc.gpu("h200-sxm").predict(found[name].operator, clock_mhz=1500)
    assert 1e3 * kernel.time_s == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(("name", "measured_us"), [("up.grad.quantise", 424.0), ("down.grad.quantise", 56.6)])
def test_casts_with_scales_of_row_blocks(name: str, measured_us: float) -> None:
    """Their two copies take half as long again as those with one scale a tensor."""
    kernel = jc.gpu("h200-sxm").predict(launches(BLOCKS)[name].operator, clock_mhz=1545)
    assert 1e6 * kernel.time_s == pytest.approx(measured_us, rel=0.1)


def test_gradients_are_divided_where_the_collective_does_not_average() -> None:
    """4.46 ms for 2.36 billion fp32 gradients of six layers on two GPUs."""
    parameters = parameters_of_stage(MODEL, FUSED, 6, first=True, last=True)
    divide, _ = gradient_reduction(parameters, FUSED, 2)
    assert 1e3 * jc.gpu("h200-sxm").predict(divide.operator).time_s == pytest.approx(4.46, rel=0.1)
    averaging = Implementation(framework="megatron", averaged=True)
    assert [launch.stream for launch in gradient_reduction(parameters, averaging, 2)] == ["communication"]


def test_heads_of_their_own_keys_are_not_copied() -> None:
    """Only queries that share keys are, and values once a rotation has moved the others."""
    names = [launch.operator.name for launch in layer_forward(load_model("gpt3-175b"), FUSED, 1, 2048)]
    assert not [name for name in names if name.endswith(".copy")]
