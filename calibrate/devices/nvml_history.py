"""The powers that NVIDIA's driver writes down by itself, and when.

``nvmlDeviceGetSamples`` gives what the driver keeps: on Hopper some 120 readings of the card's power, one in 20 ms,
the newest about 10 ms old. Each carries the machine's calendar time in microseconds; here it is brought to the
monotonic clock, whose distance from the calendar is measured at every call, as it may be corrected at any time.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Any

from joulecast.calibrate.devices.nvml_binding import VALUE_MEMBERS, Nvml
from joulecast.calibrate.devices.protocol import PowerReading

#: ``NVML_TOTAL_POWER_SAMPLES`` of nvml.h.
_TOTAL_POWER = 0
#: Readings farther apart than this are no help to a window of seconds; as few, or as old ones, tell no rhythm [s].
_LONGEST_STEP_S, _LEAST_READINGS, _OLDEST_S = 0.1, 8, 1.0
#: How long a driver that has only begun to write is waited for [s].
_WAIT_S = 0.3
#: Shortest time between two different readings: the same one moves by less between two calls [s].
_SAME_S = 1e-3


class NvmlHistory:
    """The history of one card.

    Parameters
    ----------
    nvml, handle
        The binding and the card in it.
    step_s
        Time between two readings [s].
    """

    def __init__(self, nvml: Nvml, handle: Any, step_s: float) -> None:
        self._nvml, self._handle, self.step_s = nvml, handle, step_s

    def since(self, since_s: float) -> list[PowerReading]:
        """Readings after a time of ``time.monotonic()``.

        Raises
        ------
        DeviceError
            The card does not answer.
        """
        lib = self._nvml.lib
        try:
            kind, found = lib.nvmlDeviceGetSamples(self._handle, _TOTAL_POWER, 0)
        except lib.NVMLError as error:
            if getattr(error, "value", None) == lib.NVML_ERROR_NOT_FOUND:  # nothing written down at present
                return []
            raise self._nvml.translated("reading the power history", error) from error
        return _readings(kind, found, since_s)


def history_at(nvml: Nvml, handle: Any) -> NvmlHistory | None:
    """The history of a card, if it has one that is regular, dense and up to date; ``None`` otherwise."""
    for wait_s in (_WAIT_S, 0.0):
        answer = nvml.optional("nvmlDeviceGetSamples", handle, _TOTAL_POWER, 0)
        if answer is None:
            return None
        kind, found = answer
        readings = _readings(kind, found, float("-inf"))
        if len(readings) >= _LEAST_READINGS and readings[-1].power_w > 0.0:
            steps = sorted(after.time_s - before.time_s for before, after in pairwise(readings))
            step, age = median(steps), time.monotonic() - readings[-1].time_s
            # Most steps alike: the median of an irregular list would tell nothing.
            alike = sum(0.7 * step < one < 1.3 * step for one in steps) >= 0.9 * len(steps)
            fits = alike and step <= _LONGEST_STEP_S and -step < age < _OLDEST_S
            return NvmlHistory(nvml, handle, step) if fits else None
        time.sleep(wait_s)
    return None


def _readings(kind: int, found: Any, since_s: float) -> list[PowerReading]:
    """Readings in SI units on the monotonic clock, oldest first."""
    member, offset = VALUE_MEMBERS[kind], _calendar_s()
    times = ((1e-6 * one.timeStamp - offset, getattr(one.sampleValue, member)) for one in found if one.timeStamp)
    # After the calendar was set back, what was written before would lie ahead and hide what is written from now on.
    latest_s = time.monotonic() + _LONGEST_STEP_S
    return [PowerReading(when, 1e-3 * power) for when, power in sorted(times) if since_s + _SAME_S < when < latest_s]


def _calendar_s() -> float:
    """Calendar time less monotonic time, from the quickest of three looks at both clocks [s]."""
    looks = []
    for _ in range(3):
        begin = time.monotonic()
        calendar = time.time()
        end = time.monotonic()
        looks.append((end - begin, calendar - 0.5 * (begin + end)))
    return min(looks)[1]
