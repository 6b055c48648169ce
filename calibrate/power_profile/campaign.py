"""Taking a profile: time the kernel, learn the sensor, find steady power, take the runs, keep the golden ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.analysis import Analysis, analyse, curves_of
from joulecast.calibrate.power_profile.bins import Plan, layout_of, plan_bins, wanted_resolution
from joulecast.calibrate.power_profile.budget import TimedBench
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.evaluate import duration, evaluate
from joulecast.calibrate.power_profile.guidance import Guidance, guidance_for
from joulecast.calibrate.power_profile.learn import SensorLearner
from joulecast.calibrate.power_profile.protocol import Bench
from joulecast.calibrate.power_profile.resolve import PRECISION
from joulecast.calibrate.power_profile.result import PowerProfile
from joulecast.calibrate.power_profile.search import EndPowerMeter
from joulecast.calibrate.power_profile.steady import SteadyPower, find_steady_power, pass_times, steady_execution
from joulecast.errors import MeasurementError

#: Runs and executions for timing the kernel.
TIMING_RUNS, TIMING_PASSES = 5, 12
#: Runs shorter than this are not trusted to show that power has settled.
TRUSTED_S = 0.05
#: Steady power goes on for at least so long or so many executions.
STEADY_S, STEADY_PASSES = 2e-3, 4
#: A run that ends so near the power limit is held at it: a governor with a window of about a second settles its power,
#: and runs must go on for longer than that window before their end is trusted.
NEAR_LIMIT, SETTLING_S = 0.93, 1.5
#: The search there begins with runs of this part of the longest: three doublings and a smaller step lead up to those.
FROM_SHORTER = 11.3
#: Part of the time left after learning that the search for steady power may take.
SEARCH_SHARE = 0.5
#: Rest besides the sensor's window.
REST_S = 0.01
#: Runs of a batch, and about its time: after each, what was done is told. Fewer runs at the end are not worth a series.
BATCH, BATCH_S, FEWEST_RUNS = 100, 20.0, 10


@dataclass(frozen=True, slots=True)
class Options:
    """How to take a profile.

    Attributes
    ----------
    runs
        Instead of the guidance's number, and no more.
    most_runs
        At most so many times the guidance's number, when points are short.
    precision
        Wanted standard error of a point, relative.
    resolution_s
        Wanted resolution of the run behind an averaging sensor; ``None`` takes a fifth of its window.
    longest_run_s, limited_run_s
        No run is longer; and none of those that look for the steady power of a card that is held at its power limit.
    budget_s
        Time to measure and evaluate; ``None`` takes as long as the wanted precision needs.
    outliers
        Whether to study the runs outside the golden bin.
    seed
        Of the random rests.
    """

    runs: int | None = None
    most_runs: int = 5
    precision: float = PRECISION
    resolution_s: float | None = None
    longest_run_s: float = 0.5
    limited_run_s: float = 2.5
    budget_s: float | None = None
    outliers: bool = False
    seed: int = 0


class Campaign:
    """The measurements of one profile, in their order.

    Parameters
    ----------
    bench
        Launches and logs.
    options
        How.
    say
        Is told what goes on.
    """

    def __init__(self, bench: Bench, options: Options, say: Callable[[str], None]) -> None:
        self.bench, self.options = TimedBench(bench, options.budget_s), options
        self._tell = say
        self.random = np.random.default_rng(options.seed)
        self.kernels = len(bench.kernels)
        self.cut_short: tuple[str, ...] = ()

    def say(self, line: str) -> None:
        """Tell what goes on, and how much time is left."""
        self._tell(f"{line}{self.bench.left}")

    def take(self, device: str) -> PowerProfile:
        """Measure and evaluate.

        Raises
        ------
        MeasurementError
            The kernel is too short, the sensors stand still, or the readings do not follow the runs.
        """
        timing = self.bench.series(TIMING_PASSES, [0.05] * TIMING_RUNS)
        sse = steady_execution(pass_times(timing.runs, self.kernels, TIMING_PASSES))
        kernel_s = Dataset(self.kernels, sse, 0.05, (timing,), (), {}).kernel_times(np.ones(TIMING_RUNS, dtype=bool))
        pass_s = float(np.sum(kernel_s))
        guidance = guidance_for(pass_s)
        self.say(f"an execution takes {pass_s * 1e6:.1f} µs and is steady from the {sse + 1}. on")
        learner = SensorLearner(self.bench, pass_s, self.random, self.say)
        dataset = Dataset(self.kernels, sse, guidance.margin, (), (), learner.learn(timing))
        slowest, finest = _windows(dataset)
        rest_s = REST_S + 1.2 * slowest
        wanted_s = self.options.resolution_s or wanted_resolution(guidance, finest)
        meter = self._end_power_meter(dataset, kernel_s, wanted_s, rest_s)
        steady = self._steady_power(meter, meter.first_length(finest), sse)
        passes, told = self._passes(steady, pass_s, finest)
        plan = plan_bins(pass_s, guidance, finest, wanted_s, sse, steady if told else None, passes, rest_s)
        analysis = self._main_runs(dataset, plan, guidance)
        profile = evaluate(
            analysis,
            steady,
            guidance,
            self.bench.kernels,
            device,
            end=None if told else steady.longest,
            precision=self.options.precision,
            outliers=self.options.outliers,
        )
        return replace(profile, warnings=(*profile.warnings, *learner.left_out, *self.cut_short))

    def _end_power_meter(self, dataset: Dataset, kernel_s: Array, wanted_s: float, rest_s: float) -> EndPowerMeter:
        """What measures power at the end of runs, by the sensors that see the whole card."""
        return EndPowerMeter(
            bench=self.bench,
            dataset=dataset,
            kernel_s=kernel_s,
            wanted_s=wanted_s,
            rest_s=rest_s,
            delays=lambda runs: self._delays(runs, rest_s, dataset.period_s),
            say=self.say,
            until_s=self.bench.spent_s + SEARCH_SHARE * self.bench.left_s,
        )

    def _steady_power(self, meter: EndPowerMeter, start: int, sse: int) -> SteadyPower:
        """Search for steady power, with long runs only where the card is held at its power limit."""
        first, limit_w = meter.measure(start), self.bench.power_limit_w
        most = max(2 * start, math.ceil(self.options.longest_run_s / meter.pass_s))
        enough = math.ceil(TRUSTED_S / meter.pass_s)
        if first is not None and limit_w is not None and first.power_w >= NEAR_LIMIT * limit_w:
            self.say("the card is held at its power limit, whose governor takes about a second")
            most = max(most, math.ceil(self.options.limited_run_s / meter.pass_s))
            enough = math.ceil(SETTLING_S / meter.pass_s)
            longer = max(start, round(most / FROM_SHORTER))
            if longer > start:
                start, first = longer, None
        return find_steady_power(
            lambda passes: first if first and passes == start else meter.measure(passes),
            start,
            max(sse + 1, 2),
            most,
            enough,
        )

    def _passes(self, steady: SteadyPower, pass_s: float, finest: float) -> tuple[int, bool]:
        """Executions of a run: until steady power, and then as many as tell it; and whether so long a run is allowed.

        Where power settles later than that, the runs show the way there, and steady power is that of the search.
        """
        tail = max(STEADY_PASSES, math.ceil(max(2.0 * finest, STEADY_S) / pass_s), steady.passes // 2)
        most = math.ceil(self.options.longest_run_s / pass_s)
        if not steady.settled:
            return min(steady.passes, max(most, steady.trials[0].passes)), False
        told = steady.passes <= most
        return (steady.passes + tail if told else most), told

    def _delays(self, runs: int, rest_s: float, period: float) -> list[float]:
        """Random rests, so that the readings fall everywhere in the runs."""
        return [float(rest) for rest in rest_s + period * self.random.random(runs)]

    def _main_runs(self, dataset: Dataset, plan: Plan, guidance: Guidance) -> Analysis:
        """Runs in batches, until the points are dense enough and the resolution is reached, or time is up."""
        wanted = self.options.runs or guidance.runs
        most = wanted if self.options.runs else self.options.most_runs * wanted
        usual = min(BATCH, max(math.ceil(BATCH_S / _run_s(plan, dataset.period_s)), FEWEST_RUNS))
        taken, ended = 0, False
        while taken < wanted and not ended:
            if taken:
                self.say(f"{taken} of {wanted} runs")
            least = 0 if taken else FEWEST_RUNS
            dataset, further, ended = self._further(dataset, plan, min(usual, wanted - taken), least)
            taken += further
        dataset = dataset.with_refined_sensors(layout_of(plan, dataset.kernel_times(dataset.golden())))
        while True:
            analysis = analyse(dataset, plan)
            short = self._short_of(analysis, guidance)
            missing = f": {short}" if short else ""
            self.say(f"{taken} runs, {int(analysis.keep.sum())} golden{missing}")
            if ended or not short or taken >= most:
                break
            dataset, further, ended = self._further(dataset, plan, usual, 0)
            taken += further
        if ended and (taken < wanted or short):
            self.cut_short = (f"the time ended after {taken} of {wanted} runs{missing}",)
        return analysis.with_components()

    def _further(self, dataset: Dataset, plan: Plan, wanted: int, least: int) -> tuple[Dataset, int, bool]:
        """With further runs, as many as are wanted and the time allows; how many these are, and whether it ended."""
        period = dataset.period_s
        fitting = self.bench.fitting(_run_s(plan, period), self.bench.left_s)
        count = min(wanted, max(fitting, least))
        if count:
            dataset = dataset.with_series(self.bench.series(plan.passes, self._delays(count, plan.rest_s, period)))
        return dataset, count, fitting < wanted + FEWEST_RUNS

    def _short_of(self, analysis: Analysis, guidance: Guidance) -> str:
        """What is still missing, in words; empty if nothing is."""
        plan = analysis.plan
        if plan.folded:
            kernels = analysis.layout.kernels
            points = int(np.sum(analysis.points.within(plan.sse * kernels, (plan.sse + 1) * kernels)))
            needed = math.ceil(plan.pass_s / max(guidance.spacing_s, plan.spacing_s))
            if points < needed:
                return f"{points} of {needed} points in the first steady execution"
        reached = curves_of(analysis, self.options.precision)["sse" if plan.folded else "run"].resolution_s
        wanted = max(plan.wanted_s, 2.0 * plan.spacing_s)
        return f"resolution {duration(reached)} of {duration(wanted)}" if reached > wanted else ""


def _run_s(plan: Plan, period: float) -> float:
    """How long a run takes with its rest, on average."""
    return plan.passes * plan.pass_s + plan.rest_s + period / 2


def _windows(dataset: Dataset) -> tuple[float, float]:
    """Longest window of all sensors, and shortest of those of the whole card [s]."""
    whole = [dataset.sensors[name].window_s for name in dataset.whole]
    if not whole:
        raise MeasurementError("no sensor reads the whole card", remedy="Check what the driver reports.")
    return max(fit.window_s for fit in dataset.sensors.values()), min(whole)
