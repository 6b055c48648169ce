"""What a timeline shows: instructions, communication, waiting, power and limit of one GPU of each pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.reports.palette import word
from joulecast.simulator.events.segments import COMMUNICATION
from joulecast.simulator.instructions.kernel_segments import MARKER

if TYPE_CHECKING:
    from joulecast.plan.exact.front import Front, FrontPoint
    from joulecast.simulator.events.timeline import Timeline
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.traces.kernel_timeline import KernelTimeline


#: Steps of power over all stages: more cannot be told apart, and slow the page.
MOST_POWER_STEPS = 6000
#: Instructions and intervals of communication over all stages, each a mark that the browser draws by itself; and how
#: many intervals there may be beside any number of instructions.
MOST_MARKS, LEAST_INTERVALS = 1000, 300
#: Fields of a lane, and their roles, that share the row of communication; the later are drawn on top.
COMMUNICATION_ROLES = ("communication", "group_waiting")


@dataclass(frozen=True, slots=True)
class Bar:
    """An instruction.

    Attributes
    ----------
    kind, microbatch
        What it does, and for which micro-batch (−1: none).
    start_s, end_s
        When.
    power_w
        Mean power of one GPU meanwhile.
    clock_mhz
        SM clock, where each instruction has its own.
    knobs
        What else was chosen.
    """

    kind: str
    microbatch: int
    start_s: float
    end_s: float
    power_w: float
    clock_mhz: float | None = None
    knobs: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of communication or of waiting in it, and the share of it in which that goes on."""

    start_s: float
    end_s: float
    share: float


@dataclass(frozen=True, eq=False)
class Lane:
    """One GPU of a pipeline stage.

    ``group_waiting`` is when it waits, within collectives, for the slowest of the GPUs that go in step. ``time_s`` are
    the starts of the steps of ``power_w``, and the end of the last one: shapes ``(n + 1,)``, ``(n,)``.
    """

    stage: int
    gpus: int
    bars: tuple[Bar, ...]
    communication: tuple[Interval, ...]
    group_waiting: tuple[Interval, ...]
    time_s: Array
    power_w: Array

    def waits(self, until_s: float) -> Iterator[tuple[float, float]]:
        """Stretches without an instruction [s]."""
        free = 0.0
        for bar in self.bars:
            if bar.start_s > free + 1e-9:
                yield free, bar.start_s
            free = max(free, bar.end_s)
        if until_s > free + 1e-9:
            yield free, until_s


@dataclass(frozen=True, eq=False)
class TimelineSeries:
    """A whole iteration; ``limits_w`` are the power limits of one GPU of each stage, where there are any."""

    time_s: float
    lanes: tuple[Lane, ...]
    limits_w: tuple[float, ...] = ()

    @property
    def highest_w(self) -> float:
        """The most that a GPU draws or may draw [W]."""
        return max([float(lane.power_w.max(initial=0.0)) for lane in self.lanes] + [*self.limits_w])


def of_iteration(iteration: Iteration) -> TimelineSeries:
    """The timeline of a forecast: kernels, at the clocks that the governor chose."""
    timeline = iteration.timeline()
    lanes = tuple(_lane(timeline, rank) for rank in range(len(timeline.timelines)))
    return TimelineSeries(timeline.time_s, lanes, limits_w(iteration))


def limits_w(iteration: Iteration) -> tuple[float, ...]:
    """Power limit of one GPU of each stage, as the plan sets it or else the board; empty where neither is known [W]."""
    plan, board = iteration.plan, iteration.description
    own = None if board is None else board.number("power_limit_w")
    stated = ((own if (limit := plan.power.limit_w(stage)) is None else limit) for stage in range(plan.pp))
    return tuple(limit for limit in stated if limit is not None)


def limit_words(limits_w: Sequence[float]) -> str:
    """One limit, or from which to which they reach.

    >>> limit_words((600.0, 600.0)), limit_words((450.0, 700.0))
    ('limit 600 W', 'limits 450 to 700 W')
    """
    low, high = min(limits_w), max(limits_w)
    return f"limit {high:.0f} W" if low == high else f"limits {low:.0f} to {high:.0f} W"


def of_point(front: Front, point: FrontPoint, limits_w: tuple[float, ...] = ()) -> TimelineSeries:
    """The timeline of one plan of a front: each instruction as early as its inputs allow.

    Parameters
    ----------
    limits_w
        Power limit of one GPU of each stage, to be drawn [W].
    """
    problem = front.problem
    dag, gpus = problem.dag, problem.gpus_per_rank
    chosen = front.options(point)
    starts = dag.split(dag.starts([o.time_s for of in chosen for o in of], dag.latency_s.tolist()))
    lanes = []
    for rank, order in enumerate(dag.ranks):
        bars = []
        for instruction, o, begin in zip(order, chosen[rank], starts[rank], strict=True):
            knobs = ", ".join(f"{word(name)} {value}" for name, value in o.knobs if value is not None)
            power = o.energy_j / o.time_s / gpus
            bars.append(
                Bar(instruction.kind, instruction.microbatch, begin, begin + o.time_s, power, o.clock_mhz, knobs)
            )
        wait = float(problem.wait_power_w[rank]) / gpus
        lanes.append(Lane(rank, gpus, tuple(bars), (), (), *_steps(bars, wait, point.time_s)))
    return TimelineSeries(point.time_s, tuple(lanes), limits_w)


def merged(start_s: Array, end_s: Array, most: int) -> tuple[Interval, ...]:
    """At most about ``most`` stretches of disjoint, ordered intervals: across the shortest gaps they become one."""
    if not len(start_s):
        return ()
    runs = end_s > start_s
    start_s, end_s = start_s[runs], end_s[runs]
    gap = start_s[1:] - end_s[:-1]
    least = 0.0 if len(gap) < most else float(np.partition(gap, len(gap) - most)[len(gap) - most])
    first = np.append(0, np.flatnonzero(gap > least) + 1)
    busy = np.add.reduceat(end_s - start_s, first)
    ends = np.append(end_s[first[1:] - 1], end_s[-1])
    found = zip(start_s[first].tolist(), ends.tolist(), busy.tolist(), strict=True)
    return tuple(Interval(a, b, t / (b - a)) for a, b, t in found if b > a)


def _lane(timeline: KernelTimeline, rank: int) -> Lane:
    kernels, stages = timeline.timelines[rank], len(timeline.timelines)
    start, end = timeline.result.start_ns[rank] * 1e-9, timeline.result.end_ns[rank] * 1e-9
    span = end - start
    own = np.divide(kernels.energy_by_instruction_j(), span, out=np.zeros_like(span), where=span > 0)
    rows = zip(timeline.schedule.ranks[rank], start.tolist(), end.tolist(), own.tolist(), strict=True)
    bars = tuple(Bar(i.kind, i.microbatch, a, b, p + kernels.base_power_w) for i, a, b, p in rows)
    waits = np.array([name == MARKER for name in kernels.names], dtype=bool)[kernels.name]
    most = max(LEAST_INTERVALS // stages, MOST_MARKS // stages - len(bars))
    lagging = _intervals(kernels, waits, most // 2)
    communication = _intervals(kernels, (kernels.stream == COMMUNICATION) & ~waits, most - len(lagging))
    gpus = timeline.plan.tp * timeline.plan.replicas
    return Lane(rank, gpus, bars, communication, lagging, *_power(kernels, MOST_POWER_STEPS // stages))


def _intervals(kernels: Timeline, which: Bool, most: int) -> tuple[Interval, ...]:
    """When some of the kernels run, in at most about ``most`` stretches."""
    order = np.argsort(kernels.start_ns[which], kind="stable")
    begins, ends = (t[which][order].astype(np.float64) * 1e-9 for t in (kernels.start_ns, kernels.end_ns))
    return merged(np.maximum(begins, np.append(0.0, np.maximum.accumulate(ends)[:-1])), ends, most)


def _power(kernels: Timeline, most: int) -> tuple[Array, Array]:
    profile = kernels.profile()
    if len(profile.power_w) <= most:
        return np.asarray(profile.time_ns * 1e-9, dtype=np.float64), profile.power_w
    start, power = profile.resampled(kernels.time_s / most)
    return np.append(start, kernels.time_s), power


def _steps(bars: Sequence[Bar], wait_w: float, until_s: float) -> tuple[Array, Array]:
    """Mean power of each instruction in turn, and of waiting between them."""
    edges, power = [0.0], []
    for bar in bars:
        if bar.start_s > edges[-1]:
            edges.append(bar.start_s)
            power.append(wait_w)
        edges.append(bar.end_s)
        power.append(bar.power_w)
    if until_s > edges[-1]:
        edges.append(until_s)
        power.append(wait_w)
    return np.array(edges), np.array(power)
