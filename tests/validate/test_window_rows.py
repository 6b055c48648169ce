"""Rows of attention in windows, in FP8, and as Transformer Engine has cuDNN lay it out."""

import json

import pytest
from paths import ROOT

from joulecast.calibrate.rows.operators import operator_of
from joulecast.validate.suites import run_suite

RECORDED = ROOT / "validate" / "recorded" / "windows"
#: Rows that gave constants.
GAVE = ("32x8192x128_w512", "32x8192x128_w4096", "64x8192x64_w512", "_16x512", "_4x2048")


def errors(card):
    found = run_suite("kernels", RECORDED / f"{card}.jsonl", card.replace("_", "-")).to_dict()
    assert not found["skipped"]
    return {one["name"]: one["predicted"]["time_s"] / one["measured"]["time_s"] - 1 for one in found["rows"]}


@pytest.fixture(scope="module", params=["h100_sxm", "h200_sxm"])
def found(request):
    return errors(request.param)


@pytest.mark.parametrize(
    ("kernels", "mean"), [("fa2_fwd", 0.06), ("fa2_bwd", 0.07), ("te_fwd", 0.05), ("te_bwd", 0.05), ("flex", 0.06)]
)
def test_windows_that_gave_nothing_are_forecast_this_well(found, kernels, mean):
    held = [
        abs(e) for name, e in found.items() if name.startswith(kernels) and "_w" in name and not name.endswith(GAVE)
    ]
    assert len(held) >= 4
    assert sum(held) / len(held) < mean


@pytest.mark.parametrize(("kernels", "mean"), [("fp8_fwd", 0.04), ("fp8_bwd", 0.13)])
def test_fp8_is_forecast_this_well(found, kernels, mean):
    held = [abs(e) for name, e in found.items() if name.startswith(kernels)]
    assert len(held) >= 4
    assert sum(held) / len(held) < mean


def test_a_row_in_a_window_is_a_kernel_of_it():
    row = json.loads((RECORDED / "h200_sxm.jsonl").read_text().splitlines()[2])
    (kernel,) = operator_of(row).operators
    assert (kernel.window, kernel.backend) == (512, "te-cudnn")
