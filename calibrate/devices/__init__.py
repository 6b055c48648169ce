"""Cards: NVML, AMD SMI, a recorded replay and a simulated one, behind one protocol.

- ``protocol``: what is asked of a card; ``findings``: what can be wrong with it.
- ``nvml``, with ``nvml_history`` and ``nvml_binding``; ``amd``, with ``amd_binding``; ``replayed``.
- ``simulated``: a ``simulated_board`` that does ``simulated_work`` under ``simulated_loads`` in ``simulated_time``,
  shown by ``simulated_sensors`` and ``simulated_facts``; ``simulated_file`` shares it, ``simulated_runner`` runs rows.
- ``guardian``: clocks and limits set back whatever happens; ``reserved``: one calibration of a card at a time;
  ``checks``: whether a card is fit; ``processes``: which are our own; ``card_process``: one that reads beside.
- ``cross_check``: counter against power.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.errors import DeviceError, InputError

if TYPE_CHECKING:
    from joulecast.calibrate.devices.protocol import Device


def open_device(locator: str) -> Device:
    """Open a card.

    Parameters
    ----------
    locator
        ``nvml:0``, ``amd:0``, ``sim:FILE`` (or ``sim:NAME`` of a GPU in the catalogue, in virtual time),
        ``replay:DIR``.

    Raises
    ------
    InputError
        No such kind of card, or a simulated one that cannot be read.
    DeviceError
        The card, its driver or the package that talks to it is missing; the message says which.
    """
    kind, _, place = locator.partition(":")
    if kind == "nvml":
        from joulecast.calibrate.devices.nvml import NvmlCard

        return NvmlCard(place or "0")
    if kind == "amd":
        from joulecast.calibrate.devices.amd import AmdCard

        return AmdCard(place or "0")
    if kind == "sim":
        return _simulated(place)
    if kind == "replay":
        from joulecast.calibrate.devices.replayed import ReplayedCard

        return ReplayedCard(place)
    raise InputError(
        f"unknown kind of card {locator!r}", key="--device", remedy="Known: nvml:0, amd:0, sim:FILE, replay:DIR."
    )


def locator_of(word: str) -> str:
    """The locator that a user means: a locator, or a bare index of the first vendor whose driver answers.

    Raises
    ------
    DeviceError
        A bare index, and no driver answers; the message tells what each lacks.
    """
    if not word.isdecimal():
        return word
    problems = []
    for vendor in ("nvml", "amd"):
        try:
            open_device(f"{vendor}:{word}").close()
        except DeviceError as error:
            problems.append(error.message)
        else:
            return f"{vendor}:{word}"
    raise DeviceError(
        f"no GPU {word}: {'; '.join(problems)}", key="--device", remedy="joulecast doctor tells what can be done here."
    )


def _simulated(place: str) -> Device:
    from joulecast.calibrate.devices.simulated import SimulatedCard
    from joulecast.model.hardware.catalogue import gpu_names

    if not place:
        remedy = "Give sim:FILE, or sim:NAME of a GPU in the catalogue."
        raise InputError("which simulated card is not said", key="--device", remedy=remedy)
    return SimulatedCard(place) if place in gpu_names() else SimulatedCard.open(Path(place))
