"""Rows of attention over documents, and training rows whose sequences were packed."""

import json

import pytest
from paths import ROOT

from joulecast.calibrate.rows.operators import operator_of
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.validate.row_plans import plan_of_row
from joulecast.validate.suites import run_suite

RECORDED = ROOT / "validate" / "recorded" / "documents"
ROW = {
    "op": "flash_attn", "B": 1, "Hq": 8, "Hkv": 2, "S": 1000, "D": 128, "direction": "fwd", "dtype": "bf16",
    "backend": "FLASH_ATTENTION", "documents": [300, 300, 400],
}  # fmt: skip
#: Lengths that gave constants, as rows name them.
GAVE = ("_64x128", "_16x512", "_4x2048", "_32x512")


@pytest.mark.parametrize(("card", "mean"), [("h100_sxm", 0.028), ("h200_sxm", 0.032)])
def test_kernels_are_forecast_this_well(card, mean):
    found = run_suite("kernels", RECORDED / f"{card}.jsonl", card.replace("_", "-")).to_dict()
    errors = {
        one["name"]: one["predicted"]["time_s"] / one["measured"]["time_s"] - 1
        for one in found["rows"]
        if "causal" not in one["name"]
    }
    assert not found["skipped"]
    assert sum(map(abs, errors.values())) / len(errors) < mean
    for kernels, most in (("varlen", 0.042), ("flex", 0.022)):
        held = [abs(e) for name, e in errors.items() if name.startswith(kernels) and not name.endswith(GAVE)]
        assert len(held) >= 8
        assert sum(held) / len(held) < most


def test_rows_name_what_they_hold():
    for path in RECORDED.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert sum(row["documents"]) == row["S"]
            assert row["energy_j"] == pytest.approx(row["time_s"] * row["power_w"], rel=1e-3)


def test_a_row_of_documents_is_a_kernel_of_them():
    (kernel,) = operator_of(ROW).operators
    assert kernel.documents.pieces == ((300.0, 2.0), (400.0, 1.0))
    (whole,) = operator_of({**ROW, "documents": [1000]}).operators
    assert whole.documents is None
    (masked,) = operator_of({**ROW, "mask": True, "backend": "CUDNN_ATTENTION", "Hkv": 8}).operators
    assert (masked.documents, masked.causal, masked.each_score) == (None, False, "mask")


@pytest.mark.parametrize("documents", [[300, 300], 1000, [1000.0], [1200, -200]])
def test_documents_that_do_not_fill_a_row_are_told(documents):
    work = operator_of({**ROW, "documents": documents})
    assert work.reason == "field 'documents' is not a list of lengths that fill the sequence"


def test_a_training_row_says_its_documents_as_a_plan_does():
    row = {
        "op": "train_iter", "hidden": 1024, "heads": 8, "vocab": 32000, "layers": 2, "seq": 2048, "rotary": True,
        "attention_backend": "flash-attn-2", "modules": "transformers",
        "document_tokens": [600, 300], "document_packing": "whole",
    }  # fmt: skip
    plan = plan_from_dict(plan_of_row(row, "h200-sxm"))
    assert plan.workload.document_tokens == (600, 300)
    assert plan.workload.packed.filled == pytest.approx(1.0, abs=0.2)
