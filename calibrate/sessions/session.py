"""A calibration of a card: choose, measure, learn from what was measured, and choose again, until the budget ends.

Everything that was measured stands in the recording before the next measurement begins: a session that was interrupted
at any point goes on where it stopped, and what it has is usable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from joulecast.calibrate.devices.findings import Code, Finding, of_company, of_heat
from joulecast.calibrate.devices.guardian import BorrowedSettings, borrowed_settings
from joulecast.calibrate.devices.protocol import Device, Settings
from joulecast.calibrate.fit.device_priors import DevicePriors, priors_for
from joulecast.calibrate.measure.faults import Reason
from joulecast.calibrate.measure.protocol import measure
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import Failed
from joulecast.calibrate.measure.settings import MeasureSettings, expected_cost_s
from joulecast.calibrate.measure.watch import SamplerFactory
from joulecast.calibrate.microbenchmarks.protocol import CardRunner, Microbenchmark
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.sessions.active import settings_of
from joulecast.calibrate.sessions.belief import Uncertainty
from joulecast.calibrate.sessions.candidates import Candidate, usable
from joulecast.calibrate.sessions.design import Choice, Design
from joulecast.calibrate.sessions.display import Display
from joulecast.calibrate.sessions.other_cards import learnt
from joulecast.calibrate.sessions.update import estimate
from joulecast.errors import DeviceError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model

#: Rows after which the choice is made again at first; later after each quarter of the rows so far.
BATCH = 8
#: Time that preparing a microbenchmark takes, until some have shown it [s].
PREPARATION_S = 0.8
#: How long measuring must have gone on before its own cost counts as much as the expected one [s].
TRUSTED_S = 20.0
#: Windows of a microbenchmark at most: another one tells more than a third window, as the form errs by percents.
WINDOWS = 2
#: The session ends when a row of the choice would lower the forecasts' standard error by less than this on average.
LEAST_PROGRESS = 1e-3
#: Failures that come again each time; after others a resumed session tries once more.
LASTING = (Reason.NOT_RUNNABLE, Reason.WORK_FAILED)
#: So many other failures in a row are the card's fault, and end the session.
IN_A_ROW = 5
#: Row field of the seconds that measuring took.
SPENT = "measured_spent_s"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session goes.

    Attributes
    ----------
    budget_s
        Seconds of measuring, those of an interrupted session included.
    active
        Whether clocks and limits are set where a microbenchmark asks for it.
    measure
        The protocol of each measurement.
    """

    budget_s: float = 300.0
    active: bool = False
    measure: MeasureSettings = field(default_factory=lambda: MeasureSettings(most_windows=WINDOWS))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended.

    Attributes
    ----------
    reason
        ``budget``, ``settled`` (more would not help) or ``exhausted`` (nothing left to measure).
    before, reached
        Uncertainty of the reference forecasts from the priors alone, and with all rows.
    rows, failures
        In the recording now.
    spent_s
        Seconds of measuring, earlier sessions included.
    left_out
        Microbenchmarks that were no candidates, and why.
    """

    reason: str
    before: Uncertainty
    reached: Uncertainty
    rows: int
    failures: int
    spent_s: float
    left_out: Sequence[tuple[str, str]] = ()


def costs_s(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds that each row took to measure."""
    return {row.name: float(row.measured.raw[SPENT]) for row in rows if row.measured.raw.get(SPENT) is not None}


class Session:
    """A calibration of one card.

    Parameters
    ----------
    device, runner, sampler_factory
        The card, what runs work on it, and what reads it.
    recorder
        Takes what is measured; it may hold earlier rows of the card.
    base
        The card's data-sheet facts.
    benchmarks
        What may be measured; those that lack something on this machine are no candidates.
    settings
        How the session goes.
    display
        Tells people how it goes.
    others
        Labelled rows of other cards of the kind, from which the session starts.
    """

    def __init__(
        self,
        device: Device,
        runner: CardRunner,
        sampler_factory: SamplerFactory,
        recorder: Recorder,
        base: GpuDescription,
        benchmarks: Sequence[Microbenchmark],
        settings: SessionSettings,
        display: Display,
        others: Sequence[Row] = (),
    ) -> None:
        self._device, self._runner, self._sampler_factory = device, runner, sampler_factory
        self._recorder, self._settings, self._display = recorder, settings, display
        self._priors: DevicePriors = priors_for(base.device)
        self._start = GpuModel(base.name, gpu_model(base).device, self._priors.starts())
        self._others, self._known = tuple(others), None
        if others:
            self._start, self._known = learnt(others, self._start, self._priors)
        self._benchmarks = {b.name: b for b in benchmarks}
        self._expected = {b.name: expected_cost_s(b.row, settings.measure) + PREPARATION_S for b in benchmarks}
        lacking = {b.name: ", ".join(words) for b in benchmarks if (words := runner.missing(b))}
        there = [b for b in benchmarks if b.name not in lacking]
        found = [Candidate(b.name, b.row, b.stratum, self._expected[b.name]) for b in there]
        self._candidates, dropped = usable(found, self._start)
        self.left_out = [*((name, f"missing: {words}") for name, words in lacking.items()), *dropped]
        self._failed: set[str] = set()  # in this session
        self._in_a_row = 0
        self._told: set[str] = set()  # codes of findings
        self._set = Settings()

    def run(self) -> Outcome:
        """Measure until the budget ends or nothing more helps.

        Raises
        ------
        DeviceError
            The card was lost, or does not give readings that can be used.
        InputError
            The recording cannot be written.
        """
        with borrowed_settings(self._device) if self._settings.active else nullcontext() as borrowed:
            return self._run(borrowed)

    def _run(self, borrowed: BorrowedSettings | None) -> Outcome:
        recording, gpu = self._recorder.recording, self._start
        begin_s = self._device.now() - sum(costs_s(recording.rows).values())  # as if all rows were of one sitting
        resumed = bool(recording.rows)
        first = Design(self._candidates, gpu, self._priors, known=self._known).uncertainty() if resumed else None
        while True:
            gpu = estimate([*self._others, *recording.rows], gpu, self._priors)
            left_s = self._settings.budget_s - (self._device.now() - begin_s)
            design = self._design(gpu)
            choice = design.choose(left_s)
            first = first or choice.before
            self._display.planned(choice, left_s)
            reason = _end(choice, exhausted=not design.left)
            if reason:
                break
            for candidate in choice.order[: max(BATCH, len(recording.rows) // 4)]:
                left_s = self._settings.budget_s - (self._device.now() - begin_s)
                if candidate.cost_s > left_s:
                    break
                self._watch()
                self._measure(candidate.name, left_s, borrowed)
        spent = self._device.now() - begin_s
        return Outcome(
            reason, first, choice.before, len(recording.rows), len(recording.failures), spent, tuple(self.left_out)
        )

    def _design(self, gpu: GpuModel) -> Design:
        """A choice among what has no row and did not fail for good."""
        recording, factor = self._recorder.recording, self._cost_factor()
        hopeless = {f.name for f in recording.failures if f.reason in LASTING} | self._failed
        candidates = [
            replace(c, cost_s=factor * self._expected[c.name])
            for c in self._candidates
            if c.name in recording.done or c.name not in hopeless
        ]
        return Design(candidates, gpu, self._priors, done=recording.done, known=self._known)

    def _cost_factor(self) -> float:
        """Seconds that measuring took so far over those that were expected; few rows do not make it certain."""
        costs = costs_s(self._recorder.recording.rows)
        known = {name: cost for name, cost in costs.items() if name in self._expected}
        expected = sum(self._expected[name] for name in known)
        return (sum(known.values()) + TRUSTED_S) / (expected + TRUSTED_S)

    def _measure(self, name: str, left_s: float, borrowed: BorrowedSettings | None) -> None:
        benchmark = self._benchmarks[name]
        self._display.started(name, left_s)
        wanted = settings_of(benchmark.row)
        if borrowed is not None and wanted != self._set:
            borrowed.apply(wanted)
            self._set = wanted
        settings = self._settings.measure
        found = measure(self._device, self._runner, self._sampler_factory, benchmark, settings, left_s)
        if isinstance(found, Failed):
            self._recorder.append_failure(found)
            self._failed.add(name)
            self._display.failed(found)
            self._count(found)
        else:
            self._in_a_row = 0
            self._recorder.append_row({**found.row, SPENT: found.spent_s})
            self._display.measured(found)

    def _count(self, failure: Failed) -> None:
        self._in_a_row = 0 if failure.reason in LASTING else self._in_a_row + 1
        if self._in_a_row >= IN_A_ROW:
            raise DeviceError(
                f"{IN_A_ROW} measurements in a row failed: {failure.detail}",
                key=failure.reason,
                remedy="What was measured before is kept; joulecast doctor examines the card.",
            )

    def _watch(self) -> None:
        """Tell of others on the card, and of a card that holds its clock back, the first time that each is seen."""
        for finding in self._findings():
            if finding.code.value not in self._told:
                self._told.add(finding.code.value)
                self._display.warned(finding)

    def _findings(self) -> Iterator[Finding]:
        yield from of_company([], self._device.neighbours(), None, self._device.facts)
        for finding in of_heat([self._device.sample()]):
            if finding.code is not Code.HOT:  # right after work a card may be warm
                yield replace(finding, severity="warning")


def _end(choice: Choice, *, exhausted: bool) -> str:
    """Why a session should end now; empty if it should not."""
    if not choice.order:
        return "exhausted" if exhausted else "budget"
    now, then = (u.time + u.energy for u in (choice.before, choice.after))
    return "settled" if now - then < LEAST_PROGRESS * now * len(choice.order) else ""
