"""Supply voltage against clock, as a ratio to the voltage at the highest clock.

    V/V_max = max(v_floor, 1 − s·(1 − f/f_max))

Flat below a knee and rising above it, as measured on A100 (693.75 mV up to 1020 MHz, 893.75 mV at 1410 MHz; EnergAIzer
artifact). Clocks that a board picks under its limit identify the slope; the floor lies below them and is an estimate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel


def voltage_ratio(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """V/V_max at SM clocks of any shape [1]; reads ``voltage.slope`` and ``voltage.floor_ratio``."""
    share = np.asarray(clock_mhz, dtype=np.float64) / gpu.max_clock_mhz
    return np.maximum(gpu["voltage.floor_ratio"], 1.0 - gpu["voltage.slope"] * (1.0 - share))
