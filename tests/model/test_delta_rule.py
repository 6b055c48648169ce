"""Kernels of linear attention by the gated delta rule: what they multiply and move, and their times as recorded."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.model.architecture.hf import parse_config
from joulecast.model.framework.implementation import Implementation
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.delta_work import DELTA_WORK
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Scan
from joulecast.model.kernels.scan_work import sizes_of
from joulecast.model.power.kernel_power import at_clock, idle_power_w
from joulecast.model.training.step import layer_backward

RECORDED = ROOT / "validate" / "recorded" / "scans"
#: Part of a kernel's recorded name, and ours.
NAMES = {
    "l2norm_fwd": "unit",
    "chunk_local_cumsum": "delta_cumsum",
    "kkt_solve": "delta_solve",
    "recompute_w_u": "delta_factors",
    "fwd_kernel_h_blockdim64": "delta_states",
    "chunk_fwd_kernel_o": "delta_result",
    "dv_local": "delta_values",
    "bwd_kernel_dhu": "delta_states_grad",
    "dqkwg": "delta_keys",
    "prepare_wy_repr_bwd": "delta_factors_grad",
    "l2norm_bwd": "unit_grad",
}
#: Shapes to which the paces were fitted.
FITTED = ("1x8192x32x32x128x128", "1x8192x4x8x128x128")
CARDS = ("h200-sxm", "h100-sxm")
QWEN = {
    "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128, "num_key_value_heads": 2,
}  # fmt: skip
#: Kernels that are shorter are told by their start and end [s].
LEAST_S = 15e-6


def rows(file):
    return csv_rows(RECORDED / f"{file}.csv", kind="gdn")


@cache
def card(name):
    return gpu_model(load_gpu(name))


def scan(kernel, shape):
    batch, sequence, key_heads, heads, key_dim, value_dim = (int(size) for size in shape.split("x"))
    return Scan(kernel, batch, sequence, heads, value_dim, key_heads, key_dim, 64)


def alone(operator, clock_mhz, gpu="h200-sxm"):
    return at_clock(lower([operator], card(gpu)), np.array([clock_mhz]), card(gpu))


def clocks(gpu):
    return {(r["shape"], r["direction"]): float(r["counted_clock_mhz"]) for r in rows("calls") if r["gpu"] == gpu}


def met(gpu):
    """Of each kernel: shape, direction, ours, the forecast, the measured time and launches in a call."""
    clock = clocks(gpu)
    for row in rows("kernels"):
        name = next((ours for theirs, ours in NAMES.items() if theirs in row["kernel"]), None)
        if row["gpu"] == gpu and name is not None:
            at = row["shape"], row["direction"]
            forecast = alone(scan(name, row["shape"]), clock[at], gpu).time_s[0]
            yield *at, name, forecast, 1e-6 * float(row["median_us"]), float(row["calls"])


def errors(gpu, *, fitted):
    return np.array(
        [
            forecast / measured - 1.0
            for shape, _, _, forecast, measured, _ in met(gpu)
            if (shape in FITTED) is fitted and measured >= LEAST_S
        ]
    )


@pytest.mark.parametrize(
    ("gpu", "count", "mean", "most"), [("h200-sxm", 22, 0.045, 0.09), ("h100-sxm", 23, 0.06, 0.29)]
)
def test_kernels_of_shapes_that_were_not_fitted_are_met(gpu, count, mean, most) -> None:
    found = errors(gpu, fitted=False)
    assert len(found) == count
    assert np.abs(found).mean() < mean and np.abs(found).max() < most


@pytest.mark.parametrize("gpu", CARDS)
def test_kernels_of_fitted_shapes_are_met(gpu) -> None:
    found = errors(gpu, fitted=True)
    assert np.abs(found).mean() < 0.05 and np.abs(found).max() < 0.15


@pytest.mark.parametrize(("gpu", "most"), [("h200-sxm", 0.07), ("h100-sxm", 0.09)])
def test_whole_calls_are_met(gpu, most) -> None:
    sums = {}
    for shape, direction, _, forecast, measured, calls in met(gpu):
        both = sums.setdefault((shape, direction), np.zeros(2))
        both += calls * np.array([forecast, measured])
    assert len(sums) == 8
    for at, (forecast, measured) in sums.items():
        assert forecast == pytest.approx(measured, rel=most), at


@pytest.mark.parametrize("gpu", CARDS)
def test_power_of_whole_calls_is_met(gpu) -> None:
    """Calls over and over, whose GPU waits for the host; their small kernels of PyTorch's are left out."""
    found = []
    for row in rows("calls"):
        if row["gpu"] != gpu:
            continue
        clock, taken, energy, busy = float(row["counted_clock_mhz"]), 1e-6 * float(row["time_us"]), 0.0, 0.0
        for shape, direction, name, _, _, calls in met(gpu):
            if (shape, direction) == (row["shape"], row["direction"]):
                kernel = alone(scan(name, shape), clock, gpu)
                energy, busy = energy + calls * kernel.energy_j[0], busy + calls * kernel.time_s[0]
        idle = float(np.ravel(idle_power_w(np.array([clock]), card(gpu)))[0])
        found.append(np.log((energy + max(0.0, taken - busy) * idle) / taken / float(row["power_w"])))
    assert len(found) == 8 and np.sqrt(np.mean(np.square(found))) < 0.10


@pytest.mark.parametrize("gpu", CARDS)
def test_sums_over_heads_that_share_a_key_are_met(gpu) -> None:
    clock, found = clocks(gpu), 0
    for row in rows("kernels"):
        if row["gpu"] == gpu and "ReduceOp<c10::BFloat16" in row["kernel"]:
            batch, sequence, keys, heads, width, _ = (int(size) for size in row["shape"].split("x"))
            model = parse_config({**QWEN, "linear_num_key_heads": keys, "linear_num_value_heads": heads,
                                  "linear_key_head_dim": width}, name="x", file="x.json")  # fmt: skip
            launches = layer_backward(model.kinds[0], Implementation(modules="transformers"), batch, sequence)
            total = next(one.operator for one in launches if one.operator.name == "delta.key.grad.sum")
            forecast = alone(total, clock[row["shape"], "backward"], gpu).time_s[0]
            assert forecast == pytest.approx(1e-6 * float(row["median_us"]), rel=0.06)
            found += 1
    assert found == 3


#: Sequences, positions, heads, values of a head, heads of keys, values of each, chunk.
SMALL = (2, 512, 8, 16, 4, 32, 64)


def work(kernel):
    return DELTA_WORK[kernel](sizes_of([Scan(kernel, *SMALL)]))


def test_work_of_the_rule_worked_out() -> None:
    tokens, shared, keys, values, pairs = 1024, 4 * 32, 8 * 32, 8 * 16, 8 * 64
    state, within = 2 * tokens * 8 * 32 * 16, 2 * tokens * 64 * 8  # of each value of a key or a value
    states = 2 * 16 * 8 * 32 * 16  # bytes of sixteen chunks' in two sequences
    assert work("unit").bytes == 2 * 2 * tokens * shared + 4 * tokens * 4
    assert work("unit_grad").bytes == 3 * 2 * tokens * shared + 4 * tokens * 4
    assert work("delta_solve").states == 10 / 16 * within * 32
    assert work("delta_factors").states == within * (32 + 16)
    assert work("delta_factors").bytes == 2 * tokens * (shared + pairs + keys + 2 * values + 8) + 4 * tokens * 8
    assert work("delta_states").bytes == 2 * tokens * (shared + keys + 2 * values) + 4 * tokens * 8 + states
    assert (work("delta_states").states, work("delta_states_grad").states) == (2 * state, 3 * state)
    assert work("delta_result").states == state + within * (32 + 16)
    assert work("delta_values").states == within * (32 + 16)
    assert work("delta_keys").states == 3 * state + within * (2 * 32 + 16)
    assert work("delta_factors_grad").states == within * (5 * 32 + 2 * 16 + 2 * 64)


def test_heads_in_rounds_wait_for_each_other() -> None:
    """Of few heads the sequence's chunks follow one another; of many the SMs take one block after another."""
    few, long = (alone(Scan("delta_states", 1, n, 8, 128, 8, 128, 64), 1900.0).time_s[0] for n in (4096, 8192))
    more, many = (alone(Scan("delta_states", b, 4096, 32, 128, 32, 128, 64), 1900.0).time_s[0] for b in (1, 8))
    assert long == pytest.approx(2 * few, rel=0.05)
    assert more == pytest.approx(few, rel=0.1) and many == pytest.approx(8 * more, rel=0.1)
