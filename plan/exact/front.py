"""A time-energy front: an exact lower bound, and discrete plans along it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array
from joulecast.errors import InputError, counted
from joulecast.extras import data_frame
from joulecast.plan.exact.parametric_flow import TimeCostCurve
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import energy_best
from joulecast.plan.knobs.options import Option
from joulecast.plan.knobs.time_limit import ROOM, none_within

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.plan.exact.plan_ends import PlanInterval


#: Name of the plain form of a front, with its version.
FORM = "joulecast-front-1"
#: Relative distance between a lower bound and a plan's energy that is rounding of sums.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class FrontPoint:
    """One plan.

    Attributes
    ----------
    time_s, energy_j
        Iteration time and energy of all GPUs, with the options' own times and energies.
    lower_bound_j
        Energy below which no plan of this time can be.
    choice
        Index of the option of every instruction, in the flat order of the graph, shape ``(n,)``.
    """

    time_s: float
    energy_j: float
    lower_bound_j: float
    choice: NDArray[np.int32]

    @property
    def power_w(self) -> float:
        """Mean power of all GPUs [W]."""
        return self.energy_j / self.time_s

    @property
    def gap(self) -> float:
        """Relative distance to the lower bound, 0 where it is but rounding."""
        distance = self.energy_j / self.lower_bound_j - 1.0
        return distance if abs(distance) > ROUNDING else 0.0


@dataclass(frozen=True, eq=False)
class Front:
    """Time-energy front of a problem.

    Attributes
    ----------
    problem
        Graph, options and waiting power.
    curve
        The exact least cost at every time.
    plans
        Discrete plans that none beats in time and in energy beyond waiting, fastest first. Those slower than the
        energy-best one pay where the iteration cannot end earlier anyway.
    left_out
        Which plans the site's power limits leave out.
    """

    problem: FrontProblem
    curve: TimeCostCurve
    plans: tuple[FrontPoint, ...]
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ends = " to ".join(
            f"{point.time_s:.4g} s, {point.energy_j:.4g} J" for point in (self.points[0], self.points[-1])
        )
        return f"Front({counted(len(self.points), 'plan')}: {ends})"

    @cached_property
    def points(self) -> tuple[FrontPoint, ...]:
        """Plans that none beats in time and energy, fastest first, the last one with the least energy."""
        return falling(self.plans)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and left out."""
        return (*self.problem.notes, *self.left_out)

    @cached_property
    def intervals(self) -> tuple[PlanInterval, ...]:
        """How sure each of the points is; none where options were measured, not forecast."""
        if self.problem.kernels is None:
            return ()
        from joulecast.plan.exact.front_intervals import plan_intervals

        taken = ([getattr(p, name) for p in self.points] for name in ("time_s", "energy_j"))
        choices = [p.choice for p in self.points]
        return plan_intervals(self.problem, self.problem.kernels, choices, *(np.array(t) for t in taken))

    @cached_property
    def lower_bound(self) -> tuple[Array, Array]:
        """See :func:`lower_bound`."""
        return lower_bound(self.problem, self.curve)

    def bound_j(self, time_s: float) -> float:
        """Least energy of an iteration that takes ``time_s`` or less [J].

        Raises
        ------
        InputError
            No plan is so fast, or it is no time.
        """
        _refuse_no_time(time_s, "time_s")
        time, energy = self.lower_bound
        if time_s < time[0] * (1.0 - ROUNDING):
            raise none_within(time_s, self.plans[0].time_s, "time_s")
        return float(np.interp(time_s, time, energy))

    def at(self, time_s: float, key: str = "time_s") -> FrontPoint:
        """The plan for an iteration that lasts until ``time_s`` whatever this job does: the slowest that fits.

        Parameters
        ----------
        key
            What asked for this time, for errors.

        Raises
        ------
        InputError
            No plan is so fast, or it is no time.
        """
        _refuse_no_time(time_s, key)
        place = bisect_right(self._plan_times, time_s * ROOM) - 1
        if place < 0:
            raise none_within(time_s, self.plans[0].time_s, key)
        return self.plans[place]

    def energy_j(self, point: FrontPoint, time_s: float) -> float:
        """Energy of a plan whose ranks wait until ``time_s`` [J].

        Raises
        ------
        InputError
            The plan takes longer.
        """
        _refuse_no_time(time_s, "time_s")
        if time_s * ROOM < point.time_s:
            remedy = f"The plan takes {point.time_s:.6g} s: give that or more."
            raise InputError(f"no rank waits until {time_s:g} s", key="time_s", remedy=remedy)
        return point.energy_j + self.problem.total_wait_power_w * (time_s - point.time_s)

    def options(self, point: FrontPoint) -> list[list[Option]]:
        """Chosen option of every instruction, by pipeline rank in order of execution."""
        return self.problem.dag.split([self.problem.option(v, c) for v, c in enumerate(point.choice.tolist())])

    def clocks_mhz(self, point: FrontPoint) -> list[list[float | int]]:
        """Clock of every instruction, by pipeline rank in order of execution; whole numbers where they are."""
        return [[_whole(o.clock_mhz) for o in order] for order in self.options(point)]

    def instructions(self) -> list[list[str]]:
        """Kind of every instruction, by pipeline rank in order of execution."""
        return [[i.kind for i in order] for order in self.problem.dag.ranks]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it: bound, points with their plans, kinds of instructions and notes."""
        time, energy = (values.tolist() for values in self.lower_bound)
        return {
            "form": FORM,
            "lower_bound": [{"time_s": t, "energy_j": e} for t, e in zip(time, energy, strict=True)],
            "points": [self._point(*each) for each in zip_longest(self.points, self.intervals)],
            "instructions": self.instructions(),
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """One line for each point: time, energy, lower bound and gap; needs pandas."""
        return data_frame(self.rows())

    def write(self, path: str | Path, form: str | None = None) -> None:
        """Write every plan as ``json``, ``csv`` or ``parquet``, or a folder for Zeus (``zeus-pfo``).

        By default the format is what the file's ending means, JSON where it has none.

        Raises
        ------
        InputError
            An unknown format, a clock that is no whole number of MHz, or a file that cannot be written.
        """
        from joulecast.plan.exact.exports import export_front, format_of

        gpus = self.problem.gpus_per_rank
        export_front(self, path, form or format_of(Path(path)), copies=gpus, gpus_per_rank=gpus)

    def rows(self) -> list[dict[str, float]]:
        """One flat line for each point."""
        return [
            {
                "time_s": p.time_s,
                "energy_j": p.energy_j,
                "power_w": p.power_w,
                "lower_bound_j": p.lower_bound_j,
                "gap": p.gap,
                **_ends(i),
            }
            for p, i in zip_longest(self.points, self.intervals)
        ]

    def _point(self, point: FrontPoint, interval: PlanInterval | None) -> dict[str, Any]:
        chosen = self.options(point)
        entry: dict[str, Any] = {
            "time_s": point.time_s,
            "energy_j": point.energy_j,
            "power_w": point.power_w,
            "lower_bound_j": point.lower_bound_j,
            **_ends(interval),
            "plan": [[_whole(o.clock_mhz) for o in order] for order in chosen],
        }
        if any(o.knobs for order in chosen for o in order):
            entry["knobs"] = [[dict(o.knobs) for o in order] for order in chosen]
        return entry

    @cached_property
    def _plan_times(self) -> list[float]:
        return [plan.time_s for plan in self.plans]


def lower_bound(problem: FrontProblem, curve: TimeCostCurve) -> tuple[Array, Array]:
    """Breakpoints of the continuous front, from the fastest to the energy-best time, shape ``(b,)`` [s], [J].

    The curve counts times of options and latencies that are rounded up. What that adds at most is taken off its times,
    and the waiting in it off its energies, so that no plan of its own time is below.
    """
    last = energy_best(problem, curve)
    time = curve.time_s[last:][::-1] - problem.rounding_s
    return time, curve.cost_j[last:][::-1] + problem.total_wait_power_w * time


def falling(plans: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Of plans from the fastest on, those that take less energy than all before them."""
    least, kept = np.inf, []
    for plan in plans:
        if plan.energy_j < least:
            least = plan.energy_j
            kept.append(plan)
    return tuple(kept)


def _ends(interval: PlanInterval | None) -> dict[str, float]:
    """Ends of a plan's intervals by name; none of what was measured."""
    return {} if interval is None else asdict(interval)


def _refuse_no_time(time_s: object, key: str) -> None:
    """Refuse what is compared with times of plans and is none: NaN is neither below nor above them."""
    if not isinstance(time_s, Real) or isinstance(time_s, bool) or math.isnan(time_s):
        raise InputError(f"{time_s!r} is no time", key=key, remedy="Give a number of seconds.")


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
