"""The energy counter against polled power, over the same readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from joulecast.calibrate.devices.protocol import Sample
from joulecast.calibrate.measure.counter import counter_steps

#: A reading that takes so long is a stall of the driver [s].
STALL_S = 0.25
#: Polled power that varies by more than this share of its mean cannot be held against the counter.
UNSTEADY = 0.2


def counter_power(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Mean power between the first and the last step of the counter [W], and its step [s]; ``None`` without steps.

    Takes the longest stretch between stalled readings: when those were taken is not known.
    """
    samples = _calm(samples)
    if len(samples) < 2 or any(sample.energy_j is None for sample in samples):
        return None, None
    steps = counter_steps(samples, samples[0].time_s, samples[-1].time_s)
    if len(steps) < 2:
        return None, None
    length = float(steps.time_s[-1] - steps.time_s[0])
    return float(steps.energy_j[-1] - steps.energy_j[0]) / length, None if math.isnan(steps.step_s) else steps.step_s


def polled(sample: Sample) -> float | None:
    """The power that the card reports, the newest where it has two [W]."""
    return sample.average_power_w if sample.power_w is None else sample.power_w


def compare(samples: Sequence[Sample]) -> float | None:
    """Polled power over the counter's, less one; ``None`` where they cannot be compared: one is missing or unsteady.

    Works on samples of any stretch of even load, also on those taken while a kernel runs.
    """
    samples = _calm(samples)
    counter_w, _ = counter_power(samples)
    powers = [power for power in map(polled, samples) if power is not None]
    if not counter_w or counter_w <= 0.0 or len(powers) < len(samples):
        return None
    mean = sum(powers) / len(powers)
    return mean / counter_w - 1.0 if max(powers) - min(powers) < UNSTEADY * mean else None


def _calm(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The longest stretch of readings without a stall."""
    stalls = [-1, *(i for i, sample in enumerate(samples) if sample.call_s > STALL_S), len(samples)]
    before, after = max(pairwise(stalls), key=lambda pair: pair[1] - pair[0])
    return samples[before + 1 : after]
