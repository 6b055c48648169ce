"""FP8 of linear layers: what is multiplied, cast, transposed, gathered and kept, against hand-computed numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
from joulecast.model.training.step import head_backward, head_forward, layer_backward, layer_forward
from joulecast.model.transformer.narrow_kernels import quantised_weights, weight_bytes
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import plan_from_dict

#: hidden 256, 4 heads of 64 (2 for keys and values), MLP of 512 with a gate.
MODEL = ModelConfig("tiny", 256, 4, 4, 2, 64, 512, 1024)
TOKENS = 1024
HIDDEN, QKV, ATTENTION, UP, FFN = 256, 512, 256, 1024, 512
HOPPER, BLACKWELL = Narrow("delayed", one_layout=True), Narrow("delayed", one_layout=False)


def implementation(narrow: Narrow | None, **options: Any) -> Implementation:
    return Implementation(framework="megatron", narrow=narrow, **options)


def layer(narrow: Narrow | None, **options: Any) -> tuple[Launch, ...]:
    run = implementation(narrow, **options)
    return (*layer_forward(MODEL, run, 1, TOKENS), *layer_backward(MODEL, run, 1, TOKENS))


def gemms(launches: Iterable[Launch]) -> list[Gemm]:
    return [launch.operator for launch in launches if isinstance(launch.operator, Gemm)]


def streamed(launches: Iterable[Launch]) -> float:
    found = [launch.operator for launch in launches if isinstance(launch.operator, Streaming)]
    return sum(o.bytes_read + o.bytes_written for o in found)


def gathered(launches: Iterable[Launch]) -> dict[str, float]:
    found = [launch.operator for launch in launches if isinstance(launch.operator, Collective)]
    return {o.name: o.bytes for o in found}


def test_all_three_products_of_linear_layers_are_fp8_and_nothing_else():
    wide, narrow = gemms(layer(None)), gemms(layer(HOPPER))
    assert [g.name for g in narrow] == [g.name for g in wide]
    assert sum(g.flops for g in narrow) == sum(g.flops for g in wide)
    assert len(narrow) == 12 and {(g.dtype, g.layout) for g in narrow} == {("fp8", "tn")}
    assert {g.layout for g in gemms(layer(BLACKWELL))} == {"tn", "nn", "nt"}
    assert {a.operator.dtype for a in layer(HOPPER) if isinstance(a.operator, Attention)} == {"bf16"}
    run = implementation(HOPPER, tensor_parallel=2)
    head = (*head_forward(MODEL, run, 1, TOKENS), *head_backward(MODEL, run, 1, TOKENS))
    assert head == (
        *head_forward(MODEL, implementation(None, tensor_parallel=2), 1, TOKENS),
        *head_backward(MODEL, implementation(None, tensor_parallel=2), 1, TOKENS),
    )


def test_bytes_of_casting_on_hopper_by_hand():
    """Norms write 1 byte a value, casts read 2 and write 1 + 1, transpositions read 1 and write 1."""
    saved = 2 * HIDDEN
    inputs = 4 * (ATTENTION + FFN)  # of the two row-parallel layers
    gradients = 4 * (HIDDEN + HIDDEN + QKV + UP)
    transposed = 2 * 2 * HIDDEN  # the norms' outputs
    expected = TOKENS * (inputs + gradients + transposed - saved)
    assert streamed(layer(HOPPER)) - streamed(layer(None)) == pytest.approx(expected)


def test_one_copy_is_enough_where_products_take_any_layout():
    inputs, gradients = 3 * (ATTENTION + FFN), 3 * (HIDDEN + HIDDEN + QKV + UP)
    expected = TOKENS * (inputs + gradients - 2 * HIDDEN)
    assert streamed(layer(BLACKWELL)) - streamed(layer(None)) == pytest.approx(expected)
    assert not [launch for launch in layer(BLACKWELL) if launch.operator.name.endswith(".transpose")]


def test_scales_of_blocks_need_two_copies_and_a_32nd_more():
    values = ATTENTION + FFN + 2 * HIDDEN + 2 * HIDDEN + QKV + UP  # inputs of four layers, gradients of four
    expected = TOKENS * values * (2 + 2 * 33 / 32)
    for recipe in (Narrow("mxfp8", one_layout=False), Narrow("blockwise", one_layout=True)):
        assert streamed(layer(recipe)) - streamed(layer(None)) == pytest.approx(expected)


def test_the_scale_of_now_costs_a_further_pass():
    now = Narrow("tensorwise", one_layout=False)
    values = ATTENTION + FFN + 2 * HIDDEN + 2 * HIDDEN + QKV + UP
    assert streamed(layer(now)) - streamed(layer(None)) == pytest.approx(TOKENS * values * (2 + 2 + 1))


@pytest.mark.parametrize(("narrow", "gradient"), [(HOPPER, 1.0), (Narrow("mxfp8", False), 2 * 33 / 32)])
def test_sequence_parallelism_gathers_fp8(narrow: Narrow, gradient: float):
    options = {"tensor_parallel": 2, "sequence_parallel": True}
    found, tensor = gathered(layer(narrow, **options)), TOKENS * HIDDEN
    assert found["qkv.all_gather"] == found["up.input.all_gather"] == tensor * narrow.value_bytes
    assert found["down.grad.all_gather"] == pytest.approx(tensor * gradient)
    assert found["down.reduce_scatter"] == found["up.grad.reduce_scatter"] == 2 * tensor  # sums stay wide


def test_a_transposed_copy_is_made_from_what_was_gathered():
    options = {"tensor_parallel": 2, "sequence_parallel": True}
    names = [launch.operator.name for launch in layer(HOPPER, **options)]
    for name in ("down.grad", "output.grad"):
        assert names.index(f"{name}.all_gather") < names.index(f"{name}.transpose")
    turned = next(launch for launch in layer(HOPPER, **options) if launch.operator.name == "up.input.transpose")
    assert turned.waits and turned.outstanding == 1  # for the gathering, not for the sum beside the weight's gradient


def test_weights_are_quantised_once_an_iteration_and_kept():
    run = implementation(HOPPER)
    parameters = parameters_of_stage(MODEL, run, 4, first=True, last=True)
    linear = 4 * HIDDEN * (QKV + ATTENTION + UP + FFN)
    everything = sum(p.elements for p in parameters)
    casts = quantised_weights(parameters, HOPPER, "bf16")
    assert sum(c.repeat * (c.operator.bytes_read + c.operator.bytes_written) for c in casts) == 4 * linear  # type: ignore[union-attr]
    assert weight_bytes(parameters, None, "bf16") == 2 * everything
    assert weight_bytes(parameters, HOPPER, "bf16") == 2 * everything + 2 * linear
    kept = Narrow("delayed", one_layout=False, parameters=True)
    assert weight_bytes(parameters, kept, "bf16") == 2 * everything - linear
    assert quantised_weights(parameters, kept, "bf16") == ()
    footprint = memory_footprint(MODEL, run, 1, TOKENS, PipelineRank([4]))
    assert footprint.parameters == 2 * everything + 2 * linear


def test_activations_by_hand():
    """Norm outputs and the MLP's second input in one byte instead of two, attention's output in one more."""

    def kept(narrow: Narrow | None) -> float:
        return memory_footprint(MODEL, implementation(narrow), 1, TOKENS, PipelineRank([1])).activations

    assert kept(HOPPER) - kept(None) == TOKENS * (ATTENTION - 2 * HIDDEN - FFN)


def plan(**changes: Any) -> dict[str, Any]:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 8192, "global_batch_size": 4, "precision": "fp8"},
        "cluster": {"gpu": "h100-sxm", "gpus": 4},
        "parallelism": {"tensor_model_parallel_size": 4, "sequence_parallel": True},
        "implementation": {"framework": "megatron"},
    }
    return changed(tables, changes)


def test_fp8_is_faster_and_cheaper_but_by_less_than_its_products():
    wide = forecast(plan_from_dict(plan(workload__precision="bf16")), must_fit=False)
    narrow = forecast(plan_from_dict(plan()), must_fit=False)
    assert 0.5 * wide.time_s < narrow.time_s < 0.85 * wide.time_s
    assert narrow.energy_j < 0.9 * wide.energy_j


def test_recipes_cost_what_they_move():
    times = {}
    for recipe in ("delayed", "tensorwise"):
        times[recipe] = forecast(plan_from_dict(plan(workload__fp8_recipe=recipe)), must_fit=False).time_s
    assert times["delayed"] < times["tensorwise"] < 1.1 * times["delayed"]


def test_recipes_follow_the_architecture():
    assert narrow_on(load_gpu("h100-sxm"), "delayed").copies == 2
    assert narrow_on(load_gpu("b200"), "delayed").copies == 1
    assert narrow_on(load_gpu("gb300"), "mxfp8").copies == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster__gpu": "a100-sxm-80gb"}, ("workload.precision", "no FP8 matrix units", "bf16")),
        ({"workload__fp8_recipe": "mxfp8"}, ("workload.fp8_recipe", "h100-sxm", "Blackwell")),
        ({"implementation__framework": "pytorch-eager"}, ("workload.precision", "megatron")),
        ({"cluster__gpu": "h10-sxm"}, ("cluster.gpu", "h100-sxm")),
        ({"workload__fp8_recipe": "delay"}, ("fp8_recipe", "delayed")),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan_from_dict(plan(**changes))
    for word in words:
        assert word in str(error.value)


def test_every_gpu_with_fp8_units_has_what_a_forecast_needs():
    known = [name for name in gpu_names() if "tensor_flops_per_sm_per_cycle.fp8" in load_gpu(name).device]
    assert {"h100-sxm", "h200-sxm", "b200", "gb300", "mi300x", "l40s"} <= set(known)
    for name in known:
        gpu = gpu_model(load_gpu(name))
        assert gpu.get("kernel.gemm.efficiency.fp8", 0.0) > 0.5 and gpu["power.tensor_pj_per_flop.fp8"] > 0.0
        narrow = jc.gpu(name).predict(Gemm(8192, 8192, 8192, dtype="fp8"))
        wide = jc.gpu(name).predict(Gemm(8192, 8192, 8192, dtype="bf16"))
        assert narrow.time_s < 0.8 * wide.time_s


def test_results_of_products_stay_wide():
    found = {g.name: (g.out_dtype, g.accumulate) for g in gemms(layer(HOPPER))}
    assert found["up"] == found["up.dgrad"] == ("bf16", False)
    assert found["up.wgrad"] == ("fp32", True)
    assert {g.out_dtype for g in gemms(layer(None)) if g.name.endswith(".wgrad")} == {"fp32"}
