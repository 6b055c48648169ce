"""The card of a recording: what it said about itself, where it cannot be read any more."""

from __future__ import annotations

from pathlib import Path

from joulecast.calibrate.devices.protocol import Device, Sample, Settings
from joulecast.calibrate.measure.recording import read_recording
from joulecast.errors import DeviceError, PermissionDeniedError


class ReplayedCard(Device):
    """A recorded card: facts only, whose locator is where it was.

    Its rows are read by :func:`joulecast.calibrate.measure.recording.read_recording`.

    Parameters
    ----------
    folder
        Of the recording.

    Raises
    ------
    DataError
        Not a recording.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        self._facts = read_recording(folder).card.facts

    def sample(self, *, counter: bool = True) -> Sample:
        """A recording holds what was measured, no card."""
        raise DeviceError(
            "a recorded card cannot be measured", file=self._folder, remedy="Fit the recording with calibrate --replay."
        )

    def apply(self, settings: Settings) -> None:
        """Only to nothing."""
        if settings != Settings():
            raise PermissionDeniedError("a recorded card cannot be set", file=self._folder)
