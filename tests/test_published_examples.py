"""Published findings that examples forecast: what they say stays as it is told."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "published"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_overlap_on_two_a40s_saves_most_at_the_lowest_clock():
    """Published: 23 % within 0.026 s, at 1400 MHz."""
    a40 = load("overlap_a40")
    half = a40.score("attention", a40.two_a40s())
    found = a40.at_limit(half)
    assert 10.0 < found["saved [%]"] < 25.0
    assert found["its clock [MHz]"] <= 1410.0
    lowest = a40.pareto(half.time_s[:, 0], half.energy_j[:, 0])
    assert half.ways[lowest[0]] != half.ways[lowest[-1]], "the fastest way is not the most economical"


@pytest.mark.parametrize("name", ["same product tile", "ReduceMin", "RMSNorm"])
def test_findings_on_tiles_that_the_forecast_agrees_with(name):
    v100 = load("tiles_v100")
    gpu = v100.gpu_model(v100.load_gpu("v100-sxm2-16gb"))
    said, holds = v100.FINDINGS[name][1](gpu)
    assert holds, said
