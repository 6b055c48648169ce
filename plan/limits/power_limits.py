"""One power limit, and one batch size, for a whole job: its time-energy points, their front, and the choice on it.

The cost of a point is that of Zeus (You et al., NSDI'23), with a weight η between 0 and 1:

    cost = η · energy + (1 − η) · P_max · time

P_max is the highest limit of all GPUs together: what the job could draw at most. The best point of every η lies on the
lower convex hull of energy against time, so all weights are answered at once, each with the interval in which it holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.errors import InputError
from joulecast.plan.knobs.pareto import pareto

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.plan.limits.rank_limits import RankLimits
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.iteration.site_peaks import LimitCheck
    from joulecast.simulator.plan_file.plan import Plan


@dataclass(frozen=True, slots=True)
class JobPoint:
    """A job at one power limit and batch size.

    Attributes
    ----------
    power_limit_w
        Of each GPU [W].
    time_s, energy_j
        Time, and energy of all GPUs, of one and the same amount of work in all points that are compared: an iteration,
        an epoch, or training to a target.
    batch_size
        Global batch; ``None`` where there is only one.
    time_ends, energy_ends, power_ends
        Ends of a forecast's 90 % intervals as shares of time, energy and mean power; ``None`` of what was measured.
    checks
        The power limits of the plan's site, met or not.
    """

    power_limit_w: float
    time_s: float
    energy_j: float
    batch_size: int | None = None
    time_ends: tuple[float, float] | None = field(default=None, compare=False)
    energy_ends: tuple[float, float] | None = field(default=None, compare=False)
    power_ends: tuple[float, float] | None = field(default=None, compare=False)
    checks: tuple[LimitCheck, ...] = field(default=(), compare=False)

    @property
    def kept(self) -> bool:
        """Whether the site's power limits are kept."""
        return all(check.met for check in self.checks)

    def cost_j(self, eta: float, max_power_w: float) -> float:
        """Zeus's cost at a weight η of energy against time [J]."""
        return zeus_cost(self.energy_j, self.time_s, eta, max_power_w)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; no batch size, and no intervals, where there are none."""
        head: dict[str, Any] = {} if self.batch_size is None else {"batch_size": self.batch_size}
        limits = {"power_limit_w": self.power_limit_w, "time_s": self.time_s, "energy_j": self.energy_j}
        return head | limits | {"power_w": self.energy_j / self.time_s} | interval_ends(self)


def interval_ends(point: JobPoint | RankLimits, power: str = "power_w") -> dict[str, float]:
    """Ends of a point's 90 % intervals by name [s], [J], [W]; none where there is none.

    ``power`` is what the answer calls the mean power of all GPUs.
    """
    return {
        f"{name}_{end}": share * value
        for name, value, ends in (
            ("time_s", point.time_s, point.time_ends),
            ("energy_j", point.energy_j, point.energy_ends),
            (power, point.energy_j / point.time_s, point.power_ends),
        )
        for end, share in zip(("p05", "p95"), ends or (), strict=False)
    }


def ends_of(iteration: Iteration) -> dict[str, Any]:
    """Ends of a forecast's 90 % intervals as shares of its time, energy and power, as a :class:`JobPoint` has them."""
    time, energy, power = iteration.time_s, iteration.energy_j, iteration.power_w
    return {
        "time_ends": (iteration.time_s_p05 / time, iteration.time_s_p95 / time),
        "energy_ends": (iteration.energy_j_p05 / energy, iteration.energy_j_p95 / energy),
        "power_ends": (iteration.power_w_p05 / power, iteration.power_w_p95 / power),
    }


@dataclass(frozen=True, slots=True)
class WeightedChoice:
    """A point and the weights η for which it is the cheapest, both ends included."""

    point: JobPoint
    eta_from: float
    eta_to: float


def zeus_cost(energy_j: float, time_s: float, eta: float, max_power_w: float) -> float:
    """``η · energy + (1 − η) · P_max · time`` [J].

    >>> zeus_cost(100.0, 2.0, 0.5, 300.0)
    350.0
    """
    if not 0.0 <= eta <= 1.0:
        raise InputError(f"a weight of {eta:g}", key="--eta", remedy="Give a number from 0 (time) to 1 (energy).")
    return eta * energy_j + (1.0 - eta) * max_power_w * time_s


def max_power_w(points: Sequence[JobPoint], gpus: int = 1) -> float:
    """The highest limit of all GPUs together [W]."""
    return gpus * max(_checked(points), key=lambda p: p.power_limit_w).power_limit_w


def limit_front(points: Sequence[JobPoint]) -> tuple[JobPoint, ...]:
    """Points that no other one beats in time and energy, fastest first."""
    known = _checked(points)
    kept = pareto(np.array([p.time_s for p in known]), np.array([p.energy_j for p in known]))
    return tuple(known[place] for place in kept.tolist())


def choose(points: Sequence[JobPoint], eta: float, power_w: float) -> JobPoint:
    """The point of least cost; of equals the fastest.

    Parameters
    ----------
    power_w
        P_max of the cost [W], see :func:`max_power_w`.
    """
    return min(_checked(points), key=lambda p: (p.cost_j(eta, power_w), p.time_s))


def choices_by_weight(points: Sequence[JobPoint], power_w: float) -> tuple[WeightedChoice, ...]:
    """The best point of every weight, from η = 0 (fastest) to η = 1 (least energy).

    Two neighbours of the hull cost the same at ``η = P_max·Δt / (P_max·Δt + ΔE)``.
    """
    corners: list[JobPoint] = []
    borders: list[float] = []
    for point in limit_front(points):
        while corners:
            border = _border(corners[-1], point, power_w)
            if borders and border <= borders[-1]:
                corners.pop()
                borders.pop()
            else:
                borders.append(border)
                break
        corners.append(point)
    ends = [0.0, *borders, 1.0]
    return tuple(WeightedChoice(p, a, b) for p, a, b in zip(corners, ends[:-1], ends[1:], strict=True))


def _border(fast: JobPoint, slow: JobPoint, power_w: float) -> float:
    longer = power_w * (slow.time_s - fast.time_s)
    return longer / (longer + fast.energy_j - slow.energy_j)


def to_target(points: Sequence[JobPoint], epochs: Mapping[int, float]) -> tuple[tuple[JobPoint, ...], tuple[int, ...]]:
    """Time and energy to accuracy from those of an epoch.

    Parameters
    ----------
    points
        Of one epoch; each with a batch size.
    epochs
        Epochs to the target by batch size; infinite or missing where it is never reached.

    Returns
    -------
    points, left_out
        Points to the target, and batch sizes without one.
    """
    reached: list[JobPoint] = []
    left_out: list[int] = []
    for point in points:
        if point.batch_size is None:
            raise InputError("epochs by batch size, but points without one", key="--epochs", remedy="Add batch_size.")
        count = epochs.get(point.batch_size, math.inf)
        if not math.isfinite(count):
            left_out.append(point.batch_size)
        elif count <= 0:
            raise InputError(f"{count:g} epochs at batch size {point.batch_size}", key="--epochs")
        else:
            reached.append(replace(point, time_s=count * point.time_s, energy_j=count * point.energy_j))
    return tuple(reached), tuple(dict.fromkeys(left_out))


def forecast_limits(plan: Plan, limits_w: Sequence[float] | None) -> tuple[JobPoint, ...]:
    """Forecast an iteration of a plan at each power limit.

    Parameters
    ----------
    limits_w
        ``None``: steps of a twentieth of the board's range, both ends included [W].

    Raises
    ------
    InputError
        A limit that the board cannot be set to, or limits of a site beyond whose GPUs nothing is known.
    """
    from joulecast.plan.exact.site_limits import site_limits
    from joulecast.simulator.iteration.forecast import forecast
    from joulecast.simulator.plan_file.gpu import gpu_of

    gpu = gpu_of(plan)
    limits = board_steps_w(gpu, 20) if limits_w is None else list(limits_w)
    check_limits(limits, gpu)
    site_limits(plan, gpu)  # refuses those that nothing can be held to
    points = []
    for limit in limits:
        iteration = forecast(replace(plan, power=replace(plan.power, power_limit_w=limit)), gpu)
        size = plan.workload.global_batch_size
        checks = () if iteration.site is None else iteration.site.limits
        points.append(JobPoint(limit, iteration.time_s, iteration.energy_j, size, **ends_of(iteration), checks=checks))
    return tuple(points)


def board_steps_w(gpu: GpuDescription, steps: int) -> list[float]:
    """So many equal steps of the board's range of limits, both ends included [W]."""
    low, high = gpu.number("min_power_limit_w"), gpu.number("max_power_limit_w")
    return [low + (high - low) * k / steps for k in range(steps + 1)]


def check_limits(limits_w: Sequence[float], gpu: GpuDescription) -> None:
    """Refuse a limit that the board cannot be set to."""
    low, high = gpu.number("min_power_limit_w"), gpu.number("max_power_limit_w")
    for limit in limits_w:
        if not low <= limit <= high:
            raise InputError(f"{limit:g} W", key="--power-limits", remedy=f"The board takes {low:g} to {high:g} W.")


def zeus_power_limits(points: Sequence[JobPoint]) -> str:
    """Measurements in the form that the power limit optimizer of Zeus reads as its profile.

    Raises
    ------
    InputError
        Limits that are no whole watts, or a limit that stands twice.
    """
    limits = [point.power_limit_w for point in _checked(points)]
    odd = [limit for limit in limits if not float(limit).is_integer()]
    if odd:
        raise InputError(f"a limit of {odd[0]:g} W", key="--format", remedy="Zeus takes whole watts.")
    if len(set(limits)) < len(limits):
        raise InputError("two points of one power limit", key="--format", remedy="Choose one batch size first.")
    rows = [{"power_limit": int(p.power_limit_w), "energy": p.energy_j, "time": p.time_s} for p in points]
    return json.dumps({"measurements": rows}, indent=1, allow_nan=False) + "\n"


def _checked(points: Sequence[JobPoint]) -> Sequence[JobPoint]:
    if not points:
        raise InputError("no point to choose from", key="--power-limits", remedy="Give at least one.")
    return points
