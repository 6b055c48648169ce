"""What a simulated card says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from joulecast.calibrate.devices.protocol import CardFacts, Settings
from joulecast.calibrate.devices.simulated_board import Board
from joulecast.calibrate.devices.simulated_file import CardFile
from joulecast.calibrate.devices.simulated_work import COMPONENT_GROUPS
from joulecast.errors import DeviceError, UnknownNameError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model


def true_model(gpu: str, truth: Mapping[str, float]) -> GpuModel:
    """Numbers of a description with some of them replaced.

    Raises
    ------
    UnknownNameError
        A parameter that the description does not have.
    """
    model = replace(gpu_model(load_gpu(gpu)), description=None)
    for name in truth:
        if name not in model.parameters:
            raise UnknownNameError("parameter", name, model.parameters, key="truth")
    return model.with_values(truth)


def facts_of(content: CardFile, truth: GpuModel, locator: str) -> CardFacts:
    """Facts of a simulated card."""
    device, faults = truth.device, content.faults
    return CardFacts(
        locator=locator,
        name=f"Simulated {content.gpu}",
        vendor="simulated",
        driver="simulated",
        power_limit_w=content.power_limit_w or device["power_limit_w"],
        default_power_limit_w=device["power_limit_w"],
        power_limit_range_w=(device["min_power_limit_w"], device["max_power_limit_w"]),
        max_sm_clock_mhz=truth.max_clock_mhz,
        max_memory_clock_mhz=device.get("memory_clock_mhz"),
        sm_clocks_mhz=tuple(truth.clocks_mhz.tolist()),
        sms=int(truth.sm_count),
        memory_bytes=int(device["memory_bytes"]),
        energy_counter=faults.energy_counter,
        may_set_clocks=faults.privileged,
        may_set_power_limit=faults.privileged,
        mig=faults.mig,
        components=tuple(COMPONENT_GROUPS) if content.sensors.components else (),
    )


def allowed(content: CardFile, truth: GpuModel) -> tuple[int, float]:
    """Index of the highest clock that the settings allow, and the power limit [W]."""
    clocks = truth.clocks_mhz.tolist()
    highest = len(clocks) - 1
    if content.locked_clock_mhz is not None:
        highest = max(i for i, clock in enumerate(clocks) if i == 0 or clock <= content.locked_clock_mhz[1] + 1e-6)
    limit = truth.device["power_limit_w"] if content.power_limit_w is None else content.power_limit_w
    return highest, limit


def check_settings(settings: Settings, facts: CardFacts) -> None:
    """Refuse what the card cannot be set to.

    Raises
    ------
    DeviceError
        Clocks that it does not have, or a limit out of its range.
    """
    clocks, allowed = facts.sm_clocks_mhz, facts.power_limit_range_w
    if settings.locked_clock_mhz is not None:
        low, high = settings.locked_clock_mhz
        if not clocks[0] <= low <= high <= clocks[-1]:
            raise DeviceError(
                f"clocks from {low:g} to {high:g} MHz cannot be locked",
                key="locked_clock_mhz",
                remedy=f"The card has {clocks[0]:g} to {clocks[-1]:g} MHz.",
            )
    limit = settings.power_limit_w
    if limit is not None and allowed is not None and not allowed[0] <= limit <= allowed[1]:
        raise DeviceError(
            f"a limit of {limit:g} W cannot be set",
            key="power_limit_w",
            remedy=f"The card takes {allowed[0]:g} to {allowed[1]:g} W.",
        )


def reasons_of(board: Board) -> tuple[str, ...]:
    """Why a board does not run at its highest clock."""
    table, highest = board.work.table(board.limit_w), len(board.clocks_mhz) - 1
    found = {
        "idle": board.work.is_idle,
        "power_limit": board.state.clock < board.top - 0.5,
        "thermal": board.state.temperature_c > board.dynamics.throttle_c,
        "hardware": table.skipping[board.index],
        "locked_clock": board.highest < highest,
        "other": board.tensor_top < highest,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def components_j(board: Board) -> dict[str, float]:
    """Energy by component since the start [J]."""
    return {name: round(e, 3) for name, e in zip(COMPONENT_GROUPS, board.state.groups_j, strict=True)}
