"""Clocks and power limits of a plan: the card must have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.component_power import check_limits
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.parts import Power
    from joulecast.simulator.plan_file.plan import Plan


#: A clock may be off by as much where its digits were rounded [MHz].
CLOCK_ROUNDING_MHZ = 1e-6


def check_power(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    """Raise a readable error for a clock or a limit that the card does not take."""
    power = plan.power
    if power.clocks_mhz:
        _clocks(power, gpu, source)
    if power.component_limits_w:
        try:
            check_limits(dict(power.component_limits_w), gpu_model(gpu), waits=True)
        except InputError as error:
            raise place(error, source, f"power.{error.key}") from None
    limits = power.power_limit_w
    for limit in limits if isinstance(limits, tuple) else (limits,):
        if limit is None:
            continue
        low, high = gpu.number("min_power_limit_w"), gpu.number("max_power_limit_w")
        if not low <= limit <= high:
            raise source.error(
                f"{limit:g} W is not a power limit of {gpu.name}",
                "power.power_limit_w",
                remedy=f"Use {low:g} to {high:g} W.",
            )


#: Origins of a number, as parts of a sentence.
WORDS = {"estimate": "an estimate"}
#: Origins of a number that was found in measurements.
FOUND = ("measured", "fitted")


def limit_assumptions(gpu: GpuDescription, limits_w: Iterable[float | None]) -> tuple[str, ...]:
    """What power limits below the default take for granted of a card whose voltage at lower clocks nobody measured."""
    default, floor = gpu.number("power_limit_w"), gpu.voltage.parameters["floor_ratio"]
    lower = [limit for limit in limits_w if limit is not None and limit < default]
    if not lower or floor.status in FOUND:
        return ()
    return (
        f"what limits below {gpu.name}'s default of {default:g} W save is no measured fact: how far its voltage falls "
        f"with its clock, to {floor.number:g} of the highest, is {WORDS.get(floor.status, floor.status)} "
        f"({floor.source.removeprefix('estimate: ')})",
    )


def _clocks(power: Power, gpu: GpuDescription, source: Source) -> None:
    known = gpu_model(gpu).clocks_mhz
    for name, clocks in power.clocks_mhz:
        for clock in clocks:
            clock_index(clock, known, f"power.clock_mhz.{name}" if name else "power.clock_mhz", source, gpu.name)


def clock_index(clock_mhz: float, known_mhz: Array, key: str, source: Source, gpu: str = "this GPU") -> int:
    """Place of a clock among those that a GPU has.

    Raises
    ------
    InputError
        It has no such clock; names the nearest.
    """
    nearest = int(np.abs(known_mhz - clock_mhz).argmin())
    if abs(known_mhz[nearest] - clock_mhz) <= CLOCK_ROUNDING_MHZ:
        return nearest
    has = f"{known_mhz[0]:g} to {known_mhz[-1]:g} MHz in steps of {known_mhz[-1] - known_mhz[-2]:g}"
    remedy = f"It has {has}; the nearest is {known_mhz[nearest]:g}."
    raise source.error(f"{clock_mhz:g} MHz is not a clock of {gpu}", key, remedy=remedy)
