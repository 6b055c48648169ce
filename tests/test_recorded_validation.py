"""Forecasts against the blocks and iterations that the project ships for validation: nothing was fitted to them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from joulecast.validate import run_suite

ROWS = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm")))


@pytest.mark.parametrize(("suite", "rows"), [("blocks", 16), ("train", 15)])
def test_mean_errors_stay_within_three_percent(suite: str, rows: int) -> None:
    name = {"blocks": "blocks.jsonl", "train": "train_iterations.jsonl"}[suite]
    result = run_suite(suite, ROWS / name, gpu="h200-sxm-rows").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"]
    assert summary["rows"] == rows
    assert summary["time_error_percent"] <= 3.0
    assert summary["energy_error_percent"] <= 3.0
    assert summary["time_worst_percent"] <= 6.0
    assert summary["energy_worst_percent"] <= 6.0
    assert summary["time_inside_percent"] >= 80.0
    assert summary["energy_inside_percent"] >= 80.0
    assert summary["time_error_percent"] < 0.5 * summary["time_baseline_percent"]
