"""Shows on standard error how a session goes: a bar with the time left on a terminal, a few lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from joulecast.calibrate.devices.findings import Finding
from joulecast.calibrate.measure.protocol import Measurement
from joulecast.calibrate.measure.recording import Failed
from joulecast.calibrate.sessions.belief import Uncertainty
from joulecast.calibrate.sessions.design import Choice
from joulecast.calibrate.sessions.duration import clock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def plus_minus(uncertainty: Uncertainty) -> str:
    """The standard errors of forecasts for people.

    >>> plus_minus(Uncertainty(0.0432, 0.1))
    'time ±4.3 %, energy ±10.0 %'
    """
    return f"time ±{100.0 * uncertainty.time:.1f} %, energy ±{100.0 * uncertainty.energy:.1f} %"


class Display(AbstractContextManager["Display"]):
    """Tells people how a session goes.

    Parameters
    ----------
    budget_s
        Of the session.
    say
        Prints a line for people.
    """

    def __init__(self, budget_s: float, say: Callable[[str], None]) -> None:
        self._budget_s, self._say = budget_s, say
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._plans = self.rows = self.failures = 0
        self._state = ""

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (
                BarColumn(bar_width=24),
                TextColumn("{task.fields[left]} left"),
                TextColumn("{task.fields[state]}"),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=self._budget_s, left=clock(self._budget_s), state="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def planned(self, choice: Choice, left_s: float) -> None:
        """What is known now, and expected at the end of the budget."""
        if choice.order and not self._plans:
            self._line(
                f"forecasts of training kernels: {plus_minus(choice.before)}; expected after {len(choice.order)} "
                f"microbenchmarks in {clock(choice.cost_s)}: {plus_minus(choice.after)}"
            )
        self._plans += 1
        self._state = f"±{100 * choice.before.time:.1f}/{100 * choice.before.energy:.1f} %"
        self._state += f" (→ ±{100 * choice.after.time:.1f}/{100 * choice.after.energy:.1f} %)" if choice.order else ""
        self._show("choosing", left_s)

    def started(self, name: str, left_s: float) -> None:
        """A measurement begins."""
        self._show(name, left_s)

    def measured(self, measurement: Measurement) -> None:
        """A row is there; what is odd about it stands in the recording too."""
        self.rows += 1
        for warning in measurement.warnings:
            self._line(f"warning: {measurement.name}: {warning}")

    def failed(self, failure: Failed) -> None:
        """A microbenchmark gave no row."""
        self.failures += 1
        self._line(f"failed: {failure.name} ({failure.reason}): {failure.detail}")

    def warned(self, finding: Finding) -> None:
        """Something is wrong with the card."""
        self._line(f"{finding.severity} [{finding.code.value}]: {finding.message}. {finding.remedy}")

    def _line(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            self._say(text)

    def _show(self, what: str, left_s: float) -> None:
        if self._progress is not None and self._task is not None:
            done = min(max(self._budget_s - left_s, 0.0), self._budget_s)
            self._progress.update(
                self._task, completed=done, left=clock(left_s), state=self._state, description=what[:40]
            )
