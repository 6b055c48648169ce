"""Which of PyTorch's devices is the card that the driver's interface names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.microbenchmarks import torch_backend
from joulecast.calibrate.sessions.live import runner_for
from joulecast.errors import MeasurementError


class Card(NvmlCard):
    """A card without a driver."""

    def __init__(self, identifier: str | bytes) -> None:
        self._handle = object()
        self._nvml: Any = SimpleNamespace(call=lambda name, handle: identifier)
        self._facts: Any = SimpleNamespace(locator="nvml:0")


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch that sees two cards in another order than the driver."""
    seen = ["bbbb-2", "aaaa-1"]
    cuda = SimpleNamespace(
        device_count=lambda: len(seen), get_device_properties=lambda index: SimpleNamespace(uuid=seen[index])
    )
    monkeypatch.setattr(torch_backend, "load_torch", lambda: SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(("identifier", "index"), [("GPU-aaaa-1", 1), (b"GPU-bbbb-2", 0)])
def test_a_card_is_found_by_its_identifier_not_by_its_number(identifier: str | bytes, index: int) -> None:
    assert torch_backend.torch_index(Card(identifier)) == index


def test_a_hidden_card_is_an_error_that_says_so() -> None:
    with pytest.raises(MeasurementError, match=r"PyTorch does not see nvml:0 \(GPU-cccc-3\)"):
        torch_backend.torch_index(Card("GPU-cccc-3"))


def test_a_simulated_card_runs_on_itself() -> None:
    assert isinstance(runner_for(SimulatedCard("h200-sxm")), SimulatedRunner)
