"""GPUs at another memory clock."""

from __future__ import annotations

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.memory_clock import BACKGROUND_SHARE, at_memory_clock


def test_a_lower_memory_clock_slows_copies_in_proportion_and_saves_static_power() -> None:
    gpu = jc.gpu("a40")
    top = gpu.description.number("memory_clock_mhz")
    copy = jc.Streaming("copy", 2.0**30, 2.0**30)
    full = gpu.predict(copy, clock_mhz=1200)
    half = gpu.predict(copy, clock_mhz=1200, memory_clock_mhz=top / 2)
    assert half.time_s / full.time_s == pytest.approx(2.0, rel=0.05)
    model = gpu_model(load_gpu("a40"))
    saved = 1.0 - at_memory_clock(top / 4, model)["power.static_w"] / model["power.static_w"]
    assert saved == pytest.approx(0.75 * BACKGROUND_SHARE)
    assert at_memory_clock(top, model) is model


def test_a_fixed_memory_clock_cannot_be_set() -> None:
    with pytest.raises(InputError, match="cannot be set"):
        jc.gpu("h200-sxm").predict(jc.Streaming("copy", 1e9, 1e9), memory_clock_mhz=1600)


def test_a_kernel_forecast_carries_its_interval() -> None:
    k = jc.gpu("h200-sxm").predict(jc.Gemm(m=8192, n=8192, k=8192))
    assert k.time_s_p05 < k.time_s < k.time_s_p95
    assert k.energy_j_p05 < k.energy_j < k.energy_j_p95
    assert (k.time_s_p95 - k.time_s_p05) / k.time_s < 0.2
