"""The bench of a profile: on the card that was asked for, and closed where none is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.microbenchmarks import torch_backend
from joulecast.calibrate.power_profile import open_bench as module
from joulecast.calibrate.power_profile.open_bench import open_bench
from joulecast.errors import InputError, MeasurementError

KERNEL = ["gemm:64x64x64"]


class Card(NvmlCard):
    """A card without a driver."""

    def __init__(self, identifier: str) -> None:
        self._handle, self.closed = object(), False
        self._nvml: Any = SimpleNamespace(call=lambda name, handle: identifier)
        self._facts: Any = SimpleNamespace(locator="nvml:0", name="a card", memory_bytes=None, power_limit_w=700.0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a bench is made of, where PyTorch sees two cards in another order than the driver."""
    found: list[Any] = []
    seen = ["bbbb-2", "aaaa-1"]
    cuda = SimpleNamespace(
        device_count=lambda: len(seen), get_device_properties=lambda index: SimpleNamespace(uuid=seen[index])
    )
    monkeypatch.setattr(torch_backend, "load_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(module, "examine", lambda card: SimpleNamespace(demand_fit=lambda say, bearable: None))
    monkeypatch.setattr(module, "Poller", lambda locator: SimpleNamespace(locator=locator))
    monkeypatch.setattr(module, "TorchBench", lambda *arguments: found.append(arguments))
    return found


@pytest.mark.parametrize("word", ["nvml:0", "nvml:GPU-aaaa-1"])
def test_kernels_run_on_the_card_whose_power_is_read(
    word: str, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card("GPU-aaaa-1")
    monkeypatch.setattr(module, "open_device", lambda locator: card)
    open_bench(KERNEL, word, print)
    ((_, device, log, limit_w),) = made
    assert (device, log.locator, limit_w, card.closed) == ("cuda:1", word, 700.0, True)


def test_a_card_that_pytorch_does_not_see_is_closed(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("GPU-cccc-3")
    monkeypatch.setattr(module, "open_device", lambda locator: card)
    with pytest.raises(MeasurementError, match="does not see"):
        open_bench(KERNEL, "nvml:0", print)
    assert card.closed and not made


def test_a_simulated_card_in_real_time_is_closed(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    card, closed = SimulatedCard(realtime=True), []
    monkeypatch.setattr(card, "close", lambda: closed.append(True))
    monkeypatch.setattr(module, "open_device", lambda locator: card)
    with pytest.raises(InputError, match="real time"):
        open_bench(KERNEL, "sim:card", print)
    assert closed
