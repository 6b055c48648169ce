"""From a dataset to a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.power_profile.bins import Plan, layout_of
from joulecast.calibrate.power_profile.dataset import Dataset
from joulecast.calibrate.power_profile.inverse import Estimate
from joulecast.calibrate.power_profile.layout import Layout
from joulecast.calibrate.power_profile.protocol import WHOLE
from joulecast.calibrate.power_profile.resolve import Resolved, resolve
from joulecast.calibrate.power_profile.result import Curve, KernelShare, MeanPower
from joulecast.calibrate.power_profile.steady import EQUAL_POWER
from joulecast.calibrate.power_profile.stitch import Points, stitch
from joulecast.calibrate.power_profile.trend import fit_trend

#: A mean power whose standard error is larger than this share of it is not resolved.
SURE = 0.03
#: Executions whose mean is compared with steady power.
TOGETHER = 3


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Estimates of one dataset.

    Attributes
    ----------
    dataset, plan, layout, keep
        What was estimated; ``keep`` marks the golden runs.
    estimate, components
        Unknown powers of the whole card and of its components.
    start_s, width_s
        Shape (unknowns,): nominal start since the run's (or pass's, or rest's) start, and duration.
    points
        Stitched readings of the whole card.
    """

    dataset: Dataset
    plan: Plan
    layout: Layout
    keep: Bool
    estimate: Estimate
    components: dict[str, Estimate]
    start_s: Array
    width_s: Array
    points: Points

    def with_components(self) -> Analysis:
        """The same with the powers of the card's components."""
        parts = [name for name in self.dataset.sensors if name not in WHOLE]
        found = {name: self.dataset.estimate(self.layout, self.keep, [name]) for name in parts}
        return replace(self, components=found)

    @property
    def pass_s(self) -> float:
        """Execution time of the golden runs [s]."""
        return float(np.mean(self.dataset.execution_s()[self.keep]))

    def steps(self, first: float, last: float) -> Array:
        """Shape (unknowns,): how long each bin of the run lies between two positions counted in kernels [s]."""
        edges = np.clip(self.layout.run_edges, first, last)
        weights = np.zeros(self.layout.size)
        weights[self.layout.run_bins] = np.diff(self.dataset.nominal(edges, self.keep))
        return weights

    def steady_weights(self) -> Array:
        """Shape (unknowns,): duration of each bin of steady power [s]."""
        if not self.plan.folded:
            return self.steps(self.plan.ssp * self.layout.kernels, self.plan.passes * self.layout.kernels)
        weights = np.zeros(self.layout.size)
        weights[self.layout.cycle_bins] = self.width_s[self.layout.cycle_bins]
        return weights


def analyse(dataset: Dataset, plan: Plan) -> Analysis:
    """Estimate all that a dataset tells of the whole card.

    Parameters
    ----------
    dataset
        All series.
    plan
        How to cut them.
    """
    keep = dataset.golden()
    layout = layout_of(plan, dataset.kernel_times(keep))
    estimate = dataset.estimate(layout, keep, dataset.whole)
    run = dataset.nominal(layout.run_edges, keep)
    starts, widths = [run[:-1]], [np.diff(run)]
    if plan.folded:
        first = plan.ssp * layout.kernels
        cycles = [
            dataset.nominal(first + k * layout.kernels + layout.cycle_edges, keep)
            for k in range(plan.passes - plan.ssp)
        ]
        width = np.mean([np.diff(cycle) for cycle in cycles], axis=0)
        starts.append(np.concatenate([[0.0], np.cumsum(width)[:-1]]))
        widths.append(width)
    starts.append(layout.rest_edges_s)
    widths.append(np.append(np.diff(layout.rest_edges_s), np.inf))
    points = stitch(dataset, dataset.whole[0], keep)
    return Analysis(dataset, plan, layout, keep, estimate, {}, np.concatenate(starts), np.concatenate(widths), points)


def curves_of(analysis: Analysis, precision: float) -> dict[str, Curve]:
    """The profile of the run, and, where the sensor can look into them, of one execution of steady time and power."""
    plan, layout = analysis.plan, analysis.layout
    stretches = {"run": layout.run_bins}
    if plan.folded:
        inside = (layout.run_edges[:-1] >= plan.sse * layout.kernels) & (
            layout.run_edges[:-1] < (plan.sse + 1) * layout.kernels
        )
        index = np.flatnonzero(inside)
        stretches["sse"] = slice(int(index[0]), int(index[-1]) + 1)
        stretches["ssp"] = layout.cycle_bins
    return {name: _curve(analysis, name, bins, precision) for name, bins in stretches.items()}


def _curve(analysis: Analysis, name: str, bins: slice, precision: float) -> Curve:
    # Where executions are looked into, the run shows their means: power swings more inside one than between them.
    least = analysis.pass_s if analysis.plan.folded and name == "run" else 0.0
    resolved = resolve(analysis.estimate, bins, analysis.width_s, precision, least)
    components = {
        part: resolve(estimate, bins, analysis.width_s, precision, least).power_w
        for part, estimate in analysis.components.items()
    }
    time, power, weight = _trend_points(analysis, name, resolved)
    trend = fit_trend(time, power, weight, resolved.duration_s)
    return Curve(
        name,
        resolved.centre_s,
        resolved.width_s,
        resolved.power_w,
        resolved.standard_error_w,
        resolved.resolved,
        resolved.resolution_s,
        trend,
        components,
    )


def _trend_points(analysis: Analysis, name: str, resolved: Resolved) -> tuple[Array, Array, Array]:
    """Stitched points inside an execution; of a whole run the estimated powers."""
    if name == "run":
        return resolved.centre_s, resolved.power_w, resolved.width_s / np.maximum(resolved.standard_error_w, 1e-9) ** 2
    plan, kernels, points = analysis.plan, analysis.layout.kernels, analysis.points
    chosen = (
        points.within(plan.sse * kernels, (plan.sse + 1) * kernels)
        if name == "sse"
        else points.within(plan.ssp * kernels, np.inf)
    )
    step = points.step[chosen] % kernels
    edges = np.concatenate([[0.0], np.cumsum(resolved.width_s)])
    places = analysis.layout.cycle_edges
    return np.interp(step, places, edges), points.power_w[chosen], np.ones(len(step))


def mean_power(estimate: Estimate, weights: Array, resolution_s: float, unfold: float = 1.0) -> MeanPower:
    """Mean over the time that the weights stand for.

    Parameters
    ----------
    estimate
        Of the whole card or of a component.
    weights
        Shape (unknowns,): duration of each [s].
    resolution_s
        Of the curve around.
    unfold
        How often the stretch is repeated without a change: a mean over something that goes on is told from what
        stands around it when all of it is longer than the resolution.
    """
    power, error = estimate.mean(weights)
    over = float(weights.sum())
    return MeanPower(power, error, over, error <= SURE * abs(power) and unfold * over >= resolution_s)


def shares_of(analysis: Analysis, curves: dict[str, Curve], names: Sequence[str]) -> tuple[KernelShare, ...]:
    """Power and energy of each kernel of an interleaving, at steady power."""
    durations = analysis.dataset.kernel_times(analysis.keep)
    shares = []
    for index in range(analysis.layout.kernels):
        duration = float(durations[index])
        if analysis.plan.folded:
            weights = np.zeros(analysis.layout.size)
            starts = analysis.layout.cycle_edges[:-1]
            mine = (starts >= index) & (starts < index + 1)
            weights[analysis.layout.cycle_bins] = np.where(mine, analysis.width_s[analysis.layout.cycle_bins], 0.0)
            power = mean_power(analysis.estimate, weights, curves["ssp"].resolution_s)
            duration = power.over_s
            if power.resolved:
                shares.append(KernelShare(names[index], duration, power, power.power_w * duration))
                continue
        shares.append(KernelShare(names[index], duration, None, None))
    return tuple(shares)


def sse_power(analysis: Analysis, curves: dict[str, Curve]) -> MeanPower:
    """Power of the first execution of steady time; where that cannot be told apart, of the shortest time that can."""
    kernels, first = analysis.layout.kernels, analysis.plan.sse
    if analysis.plan.folded:
        resolution = curves["sse"].resolution_s
        return mean_power(analysis.estimate, analysis.steps(first * kernels, (first + 1) * kernels), resolution)
    resolution = curves["run"].resolution_s
    passes = 1.0 if not np.isfinite(resolution) else max(resolution / analysis.pass_s, 1.0)
    last = min(first + passes, analysis.plan.passes)
    mean = mean_power(analysis.estimate, analysis.steps(first * kernels, last * kernels), 0.0)
    return MeanPower(mean.power_w, mean.standard_error_w, mean.over_s, mean.resolved and passes == 1.0)


def ssp_power(analysis: Analysis, curves: dict[str, Curve]) -> MeanPower:
    """Power of an execution once power is steady."""
    repeats = analysis.plan.passes - analysis.plan.ssp if analysis.plan.folded else 1.0
    resolution = curves["ssp" if analysis.plan.folded else "run"].resolution_s
    return mean_power(analysis.estimate, analysis.steady_weights(), resolution, repeats)


def time_to_steady(analysis: Analysis, curves: dict[str, Curve], steady: MeanPower) -> float | None:
    """From the run's start until power stays at its steady value, ``None`` where it does not [s].

    Where the sensor looks into executions, their means are compared; otherwise the points of the run. Both count as
    steady within 2 % or three times their standard error.
    """
    if analysis.plan.folded:
        kernels = analysis.layout.kernels
        # A few executions together, so that the noise of a single one does not count as a change.
        means = [
            analysis.estimate.mean(analysis.steps(k * kernels, (k + TOGETHER) * kernels))
            for k in range(analysis.plan.ssp)
        ]
        power, error = (np.array(column) for column in zip(*means, strict=True))
        begins = analysis.dataset.nominal(np.arange(analysis.plan.ssp + 1.0) * kernels, analysis.keep)
    else:
        curve = curves["run"]
        power, error = curve.power_w, curve.standard_error_w
        begins = np.append(curve.time_s - curve.width_s / 2, np.nan)
    away = np.flatnonzero(np.abs(power - steady.power_w) > np.maximum(EQUAL_POWER * steady.power_w, 3.0 * error))
    moment = float(begins[away[-1] + 1]) if len(away) else 0.0
    return moment if np.isfinite(moment) else None
