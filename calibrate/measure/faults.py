"""Why a microbenchmark gave no row: every reason has a word, and every failure is recorded with it."""

from __future__ import annotations

from enum import StrEnum

from joulecast.errors import MeasurementError


class Reason(StrEnum):
    """Words of a recording's failures."""

    NOT_RUNNABLE = "not-runnable"  # memory, a data type, a backend or a GPU is missing
    WORK_FAILED = "work-failed"  # it began and did not end
    DEVICE_LOST = "device-lost"  # the driver does not answer any more
    DRIVER_STALLED = "driver-stalled"  # readings blocked in every window
    COUNTER_STILL = "counter-still"
    COUNTER_BACKWARD = "counter-backward"
    COUNTER_JUMPED = "counter-jumped"
    TOO_FEW_STEPS = "too-few-steps"  # the counter moved, but too seldom for a window
    NO_READINGS = "no-readings"  # neither energy nor power


class FaultError(MeasurementError):
    """A window, or a whole microbenchmark, that cannot be used."""

    def __init__(self, reason: Reason, message: str, *, remedy: str | None = None) -> None:
        self.reason = reason
        super().__init__(message, remedy=remedy)
