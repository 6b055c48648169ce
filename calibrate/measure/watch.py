"""Cards watched while they work: what their samplers read, whether it still drifts, and windows cut from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from joulecast.calibrate.devices.protocol import Device, PowerReading, Sample
from joulecast.calibrate.measure.counter import counter_steps
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.measure.history_window import change
from joulecast.calibrate.measure.sampler import Sampler
from joulecast.calibrate.measure.settings import USUAL_STEP_S, MeasureSettings, history_run_s, window_run_s
from joulecast.calibrate.measure.window import Window, cut_window

SamplerFactory: TypeAlias = Callable[[Device], Sampler]

#: Faults after which another window may be good.
PASSING = (Reason.DRIVER_STALLED, Reason.TOO_FEW_STEPS, Reason.COUNTER_JUMPED)
#: Standard errors that a drift must exceed, and neighbouring readings of a history that may be correlated.
_SURE, _CORRELATED = 2.5, 3


class Watch:
    """All cards that take part in some work, each with its sampler.

    Parameters
    ----------
    devices
        The cards.
    sampler_factory
        Gives the sampler of a card, such as a :class:`~joulecast.calibrate.measure.sampler.SamplerPool`; whoever made
        them closes them.
    """

    def __init__(self, devices: Sequence[Device], sampler_factory: SamplerFactory) -> None:
        self.devices = tuple(devices)
        self._samplers = [sampler_factory(device) for device in devices]
        self._samples: list[list[Sample]] = []
        self._powers: list[list[PowerReading] | None] = []

    def now(self) -> float:
        """Time on the cards' clock [s]."""
        return self.devices[0].now()

    def start(self, *, pulsed: bool = False) -> None:
        """Begin to sample; of pulsed work by the counter alone."""
        for sampler in self._samplers:
            sampler.start(dense_counter=pulsed)
        self._samples = [[] for _ in self.devices]
        self._powers = [None if pulsed or s.history_step_s is None else [] for s in self._samplers]

    def stop(self) -> None:
        """End sampling."""
        for sampler in self._samplers:
            sampler.stop()

    def read(self) -> None:
        """Take what the samplers have read."""
        for sampler, samples, powers in zip(self._samplers, self._samples, self._powers, strict=True):
            new, readings = sampler.take()
            samples += new
            if powers is not None:
                powers += readings

    def drift(self, since_s: float) -> float:
        """Largest change of a card's power or clock since a time, beyond what it scatters."""
        found = 0.0
        for samples, powers in zip(self._samples, self._powers, strict=True):
            late = [s for s in samples if s.time_s >= since_s]
            clocks = [s.sm_clock_mhz for s in late if s.sm_clock_mhz is not None]
            if powers is None:
                power, batch = [s.power_w for s in late if s.power_w is not None], 1
            else:
                power, batch = [reading.power_w for reading in powers if reading.time_s >= since_s], _CORRELATED
            for value, error in (change(np.array(clocks)), change(np.array(power), batch)):
                found = max(found, abs(value) if abs(value) > _SURE * error else 0.0)
        return found

    def windows(
        self, start_s: float, end_s: float, settings: MeasureSettings, period_s: float = 0.0
    ) -> tuple[Window, ...]:
        """Read, and cut the window of a stretch of work on every card.

        Raises
        ------
        FaultError
            Of the cards whose window cannot be used, a fault that another window would not mend before others.
        """
        found: list[Window] = []
        fault: FaultError | None = None
        self.read()
        for device, samples, powers in zip(self.devices, self._samples, self._powers, strict=True):
            cut = partial(cut_window, energy_counter=device.facts.energy_counter, period_s=period_s, history=powers)
            try:
                found.append(cut(samples, start_s, end_s, settings))
            except FaultError as error:
                if fault is None or error.reason not in PASSING:
                    fault = error
        if fault is not None:
            raise fault
        return tuple(found)

    def run_s(self, settings: MeasureSettings, row: Mapping[str, Any]) -> float:
        """How long the work of a window must run, for the slowest of the cards [s]."""
        return max(self._card_run_s(place, settings, row) for place in range(len(self.devices)))

    def _card_run_s(self, place: int, settings: MeasureSettings, row: Mapping[str, Any]) -> float:
        history_step_s = self._samplers[place].history_step_s
        if self._powers[place] is not None and history_step_s is not None:
            return history_run_s(settings, history_step_s)
        if not self.devices[place].facts.energy_counter:
            return window_run_s(settings, row, None)
        counted = [s for s in self._samples[place] if s.energy_j is not None]
        steps = counter_steps(counted, -math.inf, math.inf) if counted else None
        step = steps.step_s if steps is not None and len(steps) >= 2 else USUAL_STEP_S
        return window_run_s(settings, row, min(step, 1.0))

    def powers_after(self, begin_s: float) -> list[float | None]:
        """Median power that each card's samples since the last reading show after a time [W]."""
        found: list[float | None] = []
        for sampler in self._samplers:
            late = [s.power_w for s in sampler.take()[0] if s.time_s > begin_s and s.power_w is not None]
            found.append(float(np.median(late)) if late else None)
        return found
