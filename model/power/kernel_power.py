"""Time, power and energy of lowered kernels at any clock.

    P·t = [P_static + λ·(T − T₀) + P_clock·(f/f_max)·u²]·t + a·P_SM·(f/f_max)·u²·(t − t0)
          + (E_tensor + E_vector + E_onchip)·u² + E_HBM + E_link

with u = V/V_max, t0 the latency floor in which the SMs wait, and T = T_inlet + R·P in steady state, so that P follows
from one division. The component forms are those of CMOS dynamic power (C·V²·f) and measured energy per operation and
byte; see the description's tables for each figure. Cards of one kind differ in the energy of the chip, all that goes
with u², and of the memory: ``power.card_core`` and ``power.card_memory`` multiply them, 1 on a card like the
description's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.power.voltage import voltage_ratio

#: Temperature to which ``power.static_w`` refers [°C].
REFERENCE_TEMPERATURE_C = 40.0
#: What differs between cards of one kind: the dynamic energy of the chip and of the memory, as factors.
CARD_FACTORS = ("power.card_core", "power.card_memory")
#: Components of a kernel's energy, in the order of the ledger.
COMPONENTS = ("static", "clock", "sm", "tensor", "vector", "onchip", "hbm", "link")


@dataclass(frozen=True)
class KernelTimes:
    """Kernels at given clocks; arrays broadcast from ``(n,)`` costs and the clock's shape.

    Attributes
    ----------
    time_s, energy_j
        Of one launch [s], [J].
    components_j
        Energy by component [J].
    """

    time_s: Array
    energy_j: Array
    components_j: dict[str, Array]

    @property
    def power_w(self) -> Array:
        """Mean power [W]."""
        return np.asarray(self.energy_j / self.time_s)


def kernel_time_s(costs: Costs, clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Time of kernels at a clock: latency floor and waits plus a smooth maximum of SM, memory and link time [s].

    ``clock_mhz`` has shape ``(n,)``, ``()`` or ``(c, 1)``; the result broadcasts.
    """
    p = overlap_exponent(costs.overlap, gpu)
    core = costs.core_cycles / (np.asarray(clock_mhz) * 1e6)
    longest = np.maximum(np.maximum(core, costs.memory_s), np.maximum(costs.link_s, 1e-30))
    total = (core / longest) ** p + (costs.memory_s / longest) ** p + (costs.link_s / longest) ** p
    return np.asarray(costs.fixed_s + costs.wait_s + longest * total ** (1.0 / p))


def overlap_exponent(own: Array, gpu: GpuModel) -> Array | float:
    """Exponent of the smooth maximum of kernels' times [1]: their ``own`` where it is not 0, else the GPU's."""
    usual = gpu["kernel.overlap_exponent"]
    return np.where(own > 0.0, own, usual) if own.any() else usual


def at_clock(costs: Costs, clock_mhz: ArrayLike, gpu: GpuModel) -> KernelTimes:
    """Time and energy of kernels at a clock, in steady state.

    Parameters
    ----------
    costs
        ``n`` lowered kernels.
    clock_mhz
        SM clock [MHz] of shape ``()``, ``(n,)`` or ``(c, 1)``.
    gpu
        The GPU; reads ``kernel.overlap_exponent``, ``voltage.*`` and ``power.*``.
    """
    time = kernel_time_s(costs, clock_mhz, gpu)
    core, memory = (gpu.get(name, 1.0) for name in CARD_FACTORS)
    u2 = voltage_ratio(clock_mhz, gpu) ** 2 * core
    clocked = np.asarray(clock_mhz) / gpu.max_clock_mhz * u2
    below_copy = np.minimum(costs.vector_j, 0.0)  # patterns that spend less on chip than a copy of their bytes
    parts = {
        "clock": gpu["power.clock_w"] * clocked * time,
        "sm": gpu["power.sm_w"] * costs.activity * clocked * (time - costs.fixed_s),
        "tensor": costs.tensor_j * u2,
        "vector": (costs.vector_j - below_copy) * u2,
        "onchip": (costs.onchip_j + below_copy) * u2,
        "hbm": np.broadcast_to(costs.hbm_j * memory, time.shape),
        "link": np.broadcast_to(costs.link_j, time.shape),
    }
    rest = sum(parts.values(), np.zeros_like(time))
    static = static_power_w(rest / time, gpu) * time
    parts = {"static": static, **parts}
    return KernelTimes(time, rest + static, parts)


def static_power_w(other_power_w: ArrayLike, gpu: GpuModel) -> Array:
    """Static and leakage power [W] beside ``other_power_w``, at the steady temperature that their sum brings."""
    other = np.asarray(other_power_w, dtype=np.float64)
    leak, resistance = gpu["power.leakage_w_per_k"], gpu["power.thermal_resistance_k_per_w"]
    cold = gpu["power.static_w"] + leak * (gpu["power.inlet_c"] - REFERENCE_TEMPERATURE_C)
    return np.asarray((cold + leak * resistance * other) / (1.0 - leak * resistance))


def static_power_at_w(temperature_c: ArrayLike, gpu: GpuModel) -> Array:
    """Static and leakage power [W] at a temperature [°C]."""
    warmer = np.asarray(temperature_c, dtype=np.float64) - REFERENCE_TEMPERATURE_C
    return np.asarray(gpu["power.static_w"] + gpu["power.leakage_w_per_k"] * warmer)


def idle_power_w(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of a GPU that runs nothing, at a clock [W]."""
    clocked = clock_tree_power_w(clock_mhz, gpu)
    return clocked + static_power_w(clocked, gpu)


def clock_tree_power_w(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of the clock tree [W]; it flows whatever runs."""
    return np.asarray(gpu["power.clock_w"] * _clocked(clock_mhz, gpu))


def wait_power_w(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of a GPU whose communication kernel polls for its peers, at a clock [W]."""
    return idle_power_w(clock_mhz, gpu) + gpu["power.wait_w"] * _clocked(clock_mhz, gpu)


def _clocked(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of the card's clocked logic at a clock, as a share of that of the kind at the highest [1]."""
    share = np.asarray(clock_mhz) / gpu.max_clock_mhz * voltage_ratio(clock_mhz, gpu) ** 2
    return np.asarray(share * gpu.get(CARD_FACTORS[0], 1.0))
