"""Attention in FP8: pace, bytes, energy, casts and memory of its kernels, and what plans may ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.attention_fp8 import FP8_SAVES, fp8_attention
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Streaming
from joulecast.model.memory.layer_kept import whole_layer_bytes
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

LLAMA = load_model("llama-3.1-8b")
RUN = Implementation(framework="megatron", narrow=Narrow("delayed"))
NARROW = replace(RUN, attention_fp8=True)


def plan(**changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 8192, "global_batch_size": 32, "precision": "fp8"},
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"context_parallel_size": 1, "distributed_optimizer": True},
        "implementation": {"framework": "megatron", "cuda_graphs": True, "attention_precision": "fp8"},
    }
    return plan_from_dict(changed(tables, changes))


def of(launches: Iterable[Launch], kind: type, start: str = "attention") -> list[Any]:
    found = [x.operator for x in launches if isinstance(x.operator, kind)]
    return [o for o in found if o.name.startswith(start)]


@pytest.mark.parametrize(
    ("gpu", "sequence", "direction", "causal", "ratio"),
    [
        # Times in bf16 over those in FP8 that NVIDIA's cudnn-frontend publishes: 64 query and 8 key heads of 128.
        ("h200-sxm", 8192, "forward", True, 3.357 / 2.260),
        ("h200-sxm", 16384, "forward", False, 27.502 / 18.032),
        ("h200-sxm", 8192, "backward", True, 10.448 / 16.298),
        ("h200-sxm", 16384, "backward", True, 40.803 / 62.439),
        ("h200-sxm", 16384, "backward", False, 80.092 / 62.320),
        ("gb200", 4096, "forward", True, 0.206 / 0.161),
        ("gb200", 16384, "forward", True, 2.606 / 2.060),
        ("gb200", 4096, "backward", True, 0.607 / 0.559),
        ("gb200", 16384, "backward", True, 7.845 / 6.764),
        ("gb300", 8192, "forward", True, 1.281 / 1.060),
        ("gb300", 8192, "backward", True, 4.778 / 3.632),
    ],
)
def test_pace_beside_bf16_is_that_of_published_kernels(
    gpu: str, sequence: int, direction: str, causal: bool, ratio: float
):
    card = gpu_model(load_gpu(gpu))
    wide = Attention(2, 64, 8, sequence, 128, causal=causal, direction=direction)
    costs = lower([wide, replace(wide, dtype="fp8")], card)
    assert costs.core_cycles[0] / costs.core_cycles[1] == pytest.approx(ratio, rel=0.06)


def test_it_moves_half_of_the_inputs_and_takes_less_energy():
    card = gpu_model(load_gpu("h200-sxm"))
    wide = Attention(1, 32, 8, 4096, 128)
    costs = lower([wide, replace(wide, dtype="fp8")], card)
    queries, keys = 4096 * 32 * 128, 4096 * 8 * 128
    assert costs.hbm_j[1] / costs.hbm_j[0] == pytest.approx((3 * queries + 2 * keys) / (4 * queries + 4 * keys))
    executed = costs.tensor_j[0] / card["power.attention_pj_per_flop.cudnn.forward"]
    saved = card["power.tensor_pj_per_flop.bf16"] - card["power.tensor_pj_per_flop.fp8"]
    assert costs.tensor_j[0] - costs.tensor_j[1] == pytest.approx(FP8_SAVES[0] * executed * saved)
    assert costs.tensor_j[1] > 0


def test_casts_stand_in_front_of_both_kernels():
    forward, backward = (way(LLAMA, NARROW, 1, 4096) for way in (layer_forward, layer_backward))
    assert {o.dtype for o in of(forward, Attention) + of(backward, Attention)} == {"fp8"}
    (qkv,), (gradient,) = (
        [o for o in of(way, Streaming) if o.name.endswith(".quantise")] for way in (forward, backward)
    )
    width = (32 + 2 * 8) * 128
    assert (qkv.bytes_read, qkv.bytes_written) == (4096 * width * 2, 4096 * width)
    assert (gradient.bytes_read, gradient.bytes_written) == (4096 * 4096 * 2, 4096 * 4096)
    names = [x.operator.name for x in forward]
    assert names.index("attention.qkv.quantise") + 1 == names.index("attention.forward")
    scaled = layer_forward(LLAMA, replace(NARROW, narrow=Narrow("blockwise")), 1, 4096)
    assert "attention.qkv.amax" in [x.operator.name for x in scaled]  # one scale for each tensor, of now
    assert not [x for x in layer_forward(LLAMA, RUN, 1, 4096) if x.operator.name.startswith("attention.qkv")]


def test_the_ring_passes_keys_in_fp8_and_their_gradients_as_they_are():
    ring = {"context_parallel": 4}
    wide, narrow = (layer_backward(LLAMA, replace(run, **ring), 1, 8192) for run in (RUN, NARROW))
    sizes = [[c.bytes for c in of(one, Collective, "attention.ring")] for one in (wide, narrow)]
    assert sizes[1][:3] == [b / 2 for b in sizes[0][:3]] and sizes[1][3:] == sizes[0][3:]


def test_one_copy_of_queries_keys_and_values_is_kept():
    wide, narrow = (whole_layer_bytes(shard(LLAMA, run, 1, 4096)) for run in (RUN, NARROW))
    qkv, rotated = (32 + 16) * 128, (32 + 8) * 128
    assert wide - narrow == 4096 * (2 * (qkv + rotated) - qkv)


@pytest.mark.parametrize(
    ("gpu", "heads", "gains"), [("h100-sxm", 32, True), ("h100-sxm", 64, False), ("gb300", 64, True)]
)
def test_on_hopper_a_causal_backward_of_many_heads_loses_what_the_forward_gains(gpu, heads, gains):
    wide = [Attention(1, heads, 8, 32768, 128, direction=way) for way in ("forward", "backward")]
    costs = lower([*wide, *(replace(one, dtype="fp8") for one in wide)], gpu_model(load_gpu(gpu)))
    assert bool(costs.core_cycles[2:].sum() < costs.core_cycles[:2].sum()) is gains


def test_a_forecast_says_that_fp8_is_an_estimate():
    for gpu in ("h100-sxm", "gb300"):
        narrow, wide = (
            forecast(plan(cluster__gpu=gpu, implementation__attention_precision=p), must_fit=False)
            for p in ("fp8", None)
        )
        assert narrow.time_s < wide.time_s
        (said,) = (x for x in narrow.assumptions if "estimate" in x and "cuDNN" in x)
        assert ("mask" in said) is (gpu == "h100-sxm")
        assert not [x for x in wide.assumptions if "FP8" in x]


def test_gpus_without_known_kernels_are_refused():
    with pytest.raises(InputError, match="Ampere"):
        fp8_attention(gpu_model(load_gpu("a100-sxm-80gb")))
    costs = lower([Attention(1, 8, 8, 1024, 128)], gpu_model(load_gpu("a100-sxm-80gb")))
    assert np.isfinite(costs.core_cycles).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload__precision": "bf16"}, ("attention_precision", 'precision = "fp8"')),
        ({"implementation__attention_backend": "flash-attention-3"}, ("attention_precision", "cudnn")),
        ({"cluster__gpu": "mi300x"}, ("attention_precision", "Hopper")),
        (
            {"parallelism__context_parallel_size": 2, "parallelism__cp_comm_type": "all_gather"},
            ("attention_precision", "p2p"),
        ),
        ({"implementation__tiles": {"attention": [128, 128, 128]}}, ("attention_precision", "tiles")),
        ({"implementation__attention_precision": "fp4"}, ("attention_precision", "fp8")),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan(**changes)
    for word in words:
        assert word in str(error.value)
