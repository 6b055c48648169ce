"""Taking a profile: time the kernel, learn the sensor, find steady power, take the runs, keep the golden ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joulecast.calibrate.power_profile.analysis import Analysis, analyse, curves_of
from joulecast.calibrate.power_profile.bins import Plan, layout_of, plan_bins, wanted_resolution
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.evaluate import duration, evaluate
from joulecast.calibrate.power_profile.guidance import Guidance, guidance_for
from joulecast.calibrate.power_profile.learn import SensorSchool
from joulecast.calibrate.power_profile.protocol import Bench
from joulecast.calibrate.power_profile.resolve import PRECISION
from joulecast.calibrate.power_profile.result import PowerProfile
from joulecast.calibrate.power_profile.search import EndPowerMeter
from joulecast.calibrate.power_profile.sensor import SensorFit
from joulecast.calibrate.power_profile.steady import SteadyPower, find_steady_power, steady_execution
from joulecast.errors import MeasurementError

#: Runs and executions for timing the kernel.
TIMING_RUNS, TIMING_PASSES = 5, 12
#: Runs shorter than this are not trusted to show that power has settled.
TRUSTED_S = 0.05
#: Steady power goes on for at least so long or so many executions.
STEADY_S, STEADY_PASSES = 2e-3, 4
#: Rest besides the sensor's window.
REST_S = 0.01
BATCH = 100
#: Channels of the whole card.
WHOLE = ("power", "energy")


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
    longest_run_s
        No run is longer.
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
        self.bench, self.options, self.say = bench, options, say
        self.random = np.random.default_rng(options.seed)
        self.kernels = len(bench.kernels)

    def take(self, device: str) -> PowerProfile:
        """Measure and evaluate.

        Raises
        ------
        MeasurementError
            The kernel is too short, the sensors stand still, or the readings do not follow the runs.
        """
        timing = self.bench.series(TIMING_PASSES, [0.05] * TIMING_RUNS)
        durations = Dataset(self.kernels, 0, 0.05, (timing,), (), {}).durations(TIMING_PASSES)
        sse = steady_execution(durations)
        kernel_s = Dataset(self.kernels, sse, 0.05, (timing,), (), {}).kernel_times(np.ones(TIMING_RUNS, dtype=bool))
        pass_s = float(np.sum(kernel_s))
        guidance = guidance_for(pass_s)
        self.say(f"an execution takes {pass_s * 1e6:.1f} µs and is steady from the {sse + 1}. on")
        school = SensorSchool(self.bench, pass_s, self.random, self.say)
        sensors = school.learn(timing)
        slowest, finest = _windows(sensors)
        rest_s = REST_S + 1.2 * slowest
        wanted_s = self.options.resolution_s or wanted_resolution(guidance, finest)
        period_s = max(fit.period_s for fit in sensors.values())
        meter = EndPowerMeter(
            bench=self.bench,
            sensors=sensors,
            whole=[name for name in sensors if name in WHOLE],
            kernel_s=kernel_s,
            sse=sse,
            margin=guidance.margin,
            wanted_s=wanted_s,
            rest_s=rest_s,
            period_s=period_s,
            delays=lambda runs: self._delays(runs, rest_s, period_s),
            say=self.say,
        )
        start = meter.first_length(finest)
        most = max(2 * start, math.ceil(self.options.longest_run_s / pass_s))
        steady = find_steady_power(meter.measure, start, max(sse + 1, 2), most, math.ceil(TRUSTED_S / pass_s))
        passes = self._passes(steady, pass_s, finest)
        plan = plan_bins(pass_s, guidance, finest, wanted_s, sse, steady, passes, rest_s)
        dataset = Dataset(self.kernels, sse, guidance.margin, (), (), sensors)
        analysis = self._main_runs(dataset, plan, guidance)
        profile = evaluate(
            analysis,
            steady,
            guidance,
            self.bench.kernels,
            device,
            meter.whole,
            precision=self.options.precision,
            outliers=self.options.outliers,
        )
        return replace(profile, warnings=(*profile.warnings, *school.left_out))

    def _passes(self, steady: SteadyPower, pass_s: float, finest: float) -> int:
        """Executions of a run: until steady power, and then as many as tell it."""
        tail = max(STEADY_PASSES, math.ceil(max(2.0 * finest, STEADY_S) / pass_s), steady.passes // 2)
        return steady.passes + (tail if steady.settled else 0)

    def _delays(self, runs: int, rest_s: float, period: float) -> list[float]:
        """Random rests, so that the readings fall everywhere in the runs."""
        return [float(rest) for rest in rest_s + period * self.random.random(runs)]

    def _main_runs(self, dataset: Dataset, plan: Plan, guidance: Guidance) -> Analysis:
        """Runs in batches, until the points are dense enough and the resolution is reached."""
        wanted = self.options.runs or guidance.runs
        whole = [name for name in dataset.sensors if name in WHOLE]
        parts = [name for name in dataset.sensors if name not in whole]
        period = max(fit.period_s for fit in dataset.sensors.values())
        taken, refined = 0, False
        while True:
            batch = min(BATCH, wanted - taken) if taken < wanted else BATCH
            series = self.bench.series(plan.passes, self._delays(batch, plan.rest_s, period))
            dataset = dataset.with_series(series)
            taken += batch
            if taken < wanted:
                self.say(f"{taken} of {wanted} runs")
                continue
            if not refined:
                dataset = dataset.with_refined_sensors(layout_of(plan, dataset.kernel_times(dataset.golden())))
                refined = True
            analysis = analyse(dataset, plan, whole, ())
            short = self._short_of(analysis, guidance)
            self.say(f"{taken} runs, {int(analysis.keep.sum())} golden{': ' + short if short else ''}")
            if not short or self.options.runs or taken >= self.options.most_runs * wanted:
                return analyse(dataset, plan, whole, parts) if parts else analysis

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


def _windows(sensors: dict[str, SensorFit]) -> tuple[float, float]:
    """Longest window of all sensors, and shortest of those of the whole card [s]."""
    whole = [fit.window_s for name, fit in sensors.items() if name in WHOLE]
    if not whole:
        raise MeasurementError("no sensor reads the whole card", remedy="Check what the driver reports.")
    return max(fit.window_s for fit in sensors.values()), min(whole)
