"""From an analysis to the finished profile: its figures, what it cannot resolve, and what is doubtful."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.calibrate.power_profile.analysis import (
    SURE,
    Analysis,
    curves_of,
    shares_of,
    sse_power,
    ssp_power,
    time_to_steady,
)
from joulecast.calibrate.power_profile.guidance import COVERED_S, Guidance
from joulecast.calibrate.power_profile.outliers import study_outliers
from joulecast.calibrate.power_profile.result import Curve, MeanPower, PowerProfile
from joulecast.calibrate.power_profile.steady import EndPower, SteadyPower

#: Sensors of the whole card that differ by more are doubted.
AGREEMENT = 0.05
#: A sensor that a plain window leaves more than this share of unexplained is doubted.
DOUBTED_MISFIT = 0.05


def evaluate(
    analysis: Analysis,
    steady: SteadyPower,
    guidance: Guidance,
    kernels: tuple[str, ...],
    device: str,
    *,
    end: EndPower | None,
    precision: float,
    outliers: bool,
) -> PowerProfile:
    """The profile of an analysis.

    Parameters
    ----------
    analysis, steady, guidance
        What was measured and how.
    kernels, device
        Names.
    end
        Power at the end of longer runs, where those of the analysis do not reach steady power.
    precision
        Wanted standard error of a point, relative.
    outliers
        Whether to study the runs outside the golden bin.
    """
    plan, dataset = analysis.plan, analysis.dataset
    curves = curves_of(analysis, precision)
    execution_s, ssp_index, ssp, moment = _steady_execution(analysis, steady, curves, end)
    parts = {name: replace(analysis, estimate=estimate) for name, estimate in analysis.components.items()}
    profile = PowerProfile(
        kernels=kernels,
        device=device,
        guidance=guidance,
        runs=len(dataset.runs),
        golden_runs=int(analysis.keep.sum()),
        passes=plan.passes,
        execution_s=execution_s,
        sse_index=plan.sse,
        ssp_index=ssp_index,
        sse=sse_power(analysis, curves),
        ssp=ssp,
        energy_j=ssp.power_w * execution_s,
        energy_error_j=ssp.standard_error_w * execution_s,
        time_to_ssp_s=moment,
        settled=steady.settled,
        trials=steady.trials,
        clock=max(dataset.clocks, key=lambda clock: clock.standard_error_s),
        sensors=tuple(dataset.sensors.values()),
        curves=curves,
        points=analysis.points,
        shares=shares_of(analysis, curves, kernels) if len(kernels) > 1 else (),
        components={name: (sse_power(part, curves), ssp_power(part, curves)) for name, part in parts.items()},
        outliers=study_outliers(dataset, plan) if outliers else (),
    )
    told = (*doubts(profile), *_disagreement(analysis))
    return replace(profile, unresolved=unresolved(profile), warnings=told)


def _steady_execution(
    analysis: Analysis, steady: SteadyPower, curves: dict[str, Curve], end: EndPower | None
) -> tuple[float, int, MeanPower, float | None]:
    """Time of an execution [s], executions until power is steady, its power then, and when that is reached [s]."""
    if end is not None:
        known = steady.settled and end.standard_error_w <= SURE * end.power_w
        ssp = MeanPower(end.power_w, end.standard_error_w, end.pass_s * (end.passes // 2), known)
        return end.pass_s, steady.passes, ssp, None
    ssp = ssp_power(analysis, curves)
    moment = time_to_steady(analysis, curves, ssp) if steady.settled else None
    # A board that holds its power slows down on the way there: what counts is how long executions take then.
    executions = 1 if analysis.plan.folded else analysis.plan.passes - analysis.plan.ssp
    return ssp.over_s / executions, analysis.plan.ssp, ssp, moment


def _disagreement(analysis: Analysis) -> tuple[str, ...]:
    """Whether the sensors of the whole card tell different powers."""
    dataset, weights = analysis.dataset, analysis.steady_weights()
    powers = {
        name: dataset.estimate(analysis.layout, analysis.keep, [name]).mean(weights)[0]
        for name in (dataset.whole if len(dataset.whole) > 1 else ())
    }
    if not powers or max(powers.values()) <= (1.0 + AGREEMENT) * min(powers.values()):
        return ()
    told = ", ".join(f"{name} {power:.1f} W" for name, power in powers.items())
    return (f"the card's sensors disagree about steady power: {told}",)


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
        told.append(f"steady power: it is not established within {profile.ssp_index} executions")
    elif profile.time_to_ssp_s is None:
        told.append("the time to steady power")
    return tuple(told)


def doubts(profile: PowerProfile) -> tuple[str, ...]:
    """What is doubtful about a measurement, in words."""
    told: list[str] = []
    for sensor in profile.sensors:
        if sensor.misfit > DOUBTED_MISFIT:
            told.append(f"a plain window leaves {sensor.misfit:.0%} of sensor {sensor.name} unexplained")
        if not sensor.regular:
            told.append(
                f"sensor {sensor.name} moves irregularly, or faster than it is read; its times are known to"
                f" {duration(sensor.timing_error_s)}"
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
