"""What a picture of a front shows: plans with their knobs, the bound below them, and the plan that was asked about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.plan.knobs.time_limit import ROOM, none_within
from joulecast.reports.palette import word
from joulecast.reports.saved import number_of

if TYPE_CHECKING:
    from joulecast.plan.exact.front import Front, FrontPoint
    from joulecast.plan.exact.plan_ends import PlanInterval
    from joulecast.plan.knobs.options import Option
    from joulecast.simulator.iteration.result import Iteration

#: Breakpoints of a lower bound beyond which more cannot be seen.
MOST_BREAKPOINTS = 800
#: Room around the plans, as a share of their range.
MARGIN = 0.06
#: What the band around the plans is called.
BAND = "90 % against the fastest"
#: Plans this much slower than the fastest are as good as the fastest to most people.
SLOWER_SHARE = 0.01
WHY_WITHIN = "least energy within the time limit"
WHY_FAST = f"least energy at most {100 * SLOWER_SHARE:g} % slower than the fastest"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One plan: what it takes, the least that its time allows, and its knobs by stage and kind of instruction.

    ``interval`` says how sure it is, where it is a forecast.
    """

    time_s: float
    energy_j: float
    lower_bound_j: float | None
    knobs: tuple[tuple[str, str], ...]
    interval: PlanInterval | None = None


@dataclass(frozen=True, slots=True)
class FrontSeries:
    """A front.

    Attributes
    ----------
    points
        Fastest first, the last with the least energy.
    bound_s, bound_j
        Breakpoints of the lower bound; empty where it is not known.
    chosen
        Index of the plan that is pointed out.
    why
        Why that one.
    forecast
        The plan as it stands, without choosing clocks.
    time_limit_s
        What was asked for.
    """

    points: tuple[PlanPoint, ...]
    bound_s: tuple[float, ...]
    bound_j: tuple[float, ...]
    chosen: int
    why: str
    forecast: Iteration | None = None
    time_limit_s: float | None = None

    @property
    def band_j(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """5 % and 95 % of every plan's energy if the fastest plan's is as forecast; empty without intervals [J]."""
        ends = [p.interval for p in self.points if p.interval is not None]
        first = self.points[0].energy_j
        return tuple(first * e.energy_ratio_p05 for e in ends), tuple(first * e.energy_ratio_p95 for e in ends)


def of_front(front: Front, iteration: Iteration | None = None, time_limit_s: float | None = None) -> FrontSeries:
    """Series of a front.

    Parameters
    ----------
    iteration
        Forecast of the same plan under the board's own control.
    time_limit_s
        What was asked for; the slowest plan within it is pointed out.
    """
    points = front.points
    fastest = points[0].time_s
    if time_limit_s is not None:
        chosen, why = len(points) - 1, WHY_WITHIN
    elif iteration is not None and fastest <= iteration.time_s:
        chosen = max(i for i, p in enumerate(points) if p.time_s <= iteration.time_s)
        why = "least energy without being slower than the plan as it stands"
    else:
        chosen = max(i for i, p in enumerate(points) if p.time_s <= fastest * (1 + SLOWER_SHARE))
        why = WHY_FAST
    bound_s, bound_j = (_thinned(values) for values in front.lower_bound)
    return FrontSeries(
        tuple(
            PlanPoint(p.time_s, p.energy_j, p.lower_bound_j, knobs_of(front, p), interval)
            for p, interval in zip_longest(points, front.intervals)
        ),
        tuple(bound_s.tolist()),
        tuple(bound_j.tolist()),
        chosen,
        why,
        iteration,
        time_limit_s,
    )


def _thinned(values: Array) -> Array:
    """At most about :data:`MOST_BREAKPOINTS` of many, with both ends: a convex curve looks the same with fewer."""
    return values[np.unique(np.linspace(0, len(values) - 1, MOST_BREAKPOINTS).round().astype(np.int64))]


def knobs_of(front: Front, point: FrontPoint) -> tuple[tuple[str, str], ...]:
    """Clocks, and what else was chosen, of every kind of instruction: (name, choice)."""
    problem, found = front.problem, []
    for index, options in enumerate(problem.sets):
        chosen = point.choice[problem.kind == index]
        if len(chosen):
            counts = dict(zip(*(v.tolist() for v in np.unique(chosen, return_counts=True)), strict=True))
            found.append((options.name, _choice({options.options[i]: n for i, n in counts.items()})))
    return tuple(found)


def _choice(counts: Mapping[Option, int]) -> str:
    clocks: dict[float, int] = {}
    others: dict[str, set[str]] = {}
    for option, count in counts.items():
        clocks[option.clock_mhz] = clocks.get(option.clock_mhz, 0) + count
        for name, value in option.knobs:
            if value is not None:
                others.setdefault(name, set()).add(str(value))
    return "; ".join([_range(clocks), *(f"{word(name)} {_listed(values)}" for name, values in others.items())])


def _range(clocks: Mapping[float, int]) -> str:
    """Clocks and how often each stands, in words."""
    low, high = min(clocks), max(clocks)
    mean = sum(c * n for c, n in clocks.items()) / sum(clocks.values())
    return f"{low:g} MHz" if low == high else f"{low:g}–{high:g} MHz, mean {mean:.0f}"


def _listed(values: set[str]) -> str:
    return "/".join(sorted(values, key=lambda v: (len(v), v)))


def of_saved(data: Mapping[str, Any], path: Path, time_limit_s: float | None = None) -> FrontSeries:
    """Series of a front that ``front --json`` printed.

    Parameters
    ----------
    time_limit_s
        What is asked for now; the slowest plan within it is pointed out.

    Raises
    ------
    InputError
        A point has no time or no energy, or no plan is as fast as the limit.
    """
    points = []
    for number, entry in enumerate(data.get("points", ())):
        time, energy = (number_of(entry, key, path, f"points.{number}.") for key in ("time_s", "energy_j"))
        knobs = _saved_knobs(data.get("instructions", ()), entry.get("plan", ()))
        points.append(PlanPoint(time, energy, entry.get("lower_bound_j"), knobs, _interval(entry)))
    if not points:
        raise InputError("has no plans", file=str(path), key="points", remedy="Write the front again.")
    bound = data.get("lower_bound", ())
    fastest = points[0].time_s
    limit, why = (fastest * (1 + SLOWER_SHARE), WHY_FAST) if time_limit_s is None else (time_limit_s, WHY_WITHIN)
    chosen = max((i for i, p in enumerate(points) if p.time_s <= limit * ROOM), default=None)
    if chosen is None:
        raise none_within(limit, fastest)
    times, energies = (tuple(float(b[key]) for b in bound) for key in ("time_s", "energy_j"))
    return FrontSeries(tuple(points), times, energies, chosen, why, time_limit_s=time_limit_s)


def _saved_knobs(
    instructions: Sequence[Sequence[str]], clocks_mhz: Sequence[Sequence[float]]
) -> tuple[tuple[str, str], ...]:
    """Clocks of every kind of instruction, as :func:`knobs_of` has them, from those of each stage in its order."""
    clocks: dict[str, Counter[float]] = {}
    for stage, (kinds, chosen) in enumerate(zip(instructions, clocks_mhz, strict=False)):
        for kind, clock in zip(kinds, chosen, strict=True):
            clocks.setdefault(f"{kind} of stage {stage}", Counter())[float(clock)] += 1
    return tuple((name, _range(counts)) for name, counts in clocks.items())


def _interval(entry: Mapping[str, Any]) -> PlanInterval | None:
    """How sure a saved plan is; ``None`` where it does not say."""
    from joulecast.plan.exact.plan_ends import PlanInterval

    ends = {name: entry[name] for name in PlanInterval.__dataclass_fields__ if entry.get(name) is not None}
    return PlanInterval(**ends) if len(ends) == len(PlanInterval.__dataclass_fields__) else None
