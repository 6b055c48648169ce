"""AdamW's blocks of values on two cards: from calibrations, and at counted clocks with any number of blocks."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.framework.implementation import Implementation
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.multi_tensor import BLOCK_VALUES, MOST_BLOCKS
from joulecast.model.kernels.operators import DTYPE_BYTES, Streaming
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import ParameterTensor

CARDS = ("h100-sxm", "h200-sxm")
#: Calibrations of single cards; nothing of a derived H100 is fitted to those of H100s.
RECORDINGS = {
    "h100-sxm": ("calibrate/recorded/h100_sxm_live/*/*.jsonl", "validate/recorded/h100_sxm/card-*/recording.jsonl"),
    "h200-sxm": (
        "calibrate/recorded/h200_sxm_live/card-*/*.jsonl",
        "validate/recorded/h200_sxm/card-*/recording.jsonl",
    ),
}


@cache
def model(gpu):
    return gpu_model(load_gpu(gpu))


def forecast_us(operator, gpu, clock_mhz):
    return 1e6 * at_clock(lower([operator], model(gpu)), np.array([[clock_mhz]]), model(gpu)).time_s.item()


def adamw_rows(gpu):
    """Rows of AdamW in the recordings of a kind of card."""
    files = (file for pattern in RECORDINGS[gpu] for file in ROOT.glob(pattern))
    rows = (
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if "adamw" in line
    )
    return [row for row in rows if row.get("name", "").startswith("adamw") and "time_s" in row]


def step(values, dtype, *, untouched=False):
    size = DTYPE_BYTES[dtype] * values
    pattern = "adamw_untouched" if untouched else "adamw"
    return Streaming(pattern, 4 * size, 3 * size, elements=float(values), dtype=dtype, footprint_bytes=math.inf)


def counted_rows():
    return csv_rows(ROOT / "validate" / "recorded" / "single_values" / "adamw.csv")


def error(row):
    operator = step(int(row["blocks"]) * BLOCK_VALUES, row["dtype"], untouched=row["zeros"] == "1")
    return forecast_us(operator, row["gpu"], float(row["counted_clock_mhz"])) / float(row["time_us"]) - 1.0


@pytest.mark.parametrize("gpu", CARDS)
def test_steps_of_both_types_take_what_calibrations_measured(gpu):
    """A derived H100's were 14 % (bf16) and 7 % (fp32) too long with the share of the memory that an H200 reaches."""
    errors = {"bf16": [], "fp32": []}
    for row in adamw_rows(gpu):
        (operator,) = operator_of(row).operators
        errors[row["dtype"]].append(forecast_us(operator, gpu, row["sm_clock_mhz"]) / (1e6 * row["time_s"]) - 1.0)
    assert all(len(of) >= 2 for of in errors.values())
    for of in errors.values():
        assert abs(np.mean(of)) < 0.03
        assert max(map(abs, of)) < 0.04


@pytest.mark.parametrize("zeros", ["0", "1"])
def test_whole_launches_take_what_was_counted_at_three_clocks(zeros):
    rows = [row for row in counted_rows() if row["blocks"] == str(MOST_BLOCKS) and row["zeros"] == zeros]
    errors = {gpu: [error(row) for row in rows if row["gpu"] == gpu] for gpu in CARDS}
    assert max(np.mean(np.abs(of)) for of in errors.values()) < 0.05
    assert abs(np.mean(errors["h100-sxm"]) - np.mean(errors["h200-sxm"])) < 0.05


@pytest.mark.parametrize("gpu", CARDS)
def test_one_block_more_than_a_wave_holds_takes_another_wave(gpu):
    measured = {
        row["blocks"]: float(row["time_us"])
        for row in counted_rows()
        if (row["gpu"], row["dtype"], row["zeros"], row["fillers"]) == (gpu, "bf16", "0", "0")
    }
    full, more = (forecast_us(step(blocks * BLOCK_VALUES, "bf16"), gpu, 1975.0) for blocks in (264, 265))
    assert more - full == pytest.approx(measured["265"] - measured["264"], rel=0.4)
    # within a wave a few blocks take as long as one: memory has time for them
    few, one = (forecast_us(step(blocks * BLOCK_VALUES, "bf16"), gpu, 1980.0) for blocks in (16, 1))
    assert few == pytest.approx(one, rel=0.02)
    assert few == pytest.approx(measured["16"], rel=0.04)


def test_a_steps_launches_are_whole_but_for_the_last():
    values = 12 * MOST_BLOCKS * BLOCK_VALUES + 256 * BLOCK_VALUES
    tensor = ParameterTensor("weight", values)
    launches = [one for one in optimizer_step([tensor], Implementation()) if one.operator.pattern == "adamw"]
    assert [(one.repeat, one.operator.elements) for one in launches] == [
        (12, MOST_BLOCKS * BLOCK_VALUES),
        (1, 256 * BLOCK_VALUES),
    ]
    apart = sum(one.repeat * forecast_us(one.operator, "h200-sxm", 1980.0) for one in launches)
    assert apart == pytest.approx(forecast_us(step(values, "bf16"), "h200-sxm", 1980.0), rel=0.01)
