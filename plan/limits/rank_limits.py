"""Which pipeline rank gets how many watts: power limits of whole ranks, chosen together.

A board holds the average power of about a second, so that a limit acts on a whole iteration of its rank, not on an
instruction. Ranks that wait for others can be given less power at little cost in time. Plans that differ in limits are
simulated under the board's governor, as ``predict`` does, and compared by time and energy.
:mod:`joulecast.plan.limits.rank_limits_search` finds those that are worth simulating.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulecast.extras import data_frame
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.plan.knobs.time_limit import ROOM, none_within
from joulecast.plan.limits.power_limits import JobPoint, interval_ends, zeus_cost

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.simulator.iteration.site_peaks import LimitCheck

#: Name of the JSON form, with its version.
FORM = "joulecast-rank-limits-1"
#: File of its JSON Schema beside this module.
SCHEMA = "rank_limits.schema.json"
#: Share of its energy that a plan must save against a faster one: simulations scatter by about as much.
LEAST_SAVING = 1e-3


@dataclass(frozen=True, slots=True)
class RankLimits:
    """One plan.

    Attributes
    ----------
    power_limit_w
        Limit of each GPU of every pipeline rank: ``power.power_limit_w`` of a PLAN.toml [W].
    time_s, energy_j
        Of an iteration; energy of all GPUs.
    power_w, clock_mhz
        Mean power and median clock of one GPU of every rank.
    knobs
        What else was chosen, for all ranks together.
    time_ends, energy_ends, power_ends
        Ends of the 90 % intervals as shares of time, energy and power; ``None`` before the forecast is made in full.
    checks
        The power limits of the plan's site, met or not.
    """

    power_limit_w: tuple[float, ...]
    time_s: float
    energy_j: float
    power_w: tuple[float, ...]
    clock_mhz: tuple[float, ...]
    knobs: Knobs = ()
    time_ends: tuple[float, float] | None = field(default=None, compare=False)
    energy_ends: tuple[float, float] | None = field(default=None, compare=False)
    power_ends: tuple[float, float] | None = field(default=None, compare=False)
    checks: tuple[LimitCheck, ...] = field(default=(), compare=False)

    @property
    def kept(self) -> bool:
        """Whether the site's power limits are kept."""
        return all(check.met for check in self.checks)

    @property
    def power_together_w(self) -> float:
        """Mean power of all GPUs [W]."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, eq=False)
class RankLimitFront:
    """Time-energy front over limits of ranks.

    Attributes
    ----------
    points
        Plans that save energy against every faster one that was simulated, fastest first.
    uniform
        Plans with one limit for all ranks, highest limit first.
    gpus_per_rank
        GPUs that share a rank's limit.
    budget_w
        What the limits of all GPUs together may be, ``None`` for anything [W].
    simulated
        Plans that were simulated.
    notes
        What was taken for granted.
    """

    points: tuple[RankLimits, ...]
    uniform: tuple[JobPoint, ...]
    gpus_per_rank: int
    budget_w: float | None
    simulated: int
    notes: tuple[str, ...]

    def together_w(self, point: RankLimits) -> float:
        """Limits of all GPUs together [W]."""
        return self.gpus_per_rank * sum(point.power_limit_w)

    def at(self, time_s: float) -> RankLimits:
        """The plan of least energy within a time.

        Raises
        ------
        InputError
            No plan is so fast.
        """
        fitting = [p for p in self.points if p.time_s <= time_s * ROOM]
        if not fitting:
            raise none_within(time_s, self.points[0].time_s)
        return fitting[-1]

    def best(self, eta: float) -> RankLimits:
        """The plan of least cost at a weight of energy against time, as Zeus counts; of equals the fastest."""
        most_w = self.gpus_per_rank * len(self.points[0].power_limit_w) * max(p.power_limit_w for p in self.uniform)
        return min(self.points, key=lambda p: zeus_cost(p.energy_j, p.time_s, eta, most_w))

    def within(self, time_s: float) -> RankLimitFront:
        """The front without slower plans; raises as :meth:`at` does."""
        last = self.points.index(self.at(time_s))
        return replace(self, points=self.points[: last + 1])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``points`` and, for comparison, ``uniform``."""
        return {
            "form": FORM,
            "of": "an iteration",
            "gpus_per_rank": self.gpus_per_rank,
            "power_budget_w": self.budget_w,
            "points": [self._plain(point) for point in self.points],
            "uniform": [point.to_dict() for point in self.uniform],
            "plans_simulated": self.simulated,
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One line for every rank of every plan, with a column for each knob."""
        return [
            {
                "plan": number,
                "iteration_time_s": point.time_s,
                "iteration_energy_j": point.energy_j,
                "iteration_power_w": point.power_together_w,
                **{f"iteration_{name}": value for name, value in interval_ends(point).items()},
                "stage": stage,
                "power_limit_w": limit,
                "power_w": power,
                "clock_mhz": clock,
                **dict(point.knobs),
            }
            for number, point in enumerate(self.points)
            for stage, (limit, power, clock) in enumerate(
                zip(point.power_limit_w, point.power_w, point.clock_mhz, strict=True)
            )
        ]

    def to_frame(self) -> pd.DataFrame:
        """The same as a table; needs pandas."""
        return data_frame(self.rows())

    def _plain(self, point: RankLimits) -> dict[str, Any]:
        knobs = {"knobs": dict(point.knobs)} if point.knobs else {}
        return {
            "time_s": point.time_s,
            "energy_j": point.energy_j,
            "power_together_w": point.power_together_w,
            **interval_ends(point, "power_together_w"),
            "power_limit_w": list(point.power_limit_w),
            "power_limits_together_w": self.together_w(point),
            "power_w": list(point.power_w),
            "clock_mhz": list(point.clock_mhz),
            **knobs,
        }


def undominated(points: Sequence[RankLimits], least_saving: float = LEAST_SAVING) -> tuple[RankLimits, ...]:
    """Plans that save this share of energy against every faster one, fastest first; of equals the lowest limits."""
    kept: list[RankLimits] = []
    for point in sorted(points, key=lambda p: (p.time_s, p.energy_j, sum(p.power_limit_w))):
        if not kept or point.energy_j < (1.0 - least_saving) * kept[-1].energy_j:
            kept.append(point)
    return tuple(kept)
