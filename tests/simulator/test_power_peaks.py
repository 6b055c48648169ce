"""Power over time held against a recorded ramp: a card that goes from idle into matrix products at its limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from row_files import csv_rows

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.power.kernel_power import at_clock, idle_power_w
from joulecast.model.power.limits import hold_at_peak
from joulecast.simulator.fluid.governor import PowerGovernor
from joulecast.simulator.fluid.power_over_time import power_by_ticks, spread_of
from joulecast.simulator.fluid.program import make_fluid_program
from joulecast.simulator.fluid.simulation import simulate_fluid
from joulecast.simulator.schedules import build_schedule

LIMIT_W, KERNELS, PAUSE_S, TICK_S = 700.0, 400, 3.0, 10e-3


def forecast_ramp() -> np.ndarray:
    """Power of ten-millisecond steps of a pause and then 400 products of 8192 cubed, shape ``(steps, 1)`` [W]."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    clocks, top = gpu.clocks_mhz, len(gpu.clocks_mhz) - 1
    times = at_clock(lower([Gemm(m=8192, n=8192, k=8192, dtype="bf16")], gpu), clocks[:, None], gpu)
    times = hold_at_peak(times, clocks, LIMIT_W * gpu["governor.peak_share"], gpu)
    idle = idle_power_w(clocks, gpu)
    durations = np.stack([np.full(len(clocks), PAUSE_S), KERNELS * times.time_s[:, 0]])
    powers = np.stack([idle, times.energy_j[:, 0] / times.time_s[:, 0]])
    program = make_fluid_program(build_schedule("none", 1, 1, tail=()), [[0, 1]], [durations], [powers], [idle])
    governor = PowerGovernor(gpu, LIMIT_W, top, top, TICK_S)
    return power_by_ticks(simulate_fluid(program, [governor], [top], tick_s=TICK_S), 0).power_w


def test_a_ramp_into_the_limit(data: Path) -> None:
    trace = csv_rows(data / "h200_sxm" / "power_traces.csv", case="ramp_8k")
    read = list(dict.fromkeys(float(row["power_instant_w"]) for row in trace))
    measured = np.array([power for power in read if power > 500.0])
    assert len(measured) == 6  # the sensor moves once in 100 ms
    busy = forecast_ramp()
    busy = busy[busy[:, 0] > 500.0]
    spread = spread_of(busy, busy.mean(axis=0, keepdims=True))
    assert spread.p50_w == pytest.approx(np.median(measured), rel=0.04)
    assert spread.mean_w == pytest.approx(measured.mean(), rel=0.04)
    assert spread.peak_w > measured.max()  # ten milliseconds see what the sensor's average hides
