"""The governor's loops held against an H100 and an H200 whose loads take turns with copies and rests."""

from __future__ import annotations

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.power.kernel_power import at_clock, idle_power_w
from joulecast.model.power.limits import hold_at_peak
from joulecast.simulator.fluid.governor import PowerGovernor
from joulecast.simulator.fluid.program import make_fluid_program
from joulecast.simulator.fluid.simulation import simulate_fluid
from joulecast.simulator.schedules import build_schedule

TICK_S, SECONDS = 5e-3, 3.0
#: Power of the recorded copies at the highest clock [W]: `clocks.csv`, alone; their time does not depend on the clock.
COPY_W = {"h100-sxm": 470.0, "h200-sxm": 490.0}


def rows():
    return csv_rows(ROOT / "validate" / "recorded" / "clocks" / "alternations.csv", product="8192x8192x8192")


def forecast(row):
    """Time of a turn [s] and mean power [W], when the loops have settled."""
    gpu = gpu_model(load_gpu(row["gpu"]))
    clocks, limit_w = gpu.clocks_mhz, gpu.device["power_limit_w"]
    product = at_clock(lower([Gemm(m=8192, n=8192, k=8192, dtype="bf16")], gpu), clocks[:, None], gpu)
    product = hold_at_peak(product, clocks, limit_w * gpu["governor.peak_share"], gpu)
    idle = idle_power_w(clocks, gpu)
    if row["other"] == "sleep":  # one thread counts cycles
        other_s, other_w = 2.6e6 / (clocks * 1e6), idle + 6.0
    else:
        other_s, other_w = np.full(len(clocks), float(row["other_time_s"])), idle * COPY_W[row["gpu"]] / idle[-1]
    durations = np.stack([int(row["products"]) * product.time_s[:, 0], int(row["others"]) * other_s])
    powers = np.stack([product.power_w[:, 0], other_w])
    turns = int(np.ceil(SECONDS / durations[:, len(clocks) // 2].sum()))
    schedule = build_schedule("none", 1, turns, tail=())
    program = make_fluid_program(schedule, [[0, 1] * turns], [durations], [powers], [idle])
    top = len(clocks) - 1
    found = simulate_fluid(program, [PowerGovernor(gpu, limit_w, top, top, TICK_S)], [top], tick_s=TICK_S)
    ends = found.end_s[0].ravel()[1::2]
    first = int(0.35 * turns)
    power = found.power_w[int(ends[first] / TICK_S) : int(ends[-1] / TICK_S), 0].mean()
    return (ends[-1] - ends[first]) / (turns - 1 - first), power


@pytest.fixture(scope="module")
def errors():
    """Of each row: time and power."""
    measured = np.array([[float(row["time_s"]), float(row["power_w"])] for row in rows()])
    return np.array([forecast(row) for row in rows()]) / measured - 1.0


def test_loads_in_turn_are_met(errors):
    """With a loop that averaged over 25 ms both were 2.4 % off."""
    assert len(errors) == 28
    assert np.abs(errors).mean(axis=0) == pytest.approx([0.0, 0.0], abs=0.02)


def test_rests_of_tens_of_milliseconds_do_not_let_a_board_exceed_its_limit_between_them(errors):
    """They were forecast 5 to 8 % too short, with up to 13 % too much power."""
    long = [i for i, row in enumerate(rows()) if row["other"] == "sleep" and int(row["products"]) >= 16]
    assert len(long) == 6
    assert np.abs(errors[long, 0]).max() < 0.057
    assert np.abs(errors[long, 1]).max() < 0.065
