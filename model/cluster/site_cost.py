"""Money and carbon of electricity and of hardware in use: pure functions of energy, time and number of GPUs.

    money  = E·p + n·t·c_GPU / (L·u),    carbon = E·i + n·t·m_GPU / (L·u)

with the price p and the carbon intensity i of electricity, price c and embodied carbon m of a GPU with its share of
node and network, lifetime L and the share u of it that does paid work. Everything is linear in E and in n·t. Of rented
GPUs the price of an hour stands for c/(L·u).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array

#: Joules of a kilowatt-hour, seconds of an hour and of a (Julian) year.
J_PER_KWH, S_PER_HOUR, S_PER_YEAR = 3.6e6, 3600.0, 365.25 * 86400.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What energy and hardware cost at a site.

    Attributes
    ----------
    electricity_per_kwh
        [currency/kWh].
    carbon_kg_per_kwh
        Carbon intensity of the electricity [kgCO2e/kWh].
    hardware_per_gpu, embodied_kg_per_gpu
        A GPU with its share of node and network: price [currency] and carbon of its making [kgCO2e].
    lifetime_years, utilisation
        How long it is used, and the share of that time in which it does paid work.
    rent_per_gpu_hour
        What a rented one costs in place of its price [currency/h]; ``None``: it is bought.
    """

    electricity_per_kwh: float
    carbon_kg_per_kwh: float
    hardware_per_gpu: float
    embodied_kg_per_gpu: float
    lifetime_years: float
    utilisation: float
    rent_per_gpu_hour: float | None = None

    @property
    def hardware_per_gpu_s(self) -> float:
        """What a second of a GPU costs [currency/s]."""
        if self.rent_per_gpu_hour is not None:
            return self.rent_per_gpu_hour / S_PER_HOUR
        return self.hardware_per_gpu / self.working_life_s

    @property
    def working_life_s(self) -> float:
        """Time over which hardware is paid off [s]."""
        return self.lifetime_years * S_PER_YEAR * self.utilisation


@dataclass(frozen=True, slots=True)
class PriceSpread:
    """Relative standard deviations of :class:`Prices`, 0 for what is known.

    Attributes
    ----------
    electricity, carbon, hardware, embodied
        Of the price and carbon intensity of electricity, and of the price and embodied carbon of a GPU.
    working_life
        Of lifetime and utilisation together.
    rented
        Whether hardware's price is a rent, which no working life pays off.
    """

    electricity: float
    carbon: float
    hardware: float
    embodied: float
    working_life: float
    rented: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of some work; scalars, or arrays of one shape.

    Attributes
    ----------
    electricity, hardware
        Parts of the money [currency]; the rent of rented GPUs is the latter, with what electricity is in it.
    operational_kg, embodied_kg
        Parts of the carbon [kgCO2e].
    """

    electricity: Array
    hardware: Array
    operational_kg: Array
    embodied_kg: Array

    @property
    def money(self) -> Array:
        """Electricity and hardware [currency]."""
        return self.electricity + self.hardware

    @property
    def carbon_kg(self) -> Array:
        """Electricity and the making of hardware [kgCO2e]."""
        return self.operational_kg + self.embodied_kg


def cost_of(energy_j: ArrayLike, time_s: ArrayLike, gpus: ArrayLike, prices: Prices) -> Cost:
    """Money and carbon of work that takes ``energy_j`` at the facility's meter and ``gpus`` GPUs for ``time_s``.

    Parameters
    ----------
    energy_j, time_s, gpus
        Broadcast against each other [J], [s].
    """
    kwh = np.asarray(energy_j, dtype=np.float64) / J_PER_KWH
    gpu_s = np.asarray(time_s, dtype=np.float64) * np.asarray(gpus, dtype=np.float64)
    return Cost(
        electricity=np.asarray(kwh * prices.electricity_per_kwh),
        hardware=np.asarray(gpu_s * prices.hardware_per_gpu_s),
        operational_kg=np.asarray(kwh * prices.carbon_kg_per_kwh),
        embodied_kg=np.asarray(gpu_s / prices.working_life_s * prices.embodied_kg_per_gpu),
    )


def cost_rel_sd(cost: Cost, spread: PriceSpread, energy_rel_sd: float, time_rel_sd: float) -> tuple[float, float]:
    """Relative standard deviations of money and of carbon: independent parts in quadrature.

    Parameters
    ----------
    cost
        Of some work, scalars.
    energy_rel_sd, time_rel_sd
        Relative standard deviations of the work's energy and time.
    """
    found, paid_off = [], 0.0 if spread.rented else spread.working_life
    for by_energy, price, by_use, hardware, life in (
        (cost.electricity, spread.electricity, cost.hardware, spread.hardware, paid_off),
        (cost.operational_kg, spread.carbon, cost.embodied_kg, spread.embodied, spread.working_life),
    ):
        total = float(by_energy + by_use)
        parts = by_energy * np.hypot(energy_rel_sd, price), by_use * np.hypot(np.hypot(time_rel_sd, life), hardware)
        found.append(float(np.hypot(*parts)) / total if total else 0.0)
    return found[0], found[1]
