"""Memory-clock states: bandwidth and background power of the memory at another clock.

Bandwidth is proportional to the clock; energy of a byte stays. Of the board's static power, the memory's interface and
refresh take a share that follows the clock:

    B' = B·r,   P_static' = P_static·(1 − s·(1 − r)),   r = f_mem'/f_mem
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel

#: Share of static power that follows the memory clock [1]. Estimate: boards' idle power in their memory states.
BACKGROUND_SHARE = 0.3


def at_memory_clock(memory_clock_mhz: float, gpu: GpuModel) -> GpuModel:
    """The GPU with its memory at a lower clock [MHz].

    Raises
    ------
    InputError
        The card has no memory-clock states to set, or not this one.
    """
    highest = gpu.device["memory_clock_mhz"]
    if memory_clock_mhz == highest:
        return gpu
    if not gpu.device.get("supports_memory_clock_states"):
        raise InputError(
            f"the memory clock of {gpu.name} cannot be set",
            key="memory_clock_mhz",
            remedy=f"It runs at {highest:g} MHz; leave the key out.",
        )
    if not 0 < memory_clock_mhz <= highest:
        raise InputError(
            f"{memory_clock_mhz:g} is out of range", key="memory_clock_mhz", remedy=f"At most {highest:g}."
        )
    ratio = memory_clock_mhz / highest
    bandwidth = gpu.device["memory_bandwidth_bytes_per_s"] * ratio
    static = gpu["power.static_w"] * (1.0 - BACKGROUND_SHARE * (1.0 - ratio))
    device = {**gpu.device, "memory_bandwidth_bytes_per_s": bandwidth, "memory_clock_mhz": memory_clock_mhz}
    return replace(gpu.with_values({"power.static_w": static}), device=device)
