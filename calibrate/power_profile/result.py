"""What a power profile says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.power_profile.clocks import ClockFit
from joulecast.calibrate.power_profile.guidance import Guidance
from joulecast.calibrate.power_profile.sensor import SensorFit
from joulecast.calibrate.power_profile.steady import EndPower
from joulecast.calibrate.power_profile.stitch import Points
from joulecast.calibrate.power_profile.trend import Trend


@dataclass(frozen=True, slots=True)
class MeanPower:
    """A mean power.

    Attributes
    ----------
    power_w, standard_error_w
        Over ``over_s``.
    over_s
        Time that the mean is over.
    resolved
        Whether the readings tell it from what stands around it.
    """

    power_w: float
    standard_error_w: float
    over_s: float
    resolved: bool


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Power over a stretch of time.

    Attributes
    ----------
    name
        ``run``: since the run's start; ``sse``: inside the first execution of steady time; ``ssp``: inside an execution
        of steady power.
    time_s, width_s
        Shape (n,): middle and width of the bins, since the stretch's start.
    power_w, standard_error_w
        Shape (n,).
    resolved
        Shape (n,): false where the readings cannot tell the point from its surroundings.
    resolution_s
        Shortest feature that is told from its surroundings; infinite where none is.
    trend
        Of degree 4, ``None`` where points are too few.
    components_w
        Shape (n,) by component, where the card reports them.
    """

    name: str
    time_s: Array
    width_s: Array
    power_w: Array
    standard_error_w: Array
    resolved: Bool
    resolution_s: float
    trend: Trend | None = None
    components_w: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelShare:
    """One kernel of an interleaving, in steady power.

    Attributes
    ----------
    name
        Of the kernel.
    time_s
        Of one execution.
    power, energy_j
        Of one execution; the energy carries the power's relative error. ``None`` where the readings cannot tell the
        kernel from its neighbours.
    """

    name: str
    time_s: float
    power: MeanPower | None
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class OutlierGroup:
    """Runs outside the golden bin whose execution times are alike.

    Attributes
    ----------
    runs
        How many.
    execution_s
        Their mean execution time.
    power_w, standard_error_w
        In steady power; ``None`` where too few readings fell into them.
    """

    runs: int
    execution_s: float
    power_w: float | None
    standard_error_w: float | None


@dataclass(frozen=True, slots=True, eq=False)
class PowerProfile:
    """A fine-grain power profile of one kernel or of kernels in turn.

    Attributes
    ----------
    kernels
        Of one pass, in order; an execution is one pass.
    device
        What was measured.
    guidance
        Runs, spacing and margin by the kernel's duration.
    runs, golden_runs, passes
        Runs taken, runs kept, executions of each.
    execution_s
        Of the golden runs, once power is steady, or else of the longest runs' later half.
    sse_index, ssp_index
        First execution (from 0) of steady time; executions after which power was steady.
    sse, ssp
        Power of an execution of steady time, and of steady power.
    energy_j, energy_error_j
        Of one execution at steady power, and its standard error.
    time_to_ssp_s
        From the run's start until power stays at its steady value; ``None`` where it was never steady.
    settled, trials
        Outcome of doubling and halving the executions.
    clock
        The worst of the fits of the clocks.
    sensors
        As they work.
    curves
        By name.
    points
        Stitched readings.
    shares
        Of the kernels of an interleaving.
    components
        Power at SSE and SSP by component.
    outliers
        Where they were asked for.
    unresolved
        What the readings cannot tell, in words.
    warnings
        What is doubtful about the measurement.
    """

    kernels: tuple[str, ...]
    device: str
    guidance: Guidance
    runs: int
    golden_runs: int
    passes: int
    execution_s: float
    sse_index: int
    ssp_index: int
    sse: MeanPower
    ssp: MeanPower
    energy_j: float
    energy_error_j: float
    time_to_ssp_s: float | None
    settled: bool
    trials: tuple[EndPower, ...]
    clock: ClockFit
    sensors: tuple[SensorFit, ...]
    curves: dict[str, Curve]
    points: Points
    shares: tuple[KernelShare, ...] = ()
    components: dict[str, tuple[MeanPower, MeanPower]] = field(default_factory=dict)
    outliers: tuple[OutlierGroup, ...] = ()
    unresolved: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """All but the curves and points, as plain data."""
        curves = {
            name: {
                "resolution_s": curve.resolution_s,
                "duration_s": float(np.sum(curve.width_s)),
                "resolved_share": float(np.mean(curve.resolved)),
                "trend_w": None if curve.trend is None else curve.trend.coefficients_w.tolist(),
                "trend_explained": None if curve.trend is None else curve.trend.explained,
            }
            for name, curve in self.curves.items()
        }
        return {
            "kernels": list(self.kernels),
            "device": self.device,
            "execution_s": self.execution_s,
            "sse": {"index": self.sse_index, **asdict(self.sse)},
            "ssp": {"index": self.ssp_index, "settled": self.settled, **asdict(self.ssp)},
            "energy_j": self.energy_j,
            "energy_error_j": self.energy_error_j,
            "time_to_ssp_s": self.time_to_ssp_s,
            "runs": self.runs,
            "golden_runs": self.golden_runs,
            "passes": self.passes,
            "guidance": asdict(self.guidance),
            "curves": curves,
            "shares": [asdict(share) for share in self.shares],
            "components": {name: {"sse": asdict(a), "ssp": asdict(b)} for name, (a, b) in self.components.items()},
            "outliers": [asdict(group) for group in self.outliers],
            "trials": [asdict(trial) for trial in self.trials],
            "clock": asdict(self.clock),
            "sensors": [asdict(sensor) for sensor in self.sensors],
            "unresolved": list(self.unresolved),
            "warnings": list(self.warnings),
        }
