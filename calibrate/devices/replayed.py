"""The card of a recording: what it said about itself, where it cannot be read any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joulecast.calibrate.devices.protocol import CardFacts, Neighbour, Sample, Settings
from joulecast.calibrate.measure.recording import read_recording
from joulecast.errors import DeviceError, PermissionDeniedError


class ReplayedCard:
    """A recorded card: facts only. Its rows are read by :func:`joulecast.calibrate.measure.recording.read_recording`.

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
        self._now_s = 0.0

    @property
    def facts(self) -> CardFacts:
        """What the card said about itself when it was recorded; its locator is where it was."""
        return self._facts

    def now(self) -> float:
        """Nothing happens here but waiting [s]."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Let time pass at once."""
        self._now_s += max(duration_s, 0.0)

    def sample(self, *, counter: bool = True) -> Sample:
        """A recording holds what was measured, no card."""
        raise DeviceError(
            "a recorded card cannot be measured", file=self._folder, remedy="Fit the recording with calibrate --replay."
        )

    def neighbours(self) -> Sequence[Neighbour]:
        """Nobody."""
        return ()

    def settings(self) -> Settings:
        """Nothing is set."""
        return Settings()

    def apply(self, settings: Settings) -> None:
        """Only to nothing."""
        if settings != Settings():
            raise PermissionDeniedError("a recorded card cannot be set", file=self._folder)

    def close(self) -> None:
        """Nothing to let go of."""
