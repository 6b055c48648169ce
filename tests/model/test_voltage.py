"""Supply voltage against clock."""

import numpy as np
import pytest

from joulecast.model.power.voltage import voltage_ratio


def test_highest_clock_has_the_reference_voltage(h200):
    assert voltage_ratio(h200.max_clock_mhz, h200) == 1.0


def test_never_falls_with_the_clock_and_never_below_the_floor(h200):
    ratio = voltage_ratio(h200.clocks_mhz, h200)
    assert np.all(np.diff(ratio) >= 0)
    assert ratio.min() == h200["voltage.floor_ratio"]


def test_rises_by_its_slope_above_the_knee(h200):
    gpu = h200.with_values({"voltage.slope": 0.4, "voltage.floor_ratio": 0.7})
    high, low = voltage_ratio(np.array([0.9, 0.8]) * gpu.max_clock_mhz, gpu)
    assert high - low == pytest.approx(0.04)
    knee = gpu.max_clock_mhz * (1.0 - 0.3 / 0.4)
    assert voltage_ratio(knee - 50.0, gpu) == voltage_ratio(0.0, gpu) == 0.7


def test_a100_knee_is_reproduced(h200):
    """Measured on A100: 693.75 mV up to 1020 MHz and 893.75 mV at 1410 MHz (EnergAIzer artifact)."""
    floor = 693.75 / 893.75
    slope = (1 - floor) / (1 - 1020 / 1410)
    a100 = h200.with_values({"voltage.slope": slope, "voltage.floor_ratio": floor})
    share = np.array([1410, 1215, 1020, 800]) / 1410 * a100.max_clock_mhz
    expected = np.array([893.75, 793.75, 693.75, 693.75])
    assert voltage_ratio(share, a100) * 893.75 == pytest.approx(expected)


def test_shapes_are_kept(h200):
    assert voltage_ratio(np.ones((3, 1)) * 1500.0, h200).shape == (3, 1)
