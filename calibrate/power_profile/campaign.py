"""Taking a profile: time the kernel, learn the sensor, find steady power, take the runs, keep the golden ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from joulecast.calibrate.power_profile.analysis import (
    Analysis,
    analyse,
    curves_of,
    shares_of,
    sse_power,
    ssp_power,
    time_to_steady,
)
from joulecast.calibrate.power_profile.bins import Plan, layout_of, plan_bins, wanted_resolution
from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.guidance import COVERED_S, Guidance, guidance_for
from joulecast.calibrate.power_profile.layout import Layout, even_edges, rest_edges
from joulecast.calibrate.power_profile.outliers import study_outliers
from joulecast.calibrate.power_profile.protocol import Bench, Series
from joulecast.calibrate.power_profile.resolve import PRECISION
from joulecast.calibrate.power_profile.result import MeanPower, PowerProfile
from joulecast.calibrate.power_profile.search import EndPowerMeter
from joulecast.calibrate.power_profile.sensor import SensorFit, find_sensor, known_sensor, refine_sensor
from joulecast.calibrate.power_profile.steady import SteadyPower, find_steady_power, steady_execution
from joulecast.errors import MeasurementError

#: Runs and executions for timing the kernel.
TIMING_RUNS, TIMING_PASSES = 5, 12
#: Runs for learning how a sensor works, and their length in periods of the sensor.
SENSOR_RUNS, SENSOR_SHARE = 60, 0.6
#: Time in which power may fall after a run while the sensor is being learnt, in periods.
FALL_SHARE = 0.03
#: Longest period that the first guess at a sensor covers, and the longest that is followed at all.
USUAL_PERIOD_S, LONGEST_PERIOD_S = 0.1, 2.0
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
        sensors = self._sensors(timing, pass_s)
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
        dataset, analysis = self._main_runs(dataset, plan, guidance, sensors)
        return self._evaluate(device, guidance, steady, plan, dataset, analysis)

    def _sensors(self, timing: Series, pass_s: float) -> dict[str, SensorFit]:
        """How each channel works: as it says itself, or as bursts of work show."""
        if all(channel.fresh for channel in timing.channels):
            known = {channel.name: known_sensor(channel) for channel in timing.channels}
            if all(known.values()):
                return {name: fit for name, fit in known.items() if fit is not None}
        self.say("learning how the sensor works")
        period = USUAL_PERIOD_S
        while True:
            series = self._bursts(period, pass_s)
            found = self._learn(series, period, pass_s)
            longest = max(fit.period_s for fit in found.values())
            if longest <= 1.5 * period or period >= LONGEST_PERIOD_S:
                return found
            period = min(longest, LONGEST_PERIOD_S)

    def _bursts(self, period: float, pass_s: float) -> Series:
        passes = max(round(SENSOR_SHARE * period / pass_s), 2)
        delays = period * (0.3 + self.random.random(SENSOR_RUNS))
        return self.bench.series(passes, delays.tolist())

    def _learn(self, series: Series, period: float, pass_s: float) -> dict[str, SensorFit]:
        clock = fit_clock(series.clock_reads)
        # Few and stiff bins: what a flexible power could explain as well, the window cannot be found from.
        edges = np.array([0.0, 0.2, 0.5, 1.0]) * series.passes * self.kernels
        keep = np.ones(len(series.runs), dtype=bool)
        found = {}
        for channel in series.channels:
            layout = Layout(edges, np.array([]), np.array([0.0, FALL_SHARE * period]), self.kernels)
            fit = known_sensor(channel) or find_sensor(channel, clock, layout, series)
            fit = refine_sensor([channel], fit, [clock], self._fine_layout(series.passes, pass_s, fit), [series], keep)
            self.say(
                f"sensor {fit.name}: a new value every {fit.period_s * 1e3:.2f} ms over {fit.window_s * 1e3:.2f} ms,"
                f" {fit.lag_s * 1e3:.2f} ms late"
            )
            found[channel.name] = fit
        return found

    def _fine_layout(self, passes: int, pass_s: float, fit: SensorFit) -> Layout:
        """Bins of a tenth of the window, of runs of so many passes."""
        width = max(fit.window_s / 10, passes * pass_s / 100)
        edges = even_edges(0.0, passes * self.kernels, width / pass_s * self.kernels)
        return Layout(edges, np.array([]), rest_edges(max(fit.window_s, FALL_SHARE * fit.period_s)), self.kernels)

    def _passes(self, steady: SteadyPower, pass_s: float, finest: float) -> int:
        """Executions of a run: until steady power, and then as many as tell it."""
        tail = max(STEADY_PASSES, math.ceil(max(2.0 * finest, STEADY_S) / pass_s), steady.passes // 2)
        return steady.passes + (tail if steady.settled else 0)

    def _delays(self, runs: int, rest_s: float, period: float) -> list[float]:
        """Random rests, so that the readings fall everywhere in the runs."""
        return [float(rest) for rest in rest_s + period * self.random.random(runs)]

    def _main_runs(
        self, dataset: Dataset, plan: Plan, guidance: Guidance, sensors: dict[str, SensorFit]
    ) -> tuple[Dataset, Analysis]:
        """Runs in batches, until the points are dense enough and the resolution is reached."""
        wanted = self.options.runs or guidance.runs
        whole = [name for name in sensors if name in WHOLE]
        parts = [name for name in sensors if name not in whole]
        period = max(fit.period_s for fit in sensors.values())
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
                return dataset, analyse(dataset, plan, whole, parts) if parts else analysis

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

    def _evaluate(
        self,
        device: str,
        guidance: Guidance,
        steady: SteadyPower,
        plan: Plan,
        dataset: Dataset,
        analysis: Analysis,
    ) -> PowerProfile:
        curves = curves_of(analysis, self.options.precision)
        sse, ssp = sse_power(analysis, curves), ssp_power(analysis, curves)
        shares = shares_of(analysis, curves, self.bench.kernels) if self.kernels > 1 else ()
        components = {
            name: (sse_power(part, curves), ssp_power(part, curves))
            for name, estimate in analysis.components.items()
            for part in [replace(analysis, estimate=estimate)]
        }
        whole = [name for name in dataset.sensors if name in WHOLE]
        pass_s = analysis.pass_s
        profile = PowerProfile(
            kernels=self.bench.kernels,
            device=device,
            guidance=guidance,
            runs=len(dataset.runs),
            golden_runs=int(analysis.keep.sum()),
            passes=plan.passes,
            execution_s=pass_s,
            sse_index=plan.sse,
            ssp_index=plan.ssp,
            sse=sse,
            ssp=ssp,
            energy_j=ssp.power_w * pass_s,
            energy_error_j=ssp.standard_error_w * pass_s,
            time_to_ssp_s=time_to_steady(analysis, curves, ssp) if steady.settled else None,
            settled=steady.settled,
            trials=steady.trials,
            clock=max(dataset.clocks, key=lambda clock: clock.standard_error_s),
            sensors=tuple(dataset.sensors.values()),
            curves=curves,
            points=analysis.points,
            shares=shares,
            components=components,
            outliers=study_outliers(dataset, plan, whole) if self.options.outliers else (),
        )
        return replace(profile, unresolved=unresolved(profile), warnings=doubts(profile))


def _windows(sensors: dict[str, SensorFit]) -> tuple[float, float]:
    """Longest window of all sensors, and shortest of those of the whole card [s]."""
    whole = [fit.window_s for name, fit in sensors.items() if name in WHOLE]
    if not whole:
        raise MeasurementError("no sensor reads the whole card", remedy="Check what the driver reports.")
    return max(fit.window_s for fit in sensors.values()), min(whole)


def unresolved(profile: PowerProfile) -> tuple[str, ...]:
    """What the readings of a profile cannot tell, in words."""
    run = profile.curves["run"]
    told: list[str] = []
    if "ssp" not in profile.curves:
        told.append(
            f"power inside an execution of {duration(profile.execution_s)}:"
            f" the run is resolved to {duration(run.resolution_s)}"
        )
    told.extend(
        f"{part} points of the {name} profile of {len(curve.resolved)}"
        for name, curve in profile.curves.items()
        if (part := int(np.sum(~curve.resolved)))
    )
    if not profile.sse.resolved:
        told.append(_not_alone("the first steady execution", profile.sse, profile.execution_s))
    if not profile.ssp.resolved:
        told.append(_not_alone("an execution of steady power", profile.ssp, profile.execution_s))
    told.extend(f"power of {share.name} apart from its neighbours" for share in profile.shares if share.power is None)
    if not profile.settled:
        told.append(f"steady power: it still moves after {profile.ssp_index} executions")
    elif profile.time_to_ssp_s is None:
        told.append("the time to steady power")
    return tuple(told)


def doubts(profile: PowerProfile) -> tuple[str, ...]:
    """What is doubtful about a measurement, in words."""
    told: list[str] = []
    for sensor in profile.sensors:
        if sensor.misfit > 0.05:
            told.append(f"a plain window leaves {sensor.misfit:.0%} of sensor {sensor.name} unexplained")
        if not sensor.regular:
            told.append(
                f"sensor {sensor.name} moves irregularly; its times are known to {duration(sensor.timing_error_s)}"
            )
    finest = min(float(np.min(curve.width_s)) for curve in profile.curves.values())
    error = profile.clock.standard_error_s + profile.clock.bound_s
    if error > finest:
        told.append(f"the clocks are tied to {error * 1e6:.1f} µs only, wider than a bin of {finest * 1e6:.1f} µs")
    if profile.execution_s < COVERED_S:
        told.append(f"the guidance for runs and points begins at {duration(COVERED_S)}, an execution is shorter")
    if profile.golden_runs < 0.5 * profile.runs:
        told.append(f"only {profile.golden_runs} of {profile.runs} runs have like execution times")
    return tuple(told)


def _not_alone(what: str, mean: MeanPower, execution_s: float) -> str:
    if mean.over_s > 1.01 * execution_s:
        return f"{what} ({duration(execution_s)}) by itself: the power given is the mean over {duration(mean.over_s)}"
    return f"{what}: its power is known to ±{mean.standard_error_w:.1f} W only"


def duration(time_s: float) -> str:
    """A time for people."""
    return f"{time_s * 1e3:.3g} ms" if time_s >= 1e-3 else f"{time_s * 1e6:.3g} µs"
