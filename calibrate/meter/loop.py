"""Meters a training loop: counts its steps, and opens and closes windows between them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from joulecast.calibrate.measure.faults import FaultError
from joulecast.calibrate.measure.measured_row import (
    Take,
    disagreements,
    reached_error,
    still_drifting,
    warnings_of,
)
from joulecast.calibrate.measure.sampler import SamplerPool
from joulecast.calibrate.measure.settings import MeasureSettings
from joulecast.calibrate.measure.watch import PASSING, Watch
from joulecast.calibrate.meter.local_gpus import Card, open_gpus, place
from joulecast.calibrate.meter.metered_plan import MeteredPlan
from joulecast.calibrate.meter.metered_row import (
    BEGIN,
    CORE_SHARE,
    END,
    PARTIAL,
    configuration_of,
    row_of_time,
    row_of_windows,
)
from joulecast.calibrate.meter.oddities import oddities
from joulecast.calibrate.meter.phases import LONG_ITERATION_S, Mark, Phase, even_span
from joulecast.calibrate.meter.result import MeterResult, compared
from joulecast.errors import DeviceError, InputError, MeasurementError

#: Shortest window: a board holds its power limit over about a second [s].
LEAST_WINDOW_S = 2.5
_NEVER = 2**63


class MeterWarning(UserWarning):
    """A loop that was not metered, or only in part; the loop itself goes on."""


class Meter:
    """Measures a training loop while it runs; made by :func:`joulecast.meter`.

    Within its ``with`` block the loop calls :meth:`step` after every iteration. What fails while it measures does not
    stop the loop: a :class:`MeterWarning` tells it, and :attr:`result`.

    Parameters
    ----------
    plan
        The plan that the loop carries out, and its forecast.
    cards
        The GPUs of this process.
    settings
        Of the protocol.
    warm_up_steps
        Iterations that are not measured: kernels are compiled and memory is allocated in them.
    synchronize
        Waits until the GPUs have done what was launched; by default PyTorch does, where it is imported.
    name
        Of the row; by default the plan's.

    Attributes
    ----------
    steps
        Iterations so far.

    Raises
    ------
    InputError
        A window that is too short.
    """

    def __init__(
        self,
        plan: MeteredPlan,
        cards: Sequence[Card] | None,
        settings: MeasureSettings,
        *,
        warm_up_steps: int = 3,
        synchronize: Callable[[], object] | None = None,
        name: str | None = None,
    ) -> None:
        if settings.window_s < LEAST_WINDOW_S:
            raise InputError(
                f"a window of {settings.window_s:g} s is too short: a board averages its power over about a second",
                key="window_s",
                remedy=f"Give {LEAST_WINDOW_S:g} or more.",
            )
        self.steps = 0
        self._plan, self._cards, self._settings = plan, cards, settings
        self._warm_up_steps, self._synchronize, self._name = warm_up_steps, synchronize, name or plan.name
        self._phase, self._mark = Phase.WARMING_UP, Mark()
        self._due_step, self._due_s = _NEVER, math.inf
        self._takes: list[Take] = []
        self._warnings: list[str] = []
        self._spoilt, self._settled_s, self._partial = 0, 0.0, False
        self._measured: dict[str, Any] = {}
        self._why = "no window has closed yet"

    def __enter__(self) -> Meter:
        if self.steps or self.done:
            raise InputError("a meter measures one loop", remedy="Make a new one with jc.meter().")
        rank, gpus = place(), open_gpus(self._cards)
        self._gpus, self._pool = gpus, SamplerPool()
        try:
            self._watch = Watch(gpus.devices, self._pool)
            card = gpus.devices[0].facts.name
            self._configuration = configuration_of(self._plan, len(gpus.devices), rank.rank, rank.world_size, card)
            waited_for = self._synchronize is not None
            self._warnings += oddities(self._configuration, gpus, self._plan.iteration, waited_for=waited_for)
        except BaseException:
            self._close()
            raise
        self._due_step, self._due_s = self._warm_up_steps, -math.inf
        return self

    def step(self) -> None:
        """Count an iteration that the loop has launched; now and then wait for the GPUs and look at a window."""
        self.steps += 1
        if self.steps < self._due_step or self._watch.now() < self._due_s:
            return
        try:
            self._act()
        except (DeviceError, MeasurementError) as error:
            self._give_up(error)

    def restart(self) -> None:
        """Settle again, and forget the window that is open: for after an evaluation, or a checkpoint."""
        if self._phase in (Phase.SETTLING, Phase.IN_WINDOW):
            self._begin(Phase.SETTLING, self._settings.settle_s)

    @property
    def done(self) -> bool:
        """Whether no further window is taken."""
        return self._phase is Phase.DONE

    def _act(self) -> None:
        if self._phase is Phase.WARMING_UP:
            self._wait()
            self._watch.start()
            self._begin(Phase.SETTLING, self._settings.settle_s)
        elif self._phase is Phase.SETTLING:
            self._end_settling()
        else:
            self._close_window()

    def _begin(self, phase: Phase, duration_s: float) -> None:
        self._phase, self._mark = phase, Mark(self.steps, self._watch.now())
        self._due_step, self._due_s = self.steps + 1, self._mark.time_s + duration_s

    def _end_settling(self) -> None:
        """Open a window when power and clock have stopped drifting, within bounds."""
        settings, half_s = self._settings, 0.5 * self._settings.settle_s
        self._watch.read()
        now = self._watch.now()
        settled_s = now - self._mark.time_s
        span_s = even_span(half_s, settled_s / (self.steps - self._mark.step))
        drift = self._watch.drift(now - span_s) if span_s <= settled_s + 1e-6 else math.inf
        if drift >= settings.drift and settled_s + 0.9 * half_s <= settings.most_settle_s:
            self._due_s = now + half_s
            return
        if settings.drift <= drift < math.inf:
            self._warnings.append(still_drifting(drift, settled_s))
        self._settled_s = self._settled_s or settled_s
        self._wait()
        self._measured.setdefault(BEGIN, time.time())
        self._begin(Phase.IN_WINDOW, self._watch.run_s(self._settings, {}))

    def _close_window(self) -> None:
        self._wait()
        try:
            self._takes.append(self._take(self._settings))
        except FaultError as fault:
            self._spoilt += 1
            if fault.reason not in PASSING or self._spoilt > self._settings.most_stalls:
                raise
        if len(self._takes) < self._settings.most_windows:
            # The cards have rested while the window was read, for which their boards let them run faster for a while.
            self._begin(Phase.SETTLING, 0.5 * self._settings.settle_s)
        else:
            self._finish()

    def _take(self, settings: MeasureSettings) -> Take:
        """The window from the mark until now, in which the GPUs have done all steps."""
        end, steps = self._watch.now(), self.steps - self._mark.step
        seconds = end - self._mark.time_s
        self._measured |= {END: time.time(), **self._gpus.peak_memory()}
        period_s = seconds / steps if seconds >= LONG_ITERATION_S * steps else 0.0
        windows = self._watch.windows(self._mark.time_s, end, settings, period_s)
        self._measured[CORE_SHARE] = self._pool.core_share
        return Take(windows, np.array([float(steps)]), np.array([seconds]), seconds)

    def _wait(self) -> None:
        if self._synchronize is None:
            self._gpus.synchronize()
        else:
            self._synchronize()

    def _give_up(self, error: Exception) -> None:
        """Let the loop go on without being measured further."""
        self._why = f"no further window: {error}"
        self._warnings.append(self._why)
        self._finish()
        warnings.warn(f"{self._name}: the loop is not metered any more: {error}", MeterWarning, stacklevel=3)

    def _finish(self) -> None:
        self._phase, self._due_step = Phase.DONE, _NEVER
        self._close()

    def _close(self) -> None:
        self._pool.close()
        self._gpus.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._phase is Phase.DONE:
            return
        try:
            if kind is None and not self._takes:
                self._keep_part()
        finally:
            self._finish()

    def _keep_part(self) -> None:
        """Of a loop that ended before a window closed, measure what there is."""
        steps = self.steps - self._mark.step
        where = {Phase.WARMING_UP: "it warmed up", Phase.SETTLING: "it settled"}.get(self._phase, "a window closed")
        self._partial = True
        if self._phase is not Phase.WARMING_UP and steps > 0:
            self._wait()
            length_s = self._watch.now() - self._mark.time_s
            short = replace(self._settings, window_s=0.5 * length_s, polled_window_s=0.5 * length_s, least_steps=2)
            try:
                self._takes.append(self._take(short))
            except (DeviceError, MeasurementError) as fault:
                self._measured |= {"time_s": length_s / steps, "measured_steps": steps}
                self._warnings.append(f"no power: {fault}")
        self._why = f"the loop ended after {self.steps} steps, before {where}"
        self._warnings.append(f"{self._why}: the row is not scored")
        warnings.warn(f"{self._name}: {self._why}. {self._remedy()}", MeterWarning, stacklevel=3)

    def _remedy(self) -> str:
        settings = self._settings
        return (
            f"Let it run for {self._warm_up_steps} steps and then {settings.settle_s + settings.window_s:g} s or "
            "more; keep all epochs within one `with` block."
        )

    @property
    def result(self) -> MeterResult:
        """Measured beside forecast, of the windows so far.

        Raises
        ------
        MeasurementError
            Nothing was measured; the message says why and what to do.
        """
        if self._takes:
            row = row_of_windows(
                self._name, self._configuration, self._takes, self._settings, self._settled_s, self._spoilt
            )
            odd = warnings_of(row, reached_error(self._takes, {}), self._settings)
            odd += disagreements(self._takes, self._settings)
        elif "time_s" in self._measured:
            row, odd = row_of_time(self._name, self._configuration), []
        else:
            raise MeasurementError(f"{self._name}: nothing was measured: {self._why}", remedy=self._remedy())
        row |= self._measured | ({PARTIAL: True} if self._partial else {})
        told = (*self._warnings, *odd)
        return MeterResult(
            row | ({"measured_warnings": told} if told else {}), compared(row, self._plan.iteration), told
        )

    def write(self, path: str | Path) -> None:
        """Append the row to a JSON-lines file: ``result.write(path)``.

        Raises
        ------
        MeasurementError
            Nothing was measured.
        InputError
            The file cannot be written.
        """
        self.result.write(path)
