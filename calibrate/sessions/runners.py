"""What runs microbenchmarks on a card, and what a microbenchmark needs that the machine lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark, Runner
from joulecast.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class CardRunner:
    """What runs on a card.

    Attributes
    ----------
    runner
        Runs microbenchmarks on the card.
    missing
        What a microbenchmark needs and this machine lacks.
    versions
        Of the software that runs them, for the recording.
    """

    runner: Runner
    missing: Callable[[Microbenchmark], Sequence[str]]
    versions: dict[str, str]


def runner_for(device: Device) -> CardRunner:
    """The runner of a card.

    Raises
    ------
    MeasurementError
        PyTorch is missing, or it does not see the card.
    """
    from joulecast.calibrate.devices.simulated import SimulatedCard
    from joulecast.calibrate.measure.recording import software_versions

    if isinstance(device, SimulatedCard):
        from joulecast.calibrate.devices.simulated_runner import SimulatedRunner

        return CardRunner(SimulatedRunner(device), lambda benchmark: (), software_versions(with_torch=False))
    from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner

    runner = TorchRunner(f"cuda:{_torch_index(device)}")
    return CardRunner(runner, runner.missing, software_versions())


def _torch_index(device: Device) -> int:
    """PyTorch's number of a card: it counts only what ``CUDA_VISIBLE_DEVICES`` shows, in an order of its own."""
    from joulecast.calibrate.devices.nvml import NvmlCard
    from joulecast.calibrate.microbenchmarks.torch_backend import load_torch

    torch = load_torch()
    if not isinstance(device, NvmlCard):
        return int(device.facts.locator.rpartition(":")[2])
    wanted = device.identifier
    for index in range(torch.cuda.device_count()):
        if wanted.endswith(str(torch.cuda.get_device_properties(index).uuid)):
            return index
    raise MeasurementError(
        f"PyTorch does not see {device.facts.locator} ({wanted})",
        key=device.facts.locator,
        remedy="It needs a build of PyTorch for this GPU, and CUDA_VISIBLE_DEVICES must not hide it.",
    )
