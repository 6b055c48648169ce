"""What runs microbenchmarks on a card, and what a microbenchmark needs that the machine lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark, Runner


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
    from joulecast.calibrate.microbenchmarks.torch_backend import torch_index
    from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner

    runner = TorchRunner(f"cuda:{torch_index(device)}")
    return CardRunner(runner, runner.missing, software_versions())
