"""Extrinsic bloat: what a pipeline saves while another one, or one of its own ranks, is slower.

Where another data-parallel replica (or anything else that all wait for) makes an iteration last until T', every plan of
this pipeline that ends by then gives the same throughput. Of these the slowest one on the front is the cheapest:
waiting costs P_wait·(T' − T), and the front's plans fall strictly in energy beyond waiting as they get slower. A table
from iteration time to plan is therefore all that a scheduler needs when a straggler appears.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import InputError
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.front import Front, FrontPoint
from joulecast.plan.exact.problem import FrontProblem, make_problem
from joulecast.plan.knobs.options import Option

_SLOW_RANK = re.compile(r"(\d+)=([0-9.]+) ?(MHz)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StragglerRow:
    """The plan for iterations that last until a time.

    Attributes
    ----------
    time_s
        When the slowest ends [s].
    point
        The plan to run.
    energy_j
        Of this plan with waiting until ``time_s`` [J].
    fastest_plan_j
        Of the front's fastest plan with waiting until then: no reaction to the straggler [J].
    fastest_options_j
        Of every instruction at its fastest option with waiting until then: no planning at all [J].
    """

    time_s: float
    point: FrontPoint
    energy_j: float
    fastest_plan_j: float
    fastest_options_j: float

    @property
    def saved_share(self) -> float:
        """Energy saved against every instruction at its fastest option."""
        return 1.0 - self.energy_j / self.fastest_options_j

    @property
    def saved_by_reacting_share(self) -> float:
        """Energy saved against keeping the front's fastest plan."""
        return 1.0 - self.energy_j / self.fastest_plan_j

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; the plan by its own time."""
        return {
            "time_s": self.time_s,
            "plan_time_s": self.point.time_s,
            "energy_j": self.energy_j,
            "fastest_plan_j": self.fastest_plan_j,
            "fastest_options_j": self.fastest_options_j,
            "saved_share": self.saved_share,
            "saved_by_reacting_share": self.saved_by_reacting_share,
        }


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank whose GPUs are throttled.

    Attributes
    ----------
    rank
        Pipeline rank.
    factor
        By how much its instructions take longer, 1 or more. The excess is spent at waiting power: the same work is
        done, only later.
    max_clock_mhz
        Clock above which its GPUs do not go, as under a thermal or power limit; ``None`` for no limit [MHz].
    """

    rank: int
    factor: float = 1.0
    max_clock_mhz: float | None = None


@dataclass(frozen=True, eq=False)
class Throttled:
    """A pipeline with a slow rank, and its replicas without one.

    Attributes
    ----------
    healthy, slowed
        Fronts without and with the slow rank.
    unplanned_s, unplanned_j
        Time and energy where the slow pipeline keeps the healthy front's fastest plan [s], [J].
    own
        The slow pipeline's plan for that very time.
    replica
        The plan of every other replica while it waits for the slow one at its fastest.
    """

    healthy: Front
    slowed: Front
    unplanned_s: float
    unplanned_j: float
    own: StragglerRow
    replica: StragglerRow

    def to_dict(self) -> dict[str, Any]:
        """Times, energies and what planning saves."""
        return {
            "healthy_time_s": self.healthy.plans[0].time_s,
            "slowed_time_s": self.slowed.plans[0].time_s,
            "unplanned_time_s": self.unplanned_s,
            "unplanned_j": self.unplanned_j,
            "own": self.own.to_dict(),
            "own_saved_share": 1.0 - self.own.energy_j / self.unplanned_j,
            "replica": self.replica.to_dict(),
        }


def straggler_table(front: Front, times_s: Sequence[float] | None = None) -> tuple[StragglerRow, ...]:
    """Plan for each iteration time.

    Parameters
    ----------
    front
        Of the pipeline that waits.
    times_s
        Iteration times to look up; by default every time from which on another plan is best [s].

    Raises
    ------
    InputError
        A time that is shorter than the fastest plan's, or not finite.
    """
    if times_s is not None and not np.isfinite(times_s).all():
        raise InputError("a straggler must end", key="--straggler-time", remedy="Give its time in seconds.")
    fastest_s, fastest_j = front.problem.evaluate(np.zeros(front.problem.dag.instructions, dtype=np.int32))
    times = [plan.time_s for plan in front.plans] if times_s is None else times_s
    rows = []
    for time in times:
        point = front.at(float(time), "--straggler-time")
        rows.append(
            StragglerRow(
                time_s=float(time),
                point=point,
                energy_j=front.energy_j(point, float(time)),
                fastest_plan_j=front.energy_j(front.plans[0], float(time)),
                fastest_options_j=fastest_j + front.problem.total_wait_power_w * (float(time) - fastest_s),
            )
        )
    return tuple(rows)


def parse_slow_rank(text: str) -> SlowRank:
    """``R=1.2`` (instructions of rank R take 1.2 times as long) or ``R=1100MHz`` (its clock is held below).

    >>> parse_slow_rank("2=1.2")
    SlowRank(rank=2, factor=1.2, max_clock_mhz=None)
    >>> parse_slow_rank("0=1100MHz").max_clock_mhz
    1100.0
    """
    match = _SLOW_RANK.fullmatch(text.strip())
    try:
        value = float(match[2]) if match else 0.0
    except ValueError:
        value = 0.0
    if match is None or value <= 0:
        raise InputError(
            f"{text!r} is no slow rank",
            key="--slow-rank",
            remedy="Write RANK=FACTOR or RANK=CLOCK MHz, as 2=1.2, 0=1100MHz.",
        )
    rank = int(match[1])
    return SlowRank(rank, max_clock_mhz=value) if match[3] else SlowRank(rank, factor=value)


def slowed_problem(problem: FrontProblem, slow: SlowRank) -> FrontProblem:
    """The problem in which a rank is slower.

    Raises
    ------
    InputError
        No such rank, a factor below 1, or a clock limit below or above all clocks.
    """
    ranks = len(problem.dag.ranks)
    if slow.rank >= ranks:
        raise InputError(f"there is no rank {slow.rank}", key="--slow-rank", remedy=f"Ranks are 0 to {ranks - 1}.")
    if not 1.0 <= slow.factor < np.inf:
        raise InputError(f"a factor of {slow.factor:g}", key="--slow-rank", remedy="Give 1 or more.")
    on_rank = problem.dag.rank_of == slow.rank
    highest = max(o.clock_mhz for shared in np.unique(problem.kind[on_rank]) for o in problem.sets[shared].options)
    if slow.max_clock_mhz is not None and slow.max_clock_mhz > highest:
        raise InputError(
            f"rank {slow.rank} has no clock above {slow.max_clock_mhz:g} MHz",
            key="--slow-rank",
            remedy=f"Its highest is {highest:g} MHz; give a lower one, or a factor.",
        )
    wait = float(problem.wait_power_w[slow.rank])
    options = [list(s.options) for s in problem.sets]
    names = [s.name for s in problem.sets]
    kind, origin = problem.kind.copy(), list(range(len(names)))
    for shared in np.unique(kind[on_rank]).tolist():
        kind[on_rank & (problem.kind == shared)] = len(options)
        options.append(_slowed(options[shared], slow, wait, names[shared]))
        names.append(f"{names[shared]} of the slow rank")
        origin.append(shared)
    used, place = np.unique(kind, return_inverse=True)
    return make_problem(
        problem.dag,
        [options[i] for i in used],
        place.tolist(),
        problem.wait_power_w,
        names=[names[i] for i in used],
        power_limit_w=problem.power_limit_w,
        averaged_s=problem.averaged_s,
        notes=(*problem.notes, f"rank {slow.rank} is slow: {_in_words(slow)}"),
        gpus_per_rank=problem.gpus_per_rank,
        kernels=None if problem.kernels is None else problem.kernels.of_kinds(origin[i] for i in used),
        site=problem.site,
    )


def _in_words(slow: SlowRank) -> str:
    if slow.max_clock_mhz is None:
        return f"its instructions take {slow.factor:g} times as long, the excess at waiting power"
    return f"its clock stays at or below {slow.max_clock_mhz:g} MHz"


def _slowed(options: Sequence[Option], slow: SlowRank, wait_power_w: float, name: str) -> list[Option]:
    limit = slow.max_clock_mhz
    allowed = [o for o in options if limit is None or o.clock_mhz <= limit]
    if not allowed:
        lowest = min(o.clock_mhz for o in options)
        raise InputError(
            f"{name} has no option at or below {limit:g} MHz",
            key="--slow-rank",
            remedy=f"The lowest is {lowest:g} MHz; give a factor instead.",
        )
    extra = slow.factor - 1.0
    return [
        replace(o, time_s=o.time_s * slow.factor, energy_j=o.energy_j + wait_power_w * extra * o.time_s)
        for o in allowed
    ]


def throttled(front: Front, slow: SlowRank, solve: Callable[[FrontProblem], Front] = exact_front) -> Throttled:
    """What a slow rank costs a pipeline and its replicas, and what planning saves of it.

    Parameters
    ----------
    solve
        Finds the slow pipeline's front, in the way in which ``front`` was found.
    """
    healthy = front.problem
    problem = slowed_problem(healthy, slow)
    slowed = solve(problem)
    time, energy = problem.evaluate(_carried(healthy, problem, front.plans[0].choice))
    fastest = slowed.plans[0].time_s
    # Peaks of a slow pipeline are lower: under a limit of the site it may keep plans that a healthy one must leave out.
    (own,) = straggler_table(slowed, [max(time, fastest)])
    (replica,) = straggler_table(front, [max(fastest, front.plans[0].time_s)])
    return Throttled(front, slowed, time, energy, own, replica)


def _carried(before: FrontProblem, after: FrontProblem, choice: NDArray[np.int32]) -> NDArray[np.int32]:
    """A plan's clocks in a problem that lacks some of them: there, the fastest that is left."""
    carried = np.zeros_like(choice)
    for i, chosen in enumerate(choice.tolist()):
        wanted = before.option(i, chosen)
        for place, option in enumerate(after.sets[int(after.kind[i])].options):
            if (option.clock_mhz, option.knobs) == (wanted.clock_mhz, wanted.knobs):
                carried[i] = place
    return carried
