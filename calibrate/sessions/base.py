"""Which data-sheet facts a measured card has: those of its kind, corrected by what the card itself says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.errors import InputError, nearest
from joulecast.model.hardware.catalogue import gpu_names, gpus_called, products, read_gpu
from joulecast.model.hardware.description import GpuDescription, Parameter

#: How a simulated card calls itself before the name of what it simulates.
SIMULATED = "Simulated "
#: Relative difference from which on the card's own figure replaces the data sheet's.
DIFFERENCE = 1e-3


def base_name(facts: CardFacts) -> str:
    """Name in the catalogue of a card's kind.

    Raises
    ------
    InputError
        The catalogue does not have it; the message names the nearest.
    """
    names = gpu_names()
    simulated = facts.name.removeprefix(SIMULATED)
    if facts.name.startswith(SIMULATED) and (simulated in names or Path(simulated).is_file()):
        return simulated
    if same := gpus_called(facts.name):
        return same[0]
    near = nearest(facts.name, products().values())
    kinds = ", ".join(name for name, product in products().items() if product in near)
    such_as = f"; the nearest are {kinds}" if kinds else ""
    raise InputError(
        f"the catalogue has no {facts.name!r}",
        key="--base",
        remedy=f"Give --base NAME or --base FILE with its data-sheet facts{such_as}.",
    )


def odd_base(base: str, facts: CardFacts) -> str:
    """What is odd about a base of the catalogue: that it is of another kind than the card; empty if nothing is."""
    try:
        own = base_name(facts)
    except InputError:  # who has no entry takes another's
        return ""
    kinds = {} if Path(base).is_file() else {name: read_gpu(name).device["product"].value for name in (own, base)}
    if len(set(kinds.values())) < 2:
        return ""
    return f"the card calls itself {facts.name}, but data-sheet facts of {base} were asked for; its own are {own}"


def base_of_card(base: str | Path, facts: CardFacts) -> GpuDescription:
    """Data-sheet facts of a card's kind, with the card's own power limit, clock, SMs and memory.

    Parameters
    ----------
    base
        Catalogue name or file.
    facts
        What the card says about itself.

    Raises
    ------
    InputError
        No such base.
    """
    description = facts_of(base)
    device = dict(description.device)
    low, high = facts.power_limit_range_w or (None, None)
    own = {
        "power_limit_w": facts.power_limit_w,
        "min_power_limit_w": low,
        "max_power_limit_w": high,
        "max_clock_mhz": facts.max_sm_clock_mhz,
        "sm_count": facts.sms,
        "memory_bytes": facts.memory_bytes,
    }
    for name, value in own.items():
        if value and name in device and abs(value / device[name].number - 1.0) > DIFFERENCE:
            device[name] = Parameter(
                value, 0.0, device[name].unit, f"{facts.name}, driver {facts.driver}: its own figure", "measured"
            )
    return replace(description, device=device)
