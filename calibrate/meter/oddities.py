"""What makes a loop something else than its plan, or its measurement doubtful, as far as it shows before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joulecast.calibrate.devices.findings import Code, of_facts
from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.meter.local_gpus import LocalGpus
from joulecast.simulator.iteration.result import Iteration

#: Difference of power limits that is none [W].
SAME_W = 0.5


def oddities(row: Mapping[str, Any], gpus: LocalGpus, iteration: Iteration, *, waited_for: bool) -> list[str]:
    """What to tell about a loop before it begins.

    Parameters
    ----------
    row
        The configuration of its row.
    gpus
        The cards of this process.
    iteration
        The forecast of its plan.
    waited_for
        Whether the loop gave a function that waits for the cards.
    """
    return [
        *_of_numbers(row),
        *_of_waiting(gpus, waited_for),
        *dict.fromkeys(told for device in gpus.devices for told in _of_card(device, iteration)),
    ]


def _of_numbers(row: Mapping[str, Any]) -> Iterator[str]:
    metered, planned = row["gpus"] * row["world_size"], row["plan_gpus"]
    if metered != planned:
        yield (
            f"{metered} of the plan's {planned} GPUs are metered: only the time is that of the whole; give devices= "
            "all GPUs of this process, or meter in every rank"
        )


def _of_waiting(gpus: LocalGpus, waited_for: bool) -> Iterator[str]:
    simulated = all(isinstance(device, SimulatedCard) for device in gpus.devices)
    if not (waited_for or gpus.indices or simulated):
        yield "nothing waits for the GPUs at a window's ends: import torch first, or give synchronize="


def _of_card(device: Device, iteration: Iteration) -> Iterator[str]:
    """A card that is not the plan's, or that others use too."""
    facts, described = device.facts, iteration.description.device if iteration.description else {}
    product = str(described["product"].value) if "product" in described else facts.name
    if product.casefold() != facts.name.casefold() and not isinstance(device, SimulatedCard):
        yield f"{facts.locator} is {facts.name}, the plan's GPU is {product}"
    limits = {iteration.plan.power.limit_w(stage) for stage in range(iteration.plan.pp)}
    planned = {described["power_limit_w"].number if limit is None else limit for limit in limits}
    now_w = device.settings().power_limit_w or facts.power_limit_w
    if now_w is not None and all(abs(now_w - limit) > SAME_W for limit in planned):
        yield (
            f"the power limit of {facts.locator} is {now_w:g} W, the plan's "
            f"{' and '.join(f'{limit:g}' for limit in sorted(planned))} W: say power.power_limit_w as it is"
        )
    yield from (finding.message for finding in of_facts(facts, device.settings()) if finding.code is Code.MIG)
    others = ", ".join(str(neighbour.pid) for neighbour in device.neighbours())
    if others:
        yield f"other processes hold {facts.locator}, whose work would count: {others}"
