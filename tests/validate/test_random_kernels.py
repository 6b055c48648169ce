"""Kernels of random shapes that were forecast before anybody measured them."""

import json
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "validate" / "recorded" / "random_kernels"


def rows(file):
    return [json.loads(line) for line in (FOLDER / file).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("key", "mean"), [("time_s", 8.8), ("power_w", 6.3)])
def test_blind_forecasts_are_off_by_what_the_readme_says(key, mean):
    forecast = {row["name"]: row for row in rows("forecasts.jsonl") if row["gpu"] == "h100-sxm"}
    errors = [abs(forecast[row["name"]][key] / row[key] - 1) for row in rows("h100_sxm.jsonl")]
    assert len(errors) == len(forecast) == 24
    assert 100 * np.mean(errors) == pytest.approx(mean, abs=0.05)
