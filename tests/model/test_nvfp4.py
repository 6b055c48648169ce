"""NVFP4 of linear layers: products, casts and copies against hand-computed numbers, and layers that stay in bf16."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan_tables import changed

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.narrow import Narrow, narrow_on
from joulecast.model.hardware.catalogue import gpu_names, load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.step import head_forward, layer_backward, layer_forward
from joulecast.model.transformer.narrow_kernels import STOCHASTIC, quantised_weights, weight_bytes
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

#: hidden 256, 4 heads of 64 (2 for keys and values), MLP of 512 with a gate.
MODEL = ModelConfig("tiny", 256, 4, 4, 2, 64, 512, 1024)
TOKENS = 1024
HIDDEN, QKV, ATTENTION, UP, FFN = 256, 512, 256, 1024, 512
NVFP4 = Narrow("nvfp4")
#: Half a byte, and a byte of scale for 16 values.
VALUE = 0.5 + 1 / 16


def implementation(narrow: Narrow | None, **options: Any) -> Implementation:
    return Implementation(framework="megatron", narrow=narrow, **options)


def layer(narrow: Narrow | None, model: ModelConfig = MODEL, **options: Any) -> tuple[Launch, ...]:
    run = implementation(narrow, **options)
    return (*layer_forward(model, run, 1, TOKENS), *layer_backward(model, run, 1, TOKENS))


def of_kind(launches: Iterable[Launch], kind: type) -> list[Any]:
    return [launch.operator for launch in launches if isinstance(launch.operator, kind)]


def streamed(launches: Iterable[Launch]) -> float:
    return sum(o.bytes_read + o.bytes_written for o in of_kind(launches, Streaming))


def test_all_products_of_linear_layers_are_fp4_along_the_sum_and_nothing_else():
    narrow, wide = of_kind(layer(NVFP4), Gemm), of_kind(layer(None), Gemm)
    assert [(g.m, g.n, g.k) for g in narrow] == [(g.m, g.n, g.k) for g in wide]
    assert {(g.dtype, g.layout, g.block_scaled) for g in narrow} == {("fp4", "tn", False)}
    assert {g.out_dtype for g in narrow} == {"bf16", "fp32"}
    assert {a.dtype for a in of_kind(layer(NVFP4), Attention)} == {"bf16"}
    run = implementation(NVFP4, tensor_parallel=2)
    assert head_forward(MODEL, run, 1, TOKENS) == head_forward(MODEL, replace(run, narrow=None), 1, TOKENS)


def test_bytes_of_casting_by_hand():
    """A pass for the greatest values, and one that writes both copies."""
    values = ATTENTION + FFN + 2 * HIDDEN + 2 * HIDDEN + QKV + UP  # inputs of four layers, gradients of four
    assert streamed(layer(NVFP4)) - streamed(layer(None)) == pytest.approx(TOKENS * values * (2 + 2 + 2 * VALUE))


def test_gradients_alone_are_rounded_stochastically():
    casts = {o.name: o for o in of_kind(layer(NVFP4), Streaming) if o.name.endswith(".quantise")}
    assert len(casts) == 8
    for name, cast in casts.items():
        assert cast.sm_cycles == (2 * STOCHASTIC * cast.elements if name.endswith(".grad.quantise") else 0.0)


def test_sequence_parallelism_gathers_fp4_and_scales():
    found = {o.name: o.bytes for o in of_kind(layer(NVFP4, tensor_parallel=2, sequence_parallel=True), Collective)}
    tensor = TOKENS * HIDDEN
    assert found["qkv.all_gather"] == tensor * VALUE and found["down.grad.all_gather"] == tensor * 2 * VALUE
    assert found["down.reduce_scatter"] == 2 * tensor  # sums stay wide


def test_weights_and_activations_by_hand():
    run = implementation(NVFP4)
    parameters = parameters_of_stage(MODEL, run, 4, first=True, last=True)
    linear, everything = 4 * HIDDEN * (QKV + ATTENTION + UP + FFN), sum(p.elements for p in parameters)
    assert weight_bytes(parameters, NVFP4, "bf16") == 2 * everything + 2 * VALUE * linear
    kept = Narrow("nvfp4", parameters=True)
    assert weight_bytes(parameters, kept, "bf16") == 2 * (everything - linear) + 2 * VALUE * linear
    turned = quantised_weights(parameters, kept, "bf16")  # squares of values have one scale in both directions
    assert sum(c.repeat * (c.operator.bytes_read + c.operator.bytes_written) for c in turned) == linear  # type: ignore[union-attr]
    footprints = [memory_footprint(MODEL, implementation(n), 1, TOKENS, PipelineRank([1])) for n in (NVFP4, None)]
    less = TOKENS * (2 - VALUE) * (2 * HIDDEN + FFN)  # attention's output has no copy of its own
    assert footprints[1].activations - footprints[0].activations == less


def plan(**changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 8192, "global_batch_size": 16, "precision": "fp4"},
        "cluster": {"gpu": "gb300", "gpus": 4},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(changed(tables, changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster__gpu": "h100-sxm"}, ("workload.precision", "h100-sxm", "no matrix units for NVFP4", "gb300")),
        ({"cluster__gpu": "mi355x"}, ("workload.precision", "mi355x", "no matrix units for NVFP4")),  # MXFP4's alone
        ({"implementation__framework": "pytorch-eager"}, ("workload.precision", "megatron")),
        ({"workload__fp8_recipe": "mxfp8"}, ("workload.fp8_recipe", 'precision = "fp8"')),
        ({"workload__precision": "nvfp4"}, ("precision", "'fp4'")),
        ({"workload__precision": "bf16", "workload__num_layers_at_end_in_bf16": 4}, ("at_end", '"fp8" or "fp4"')),
        ({"workload__num_layers_at_end_in_bf16": 33}, ("num_layers_at_end_in_bf16", "at most 32")),
        (
            {
                "workload__num_layers_at_start_in_bf16": 1,
                "workload__precision": "fp8",
                "implementation__framework": "pytorch-eager",
            },
            ("num_layers_at_start_in_bf16", "megatron"),
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan(**changes)
    for word in words:
        assert word in str(error.value)


def test_every_blackwell_card_of_data_centres_runs_it_and_says_that_it_is_an_estimate():
    known = []
    for name in gpu_names():
        gpu = load_gpu(name)
        if gpu.text("architecture") in ("Blackwell", "Blackwell Ultra"):
            assert narrow_on(gpu, "nvfp4").copies == 2
            known.append(name)
    assert set(known) == {"b200", "b300", "gb200", "gb300"}
    said = forecast(plan(), must_fit=False).assumptions
    assert any("NVFP4 are an estimate" in words for words in said)


@pytest.mark.parametrize(("card", "rate"), [("b200", 2.0), ("gb200", 2.0), ("b300", 3.0), ("gb300", 3.0)])
def test_rates_are_the_data_sheets(card: str, rate: float):
    """B200: 9 PFLOP/s dense in FP4, GB200 10; Blackwell Ultra half as much again."""
    device = gpu_model(load_gpu(card)).device
    assert device["tensor_flops_per_sm_per_cycle.fp4"] == rate * device["tensor_flops_per_sm_per_cycle.fp8"]
    peak = device["published_tensor_flops_per_s.fp4"]
    clock_hz = device["tensor_boost_clock_mhz"] * 1e6
    assert device["tensor_flops_per_sm_per_cycle.fp4"] * device["sm_count"] * clock_hz == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(("side", "measured"), [(4096, 4854.5), (16384, 5604.0), (32768, 5262.2)])
def test_products_are_near_those_published_for_gb200(side: int, measured: float):
    """Azure's AI benchmarking guide, ND GB200 v6, after 10,000 products to warm up; its 8,192 lies apart."""
    found = jc.gpu("gb200").predict(Gemm(side, side, side, "fp4", out_dtype="bf16"))
    assert 2 * side**3 / found.time_s / 1e12 == pytest.approx(measured, rel=0.08)


def test_a_step_is_faster_than_in_fp8_by_less_than_its_products():
    times = {}
    for precision, changes in (("bf16", {}), ("fp8", {"workload__fp8_recipe": "mxfp8"}), ("fp4", {})):
        times[precision] = forecast(plan(workload__precision=precision, **changes), must_fit=False)
    assert 0.6 * times["fp8"].time_s < times["fp4"].time_s < 0.9 * times["fp8"].time_s < times["bf16"].time_s
    assert times["fp4"].energy_j < times["fp8"].energy_j

    def width(precision: str) -> float:
        found = times[precision]
        return float(np.log(found.time_s_p95 / found.time_s_p05))

    assert width("fp4") > width("fp8")  # nobody has measured its kernels


def test_layers_at_both_ends_stay_in_bf16():
    ends = plan(workload__num_layers_at_start_in_bf16=1, workload__num_layers_at_end_in_bf16=4)
    model = ends.workload.model
    assert model.wide_pattern == (True,) + (False,) * 27 + (True,) * 4
    narrow, wide = (kind for kind in reversed(model.kinds))
    assert wide.stays_wide and not narrow.stays_wide
    run = implementation(NVFP4)
    assert {g.dtype for g in of_kind(layer_forward(wide, run, 1, TOKENS), Gemm)} == {"bf16"}
    assert {g.dtype for g in of_kind(layer_forward(narrow, run, 1, TOKENS), Gemm)} == {"fp4"}
    of_stage = parameters_of_stage(model, run, 32, first=False, last=False, others=model.others(0, 32))
    assert sum(p.linear for p in of_stage) == 27 * 4


@pytest.mark.parametrize("precision", ["fp4", "fp8"])
def test_a_stack_that_stays_in_bf16_is_one_in_bf16(precision: str):
    found = forecast(plan(workload__precision=precision, workload__num_layers_at_end_in_bf16=32), must_fit=False)
    wide = forecast(plan(workload__precision="bf16"), must_fit=False)
    assert (found.time_s, found.energy_j) == pytest.approx((wide.time_s, wide.energy_j), rel=1e-9)
    assert found.ranks[0].memory_bytes == wide.ranks[0].memory_bytes


def test_stages_with_wide_layers_take_longer():
    stages = {"parallelism__pipeline_model_parallel_size": 4, "cluster__gpus": 4}
    plain = forecast(plan(**stages), must_fit=False)
    ends = forecast(plan(**stages, workload__num_layers_at_end_in_bf16=2), must_fit=False)
    assert plain.time_s < ends.time_s < 1.5 * plain.time_s
