"""The GPUs of this process, and its place among the processes of a training job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

from joulecast.calibrate.devices import locator_of, open_device
from joulecast.calibrate.devices.protocol import Device
from joulecast.calibrate.measure.measured_row import of_cards
from joulecast.calibrate.microbenchmarks.torch_backend import card_locator
from joulecast.errors import InputError

#: A number as PyTorch counts where it is imported, else as the driver does; a locator; or an open card.
Card: TypeAlias = int | str | Device


@dataclass(frozen=True)
class LocalGpus:
    """Open cards.

    Attributes
    ----------
    devices
        The cards.
    indices
        What PyTorch calls them; empty where it does not run on them.
    opened
        Those of the cards that were opened here, and are closed here.
    """

    devices: tuple[Device, ...]
    indices: tuple[int, ...]
    opened: tuple[Device, ...]

    def synchronize(self) -> None:
        """Wait until the cards have done all that PyTorch has launched."""
        torch = _torch()
        for index in self.indices if torch is not None else ():
            torch.cuda.synchronize(index)

    def peak_memory(self) -> dict[str, Any]:
        """Fields of a row: the most that PyTorch's tensors have taken of each card; none where it runs on none."""
        torch = _torch()
        peaks = [] if torch is None else [int(torch.cuda.max_memory_allocated(index)) for index in self.indices]
        return of_cards("peak_mem_bytes", peaks) if peaks else {}

    def close(self) -> None:
        """Close what was opened here."""
        for device in self.opened:
            device.close()


@dataclass(frozen=True, slots=True)
class Place:
    """A process among those of its job."""

    rank: int = 0
    world_size: int = 1


def open_gpus(cards: Sequence[Card] | None) -> LocalGpus:
    """Open the cards of this process.

    Parameters
    ----------
    cards
        By default the one on which PyTorch puts tensors, that of ``LOCAL_RANK``, or the first.

    Raises
    ------
    DeviceError
        There is no such GPU; the message tells what each vendor's driver lacks.
    InputError
        No card is named, or one is named twice.
    """
    torch = _torch()
    cards = [_own_index(torch)] if cards is None else _checked(cards)
    devices: list[Device] = []
    opened: list[Device] = []
    try:
        for card in cards:
            if isinstance(card, int | str):
                opened.append(open_device(_locator(torch, card)))
            devices.append(opened[-1] if isinstance(card, int | str) else card)
    except InputError as error:
        for device in opened:
            device.close()
        key = "devices" if error.key == "--device" else error.key
        raise type(error)(error.message, file=error.file, key=key, remedy=error.remedy) from None
    numbered = torch is not None and all(isinstance(card, int) for card in cards)
    indices = tuple(card for card in cards if isinstance(card, int)) if numbered else ()
    return LocalGpus(tuple(devices), indices, tuple(opened))


def _checked(cards: Sequence[Card]) -> list[Card]:
    """Each card once, numbers as numbers."""
    if isinstance(cards, str) or not isinstance(cards, Sequence) or not cards:
        raise InputError(f"{cards!r} is no list of GPUs", key="devices", remedy="Give it as devices=[0].")
    found = [_as_number(card) for card in cards]
    names = [card for card in found if isinstance(card, int | str)]
    if len(set(map(str, names))) < len(names):
        raise InputError(f"{found!r} names a GPU twice", key="devices", remedy="Name each once.")
    return found


def _as_number(card: Card) -> Card:
    """The number of a card that is written as PyTorch writes its devices; a locator or an open card as it is."""
    if isinstance(card, Integral):
        return int(card)
    word = str(card) if type(card).__name__ == "device" else card
    if not isinstance(word, str):
        if not hasattr(word, "facts"):
            raise InputError(f"{word!r} is no GPU", key="devices", remedy="Give numbers, as devices=[0].")
        return card
    number = word.removeprefix("cuda:")
    return int(number) if number.isdecimal() else card


def _own_index(torch: Any) -> int:
    """The GPU of a process that names none; a launcher's rank counts where each process sees all GPUs."""
    local = os.environ.get("LOCAL_RANK", "0")
    mine = int(local) if local.isdecimal() else 0
    if torch is None:
        return mine
    return int(torch.cuda.current_device()) or (mine if mine < torch.cuda.device_count() else 0)


def _locator(torch: Any, card: int | str) -> str:
    if isinstance(card, str):
        return locator_of(card)
    if torch is None:
        return locator_of(str(card))
    if card >= torch.cuda.device_count():
        raise InputError(
            f"PyTorch sees {torch.cuda.device_count()} GPUs, not {card + 1}",
            key="devices",
            remedy="Numbers are PyTorch's: look at CUDA_VISIBLE_DEVICES, or give a locator such as nvml:3.",
        )
    return card_locator(torch, card)


def place() -> Place:
    """This process's place, as PyTorch or its launcher has it; alone where nobody says.

    Raises
    ------
    InputError
        ``RANK`` or ``WORLD_SIZE`` is no place.
    """
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return Place(int(group.get_rank()), int(group.get_world_size()))
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise InputError(
            f"RANK is {rank!r} and WORLD_SIZE {size!r}", key="RANK", remedy="Start with torchrun, or unset them."
        )
    return Place(int(rank), int(size))


def _torch() -> Any:
    """PyTorch where the loop has imported it and it sees a GPU; it is never imported here."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None
