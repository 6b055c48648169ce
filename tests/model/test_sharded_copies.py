"""Copies of shards that FSDP makes before it gathers them, timed alone on an H200."""

from __future__ import annotations

import math

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.model.framework.launches import streaming
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.training.sharded_units import FOREACH_LATE_S, FOREACH_VALUES

ROWS = ROOT / "validate" / "recorded" / "single_values" / "sharded_copies.csv"


@pytest.mark.parametrize(("kernel", "reads", "late", "apart"), [("bf16", 1.0, 0.08, 0.31), ("fp32", 2.0, 0.08, 0.18)])
def test_each_launch_of_copies_ends_on_a_card_that_is_nearly_empty(kernel, reads, late, apart):
    """Of more than a launch; without that wait they are forecast a third, from fp32 a fifth too short."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    rows = csv_rows(ROWS, kernel=f"shards_copy_{kernel}")
    values = np.array([float(row["values"]) for row in rows if int(row["values"]) > FOREACH_VALUES])
    found = np.array([1e-6 * float(row["time_us"]) for row in rows if int(row["values"]) > FOREACH_VALUES])
    waits = [FOREACH_LATE_S * math.ceil(count / FOREACH_VALUES) for count in values]
    errors = []
    for wait in (waits, [0.0] * len(waits)):
        copies = [
            streaming("copy", "copy", count, reads=reads, late_s=one).operator
            for count, one in zip(values, wait, strict=True)
        ]
        said = at_clock(lower(copies, gpu), gpu.max_clock_mhz, gpu).time_s
        errors.append(float(np.mean(np.abs(said / found - 1.0))))
    assert len(values) == 11
    assert errors[0] < late and errors[1] > apart
